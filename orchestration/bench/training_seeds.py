"""Tests whether learning depends on a lucky seed: a small problem with a known answer.

Two hosts send to a third all the time. The link is full whatever the thresholds are, so the best
setting is the one with the shortest queue. A grid search over static settings finds it. Networks
are trained by the protocol's rule, with a small budget that is the same for all tuners: what is
held out are short messages beside long flows, which wait in the queue.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from orchestration.bench.outcome import Figure, Outcome
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.trial import Scalar, TunerSpec
from orchestration.run.backend_factory import backend
from orchestration.training.outcome import read_result
from orchestration.training.protocol import load_protocol
from orchestration.training.request import Episodes, TrainRequest
from orchestration.training.train import train
from traffic.schedule import make_schedule
from tuners.ecn.features import queue_score
from tuners.ecn.templates import acc_templates, graphcc_templates

_TESTBED = """\
kind: single-switch
name: three
description: 3 hosts, one switch
source: none
mtu: 1500B
buffer: 4MB
hosts: 3
host_link: {rate: 25Gbps, delay: 1us}
"""
_SCENARIO = """\
campaign: small
testbed: three.yml
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 2, size: 3MB, period: 2ms, receiver: h1}
duration: 4ms
drain: 1ms
"""
_HELD_OUT = """\
campaign: small-held-out
testbed: three.yml
tuners:
  - {name: static, label: shallow, kmin_bytes: 2KB, kmax_bytes: 16KB, pmax: 1.0}
  - {name: static, label: deep, kmin_bytes: 400KB, kmax_bytes: 800KB, pmax: 0.2}
traffic:
  - {kind: incast, fan_in: 2, size: 4MB, period: 4ms, receiver: h1}
  - {kind: message-mix, load: $load, sizes: [2KB], receiver: h1}
factors:
  load: [0.02, 0.04]
duration: 2ms
drain: 2ms
"""
_ON = "fluid"
_BOTTLENECK = 0  # the queue to h1
_SETTLED = slice(5, 40)
_TEMPLATES = {"acc": acc_templates, "graphcc": graphcc_templates, "pet": acc_templates}
TUNERS = tuple(_TEMPLATES)
SEEDS = range(1, 11)
BAR = 0.6  # of the way from random settings to the best static one
DECISIONS = 18_000  # of queues: a hundred and twenty episodes


@dataclass(frozen=True)
class Trained:
    """The result of one seed: mean D(L) of the bottleneck, and its final thresholds.

    `decisions` are what the training used until its rule ended it.
    """

    seed: int
    score: float
    kmin_bytes: int
    kmax_bytes: int
    decisions: int


@dataclass(frozen=True)
class Answer:
    """Reference results of a tuner's own settings: D(L) with random, best and worst static ones."""

    placebo: float
    best: float
    worst: float

    def share(self, trained: Trained) -> float:
        """Return the network's progress: 0 is random settings, 1 is the best static one."""
        return (trained.score - self.placebo) / (self.best - self.placebo)

    def solved(self, trained: Trained) -> bool:
        """Return whether a network solves the problem."""
        return self.share(trained) >= BAR


class SmallProblem:
    """The problem, with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "three.yml").write_text(_TESTBED)
        (folder / "small.yml").write_text(_SCENARIO)
        (folder / "held-out.yml").write_text(_HELD_OUT)
        self._folder = folder
        self._scenario = str(folder / "small.yml")
        self._backend = backend(_ON)
        self._testbed = load_testbed(str(folder / "three.yml"))
        assert self._testbed.peer_device(self._testbed.queues[_BOTTLENECK]).name == "h1"

    def answer(self, tuner: str) -> Answer:
        """Play random settings of a tuner, and static ones: all its pairs, with extreme pmax."""
        grid = _TEMPLATES[tuner]()
        picked = np.flatnonzero(np.isin(grid.pmax, (grid.pmax.min(), grid.pmax.max())))
        static = []
        for one in picked:
            kmin, kmax = int(grid.kmin_bytes[one]), int(grid.kmax_bytes[one])
            setting: dict[str, Scalar] = {
                "kmin_bytes": kmin,
                "kmax_bytes": kmax,
                "pmax": float(grid.pmax[one]),
            }
            static.append(self._score(self._play(TunerSpec("static", setting))))
        placebo = self._play(load_protocol().placebo(tuner))
        return Answer(self._score(placebo), max(static), min(static))

    def train(self, tuner: str, seed: int) -> Trained:
        """Train with a seed, then play with the resulting network."""
        rule = load_protocol().rule(tuner, str(self._folder / "held-out.yml"), DECISIONS)
        # ACC's idle rule would leave a queue below the lowest kmin as it is, for better or worse
        own: dict[str, Scalar] = {"idle_rule": False} if tuner == "acc" else {}
        request = TrainRequest(
            tuner, self._scenario, _ON, seed=seed, settings=own, params=own, rule=rule
        )
        folder = self._folder / f"{tuner}-{seed}"
        checkpoint = train(request, self._backend, folder, 1, lambda round_, total: None)
        record = self._play(TunerSpec(tuner, {**own, "checkpoint": str(checkpoint)}))
        changes = record.changes[ECN.name]
        last = np.flatnonzero(changes.targets == _BOTTLENECK)[-1]
        kmin, kmax = (int(changes.values[name][last]) for name in ("kmin_bytes", "kmax_bytes"))
        return Trained(seed, self._score(record), kmin, kmax, read_result(folder).decisions)

    def _play(self, tuner: TunerSpec) -> TrialRecord:
        episode = Episodes(TrainRequest("acc", self._scenario, _ON))[0]
        trial = dataclasses.replace(episode, seed=12345, tuner=tuner)
        schedule = make_schedule(trial, self._testbed)
        return self._backend.run(TrialRun(trial, self._testbed, schedule, self._folder))

    @staticmethod
    def _score(record: TrialRecord) -> float:
        """Return how short the bottleneck's queue stays: mean D(L) after settling."""
        length = record.ports.values["qlen_bytes"][_SETTLED, _BOTTLENECK]
        return float(queue_score(length).mean())


def known_answer(tuner: str) -> Answer:
    """Return the reference results of a tuner's settings."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        return SmallProblem(Path(folder)).answer(tuner)


def train_from(tuner: str, seed: int) -> Trained:
    """Train in a temporary folder; called in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        return SmallProblem(Path(folder)).train(tuner, seed)


def train_all(tuner: str, seeds: Iterable[int]) -> list[Trained]:
    """Train with several seeds, one process per CPU."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(train_from, tuner), seeds))


def training_seeds() -> Outcome:
    """How many of ten training seeds end above the placebo and solve a small problem."""
    from tuners.learning.learner import load_torch

    kernels = load_torch().backends.cpu.get_cpu_capability()
    protocol = load_protocol()
    figures, data, answers = [], {}, []
    for tuner in TUNERS:
        answer, rows = known_answer(tuner), train_all(tuner, SEEDS)
        wanted = round(protocol.share_above * len(rows))
        above = sum(row.score > answer.placebo for row in rows)
        solved = sum(answer.solved(row) for row in rows)
        shares = ", ".join(f"{answer.share(row):.2f}" for row in rows)
        for what, count in (("end above the placebo", above), ("solve it", solved)):
            figures.append(
                Figure(
                    f"{tuner}: seeds of {len(rows)} that {what}",
                    f"{count} (shares {shares})" if what == "solve it" else str(count),
                    f"{wanted} or more",
                    count >= wanted,
                )
            )
        answers.append(f"{tuner} {answer.placebo:.2f} to {answer.best:.2f}")
        data[tuner] = [dataclasses.asdict(row) for row in rows]
    return Outcome(
        f"The small problem of the learned tuners from ten training seeds; torch's {kernels} code",
        tuple(figures),
        (
            f"protocol {protocol.version} with a budget of {DECISIONS:,} queue decisions for each",
            "share: of the way from random settings (mean D(L)) to the best static one, both of "
            f"the tuner's own settings ({', '.join(answers)}); {BAR:g} solves it",
            "another machine: ATEN_CPU_CAPABILITY=default, avx2 or avx512 before the command",
        ),
        data,
    )
