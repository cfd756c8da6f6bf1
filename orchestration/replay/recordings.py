"""Turn what trials recorded into what a replay reads: their flows, and their actions by knobs."""

from __future__ import annotations

import graphlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.core.csv_columns import write_csv
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN, KNOBS, Knob
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.trial import of_repeat
from orchestration.replay.parents import Group, Recording
from orchestration.results.reader import TrialResult
from orchestration.results.tables import TABLES, Columns, damaged, read_table
from traffic.schedule import class_names
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


def schedule_of(trial: TrialResult) -> Columns:
    """Return the flows of a trial's schedule. Raises InputError if they are not in its order."""
    path = trial.folder / TABLES["schedule"].file
    where, table = str(path), read_table(path, "schedule")
    refuse(where, np.diff(table["start_ns"]) < 0, "starts before the one above it", 1)
    refuse(where, np.diff(table["flow_id"]) != 1, "has not the flow_id after the one above it", 1)
    if not len(table["start_ns"]):
        raise InputError.single(where, "the trial has no flows", "there is nothing to replay")
    return table


def shared_schedule(group: Group, repeat: int) -> Columns:
    """Return the flows of a repeat, which are the same for all of its tuners."""
    found: Columns | None = None
    digests: dict[str, Recording] = {}
    for recording in group.of_repeat(repeat):
        schedule = schedule_of(recording.trial)
        digests.setdefault(_digest(schedule), recording)
        found = found or schedule
    if len(digests) > 1:
        one, other = (str(item.trial.folder) for item in list(digests.values())[:2])
        raise InputError.single(
            other,
            f"its flows are not those of {one}, of the same repeat",
            "choose one tuner's trials with --trials",
        )
    assert found is not None  # each repeat of a group has a recording
    return found


def _digest(schedule: Columns) -> str:
    digest = hashlib.sha256()
    for name in ("start_ns", "bytes"):
        digest.update(schedule[name].tobytes())
    for name in ("src", "dst", "class"):
        digest.update("\n".join(schedule[name].tolist()).encode())
    return digest.hexdigest()


def class_order(trial: TrialResult, schedule: Columns) -> tuple[str, ...]:
    """Return the classes with flows, in the order of their patterns.

    Imported flows have no patterns; the order of flows that start together tells it then.
    """
    found = tuple(dict.fromkeys(schedule["class"].tolist()))
    declared = class_names(trial.spec.traffic)
    if set(found) <= set(declared):
        return tuple(name for name in declared if name in found)
    after: dict[str, dict[str, None]] = {name: {} for name in found}
    together = np.flatnonzero(np.diff(schedule["start_ns"]) == 0)
    klass = schedule["class"]
    for before, then in dict.fromkeys(
        zip(klass[together].tolist(), klass[together + 1].tolist(), strict=True)
    ):
        if before != then:
            after[then][before] = None
    try:
        return tuple(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError:
        return found


def keeps_numbers(schedule: Columns, order: Sequence[str], testbed: Testbed) -> bool:
    """Return whether a replay with this order of classes numbers the flows as the schedule does."""
    host = {name: place for place, name in enumerate(testbed.hosts)}
    klass = {name: place for place, name in enumerate(order)}

    def numbers(column: str, of_name: Mapping[str, int]) -> Ints:
        names = schedule[column].tolist()
        return np.fromiter((of_name.get(name, -1) for name in names), np.int64, len(names))

    keys = (numbers("dst", host), numbers("src", host), numbers("class", klass))
    sorted_rows = np.lexsort((*keys, schedule["start_ns"]))
    return bool(np.array_equal(sorted_rows, np.arange(len(sorted_rows))))


def refuse(where: str, wrong: np.ndarray[Any, Any], what: str, offset: int = 0) -> None:
    """Raise InputError for the first row that is wrong; `wrong` begins with row `offset`."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise damaged(Path(where), f"row {int(rows[0]) + offset + 1} {what}")
