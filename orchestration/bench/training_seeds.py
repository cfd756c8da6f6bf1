"""Tests whether learning depends on a lucky seed, by a small problem with a known solution.

Two hosts send to a third all the time. The link is full whatever the thresholds are, so the best
setting is the one with the shortest queue. A grid search over static settings finds it. Networks
are trained by the protocol's rule, with a small budget that is the same for all tuners. The
held-out scenario, on which checkpoints are chosen, has short messages beside long flows; these wait
in the queue.
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
_BACKEND = "fluid"
_BOTTLENECK = 0  # the queue to h1
_SETTLED = slice(5, 40)
_TEMPLATES = {"acc": acc_templates, "graphcc": graphcc_templates, "pet": acc_templates}
TUNERS = tuple(_TEMPLATES)
SEEDS = range(1, 11)
# A network solves the problem if it gains this share of the difference between random settings and
# the best static one.
MIN_SHARE = 0.6
DECISIONS = 18_000  # queue decisions of a training: 120 episodes


@dataclass(frozen=True)
class Trained:
    """The result of one training seed.

    `score` is the mean D(L) of the bottleneck queue, which is high for short queues (see
    `tuners.ecn.features.queue_score`). The thresholds are the bottleneck's last ones. `decisions`
    is the number of decisions that the training used until its rule ended it.
    """

    seed: int
    score: float
    kmin_bytes: int
    kmax_bytes: int
    decisions: int


@dataclass(frozen=True)
class ReferenceScores:
    """Mean D(L) with a tuner's own settings: random ones, the best and the worst static one."""

    placebo: float
    best: float
    worst: float

    def share(self, trained: Trained) -> float:
        """Return how good a network is: 0 is like random settings, 1 like the best static one."""
        return (trained.score - self.placebo) / (self.best - self.placebo)

    def solved(self, trained: Trained) -> bool:
        """Return whether a network solves the problem."""
        return self.share(trained) >= MIN_SHARE


class SmallProblem:
    """The small problem, with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "three.yml").write_text(_TESTBED)
        (folder / "small.yml").write_text(_SCENARIO)
        (folder / "held-out.yml").write_text(_HELD_OUT)
        self._folder = folder
        self._scenario = str(folder / "small.yml")
        self._backend = backend(_BACKEND)
        self._testbed = load_testbed(str(folder / "three.yml"))
        assert self._testbed.peer_device(self._testbed.queues[_BOTTLENECK]).name == "h1"

    def references(self, tuner: str) -> ReferenceScores:
        """Return the scores with random settings of a tuner, and with its static ones.

        The static ones are all pairs of thresholds, each with the lowest and the highest pmax.
        """
        templates = _TEMPLATES[tuner]()
        picked = np.flatnonzero(
            np.isin(templates.pmax, (templates.pmax.min(), templates.pmax.max()))
        )
        static = []
        for index in picked:
            kmin, kmax = int(templates.kmin_bytes[index]), int(templates.kmax_bytes[index])
            setting: dict[str, Scalar] = {
                "kmin_bytes": kmin,
                "kmax_bytes": kmax,
                "pmax": float(templates.pmax[index]),
            }
            static.append(self._score(self._play(TunerSpec("static", setting))))
        placebo = self._play(load_protocol().placebo(tuner))
        return ReferenceScores(self._score(placebo), max(static), min(static))

    def train(self, tuner: str, seed: int) -> Trained:
        """Train a tuner with a seed, then run the problem with its network."""
        rule = load_protocol().rule(tuner, str(self._folder / "held-out.yml"), DECISIONS)
        # ACC's idle rule would leave a queue below the lowest kmin as it is, for better or worse
        params: dict[str, Scalar] = {"idle_rule": False} if tuner == "acc" else {}
        request = TrainRequest(
            tuner, self._scenario, _BACKEND, seed=seed, settings=params, params=params, rule=rule
        )
        folder = self._folder / f"{tuner}-{seed}"
        checkpoint = train(request, self._backend, folder, 1, lambda round_, total: None)
        record = self._play(TunerSpec(tuner, {**params, "checkpoint": str(checkpoint)}))
        changes = record.changes[ECN.name]
        last = np.flatnonzero(changes.targets == _BOTTLENECK)[-1]
        kmin, kmax = (int(changes.values[name][last]) for name in ("kmin_bytes", "kmax_bytes"))
        return Trained(seed, self._score(record), kmin, kmax, read_result(folder).decisions)

    def _play(self, tuner: TunerSpec) -> TrialRecord:
        episode = Episodes(TrainRequest("acc", self._scenario, _BACKEND))[0]
        trial = dataclasses.replace(episode, seed=12345, tuner=tuner)
        schedule = make_schedule(trial, self._testbed)
        return self._backend.run(TrialRun(trial, self._testbed, schedule, self._folder))

    @staticmethod
    def _score(record: TrialRecord) -> float:
        """Return the mean D(L) of the bottleneck's queue after it has settled."""
        length = record.ports.values["qlen_bytes"][_SETTLED, _BOTTLENECK]
        return float(queue_score(length).mean())


def reference_scores(tuner: str) -> ReferenceScores:
    """Return the reference scores of a tuner's settings, computed in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        return SmallProblem(Path(folder)).references(tuner)


def train_from(tuner: str, seed: int) -> Trained:
    """Train in a temporary folder. This is called in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        return SmallProblem(Path(folder)).train(tuner, seed)


def train_all(tuner: str, seeds: Iterable[int]) -> list[Trained]:
    """Train with several seeds, in one process per CPU."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(train_from, tuner), seeds))


def training_seeds() -> Outcome:
    """How many of ten training seeds are better than the placebo, and solve a small problem."""
    from tuners.learning.learner import load_torch

    kernels = load_torch().backends.cpu.get_cpu_capability()
    protocol = load_protocol()
    figures, data, reference_texts = [], {}, []
    for tuner in TUNERS:
        references, rows = reference_scores(tuner), train_all(tuner, SEEDS)
        required = round(protocol.share_above * len(rows))
        above = sum(row.score > references.placebo for row in rows)
        solved = sum(references.solved(row) for row in rows)
        shares = ", ".join(f"{references.share(row):.2f}" for row in rows)
        for outcome, count in (("end above the placebo", above), ("solve it", solved)):
            figures.append(
                Figure(
                    f"{tuner}: seeds of {len(rows)} that {outcome}",
                    f"{count} (shares {shares})" if outcome == "solve it" else str(count),
                    f"{required} or more",
                    count >= required,
                )
            )
        reference_texts.append(f"{tuner} {references.placebo:.2f} to {references.best:.2f}")
        data[tuner] = [dataclasses.asdict(row) for row in rows]
    return Outcome(
        f"The small problem of the learned tuners from ten training seeds; torch's {kernels} code",
        tuple(figures),
        (
            f"protocol {protocol.version} with a budget of {DECISIONS:,} queue decisions for each",
            "share: of the way from random settings (mean D(L)) to the best static one, both of "
            f"the tuner's own settings ({', '.join(reference_texts)}); {MIN_SHARE:g} solves it",
            "another machine: ATEN_CPU_CAPABILITY=default, avx2 or avx512 before the command",
        ),
        data,
    )
