"""How large a campaign is, in seconds and before its trials, flows or readings are made.

A plan has all flows of all trials (`orchestration.campaign.plan`), which of a large campaign takes
as long as it is large. Here the mean flows of some of its conditions are worked out instead: of
each level of each factor once, and of the largest levels together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from inventory.routing import PathTable
from inventory.strictyaml import in_order, read
from orchestration.campaign.cells import Cell, check_cells, with_overrides
from orchestration.campaign.expand import first_trial
from orchestration.campaign.factors import Factors, Level, read_factors
from orchestration.campaign.limits import (
    FLOW_BYTES,
    READING_BYTES,
    TRIAL_BYTES,
    count_conditions,
    count_problem,
    count_readings,
    count_trials,
)
from orchestration.campaign.plan import PacketHops, disk_bytes, wall_s
from orchestration.core.capabilities import mode_of
from orchestration.core.errors import InputError, Problem
from orchestration.core.pattern import Expected
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_size
from traffic.schedule import within

# At most this many conditions are looked at: 10 ms each.
_CONDITIONS = 24
# What a plan takes of one core for a condition, a trial, and a flow.
_CONDITION_S, _TRIAL_S, _FLOW_S = 0.01, 0.002, 1e-6
# A plan that takes longer shows bounds only.
MAX_PLAN_S = 5.0
_PAIRS = 32


@dataclass(frozen=True)
class Bounds:
    """A campaign's size: its trials at most, and the largest trial's expected flows and readings.

    `memory_bytes` is what a run needs at least, for one trial and the list of all; `disk_bytes` and
    `wall_s`, on one core, are of all trials, each as large as the largest. `plan_s` is how long it
    takes to plan each trial. `problems` say what is beyond any machine.
    """

    campaign: str
    backend: str
    conditions: int
    trials: int
    flows: int
    readings: int
    memory_bytes: int
    disk_bytes: int
    wall_s: float
    plan_s: float
    problems: tuple[Problem, ...]

    @property
    def planned(self) -> bool:
        """Whether each trial can be planned within seconds."""
        return not self.problems and self.plan_s <= MAX_PLAN_S

    @property
    def sentence(self) -> str:
        """The bounds in words."""
        days = self.wall_s / 86_400
        time = f"{days:,.1f} days" if days >= 1 else f"{self.wall_s:,.0f} s"
        return (
            f"{self.campaign}: at most {self.trials:,} trials under {self.conditions:,} "
            f"conditions; a trial has up to about {self.flows:,} flows and at least "
            f"{self.readings:,} readings of queues; about {format_size(self.memory_bytes, 1)} of "
            f"memory with one trial at a time, {format_size(self.disk_bytes, 1)} of disk, and "
            f"{time} of wall time on one core"
        )


def read_bounds(
    path: str | Path,
    *,
    backend: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
) -> Bounds:
    """Return the bounds of a campaign file, overridden as by `load_campaign`.

    Raises InputError for what is wrong in the file and in the conditions that are looked at, but
    for their sizes.
    """
    document = with_overrides(read(path), backend, clock, repeats)
    factors = read_factors(document)
    trials = count_trials(document, factors)
    problem = count_problem(document, factors, trials)
    cells, problems = check_cells(document, factors, islice(_some(factors), _CONDITIONS))
    if not problems and count_conditions(factors) > len(cells):
        largest = _largest(factors, cells)
        more, problems = check_cells(document, factors, [largest])
        cells += more
    if problems or not cells:
        raise InputError(in_order([*problems, *([problem] if problem else [])]))
    too_large = {one: None for cell in cells for one in cell.too_large}
    sizes = [_size(cell) for cell in cells]
    conditions = count_conditions(factors)
    flows = max(size.sent.flows for size in sizes)
    readings = max(size.readings for size in sizes)
    tuners = trials // conditions
    # flows are the same for all tuners
    drawn_s = sum(size.plan_s for size in sizes) / len(sizes) * trials / len(cells[0].file.tuners)
    return Bounds(
        campaign=cells[0].file.campaign,
        backend=cells[0].file.backend,
        conditions=conditions,
        trials=trials,
        flows=round(flows),
        readings=readings,
        memory_bytes=round(
            trials * TRIAL_BYTES
            + max(size.sent.flows * FLOW_BYTES + size.readings * READING_BYTES for size in sizes)
        ),
        disk_bytes=conditions * tuners * max(size.disk_bytes for size in sizes),
        wall_s=conditions * tuners * max(size.wall_s for size in sizes),
        plan_s=conditions * _CONDITION_S + trials * _TRIAL_S + drawn_s,
        problems=tuple(in_order([*([problem] if problem else []), *too_large])),
    )


@dataclass(frozen=True)
class _Size:
    """The size of one trial of a condition."""

    sent: Expected
    plan_s: float
    readings: int
    disk_bytes: int
    wall_s: float


def _some(factors: Factors) -> Iterator[dict[str, Level]]:
    """Yield combinations: all if they are few, else each level with the others' first ones."""
    if count_conditions(factors) <= _CONDITIONS:
        yield from factors.combinations()
        return
    first = {name: levels[0] for name, levels in factors.levels.items()}
    yield first
    # in turn, so that of many levels of one factor some of the others are seen
    for place in range(1, max(map(len, factors.levels.values()))):
        for name, levels in factors.levels.items():
            if place < len(levels):
                yield {**first, name: levels[-place]}


def _largest(factors: Factors, cells: list[Cell]) -> Mapping[str, Level]:
    """Return the combination of the levels that made the largest trials alone."""

    def size(cell: Cell) -> float:
        flows = _sent(first_trial(cell), cell.testbed).flows
        return flows * FLOW_BYTES + count_readings(cell.file, cell.testbed) * READING_BYTES

    first, chosen = cells[0].labels, {}
    for name, levels in factors.levels.items():
        others = {key: label for key, label in first.items() if key != name}
        alone = {
            cell.labels[name]: size(cell)
            for cell in cells
            if {key: label for key, label in cell.labels.items() if key != name} == others
        }
        label = max(alone, key=lambda one: alone[one])
        chosen[name] = next(level for level in levels if level.label == label)
    return chosen


def _size(cell: Cell) -> _Size:
    trial, testbed = first_trial(cell), cell.testbed
    sent = _sent(trial, testbed)
    readings = count_readings(cell.file, testbed)
    pace = mode_of(trial).pace
    packets = sent.size_bytes / testbed.mss_bytes
    nic = trial.host.roce
    acks = pace.acks if nic is None else 1 / nic.ack_every
    hops = round(packets * _hops(testbed) * (1 + acks))
    spent = PacketHops(hops, 0) if nic is None else PacketHops(0, hops)
    return _Size(
        sent,
        _plan_s(trial, testbed, sent),
        readings,
        disk_bytes(trial, testbed, round(sent.flows), trial.duration_ns),
        wall_s(trial, testbed, round(sent.flows), spent, trial.duration_ns),
    )


def _plan_s(trial: TrialSpec, testbed: Testbed, sent: Expected) -> float:
    """Return how long it takes to make the flows of a trial."""
    drawing_s = sum(spec.drawing_s(testbed) for spec in trial.traffic)
    return sent.flows * _FLOW_S + drawing_s


def _sent(trial: TrialSpec, testbed: Testbed) -> Expected:
    total = Expected(0, 0)
    for spec in trial.traffic:
        total += within(spec, trial, testbed).expected(testbed)
    return total


def _hops(testbed: Testbed) -> float:
    """Return how many links a packet crosses on average, by some pairs of hosts."""
    paths, hosts = PathTable(testbed), testbed.hosts
    pairs = np.random.default_rng(1).integers(0, len(hosts), (_PAIRS, 2))
    found = [paths.path(hosts[a], hosts[b]).hops for a, b in pairs.tolist() if a != b]
    return float(np.mean(found)) if found else 2.0
