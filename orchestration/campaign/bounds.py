"""Bounds of a campaign's size, which are known within seconds however large it is.

A plan makes all flows of all trials (`orchestration.campaign.plan`), which takes long for a large
campaign. Here expected traffic is worked out instead, for some of the conditions: each level of
each factor once, and the largest levels together.
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
from orchestration.campaign.factors import Factors, read_factors
from orchestration.campaign.field_settings import Level
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
from traffic.schedule import fit_to_trial

# At most this many conditions are examined, which takes 10 ms each.
_MAX_CONDITIONS = 24
# The time that a plan takes on one core for a condition, a trial, and a flow.
_CONDITION_S, _TRIAL_S, _FLOW_S = 0.005, 0.001, 5e-7
# If a plan would take longer, only bounds are shown.
MAX_PLAN_S = 2.3
# From so many random pairs of hosts, the mean number of links of a path is estimated.
_PAIRS = 32


@dataclass(frozen=True)
class Bounds:
    """A campaign's size: at most how many trials, and the largest trial's flows and readings.

    `memory_bytes` is what a run needs at least, with one trial at a time. `disk_bytes` and
    `wall_s`, on one core, are sums over all trials, if each were as large as the largest. `plan_s`
    is how long planning each trial would take. `problems` has limits that no campaign may exceed.
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
        """Whether the campaign is small enough to plan each trial."""
        return not self.problems and self.plan_s <= MAX_PLAN_S

    @property
    def sentence(self) -> str:
        """The bounds as one sentence."""
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

    Raises InputError with the problems of the file and of the examined conditions; problems of size
    are in the result instead.
    """
    document = with_overrides(read(path), backend, clock, repeats)
    factors = read_factors(document)
    trials = count_trials(document, factors)
    problem = count_problem(document, factors, trials)
    cells, problems = check_cells(document, factors, islice(_examined(factors), _MAX_CONDITIONS))
    if not problems and count_conditions(factors) > len(cells):
        largest = _largest(factors, cells)
        more, problems = check_cells(document, factors, [largest])
        cells += more
    if problems or not cells:
        raise InputError(in_order([*problems, *([problem] if problem else [])]))
    too_large = {size_problem: None for cell in cells for size_problem in cell.too_large}
    sizes = [_trial_size(cell) for cell in cells]
    conditions = count_conditions(factors)
    flows = max(size.traffic.flows for size in sizes)
    readings = max(size.readings for size in sizes)
    tuners = trials // conditions
    # all tuners have the same flows, which are made once
    flows_s = sum(size.plan_s for size in sizes) / len(sizes) * trials / len(cells[0].file.tuners)
    return Bounds(
        campaign=cells[0].file.campaign,
        backend=cells[0].file.backend,
        conditions=conditions,
        trials=trials,
        flows=round(flows),
        readings=readings,
        memory_bytes=round(
            trials * TRIAL_BYTES
            + max(size.traffic.flows * FLOW_BYTES + size.readings * READING_BYTES for size in sizes)
        ),
        disk_bytes=conditions * tuners * max(size.disk_bytes for size in sizes),
        wall_s=conditions * tuners * max(size.wall_s for size in sizes),
        plan_s=conditions * _CONDITION_S + trials * _TRIAL_S + flows_s,
        problems=tuple(in_order([*([problem] if problem else []), *too_large])),
    )


@dataclass(frozen=True)
class _TrialSize:
    """The size of one trial of a condition."""

    traffic: Expected
    plan_s: float
    readings: int
    disk_bytes: int
    wall_s: float


def _examined(factors: Factors) -> Iterator[dict[str, Level]]:
    """Yield all combinations if they are few, else each level with the other factors' first."""
    if count_conditions(factors) <= _MAX_CONDITIONS:
        yield from factors.combinations()
        return
    first = {name: levels[0] for name, levels in factors.levels.items()}
    yield first
    # one level of each factor after the other: a factor with many levels does not come first alone
    for offset in range(1, max(map(len, factors.levels.values()))):
        for name, levels in factors.levels.items():
            if offset < len(levels):
                yield {**first, name: levels[-offset]}


def _largest(factors: Factors, cells: list[Cell]) -> Mapping[str, Level]:
    """Return the combination of those levels that, each alone, made the largest trials."""

    def size(cell: Cell) -> float:
        flows = _expected_traffic(first_trial(cell), cell.testbed).flows
        return flows * FLOW_BYTES + count_readings(cell.file, cell.testbed) * READING_BYTES

    first, chosen = cells[0].labels, {}
    for name, levels in factors.levels.items():
        others = {key: label for key, label in first.items() if key != name}
        alone = {
            cell.labels[name]: size(cell)
            for cell in cells
            if {key: label for key, label in cell.labels.items() if key != name} == others
        }
        label = max(alone, key=lambda candidate: alone[candidate])
        chosen[name] = next(level for level in levels if level.label == label)
    return chosen


def _trial_size(cell: Cell) -> _TrialSize:
    trial, testbed = first_trial(cell), cell.testbed
    traffic = _expected_traffic(trial, testbed)
    readings = count_readings(cell.file, testbed)
    pace = mode_of(trial).pace
    packets = traffic.size_bytes / testbed.mss_bytes
    nic = trial.host.roce
    acks = pace.acks if nic is None else 1 / nic.ack_every
    count = round(packets * _mean_hops(testbed) * (1 + acks))
    hops = PacketHops(count, 0) if nic is None else PacketHops(0, count)
    return _TrialSize(
        traffic,
        _plan_s(trial, testbed, traffic),
        readings,
        disk_bytes(trial, testbed, round(traffic.flows), trial.duration_ns),
        wall_s(trial, testbed, round(traffic.flows), hops, trial.duration_ns),
    )


def _plan_s(trial: TrialSpec, testbed: Testbed, traffic: Expected) -> float:
    """Return how long it takes to make a trial's schedule, in s."""
    drawing_s = sum(spec.drawing_s(testbed) for spec in trial.traffic)
    return traffic.flows * _FLOW_S + drawing_s


def _expected_traffic(trial: TrialSpec, testbed: Testbed) -> Expected:
    total = Expected(0, 0)
    for spec in trial.traffic:
        total += fit_to_trial(spec, trial, testbed).expected(testbed)
    return total


def _mean_hops(testbed: Testbed) -> float:
    """Return how many links a packet crosses on average, from a sample of pairs of hosts."""
    paths, hosts = PathTable(testbed), testbed.hosts
    pairs = np.random.default_rng(1).integers(0, len(hosts), (_PAIRS, 2))
    hops = [paths.path(hosts[a], hosts[b]).hops for a, b in pairs.tolist() if a != b]
    return float(np.mean(hops)) if hops else 2.0
