"""CatBoost's trees as integers: exact thresholds, a bound on the error, renderings that agree."""

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from collectors.bpf.policy import CONTEXT
from orchestration.bench.policy_agreement import (
    built_in_models,
    count_differing,
    flows,
    run_as_c,
    run_library,
    windows,
)
from orchestration.core.errors import InputError
from orchestration.policies import reference
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import compile_model
from orchestration.policies.render_doca import CONTEXT_BYTES, context_bytes
from orchestration.policies.trees import ONE, Settings
from orchestration.virtual_rack.bluefield.files import SDK
from tests.unit.compiled_policies import (
    RECORDED,
    WINDOW_AT,
    compiled,
    infer,
    model_file,
    present_file,
    recorded,
)
from tests.unit.policy_library import HEADERS, NACK, START, TIMEOUT, TX

RAW = json.loads(RECORDED.read_text())
AGREEMENT = Path(__file__).parents[1] / "doca_stand_in" / "agreement.c"


def floats(data, given):
    """CatBoost's rule in floating point: a leaf's bit is set where a value is above a border."""
    total = np.full(len(given), data["scale_and_bias"][1][0])
    for tree in data["oblivious_trees"]:
        leaf = sum(
            (np.float32(given[:, split["float_feature_index"]] / ONE) > np.float32(split["border"]))
            .astype(int) << bit
            for bit, split in enumerate(tree["splits"])
        )  # fmt: skip
        total += np.array(tree["leaf_values"])[leaf]
    return total


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "mine.so"
    compile_model(RECORDED, "library", path)
    return ctypes.CDLL(str(path))


def test_actions_are_within_the_bound_of_catboosts_own(library):
    model, seen = recorded(), RAW["recorded_predictions"]
    given = np.array(seen["windows"], dtype=np.int32)
    error = np.abs(model.infer(given) / ONE - seen["actions"])
    assert 0 < error.max() <= model.error_bound == 6 / 2 / ONE


@pytest.mark.slow
def test_c_and_python_agree_on_a_million_windows_and_with_floating_point(library, tmp_path):
    model = recorded()
    given = windows(compiled(RECORDED, tmp_path), 1_000_000)
    sums = model.infer(given)
    np.testing.assert_array_equal(infer(library, given), sums)
    assert len(np.unique(sums)) > 500
    part = given[:100_000]
    assert np.abs(sums[:100_000] / ONE - floats(RAW, part)).max() <= model.error_bound


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4), ids=["trees", "mlp", "lstm", "present"])
def test_python_leaves_flows_as_c_does(number, tmp_path):
    models = [*built_in_models(), compiled(present_file(tmp_path / "model.json"), tmp_path)]
    model = models[number]
    for seed in range(1 if model.memory_words else 4):
        given = flows(model, 25_000, seed)
        made = run_as_c(model, given)
        assert count_differing(made, reference.happen(given, model.settings, model.infer)) == 0
        assert 0.5 < (made["own"] != given["own"]).any(axis=1).mean() < 0.95


def changed(tree_number=0, split=None, **values):
    trees = json.loads(json.dumps(RAW["oblivious_trees"]))
    trees[tree_number].update(values)
    if split:
        trees[tree_number]["splits"][0].update(split)
    return {"oblivious_trees": trees}


def about(**settings):
    given = {**json.loads(RAW["model_info"]["closloop"]), **settings}
    return {"model_info": {"closloop": json.dumps(given)}}


def trained_by(loss):
    params = {"loss_function": {"type": loss}}
    return {"model_info": {**RAW["model_info"], "params": params}}


def features(**values):
    first, *others = RAW["features_info"]["float_features"]
    return {"features_info": {"float_features": [{**first, **values}, *others]}}


CATEGORIES = {**RAW["features_info"], "categorical_features": [
    {"feature_id": "colour", "feature_index": 0, "flat_feature_index": 6}
]}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features_info": CATEGORIES}, "categorical features .colour., and a NIC has numbers"),
        (features(has_nans=True, nan_value_treatment="AsFalse"), "decides on missing values of"),
        (changed(split={"split_type": "OneHotFeature"}), "splits by OneHotFeature"),
        (changed(leaf_values=[float("nan")] * 8), "a leaf of tree 0 is nan"),
        (changed(split={"border": float("inf")}), "compares with inf"),
        ({"oblivious_trees": RAW["oblivious_trees"] * 11}, "it has 66 trees, .* at most 64"),
        ({"oblivious_trees": []}, "it has no trees"),
        ({"scale_and_bias": [1, [1.0, 2.0]]}, "several outputs"),
        ({"scale_and_bias": [1e9, [1.0]]}, "more than 32 bits"),
        (about(features=["delta[0]", "queue", "a", "b", "c", "d"]), "does not have: queue"),
        (about(history=2), "does not have: delta.2., action.2."),
        (about(history=20), "looks at 20 observations"),
        (about(least_action=1.1), "both sides of 1"),
        ({"model_info": {}}, "no 'closloop'"),
        ({"model_info": {"closloop": "{"}}, "is no JSON: Expecting"),
        ({"model_info": {"closloop": "[3]"}}, "is no JSON object"),
        ({"model_info": {"closloop": '{"history": 3}'}}, "has no 'least_action'"),
        (about(history="3"), "'history' in .* is no whole number: '3'"),
        (about(target=50), "its target is 50, and must be from 0.001 to 1"),
        (about(features="delta[0]"), "'features' in .* is no list"),
        (about(features=["delta[0]"] * 6), r"two of its features are called delta\[0\]"),
        (about(features=["delta[0]"]), "it has 6 features, and 1 names"),
        (changed(leaf_values=[1.0, 2.0]), "tree 0 has 2 leaves, and its levels ask for 8"),
        (trained_by("Poisson"), "trained by Poisson, .* not yet its prediction"),
        ({"features_info": None}, "no CatBoost model in JSON"),
    ],
)
def test_a_model_that_cannot_be_a_policy_is_refused_and_nothing_is_replaced(
    tmp_path, changes, words
):
    made = tmp_path / "mine.c"
    made.write_text("the former one")
    with pytest.raises(InputError, match=words):
        compile_model(model_file(tmp_path / "model.json", **changes), "c", made)
    assert made.read_text() == "the former one"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.c", "model.json"}


def test_the_same_model_gives_the_same_files_and_another_one_another_hash(tmp_path):
    texts = []
    for number in range(2):
        made = compile_model(RECORDED, "c", tmp_path / str(number) / "mine.c")
        texts.append([path.read_text() for path in made.files])
    assert texts[0] == texts[1]
    other = read_model(model_file(tmp_path / "model.json", scale_and_bias=[1, [1.001]]))
    assert other.hash != recorded().hash
    assert recorded().hash in texts[0][0]
    assert json.loads(texts[0][1])["hash"] == recorded().hash


# ---- DOCA PCC


class Event(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("kind", "subkind", "port", "flags", "timestamp", "probe_sent")
    ]


class Results(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("rate", "ask", "slot")]


class Doca:
    """A flow under an algorithm of DOCA PCC, with the SDK's stand-in around it."""

    TX, CNP, NACK, RTT, PROBE_LEFT = 3, 2, 5, 6, 4
    NOT_READY, OUT_OF_SEQUENCE = 1, 2

    def __init__(self, folder, source=RECORDED):
        compile_model(source, "doca", folder / "mine_doca")
        parts = [*(folder / "mine_doca").rglob("*.c"), SDK / "library.c", AGREEMENT]
        made = folder / "doca.so"
        # the flags of the samples' build
        flags = ["-Werror", "-Wall", "-Wextra", "-ffreestanding", "-Wdouble-promotion", "-O2"]
        where = [f"-I{path}" for path in (SDK, folder / "mine_doca" / "algo", HEADERS)]
        subprocess.run(
            ["gcc", *flags, *where, "-shared", "-fPIC", "-o", made, *parts], check=True
        )  # fmt: skip
        self.library = ctypes.CDLL(str(made))
        disabled = ctypes.c_uint32()
        self.library.doca_pcc_dev_user_init(ctypes.byref(disabled))
        self.disabled = disabled.value
        self.context = (ctypes.c_uint32 * 12)()

    def words(self, name):
        return (ctypes.c_uint32 * 16).in_dll(self.library, name)

    def tell(self, kind, now_ns, probe_sent=0, flags=0, slot=0, subkind=0):
        """Return the rate in 2^-20 of the line, and whether a probe is asked for."""
        event = Event(kind, subkind, 0, flags, now_ns % 2**32, probe_sent % 2**32)
        results, attributes = Results(), ctypes.c_uint32(slot)
        given = (self.context, event, attributes, results)
        self.library.doca_pcc_dev_user_algo(*(ctypes.byref(item) for item in given))
        return results.rate, results.ask


@pytest.fixture
def doca(tmp_path):
    return Doca(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["history", "present"])
def test_docas_algorithm_leaves_a_million_flows_as_the_policy_does(of, tmp_path):
    source = RECORDED if of == "history" else present_file(tmp_path / "model.json")
    model, decided, doca = compiled(source, tmp_path), 0, Doca(tmp_path, source)
    compile_model(source, "library", tmp_path / "mine.so")
    policy = ctypes.CDLL(str(tmp_path / "mine.so"))
    bounds = model.settings.min_action, model.settings.max_action
    for seed in range(10):
        given = flows(model, 100_000, seed)
        given["own"][:, 0] = 0  # it asks for a probe after a decision
        own = given["own"].view(np.int32)
        # a flow remembers actions that it has taken
        actions = own[:, WINDOW_AT + 1 : WINDOW_AT + 2 * model.settings.history : 2]
        np.clip(actions, *bounds, out=actions)
        given["event"][given["event"] == START] = TX
        given["event"][given["event"] == TIMEOUT] = NACK  # the SDK has no event for it
        given["rtt_ns"] %= 2**32  # timestamps have so many bits
        given["now_ns"] += 2**33
        made = run_library(policy, given)
        pointers = (item.ctypes.data_as(ctypes.c_void_p) for item in (given, made))
        found = doca.library.disagreements(*pointers, ctypes.c_uint64(len(given)), bounds[0])
        assert found == 0
        decided += (made["own"] != given["own"]).any(axis=1).sum()
    assert decided > 800_000


@pytest.mark.slow
def test_docas_algorithm_takes_the_decisions_of_the_policy_to_the_bit(doca, library):
    rng = np.random.default_rng(4)
    flow = np.zeros(1, dtype=CONTEXT)
    flow["line_bps"] = 10**11
    flow["parameters"][0, :3] = doca.words("params")[:3]
    flow = run_library(library, flow)  # starts
    assert doca.tell(doca.TX, 5) == (2**20, 1)
    now_ns, rates, share = 2**32 - 10**6, set(), 2**30  # 32 bits of ns begin anew on the way
    losses = 0
    for _ in range(20_000):
        assert doca.tell(doca.TX, now_ns, flags=doca.PROBE_LEFT)[1] == 0
        if lost := rng.random() < 0.01:
            # while the probe is on its way: its answer does not decide another time
            flow["now_ns"], flow["event"] = now_ns + 1, NACK
            flow = run_library(library, flow)
            share = int(flow["own"].view(np.uint32)[0, 2])
            for subkind in (doca.NOT_READY, doca.OUT_OF_SEQUENCE):
                rate, _ = doca.tell(doca.NACK, now_ns + 1, subkind=subkind)
            assert rate == share >> 10
            losses += lost
        # a queue that grows with the rate, so that the rate moves up and down
        queued_ns = share * 30_000 >> 30
        rtt_ns = int((13_000 + queued_ns) * rng.uniform(0.9, 1.5))
        flow["now_ns"], flow["event"], flow["rtt_ns"] = now_ns + rtt_ns, 6, rtt_ns
        flow = run_library(library, flow)
        share = int(flow["own"].view(np.uint32)[0, 2])
        answered = doca.tell(doca.RTT, now_ns + rtt_ns, probe_sent=now_ns)
        assert answered == (share >> 10, 1)
        rates.add(answered[0])
        now_ns += rtt_ns
    assert len(rates) > 1_000
    assert min(rates) >= 64
    # each loss is a decision, and takes that of the probe's answer
    assert list(doca.words("counters")[:5]) == [20_000, 20_000, 20_000, 0, losses]
    assert losses > 100


def test_a_flow_of_docas_without_an_answer_keeps_its_rate_asks_again_and_is_counted(doca):
    doca.tell(doca.TX, 0)
    # the probe that was asked for does not leave: asked for again
    assert [doca.tell(doca.TX, n)[1] for n in range(1, 5)] == [0, 0, 1, 0]
    assert doca.tell(doca.TX, 10, flags=doca.PROBE_LEFT) == (2**20, 0)
    assert doca.tell(doca.CNP, 20) == (2**20, 0)
    assert doca.tell(doca.TX, 300_010) == (2**20, 0)
    assert doca.tell(doca.TX, 300_011) == (2**20, 1)
    assert list(doca.words("counters")[2:4]) == [0, 1]
    # a late answer to a probe that was given up decides nothing
    assert doca.tell(doca.RTT, 400_000, probe_sent=10) == (2**20, 0)
    # a flow of another slot is the library's
    doca.tell(doca.TX, 1, slot=3)
    assert ctypes.c_uint32.in_dll(doca.library, "internal_events").value == 1


def test_docas_parameters_are_bounded_and_named_with_the_models_hash(doca):
    assert list(doca.words("params")[:3]) == [64, 1_500, 13_000]
    assert ctypes.c_uint32.in_dll(doca.library, "slots_enabled").value == 4
    assert doca.disabled == 1 << 4
    values = (ctypes.c_uint32 * 3)(64, 1_500, 9_000)
    store = doca.words("params")
    refused = [
        doca.library.doca_pcc_dev_user_set_algo_params(0, 0, base, count, given, store)
        for base, count, given in (
            (0, 3, values), (1, 2, values), (1, 3, values), (4, 1, values), (0, 1, None),
            (0, 1, (ctypes.c_uint32 * 1)(0)), (0, 1, (ctypes.c_uint32 * 1)(1_001)),
        )
    ]  # fmt: skip
    assert refused == [0, 0, 1, 1, 1, 1, 1]
    metadata = (ctypes.c_uint64 * 3).in_dll(doca.library, "about")
    assert recorded().hash in ctypes.string_at(metadata[2]).decode()


def test_a_history_that_does_not_fit_into_docas_context_is_refused(tmp_path):
    model = recorded()
    assert context_bytes(model) <= CONTEXT_BYTES
    names = [f"{word}[{n}]" for n in range(8) for word in ("delta", "action")]
    path = model_file(tmp_path / "model.json", **about(history=8, features=names[:6]))
    assert read_model(path).settings == Settings(8, 52_429, 78_643)
    with pytest.raises(InputError, match=r"history of 8 a flow needs 53 bytes, .* gives it 48"):
        compile_model(path, "doca", tmp_path / "mine_doca")
