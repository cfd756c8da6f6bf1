"""Checkpoints that cannot be used are refused with the reason, before a trial starts."""

import json

import numpy as np
import pytest

from inventory.files import load_testbed
from tuners import registry
from tuners.ecn import acc, graphcc
from tuners.learning import checkpoint
from tuners.training.acc import AccLearner
from tuners.training.graphcc import GraphccLearner


@pytest.fixture(scope="module")
def testbed():
    return load_testbed("rlcc-7")


@pytest.fixture
def saved(tmp_path, testbed):
    """A checkpoint of an untrained ACC: a function that writes it, with changes."""

    def write(change=None, card=None, name="mine"):
        learner = AccLearner(1, testbed)
        arrays = learner.parameters()
        if change:
            change(arrays)
        about = {"tuner": "acc", "architecture": learner.architecture(), **(card or {})}
        path = tmp_path / f"{name}.safetensors"
        checkpoint.save(path, arrays, about)
        return path

    return write


def refusal(path, testbed=None, tuner="acc") -> str:
    faults = registry.check(tuner, {"checkpoint": str(path)}, testbed)
    return "; ".join(fault.in_one_sentence for fault in faults)


def test_a_good_one_is_taken(saved, testbed):
    assert refusal(saved(), testbed) == ""


def test_unknown_name():
    assert "no checkpoint 'nonesuch'" in refusal("nonesuch")


def test_truncated(saved):
    path = saved()
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated or no safetensors file" in refusal(path)


def test_foreign_file(saved):
    path = saved()
    path.write_bytes(b"\x80\x04pickle" * 50)
    assert "truncated or no safetensors file" in refusal(path)


def test_card_missing(saved):
    path = saved()
    path.with_suffix(".json").unlink()
    assert "has no card mine.json" in refusal(path)


def test_another_tuner(saved):
    assert "trained for tuner 'acc', not 'graphcc'" in refusal(saved(), tuner="graphcc")


def test_another_architecture(saved):
    other = {**acc.architecture(), "history": 5}
    assert "history 5 instead of 3" in refusal(saved(card={"architecture": other}))


def test_arrays_that_do_not_fit_the_card(saved):
    def cut(arrays):
        arrays["q.1.weight"] = arrays["q.1.weight"][:, :5]

    assert "array 'q.1.weight' has shape (1, 5, 32)" in refusal(saved(cut))


def test_nan_is_never_written_and_never_read(saved, tmp_path):
    def spoil(arrays):
        arrays["q.0.bias"][0, 0, 0] = np.nan

    with pytest.raises(ValueError, match="NaN"):
        saved(spoil)
    from safetensors.numpy import load_file, save_file

    path = saved()
    arrays = load_file(path)
    spoil(arrays)
    save_file(arrays, path)
    assert "holds NaN" in refusal(path)


def test_networks_of_other_switches(saved):
    testbed = load_testbed("graphcc")

    def six(arrays):
        for name in list(arrays):
            arrays[name] = np.repeat(arrays[name], 6, axis=0)

    own = saved(six, {"switches": list(testbed.switches)}, "own")
    assert refusal(own, testbed) == ""
    assert "not those of testbed 'rlcc-7'" in refusal(own, load_testbed("rlcc-7"))


def test_a_format_of_the_future(saved):
    path = saved()
    card = path.with_suffix(".json")
    card.write_text(json.dumps({**json.loads(card.read_text()), "format": 99}))
    assert "no card of format 1" in refusal(path)


def test_every_shipped_network_loads_by_name_and_its_card_says_what_it_is():
    names = [name for name in checkpoint.pretrained() if not name.startswith("rl-cc")]
    assert len(names) == 55
    for name in names:
        card = checkpoint.load(name).card
        assert card["protocol"] == 2, name
        for key in ("architecture", "scenario", "request", "seeds", "versions", "episodes"):
            assert card[key], (name, key)
        for key in ("decisions", "rule", "curve", "held_out_curve", "judged"):
            assert card[key], (name, key)
        assert registry.check(card["tuner"], {"checkpoint": name}) == (), name


def test_one_network_of_graphcc_runs_on_any_fabric(tmp_path, testbed):
    learner = GraphccLearner(1, testbed)
    path = tmp_path / "g.safetensors"
    card = {"tuner": "graphcc", "architecture": learner.architecture()}
    checkpoint.save(path, learner.parameters(), card)
    for name in ("rlcc-7", "graphcc", "drlet-k4"):
        fabric = load_testbed(name)
        tuner = graphcc.Graphcc(str(path))
        assert len(tuner.reset(fabric, 1).action[0].targets) == len(fabric.queues)
