"""Turn the actions that trials recorded into the files that a replay reads: one a knob."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.artifacts.reader import TrialResult
from orchestration.artifacts.tables import TABLES, Columns
from orchestration.model.csv_columns import write_csv
from orchestration.model.errors import InputError
from orchestration.model.knobs import ECN, KNOBS, Knob
from orchestration.model.trial import of_repeat
from orchestration.replay.tables import refuse
from tuners.recorded import columns_of, faults

# A reading that began up to a tenth of a period early still belongs to the sampling time.
_EARLY_SHARE = 10


def write_actions(
    folder: Path, ending: str, trials: Mapping[int, TrialResult], scaled_to: Testbed | None
) -> dict[str, str]:
    """Write the actions of a tuner's trials, by repeat; return the files' names, by knobs' tables.

    The names end in `ending`, in which `{repeat}` is replaced. With `scaled_to`, thresholds are
    scaled to the rates of that testbed. Raises InputError for trials whose actions cannot be
    replayed.
    """
    found = {repeat: actions_of(trial) for repeat, trial in trials.items()}
    turned = [knob for knob in KNOBS.values() if any(knob in made for made in found.values())]
    for repeat, made in found.items():
        for knob in turned:
            # a knob that was turned in another repeat only has a recording without rows
            actions: Mapping[str, Any] = made.get(knob, dict.fromkeys(columns_of(knob), ()))
            if knob is ECN and knob in made and scaled_to is not None:
                actions = scaled(made[knob], trials[repeat].testbed, scaled_to)
            write_csv(folder / of_repeat(knob.table + ending, repeat), actions)
    return {knob.table: knob.table + ending for knob in turned}


def actions_of(trial: TrialResult) -> dict[Knob, Columns]:
    """Return the changes of each knob that a trial turned, at the sampling times they respond to.

    A reading begins some ns (on a rack some us) after its sampling time. Sampling times are used
    because a replay's reading may begin a little sooner than the recorded one. The columns are
    those of a recording (`tuners.recorded`).

    Raises InputError for a trial that turned no knob, for a table with times out of order, and for
    impossible settings.
    """
    tables = {knob: trial.table(knob.table) for knob in KNOBS.values()}
    turned = {knob: table for knob, table in tables.items() if len(table["t_ns"])}
    if not turned:
        remedy = "let a tuner decide in their place: --tuner secn1"
        where = str(trial.folder / TABLES[ECN.table].file)
        raise InputError.single(where, "the trial has no recorded actions", remedy)
    period_ns = trial.spec.sample_period_ns
    return {knob: _recording(trial, knob, table, period_ns) for knob, table in turned.items()}


def _recording(trial: TrialResult, knob: Knob, table: Columns, period_ns: int) -> Columns:
    where, t_ns = str(trial.folder / TABLES[knob.table].file), table["t_ns"]
    refuse(where, np.diff(t_ns) < 0, "has an earlier t_ns than the one above it", 1)
    kept = {
        name: table[name] for name in knob.column_names if not _is_left_alone(knob, name, table)
    }
    for wrong, what, _ in faults(knob, kept):
        refuse(where, wrong, f"has {what}" if what.startswith("not") else f"is wrong, {what}")
    samples = (t_ns + period_ns // _EARLY_SHARE) // period_ns * period_ns
    timed = {**table, "t_ns": np.where(t_ns > 0, samples, t_ns)}
    return {name: timed[name] for name in columns_of(knob, kept)}


def _is_left_alone(knob: Knob, name: str, table: Columns) -> bool:
    """Return whether a column has what no tuner could set: what the campaign set, all the time.

    A table has all columns of a target, as read back after a change of some.
    """
    (column,) = (one for one in knob.columns if one.name == name)
    if not knob.preset or column.most is None:
        return False
    values = table[name]
    return bool(((values < column.least) | (values > column.most)).all())


def scaled(actions: Columns, before: Testbed, after: Testbed) -> Columns:
    """Return the actions with each port's kmin and kmax scaled to its new rate.

    Raises InputError for a port that is missing in one of the testbeds.
    """
    rates = [{(p.device, p.name): p.rate_bps for p in each.ports} for each in (before, after)]
    ports = list(zip(actions["device"].tolist(), actions["port"].tolist(), strict=True))
    known: dict[tuple[Any, Any], float] = {}
    for port in dict.fromkeys(ports):
        if any(port not in each for each in rates):
            what = f"{port[0]}:{port[1]} is not in both testbeds"
            raise InputError.single("--scale-thresholds", what, "leave it out")
        known[port] = rates[1][port] / rates[0][port]
    factor = np.fromiter((known[port] for port in ports), np.float64, len(ports))
    new = {
        name: np.rint(actions[name] * factor).astype(np.int64)
        for name in ("kmin_bytes", "kmax_bytes")
    }
    return {**actions, **new}
