"""How much of a known headroom a learned tuner takes, by training seed.

In the scenario `fan-in` few hosts send to a port, then many, then few again. Few need deep
thresholds, many need shallow ones, and no single setting is good for both. The references are the
best static setting of a grid, the best one for each phase (the oracle), the best sequence by the
clock, which knows the time but not the phase, and random settings. What the tuner's reward prefers
in each phase is played too, and the oracle two decisions late: no learner can be asked for more
than its reward tells, or before it can know. Trainings have the protocol's budget and its way of
choosing on held-out seeds, but all of the budget, and more of those seeds: `_requests`. They are in
runs/bench until the benchmark is through: given again, it goes on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from orchestration.artifacts.provenance import versions
from orchestration.model.trial import Scalar, TunerSpec
from orchestration.studies.bench.fan_in_arms import (
    ON,
    SCENARIO,
    Arm,
    Played,
    Setting,
    held,
    play_arm,
    run,
    scenario,
    stretches,
)
from orchestration.studies.bench.fan_in_reward import mean_rewards
from orchestration.studies.bench.outcome import Figure, Outcome
from orchestration.training.files import Folder
from orchestration.training.protocol import load_protocol
from orchestration.training.request import TrainRequest, find_scenario
from orchestration.training.seeds import Listener, train_seeds
from tuners.registry import create
from tuners.rewarded import Rewarded

WANTED, BAR = 0.9, 0.5  # of the training seeds take at least this share of the headroom
LEAST = 0.2  # headroom, as a share of the best static setting's slowdown
BLIND = 0.25  # what the clock may take at most: clearly less than the bar
_SEEDS: Mapping[str, range] = {
    "acc": range(1, 11),
    # none of those on which its settings were chosen (decision 100), of which two were the others'
    "graphcc": range(31, 41),
    "pet": range(1, 11),
}
# No training draws them; nothing was looked at on them while the condition was chosen, which was
# done on 7101. (Those of its earlier versions were 9001 to 9203.)
_EVALUATED = (9301, 9302, 9303)
# Where this differs from the protocol's rule. Values are learned from the end of exploration on, at
# half of the budget, and get better until its end: two worse evaluations in a row say nothing yet.
_EVALUATIONS, _CHOOSING_SEEDS = 10, 2
_LATE = 2  # decisions: a reading that shows the change, and one that is sure of it
_FINALISTS = 8  # settings of the grid that are played on all seeds
_SLOT_NS = 2_000_000


@dataclass(frozen=True)
class Space:
    """A set of settings that tuners choose from.

    `grid` is for the best static one; `ladder`, from shallow to deep, is tried in each phase.
    """

    grid: tuple[Setting, ...]
    ladder: tuple[Setting, ...]


def _grid(
    kmin: Sequence[int], kmax: Sequence[int], pmax: Sequence[float], *, equal: bool
) -> tuple[Setting, ...]:
    return tuple(
        (low, high, share)
        for low in kmin
        for high in kmax
        for share in pmax
        if low < high or (equal and low == high)
    )


# All pairs that these queues, of at most 1.5 MB, can tell apart; of 20 probabilities three.
_ACC = Space(
    _grid(
        (20, 40, 80, 160, 320, 640),
        (40, 80, 160, 320, 640, 1280),
        (0.05, 0.25, 1.0),
        equal=False,
    ),
    (
        (20, 40, 1.0),
        (20, 80, 0.25),
        (40, 160, 0.25),
        (80, 160, 1.0),
        (160, 320, 1.0),
        (320, 640, 0.25),
        (640, 1280, 0.05),
    ),
)
_GRAPHCC = Space(
    _grid((2, 4, 8, 16, 32), (16, 32, 64, 128, 256), (0.01, 0.25, 1.0), equal=True),
    (
        (2, 16, 1.0),
        (4, 32, 0.5),
        (16, 64, 0.5),
        (32, 64, 1.0),
        (32, 128, 0.25),
        (32, 256, 0.25),
        (32, 256, 0.01),
    ),
)
SPACES: Mapping[str, Space] = {"acc": _ACC, "graphcc": _GRAPHCC, "pet": _ACC}
# Chosen on development seeds, with the settings below: docs/tuners.md.
WEIGHTS: Mapping[str, dict[str, Scalar]] = {
    "acc": {"omega_1": 0.75, "omega_2": 0.25, "idle_rule": False},
    "graphcc": {"w_1": 0.15, "w_2": 0.85},
    "pet": {"beta_1": 0.7, "beta_2": 0.3},
}
SETTINGS: Mapping[str, dict[str, Scalar]] = {
    # a memory of all decisions: exploration ends early, and what it showed is forgotten else
    "acc": {"idle_rule": False, "local_capacity": 200_000, "weight_decay": 0.1},
    # smaller steps and less decay: what is at stake in a decision is little beside its scatter
    "graphcc": {"learning_rate": 0.0003, "weight_decay": 0.03},
    "pet": {"hold": 12.0, "minibatch": 32},
}


@dataclass(frozen=True)
class Headroom:
    """Mean slowdown with the references: see this module."""

    static: float
    oracle: float
    late: float
    clock: float
    placebo: float
    rewarded: float

    @property
    def size(self) -> float:
        """Return what there is to win, as a share of the best static setting's slowdown."""
        return 1.0 - self.oracle / self.static

    def share(self, slowdown: float) -> float:
        """Return how much of it a slowdown takes: 0 is the best static setting, 1 the oracle."""
        return (self.static - slowdown) / (self.static - self.oracle)


def _mean(played: Sequence[Played]) -> float:
    """Return the mean over seeds of the flows' mean slowdown."""
    return float(np.mean([one.slowdown.mean() for one in played]))


def play(tuner: TunerSpec, seed: int) -> Played:
    """Play a tuner with the flows of a seed."""
    episodes = scenario()
    trial = dataclasses.replace(episodes[0], seed=seed, tuner=tuner)
    return run(trial, episodes.testbed)[1]


def _held(task: tuple[Setting, int]) -> float:
    """Return the mean slowdown with a setting that is held."""
    return float(play_arm(held(task[0]), task[1])[-1].slowdown.mean())


def _arm(task: tuple[str, Arm, int]) -> tuple[Played, tuple[float, float]]:
    """Play an arm; return also what it earned by a tuner's reward, with few and with many."""
    tuner, arm, seed = task
    trial, testbed, record, played = play_arm(arm, seed)
    judge = create(TunerSpec(tuner, WEIGHTS[tuner]))
    if not isinstance(judge, Rewarded):
        raise TypeError(f"{tuner} has no reward")
    return played, mean_rewards(judge, testbed, record, trial, stretches(trial, testbed))


class _Arms:
    """Arms that were played on every evaluation seed, and what they earned by a tuner's reward."""

    def __init__(self, pool: Executor, tuner: str) -> None:
        self._pool = pool
        self._tuner = tuner
        self._played: dict[Arm, list[Played]] = {}
        self._rewards: dict[Arm, tuple[float, float]] = {}

    def play(self, arms: Sequence[Arm]) -> list[float]:
        """Play those that were not, and return the mean slowdown of each."""
        new = [arm for arm in dict.fromkeys(arms) if arm not in self._played]
        tasks = [(self._tuner, arm, seed) for arm in new for seed in _EVALUATED]
        found = list(self._pool.map(_arm, tasks))
        for number, arm in enumerate(new):
            mine = found[number * len(_EVALUATED) : (number + 1) * len(_EVALUATED)]
            self._played[arm] = [played for played, _ in mine]
            few, many = np.mean([rewards for _, rewards in mine], axis=0)
            self._rewards[arm] = float(few), float(many)
        return [_mean(self._played[arm]) for arm in arms]

    def reward(self, arm: Arm, *, crowded: bool) -> float:
        """Return what a played arm earned a decision in one kind of phase."""
        return self._rewards[arm][crowded]

    def by_clock(self, settings: Sequence[Setting], duration_ns: int) -> Arm:
        """Return the sequence of those, held before, that did best for flows of each slot.

        It is chosen on the seeds that it is then played on, in its favour.
        """
        edges = np.arange(0, duration_ns + _SLOT_NS, _SLOT_NS)
        sums = np.zeros((len(settings), len(edges) - 1))
        for row, setting in zip(sums, settings, strict=True):
            for one in self._played[held(setting)]:
                row += np.histogram(one.start_ns, edges, weights=one.slowdown)[0]
        best = [settings[number] for number in sums.argmin(axis=0)]
        return Arm(best[0], best[0], tuple(best), _SLOT_NS)


def references(tuner: str, pool: Executor) -> Headroom:
    """Return the references for a tuner."""
    space = SPACES[tuner]
    tried = list(pool.map(_held, [(one, _EVALUATED[0]) for one in space.grid]))
    finalists = [space.grid[place] for place in np.argsort(tried, kind="stable")[:_FINALISTS]]
    arms = _Arms(pool, tuner)
    static = min(arms.play([held(one) for one in finalists]))
    shallow, deep = space.ladder[0], space.ladder[-1]
    with_few = [Arm(one, shallow) for one in space.ladder]
    with_many = [Arm(deep, one) for one in space.ladder]
    slow_few, slow_many = arms.play(with_few), arms.play(with_many)
    pair = Arm(with_few[int(np.argmin(slow_few))].few, with_many[int(np.argmin(slow_many))].many)
    oracle = min(*slow_few, *slow_many, *arms.play([pair]))
    late_ns = _LATE * scenario()[0].action_period_ns
    (late,) = arms.play([dataclasses.replace(pair, late_ns=late_ns)])
    arms.play([held(shallow), held(deep)])
    ends = list(dict.fromkeys((*finalists, shallow, deep)))
    (clock,) = arms.play([arms.by_clock(ends, scenario()[0].duration_ns)])
    placebo = _mean(list(pool.map(partial(play, load_protocol().placebo(tuner)), _EVALUATED)))
    few = max(with_few, key=lambda arm: arms.reward(arm, crowded=False)).few
    many = max(with_many, key=lambda arm: arms.reward(arm, crowded=True)).many
    (rewarded,) = arms.play([Arm(few, many)])
    return Headroom(static, oracle, late, clock, placebo, rewarded)


def _requests(tuner: str) -> dict[str, TrainRequest]:
    """Return the trainings by name."""
    held_out = find_scenario(SCENARIO)  # its own seeds, which neither train nor are evaluated
    rule = dataclasses.replace(
        load_protocol().rule(tuner, held_out),
        evaluations=_EVALUATIONS,
        patience=_EVALUATIONS,
        choosing_seeds=_CHOOSING_SEEDS,
    )
    return {
        f"{tuner}-{seed}": TrainRequest(
            tuner,
            held_out,
            ON,
            seed=seed,
            settings=SETTINGS[tuner],
            params=WEIGHTS[tuner],
            rule=rule,
        )
        for seed in _SEEDS[tuner]
    }


def _folder_of(requests: Mapping[str, TrainRequest]) -> Path:
    """Return the folder of these trainings by this version: a benchmark of an hour can go on."""
    said = [[request.to_json() for request in requests.values()], versions()]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return Path("runs") / "bench" / f"{next(iter(requests.values())).tuner}-{digest[:10]}"


def _train(requests: Mapping[str, TrainRequest], folder: Path) -> list[TunerSpec]:
    """Train what is not trained yet, and return the tuner with each network."""
    listener = Listener(
        lambda name, round_, budget: None,
        lambda name, text: print(name, text, file=sys.stderr),
    )
    train_seeds(requests, folder, os.cpu_count() or 1, listener)
    return [
        TunerSpec(
            one.tuner,
            {"checkpoint": str(Folder(folder / name, by_rule=True).checkpoint), **one.params},
        )
        for name, one in requests.items()
    ]


def _fan_in(tuner: str) -> Outcome:
    requests = _requests(tuner)
    folder = _folder_of(requests)
    networks = _train(requests, folder)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        played = pool.map(play, *zip(*product(networks, _EVALUATED), strict=True))
        found = np.mean(
            np.reshape([one.slowdown.mean() for one in played], (len(networks), -1)), axis=1
        ).tolist()
        known = references(tuner, pool)
    shutil.rmtree(folder)
    return Outcome(
        f"A condition whose best thresholds follow the fan-in: what {tuner} takes of it",
        _figures(known, found),
        (
            "share: of the way from the best static setting to the best one in each phase; "
            f"evaluated on {len(_EVALUATED)} seeds that no training draws",
        ),
        {**dataclasses.asdict(known), "slowdown": found},
    )


def fan_in_acc() -> Outcome:
    """Share of a known headroom that ACC takes, by training seed."""
    return _fan_in("acc")


def fan_in_graphcc() -> Outcome:
    """Share of a known headroom that GraphCC takes, by training seed."""
    return _fan_in("graphcc")


def fan_in_pet() -> Outcome:
    """Share of a known headroom that PET takes, by training seed."""
    return _fan_in("pet")


def _figures(known: Headroom, found: Sequence[float]) -> tuple[Figure, ...]:
    shares = [known.share(one) for one in found]
    took, wanted = sum(share >= BAR for share in shares), round(WANTED * len(shares))
    return (
        Figure(
            "headroom of its own settings",
            f"{known.size:.0%} (mean slowdown {known.static:.2f} static, {known.oracle:.2f} "
            f"oracle, {known.placebo:.2f} at random)",
            f"{LEAST:.0%} or more",
            known.size >= LEAST,
        ),
        Figure(
            f"share of the oracle, {_LATE} decisions late",
            f"{known.share(known.late):.2f}",
            f"{BAR:g} or more",
            known.share(known.late) >= BAR,
        ),
        Figure(
            "share of the best sequence by the clock",
            f"{known.share(known.clock):.2f}",
            f"{BLIND:g} or less",
            known.share(known.clock) <= BLIND,
        ),
        Figure(
            "share of what its reward prefers in each phase",
            f"{known.share(known.rewarded):.2f}",
        ),
        Figure(
            f"training seeds of {len(shares)} that take half of it",
            f"{took} (shares {', '.join(f'{share:.2f}' for share in shares)})",
            f"{wanted} or more",
            took >= wanted,
        ),
    )
