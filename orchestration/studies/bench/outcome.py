"""What a benchmark found, and one trial run for it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.model.records import Schedule, TrialRecord
from orchestration.model.trial import FaultSpec, PatternSpec, TrialSpec, TunerSpec
from traffic.schedule import make_schedule


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, what is wanted, and whether it holds (None: no target)."""

    what: str
    measured: str
    wanted: str = ""
    holds: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """A benchmark's figures, notes in words, and its raw data."""

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True unless a figure misses its target."""
        return all(figure.holds is not False for figure in self.figures)


@dataclass(frozen=True)
class Run:
    """One trial with what came of it."""

    trial: TrialSpec
    testbed: Testbed
    schedule: Schedule
    record: TrialRecord
    wall_s: float


def run_trial(
    testbed_name: str,
    traffic: tuple[PatternSpec, ...],
    tuner: TunerSpec,
    *,
    duration_ns: int,
    drain_ns: int = 1_000_000_000,
    sample_period_ns: int = 100_000,
    seed: int = 1,
    faults: tuple[FaultSpec, ...] = (),
    flow_table: bool = False,
) -> Run:
    """Run one trial on the emulated backend, if asked with a flow table that nobody reads.

    Raises what the backend raises.
    """
    testbed = load_testbed(testbed_name)
    trial = TrialSpec(
        campaign="bench",
        testbed=testbed_name,
        backend="emulated",
        tuner=tuner,
        traffic=traffic,
        seed=seed,
        repeat=1,
        duration_ns=duration_ns,
        drain_ns=drain_ns,
        sample_period_ns=sample_period_ns,
        action_period_ns=sample_period_ns,
        faults=faults,
    )
    schedule = make_schedule(trial, testbed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        record = EmulatedBackend(flow_table=flow_table).run(
            trial, testbed, schedule, Path(folder), lambda t_ns, end_ns: None
        )
    return Run(trial, testbed, schedule, record, time.monotonic() - begin)
