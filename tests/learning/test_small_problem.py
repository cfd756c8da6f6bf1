"""Each algorithm learns a small problem whose best answer is known, on the fluid backend.

Two hosts send to a third all the time. The link is full whatever the thresholds are, so that the
best setting is the one with the shortest queue: what a grid search over static settings finds.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration import wiring
from orchestration.model.records import TrialRecord
from orchestration.model.trial import TunerSpec
from orchestration.training.request import Episodes, TrainRequest
from orchestration.training.train import train
from traffic.schedule import make_schedule
from tuners.ecn.rewards import queue_score
from tuners.ecn.templates import graphcc_templates

TESTBED = """\
kind: single-switch
name: three
description: 3 hosts, one switch
source: none
mtu: 1500B
buffer: 4MB
hosts: 3
host_link: {rate: 25Gbps, delay: 1us}
"""
SCENARIO = """\
campaign: small
testbed: three.yml
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 2, size: 3MB, period: 2ms, receiver: h1}
duration: 4ms
drain: 1ms
"""
BOTTLENECK = 0  # the queue to h1


class Problem:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "three.yml").write_text(TESTBED)
        (folder / "small.yml").write_text(SCENARIO)
        self.scenario = str(folder / "small.yml")
        self.backend = wiring.backend("fluid")
        self.testbed = load_testbed(str(folder / "three.yml"))
        assert self.testbed.peer_device(self.testbed.queues[BOTTLENECK]).name == "h1"

    def play(self, tuner: TunerSpec) -> TrialRecord:
        episode = Episodes(TrainRequest("acc", self.scenario, "fluid"))[0]
        trial = dataclasses.replace(episode, seed=12345, tuner=tuner)
        schedule = make_schedule(trial, self.testbed)
        return self.backend.run(trial, self.testbed, schedule, self.folder, lambda now, end: None)

    def score(self, tuner: TunerSpec) -> float:
        """How short the bottleneck's queue is kept: mean D(L) once things have settled."""
        return float(queue_score(self.play(tuner).ports.qlen_bytes[5:40, BOTTLENECK]).mean())


@pytest.fixture(scope="module")
def problem(tmp_path_factory) -> Problem:
    return Problem(tmp_path_factory.mktemp("problem"))


def static(kmin: int, kmax: int, pmax: float) -> TunerSpec:
    return TunerSpec("static", {"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": pmax})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuner", "episodes", "settings"),
    [
        ("acc", 24, {"explore_decay": 300.0, "updates_per_decision": 4.0}),
        ("graphcc", 24, {"explore_decay": 300.0, "updates_per_decision": 4.0}),
    ],
)
def test_q_learners_find_a_setting_near_the_best(problem, tuner, episodes, settings):
    templates = graphcc_templates()
    grid = [
        problem.score(static(int(kmin), int(kmax), float(pmax)))
        for kmin, kmax, pmax in zip(
            templates.kmin_bytes[::3], templates.kmax_bytes[::3], templates.pmax[::3], strict=True
        )
    ]
    request = TrainRequest(tuner, problem.scenario, "fluid", episodes=episodes, settings=settings)
    checkpoint = train(
        request, problem.backend, problem.folder / tuner, 2, lambda round_, all_: None
    )
    placebo, best, worst = problem.score(TunerSpec("random", {})), max(grid), min(grid)
    params = {"checkpoint": str(checkpoint)}
    if tuner == "acc":
        params["idle_rule"] = False  # a queue below its kmin would be left as it is
    learned = problem.score(TunerSpec(tuner, params))
    assert worst < placebo < best
    assert learned > placebo + 0.6 * (best - placebo)


@pytest.mark.slow
def test_pet_finds_its_lowest_thresholds(problem):
    request = TrainRequest("pet", problem.scenario, "fluid", episodes=100)
    checkpoint = train(
        request, problem.backend, problem.folder / "pet", 2, lambda round_, all_: None
    )
    record = problem.play(TunerSpec("pet", {"checkpoint": str(checkpoint)}))
    last = np.flatnonzero(record.actions.queue == BOTTLENECK)[-1]
    # E(0) and E(1) with alpha = 20
    assert record.actions.kmin_bytes[last] == 20_000
    assert record.actions.kmax_bytes[last] == 40_000
