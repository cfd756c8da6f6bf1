"""What a pair of trials says of how it was made: settings side by side, as causes may need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.comparison.reading import fresh
from orchestration.artifacts.reader import TrialResult
from orchestration.artifacts.tables import Columns
from orchestration.model.errors import InputError


@dataclass(frozen=True)
class Settings:
    """One trial's settings; tables and testbed are None where they cannot be read.

    `timeouts` counts TCP's retransmission timeouts, `missed` is the share of sampling periods
    without a reading, both None where unknown.
    """

    trial: TrialResult
    testbed: Testbed | None
    actions: Columns | None
    timeouts: int | None
    missed: float | None


def read_settings(trial: TrialResult) -> Settings:
    """Return a trial's settings, as far as its files can be read."""
    try:
        testbed: Testbed | None = trial.testbed
    except InputError:
        testbed = None
    hosts, ports = _table(trial, "hosts"), _table(trial, "ports")
    return Settings(
        trial=fresh(trial),
        testbed=testbed,
        actions=_table(trial, "actions"),
        timeouts=_total(hosts, "host", "timeouts") if hosts is not None else None,
        missed=_missed(trial, np.unique(ports["t_ns"])) if ports is not None else None,
    )


def _table(trial: TrialResult, name: str) -> Columns | None:
    try:
        return trial.table(name)
    except InputError:
        return None


def _total(table: Columns, by: str, counter: str) -> int:
    """Return the sum over `by` of the last number of a counter."""
    if not len(table[counter]):
        return 0
    _, place = np.unique(table[by].astype(str), return_inverse=True)
    most = np.zeros(place.max() + 1, dtype=np.int64)
    np.maximum.at(most, place, table[counter])
    return int(most.sum())


def _missed(trial: TrialResult, t_ns: np.ndarray) -> float | None:
    """Return the share of sampling periods up to the end of the arrivals that have no reading.

    A trial whose flows have all ended before that ends with them.
    """
    if not len(t_ns):
        return None
    period = trial.spec.sample_period_ns
    due = min(trial.spec.duration_ns, int(t_ns.max()) + period // 2) // period
    if due < 1:
        return None
    seen = np.unique((t_ns + (period - 1) // 2) // period)
    return 1 - float(np.count_nonzero((seen >= 1) & (seen <= due))) / due


def leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the plain values of nested facts by their path: `sysctls: host: net/...`."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{prefix}: {key}" if prefix else str(key))
    elif isinstance(data, str | int | float | bool):
        yield prefix, f"{data:.6g}" if isinstance(data, float) else str(data)
