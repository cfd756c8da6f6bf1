"""Whether a trial repeats itself to the bit, with real TCP and real RED, on a busy machine too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import numpy as np

from orchestration.model.trial import FaultSpec, IncastSpec, PoissonSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, Run, run_trial

_MILLISECOND = 1_000_000
_TABLES = ("flows", "ports", "actions", "hosts")


def repeated_trial() -> Outcome:
    """WebSearch, incast, a cut cable on graphcc: each tuner twice, once on a busy machine."""
    figures = []
    for name in ("secn2", "acc", "graphcc"):
        quiet = faulty_trial(name)
        with _busy_cpus():
            busy = faulty_trial(name)
        differ, values = differing_values(quiet, busy)
        marks = int(quiet.record.ports.marked_packets[-1].sum())
        figures += [
            Figure(
                f"{name}: numbers that differ, of {values:,} in the tables",
                f"{differ:,}",
                "none",
                differ == 0,
            ),
            Figure(f"{name}: packets marked by chance and by threshold", f"{marks:,}"),
        ]
    return Outcome("The same trial twice, the second time beside a program a CPU", tuple(figures))


def faulty_trial(tuner: str, seed: int = 1) -> Run:
    """Run 5 ms of WebSearch and incast on graphcc, with a cable cut for a millisecond."""
    return run_trial(
        "graphcc",
        (
            PoissonSpec("WebSearch", 0.6, 0, 5 * _MILLISECOND),
            IncastSpec(16, 128_000, 2 * _MILLISECOND, 0, 5 * _MILLISECOND, "h3"),
        ),
        TunerSpec(tuner),
        duration_ns=5 * _MILLISECOND,
        seed=seed,
        faults=(FaultSpec(2 * _MILLISECOND, 3 * _MILLISECOND, 100_000, ("leaf1-spine2",)),),
    )


def differing_values(one: Run, other: Run) -> tuple[int, int]:
    """Return how many numbers of the tables differ, and how many there are."""
    differ = values = 0
    for table in _TABLES:
        left, right = getattr(one.record, table), getattr(other.record, table)
        for column in (field.name for field in fields(left)):
            a, b = np.asarray(getattr(left, column)), np.asarray(getattr(right, column))
            values += a.size
            differ += max(a.size, b.size) if a.shape != b.shape else int((a != b).sum())
    return differ, values


@contextmanager
def _busy_cpus() -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(2)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
