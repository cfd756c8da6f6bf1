"""How much of a known headroom each learned tuner takes, by training seed.

The scenario `fan-in` has two parts: two senders, which need deep thresholds, and twelve, which need
shallow ones. No single setting is good in both. What is best in each part is known from static
settings; together they are the oracle. What each tuner's reward says of the same settings is
measured too: no learner can be asked for more than its reward tells.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from orchestration.model.records import DONE, LASTING
from orchestration.model.trial import Scalar, TunerSpec
from orchestration.studies.bench.fan_in_reward import Part, held_by_reward, mean_reward
from orchestration.studies.bench.outcome import Figure, Outcome
from orchestration.training.request import Episodes, TrainRequest, find_scenario
from orchestration.training.train import train
from orchestration.wiring import backend
from traffic.schedule import ideal_times_ns, make_schedule
from tuners.registry import create
from tuners.rewarded import Rewarded

WANTED, BAR = 0.9, 0.5  # of the training seeds take at least this share of the headroom
_SEEDS = range(1, 11)
# 9001 to 9105 were looked at while the scenario, the weights and the trainings were chosen
_EVALUATED = (9201, 9202, 9203)
_ON = "emulated"
_SECOND_NS = 4_250_000  # between the two parts
# by whole decisions: the second part from when its senders have all begun and met the thresholds
_JUDGED_NS = ((1_000_000, 4_000_000), (6_000_000, 9_000_000))
# kmin and kmax in KB, and pmax: of each tuner's own settings, from shallow to deep
_PUBLISHED = (
    (20, 40, 1.0),
    (20, 80, 0.25),
    (20, 160, 0.25),
    (40, 160, 0.25),
    (20, 320, 0.25),
    (80, 320, 0.05),
    (160, 640, 0.05),
)
_GRAPHCC = (
    (2, 16, 1.0),
    (16, 64, 0.5),
    (32, 128, 0.25),
    (16, 128, 0.01),
    (32, 256, 0.25),
    (32, 256, 0.01),
)
STATIC = {"acc": _PUBLISHED, "graphcc": _GRAPHCC, "pet": _PUBLISHED}
# Weights at which rewards rank static settings as slowdown does, in both parts: docs/tuners.md.
WEIGHTS: Mapping[str, dict[str, Scalar]] = {
    "acc": {"omega_1": 0.3, "omega_2": 0.7},
    "graphcc": {"w_1": 0.3, "w_2": 0.7},
    "pet": {"beta_1": 0.3, "beta_2": 0.7},
}
# An episode has ten decisions, so exploration must end sooner than in real training.
_FEW: dict[str, Scalar] = {"explore_decay": 110.0, "updates_per_decision": 6.0}
SETTINGS: Mapping[str, dict[str, Scalar]] = {"acc": _FEW, "graphcc": _FEW, "pet": {}}
EPISODES = {"acc": 160, "graphcc": 90, "pet": 300}


@dataclass(frozen=True)
class Headroom:
    """Mean slowdown of the best static setting, of random ones, and of the best in each part.

    `rewarded` is that of the settings whose reward is greatest in each part.
    """

    static: float
    placebo: float
    oracle: float
    rewarded: float

    @property
    def size(self) -> float:
        """Return what there is to win, as a share of the best static setting's slowdown."""
        return 1.0 - self.oracle / self.static

    def share(self, slowdown: float) -> float:
        """Return how much of it a slowdown takes: 0 is the best static setting, 1 the oracle."""
        return (self.static - slowdown) / (self.static - self.oracle)


def play(tuner: TunerSpec, seed: int, judge: Rewarded | None = None) -> tuple[Part, Part]:
    """Play the scenario, and return its two parts, with what they earned by the reward of `judge`.

    Flows that have not ended count with what they had taken.
    """
    episode = Episodes(TrainRequest("acc", find_scenario("fan-in"), _ON))
    trial = dataclasses.replace(episode[0], seed=seed, tuner=tuner)
    schedule = make_schedule(trial, episode.testbed)
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        record = backend(_ON).run(
            trial, episode.testbed, schedule, Path(folder), lambda now, end: None
        )
    flows = record.flows
    ended = np.where(flows.status == DONE, flows.end_ns, trial.duration_ns + trial.drain_ns)
    slowdown = (ended - schedule.start_ns) / ideal_times_ns(episode.testbed, schedule, trial)
    counted = flows.status != LASTING
    first = schedule.start_ns < _SECOND_NS
    sample_ns = trial.sample_period_ns
    earned = [
        mean_reward(judge, episode.testbed, record, sample_ns, trial.action_period_ns, within)
        if judge
        else 0.0
        for within in _JUDGED_NS
    ]
    return (
        Part(slowdown[counted & first], earned[0]),
        Part(slowdown[counted & ~first], earned[1]),
    )


def _played(tuner: TunerSpec, judge: Rewarded | None = None) -> list[Part]:
    played = [play(tuner, seed, judge) for seed in _EVALUATED]
    return [
        Part(
            np.concatenate([one.slowdown for one in parts]),
            float(np.mean([one.reward for one in parts])),
        )
        for parts in zip(*played, strict=True)
    ]


def headroom(tuner: str) -> Headroom:
    """Return the references of a tuner's own settings."""
    played = []
    judge = create(TunerSpec(tuner, WEIGHTS[tuner]))
    if not isinstance(judge, Rewarded):
        raise TypeError(f"{tuner} has no reward")
    for kmin, kmax, pmax in STATIC[tuner]:
        params: dict[str, Scalar] = {
            "kmin_bytes": kmin * 1_000,
            "kmax_bytes": kmax * 1_000,
            "pmax": pmax,
        }
        played.append(_played(TunerSpec("static", params), judge))
    best = [
        min((both[part] for both in played), key=lambda one: float(one.slowdown.mean()))
        for part in (0, 1)
    ]
    return Headroom(
        min(_mean(both) for both in played),
        _mean(_played(TunerSpec("random", {"of": tuner}))),
        _mean(best),
        _mean(held_by_reward(played)),
    )


def _mean(parts: Sequence[Part]) -> float:
    return float(np.concatenate([part.slowdown for part in parts]).mean())


def train_and_play(tuner: str, seed: int) -> float:
    """Train with a seed, and return the mean slowdown with the network."""
    request = TrainRequest(
        tuner,
        find_scenario("fan-in"),
        _ON,
        episodes=EPISODES[tuner],
        seed=seed,
        settings=SETTINGS[tuner],
        params=WEIGHTS[tuner],
    )
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        checkpoint = train(request, backend(_ON), Path(folder) / "train", 1, lambda one, all_: None)
        params: dict[str, Scalar] = {"checkpoint": str(checkpoint)}
        if tuner == "acc":
            # A queue whose kmin is above all that its senders' windows hold would be idle for ever.
            params["idle_rule"] = False
        return _mean(_played(TunerSpec(tuner, params)))


def fan_in() -> Outcome:
    """Share of a known headroom that ACC, GraphCC and PET take, by training seed."""
    figures, data = [], {}
    for tuner in EPISODES:
        known = headroom(tuner)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            found = list(pool.map(partial(train_and_play, tuner), _SEEDS))
        shares = [known.share(one) for one in found]
        took = sum(share >= BAR for share in shares)
        wanted = round(WANTED * len(shares))
        figures += [
            Figure(
                f"{tuner}: headroom of its own settings",
                f"{known.size:.0%} (mean slowdown {known.static:.2f} static, {known.oracle:.2f} "
                f"oracle, {known.placebo:.2f} at random)",
                "20 % or more",
                known.size >= 0.2,
            ),
            Figure(
                f"{tuner}: share of what its reward prefers in each part",
                f"{known.share(known.rewarded):.2f}",
                f"{BAR:g} or more",
                known.share(known.rewarded) >= BAR,
            ),
            Figure(
                f"{tuner}: training seeds of {len(shares)} that take half of it",
                f"{took} (shares {', '.join(f'{share:.2f}' for share in shares)})",
                f"{wanted} or more",
                took >= wanted,
            ),
        ]
        data[tuner] = {**dataclasses.asdict(known), "slowdown": found}
    return Outcome(
        "A condition whose best thresholds follow the fan-in: what learned tuners take of it",
        tuple(figures),
        (
            "share: of the way from the best static setting to the best one in each part; "
            f"evaluated on {len(_EVALUATED)} seeds that no training draws",
        ),
        data,
    )
