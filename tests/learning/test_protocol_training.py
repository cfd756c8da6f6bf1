"""Training by the protocol, on the fluid backend: what stops it, what is kept, what repeats."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from orchestration.core.errors import InputError
from orchestration.core.trial import TunerSpec
from orchestration.run import backend_factory
from orchestration.training import evaluation as judging
from orchestration.training.outcome import read_result
from orchestration.training.protocol import Rule
from orchestration.training.request import TrainRequest, with_exploration
from orchestration.training.seeds import Listener, train_seeds
from orchestration.training.train import train
from tuners.learning.checkpoint import load

SCENARIO = """\
campaign: small
testbed: rlcc-7
backend: fluid
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 3, size: 1MB, period: 2ms}
duration: 3ms
drain: 0ms
"""
HELD_OUT = """\
campaign: small-held-out
testbed: rlcc-7
backend: fluid
tuners:
  - {name: static, label: shallow, kmin_bytes: 2KB, kmax_bytes: 16KB, pmax: 1.0}
  - {name: static, label: deep, kmin_bytes: 400KB, kmax_bytes: 800KB, pmax: 0.2}
traffic:
  - {kind: poisson, workload: FB_Hadoop, load: $load}
factors:
  load: [0.4, 0.8]
duration: 1ms
drain: 1ms
"""
BUDGET = 1_200  # queue decisions: about three rounds of two episodes of 30 readings of 7 queues


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "small.yml").write_text(SCENARIO)
    (tmp_path / "held-out.yml").write_text(HELD_OUT)
    placebo = TunerSpec("random", {"of": "acc"})
    rule = Rule(2, BUDGET, 0.2, 3, 9, 2, 2, str(tmp_path / "held-out.yml"), placebo)
    return TrainRequest("acc", str(tmp_path / "small.yml"), rule=rule)


def run(request, folder, **more):
    return train(
        request, backend_factory.backend("fluid"), folder, 2, lambda done, total: None, **more
    )


def changed(request, **rule):
    return dataclasses.replace(request, rule=dataclasses.replace(request.rule, **rule))


@pytest.mark.slow
def test_the_budget_ends_a_training_and_the_best_network_is_kept(request_, tmp_path):
    folder = tmp_path / "one"
    card = load(str(run(request_, folder))).card
    found = read_result(folder)
    assert found.stopped == "budget"
    assert BUDGET <= found.decisions == card["decisions"] < 2 * BUDGET
    curve = card["held_out_curve"]
    assert len(curve) == 3
    assert card["kept_at"] == min(curve, key=lambda row: row[1])[0] == found.kept_at
    assert found.best_static == "shallow"
    assert card["judged"]["over_placebo"]["mean"] == found.over_placebo.mean
    assert (card["protocol"], card["held_out"]) == (2, HELD_OUT)
    assert "1,200 queue decisions at most" in card["rule"]
    assert len((folder / "held-out.csv").read_text().splitlines()) == 1 + 3


@pytest.mark.slow
def test_a_kept_network_is_an_earlier_one_if_that_was_better(request_, tmp_path, monkeypatch):
    """With figures that only rise, the first network is kept, and patience ends the training."""
    real = judging.Evaluator.evaluate
    monkeypatch.setattr(
        judging.Evaluator,
        "evaluate",
        lambda *args: dataclasses.replace(real(*args), log_slowdown=float(args[2])),
    )
    kept = run(changed(request_, patience=1), tmp_path / "one")
    found = read_result(tmp_path / "one")
    assert found.stopped == "patience"
    assert found.kept_at < found.decisions < BUDGET
    latest = (tmp_path / "one/latest.safetensors").read_bytes()
    assert kept.read_bytes() != latest


@pytest.mark.slow
def test_the_same_request_gives_the_same_network_resumed_or_not(request_, tmp_path):
    whole = run(request_, tmp_path / "whole")

    class EnoughError(Exception):
        pass

    def stop(done, total):
        raise EnoughError

    for _ in range(2):  # each time it plays one round more, and is stopped
        with pytest.raises(EnoughError):
            train(request_, backend_factory.backend("fluid"), tmp_path / "parts", 1, stop)
    parts = run(request_, tmp_path / "parts")
    assert whole.read_bytes() == parts.read_bytes()
    one, other = (read_result(tmp_path / name) for name in ("whole", "parts"))
    assert dataclasses.replace(one, wall_s=0) == dataclasses.replace(other, wall_s=0)


@pytest.mark.slow
def test_what_is_finished_is_not_trained_again_and_another_rule_is_another_training(
    request_, tmp_path
):
    folder = tmp_path / "one"
    before = run(request_, folder).stat().st_mtime_ns
    assert run(request_, folder).stat().st_mtime_ns == before
    for other in (changed(request_, patience=3), changed(request_, judging_seeds=3)):
        with pytest.raises(InputError, match="another request"):
            run(other, folder)


@pytest.mark.slow
def test_seeds_side_by_side_are_as_alone_and_share_the_references(request_, tmp_path):
    heard: list[str] = []
    requests = {f"acc-{seed}": dataclasses.replace(request_, seed=seed) for seed in (1, 2)}
    listener = Listener(lambda name, done, total: heard.append(name), lambda name, text: None)
    found = train_seeds(requests, tmp_path / "both", 2, listener)
    assert set(heard) == set(found) == {"acc-1", "acc-2"}
    alone = run(requests["acc-2"], tmp_path / "alone")
    both = tmp_path / "both/acc-2/checkpoint.safetensors"
    assert both.read_bytes() == alone.read_bytes()
    shared = json.loads((tmp_path / "both/references.json").read_text())
    assert shared == json.loads((tmp_path / "alone/references.json").read_text())
    assert len(shared) == 3  # the placebo and two settings


@pytest.mark.slow
def test_a_seed_that_fails_leaves_the_others(request_, tmp_path):
    (tmp_path / "both/acc-1").mkdir(parents=True)
    (tmp_path / "both/acc-1/training.json").write_text('{"digest": "another"}')
    requests = {f"acc-{seed}": dataclasses.replace(request_, seed=seed) for seed in (1, 2)}
    listener = Listener(lambda name, done, total: None, lambda name, text: None)
    with pytest.raises(Exception, match=r"acc-1: .*another request"):
        train_seeds(requests, tmp_path / "both", 2, listener)
    assert read_result(tmp_path / "both/acc-2").stopped == "budget"


@pytest.mark.slow
def test_ctrl_c_saves_every_seed_and_the_same_command_goes_on(request_, tmp_path):
    command = [
        *(sys.executable, "-c", "from orchestration.cli.main import main; main()", "train", "acc"),
        *("--scenario", request_.scenario, "--held-out", request_.rule.held_out),
        *("--decisions", "1200", "--seeds", "1-2", "--jobs", "2", "--json"),
    ]
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    process = subprocess.Popen([*command, "--out", str(parts)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if ": decision " in line:
            break
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    outputs = [
        json.loads(subprocess.run([*command, "--out", str(folder)], stdout=-1, check=True).stdout)
        for folder in (parts, whole)
    ]
    assert outputs[0]["seeds"] == 2
    for name in ("acc-dctcp-1", "acc-dctcp-2"):
        files = [folder / name / "checkpoint.safetensors" for folder in (parts, whole)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_exploration_follows_the_budget_unless_it_is_given():
    assert with_exploration("acc", {}, 50.0) == {"explore_decay": 50.0}
    assert with_exploration("acc", {"explore_decay": 9.0}, 50.0) == {"explore_decay": 9.0}
    assert with_exploration("pet", {}, 50.0) == {}
