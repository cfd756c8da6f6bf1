"""Edits of recorded actions: one decision changed, all others as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestration.artifacts.tables import Columns
from orchestration.model.signals import TARGET_COLUMNS
from orchestration.whatif.decisions import Decision, Setting


def edited(table: Columns, decision: Decision, setting: Setting, until_ns: int | None) -> Columns:
    """Return a knob's recording with the setting of `decision` in place of its own.

    `table` holds all recorded changes of the knob, in order of time; `setting` has its columns.
    The setting holds until the target's next recorded change, or with `until_ns` until then: later
    changes before it are left out, and what the record has in force at that time comes back. A row
    that would change nothing is not added, so an unchanged decision leaves the recording as it is.
    """
    target, at_ns = decision.target, decision.at_ns
    rows = target.rows(table)
    times = table["t_ns"][rows]
    new = {name: np.array(values) for name, values in table.items()}
    added: list[tuple[int, Setting]] = []
    if decision.row is not None:
        # a target may have several rows at or before 0: the last one counts
        for name, value in setting.items():
            new[name][decision.row] = value
    elif setting != decision.setting:
        added.append((at_ns, setting))
    dropped = np.zeros(len(table["t_ns"]), dtype=bool)
    if until_ns is not None and setting != decision.setting:
        dropped[rows[(times > at_ns) & (times < until_ns)]] = True
        if until_ns not in times:
            last = rows[np.searchsorted(times, until_ns, side="right") - 1]
            back = {name: table[name][last].item() for name in setting}
            if back != setting:
                added.append((until_ns, back))
    kept = {name: values[~dropped] for name, values in new.items()}
    return _with_rows(kept, target.knob.scope, target.names, added)


def _with_rows(
    table: Columns,
    scope: Any,
    names: Sequence[str | int],
    added: Sequence[tuple[int, Setting]],
) -> Columns:
    """Return a table with rows put behind those of the same time."""
    for t_ns, setting in added:
        at = int(np.searchsorted(table["t_ns"], t_ns, side="right"))
        row = {"t_ns": t_ns, **dict(zip(TARGET_COLUMNS[scope], names, strict=True)), **setting}
        table = {name: np.insert(values, at, row[name]) for name, values in table.items()}
    return table


def forced(
    table: Columns, decision: Decision, setting: Setting, times_ns: Sequence[int]
) -> Columns:
    """Return a recording that sets the decision's target only, at each of `times_ns`."""
    target = decision.target
    names = dict(zip(TARGET_COLUMNS[target.knob.scope], target.names, strict=True))
    return {
        name: np.array(
            [{"t_ns": t_ns, **names, **setting}[name] for t_ns in times_ns], dtype=table[name].dtype
        )
        for name in table
    }
