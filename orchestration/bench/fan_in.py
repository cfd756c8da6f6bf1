"""How much of a known headroom a learned tuner takes, by training seed.

In the scenario `fan-in` few hosts send to a port, then many, then few again. Few need deep
thresholds, many need shallow ones, and no single setting is good for both. The references are the
best static setting, the best one for each phase (the oracle), the same two decisions late (no
learner can be asked for more before it can know), and random settings. Trainings have the
protocol's budget and its way of choosing on held-out seeds, but all of the budget, and more of
those seeds: `_requests`. They are in runs/bench until the benchmark is through: given again, it
goes on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from inventory.routing import ideal_times_ns
from orchestration.bench.outcome import Figure, Outcome, bench_folder
from orchestration.core.pattern import Streams
from orchestration.core.ports import TrialRun
from orchestration.core.provenance import versions
from orchestration.core.records import DONE, LONG_LIVED
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TrialSpec, TunerSpec
from orchestration.render.csv import write_rows
from orchestration.run.backend_factory import backend
from orchestration.training.files import Folder
from orchestration.training.protocol import load_protocol
from orchestration.training.request import Episodes, TrainRequest, find_scenario
from orchestration.training.seeds import Listener, train_seeds
from traffic.patterns.alternating import AlternatingSpec, phases
from traffic.schedule import make_schedule

_ON, _SCENARIO = "emulated", "fan-in"
_WANTED, _BAR = 0.9, 0.5  # of the training seeds take at least this share of the headroom
_MIN = 0.2  # headroom, as a share of the best static setting's slowdown
_SEEDS: Mapping[str, range] = {
    "acc": range(1, 11),
    # none of those on which its settings were chosen (decision 91), of which two were the others'
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

Setting = tuple[int, int, float]  # kmin and kmax in KB, pmax


@dataclass(frozen=True)
class Known:
    """The best settings of a tuner's own on the evaluated seeds: one for all phases, and of each.

    They were found in a grid of 63 (ACC and PET) and of 72 settings (GraphCC), and a ladder of
    seven in each kind of phase.
    """

    static: Setting
    few: Setting
    many: Setting


_OF_ACC = Known((160, 320, 1.0), few=(320, 640, 0.25), many=(20, 40, 1.0))
_OF_GRAPHCC = Known((32, 256, 0.01), few=(32, 256, 0.01), many=(2, 16, 1.0))
KNOWN: Mapping[str, Known] = {"acc": _OF_ACC, "graphcc": _OF_GRAPHCC, "pet": _OF_ACC}
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
    placebo: float

    @property
    def size(self) -> float:
        """Return what there is to win, as a share of the best static setting's slowdown."""
        return 1.0 - self.oracle / self.static

    def share(self, slowdown: float) -> float:
        """Return how much of it a slowdown takes: 0 is the best static setting, 1 the oracle."""
        return (self.static - slowdown) / (self.static - self.oracle)


@dataclass(frozen=True)
class Arm:
    """`few` and `many` are held in the phases of that name, from `late_ns` after these begin.

    The first ones are held at once.
    """

    few: Setting
    many: Setting
    late_ns: int = 0


def scenario() -> Episodes:
    """Return the episodes of the scenario."""
    return Episodes(TrainRequest("acc", find_scenario(_SCENARIO), _ON))


def settings_of(arm: Arm, trial: TrialSpec, testbed: Testbed) -> Iterator[tuple[int, int, Setting]]:
    """Yield when an arm sets what: time (ns), number of the queue, setting.

    Queues that receive nothing keep what few senders need.
    """
    queue = {testbed.peer_device(one).name: place for place, one in enumerate(testbed.queues)}
    first = dict.fromkeys(range(len(testbed.queues)), arm.few)
    later = []
    for place, spec in enumerate(trial.traffic):
        if isinstance(spec, AlternatingSpec) and arm.few != arm.many:
            for phase in phases(spec, Streams.spawn(trial.seed, place).times):
                setting = arm.many if phase.crowded else arm.few
                if phase.start_ns:
                    later.append((phase.start_ns + arm.late_ns, queue[spec.receiver], setting))
                else:
                    first[queue[spec.receiver]] = setting
    yield from ((0, place, setting) for place, setting in first.items())
    yield from sorted(later)


def _play(tuner: TunerSpec | Arm, seed: int) -> float:
    """Return the mean slowdown with a tuner, or an arm, and the flows of a seed.

    A flow that has not ended counts with what it had taken.
    """
    episodes = scenario()
    trial, testbed = dataclasses.replace(episodes[0], seed=seed), episodes.testbed
    with bench_folder() as folder:
        if isinstance(tuner, Arm):
            path = folder / "actions.csv"
            _record(path, tuner, trial, testbed)
            tuner = TunerSpec("recorded", {"actions": str(path)})
        trial = dataclasses.replace(trial, tuner=tuner)
        schedule = make_schedule(trial, testbed)
        record = backend(_ON).run(TrialRun(trial, testbed, schedule, folder))
    flows = record.flows
    ended = np.where(flows.status == DONE, flows.end_ns, trial.duration_ns + trial.drain_ns)
    slowdown = (ended - schedule.start_ns) / ideal_times_ns(testbed, schedule, trial)
    return float(slowdown[flows.status != LONG_LIVED].mean())


def _record(path: Path, arm: Arm, trial: TrialSpec, testbed: Testbed) -> None:
    """Write what an arm sets as a recording."""
    rows: list[list[Any]] = [
        ["t_ns", "device", "port", "queue", "kmin_bytes", "kmax_bytes", "pmax"]
    ]
    for t_ns, place, (kmin, kmax, pmax) in settings_of(arm, trial, testbed):
        queue = testbed.queues[place]
        klass = getattr(queue, "klass", 0)
        rows.append([t_ns, queue.device, queue.name, klass, kmin * 1000, kmax * 1000, pmax])
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, rows)


def _requests(tuner: str) -> dict[str, TrainRequest]:
    """Return the trainings by name."""
    held_out = find_scenario(_SCENARIO)  # its own seeds, which neither train nor are evaluated
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
            _ON,
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
    networks, known = _train(requests, folder), KNOWN[tuner]
    arms = [
        Arm(known.static, known.static),
        Arm(known.few, known.many),
        Arm(known.few, known.many, _LATE * scenario()[0].action_period_ns),
        load_protocol().placebo(tuner),
        *networks,
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        played = list(pool.map(_play, *zip(*product(arms, _EVALUATED), strict=True)))
    *of_references, of_networks = np.split(
        np.mean(np.reshape(played, (len(arms), -1)), axis=1), [1, 2, 3, 4]
    )
    headroom, found = Headroom(*(float(one[0]) for one in of_references)), of_networks.tolist()
    shutil.rmtree(folder)
    return Outcome(
        f"A condition whose best thresholds follow the fan-in: what {tuner} takes of it",
        _figures(headroom, found),
        (
            "share: of the way from the best static setting to the best one in each phase; "
            f"evaluated on {len(_EVALUATED)} seeds that no training draws",
        ),
        {**dataclasses.asdict(headroom), "slowdown": found},
    )


def of_tuner(tuner: str) -> Callable[[], Outcome]:
    """Return the benchmark of one tuner."""

    def measure() -> Outcome:
        return _fan_in(tuner)

    measure.__doc__ = f"Share of a known headroom that {tuner} takes, by training seed."
    return measure


def _figures(known: Headroom, found: Sequence[float]) -> tuple[Figure, ...]:
    shares = [known.share(one) for one in found]
    took, wanted = sum(share >= _BAR for share in shares), round(_WANTED * len(shares))
    return (
        Figure(
            "headroom of its own settings",
            f"{known.size:.0%} (mean slowdown {known.static:.2f} static, {known.oracle:.2f} "
            f"oracle, {known.placebo:.2f} at random)",
            f"{_MIN:.0%} or more",
            known.size >= _MIN,
        ),
        Figure(
            f"share of the oracle, {_LATE} decisions late",
            f"{known.share(known.late):.2f}",
            f"{_BAR:g} or more",
            known.share(known.late) >= _BAR,
        ),
        Figure(
            f"training seeds of {len(shares)} that take half of it",
            f"{took} (shares {', '.join(f'{share:.2f}' for share in shares)})",
            f"{wanted} or more",
            took >= wanted,
        ),
    )
