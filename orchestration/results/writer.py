"""Writes the folder of one trial: first a hidden folder beside it, renamed when it is complete.

A folder with its final name is therefore always a finished trial.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inventory.routing import ideal_times_ns
from inventory.testbed_json import testbed_to_json
from orchestration.core.errors import TrialError
from orchestration.core.files import whole_folder
from orchestration.core.knobs import KNOBS, Knob
from orchestration.core.provenance import versions
from orchestration.core.records import (
    DONE,
    STATUS_NAMES,
    ChangeRecords,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.signals import (
    FLOW_SCOPE,
    TABLE_OF,
    TARGET_COLUMNS,
    Scope,
    target_names,
    targets,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.stamp import Stamp
from orchestration.results.tables import OPTIONAL, TABLES, Names, write_table

TRIAL_FILE, TESTBED_FILE = "trial.json", "testbed.json"
TRIAL_FORMAT = 1


def write_trial(
    folder: Path,
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    record: TrialRecord,
    stamp: Stamp,
    facts: Mapping[str, Any],
    ideal_ns: Ints | None = None,
) -> None:
    """Write the folder of one finished trial.

    `facts` is JSON-ready and added to the record's own facts. `ideal_ns` (flows,) are the ideal
    completion times, if they are known already. Raises TrialError, and leaves nothing behind, if
    the folder exists or cannot be written.
    """
    if folder.exists():
        raise TrialError(f"{folder} already holds a finished trial", "remove it to run it again")
    try:
        with whole_folder(folder, sync=True) as partial:
            if ideal_ns is None:
                ideal_ns = ideal_times_ns(testbed, schedule, trial)
            _write_tables(partial, testbed, schedule, record, ideal_ns)
            _write_json(partial / TESTBED_FILE, testbed_to_json(testbed))
            _write_json(partial / TRIAL_FILE, _about(trial, stamp, {**record.facts, **facts}))
    except OSError as error:
        raise TrialError(
            f"the results of trial {trial.id} cannot be written to {folder.parent}: "
            f"{error.strerror or error}",
            "make room there, or make it writable, and give the same command again",
        ) from error


def _about(trial: TrialSpec, stamp: Stamp, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": TRIAL_FORMAT,
        "id": trial.id,
        "seed": trial.seed,
        "spec": trial.to_json(),
        "stamp": stamp.to_json(),
        "versions": versions(),
        "facts": facts,
    }


def _write_tables(
    folder: Path, testbed: Testbed, schedule: Schedule, record: TrialRecord, ideal_ns: Ints
) -> None:
    tables = {
        "schedule": _schedule(testbed, schedule),
        "flows": _flows(schedule, record, ideal_ns),
        **{
            TABLE_OF[scope]: _samples(testbed, scope, samples)
            for scope, samples in record.samples.items()
        },
        **{
            KNOBS[name].table: _actions(testbed, KNOBS[name], changes)
            for name, changes in record.changes.items()
            if len(changes.targets) or KNOBS[name].table not in OPTIONAL
        },
        "events": {
            name: [getattr(event, name) for event in record.events]
            for name in ("t_ns", "kind", "detail")
        },
    }
    for name, columns in tables.items():
        write_table(folder / TABLES[name].file, name, columns)


def _schedule(testbed: Testbed, schedule: Schedule) -> dict[str, Any]:
    return {
        "flow_id": np.arange(len(schedule)),
        "start_ns": schedule.start_ns,
        "src": Names(schedule.src, testbed.hosts),
        "dst": Names(schedule.dst, testbed.hosts),
        "bytes": schedule.size_bytes,
        "class": Names(schedule.klass, schedule.classes),
    }


def _flows(schedule: Schedule, record: TrialRecord, ideal_ns: Ints) -> dict[str, Any]:
    flows = record.flows
    not_done = flows.status != DONE
    return {
        "flow_id": np.arange(len(schedule)),
        "start_ns": schedule.start_ns,
        "sent_ns": np.ma.masked_array(flows.sent_ns, flows.sent_ns < 0),
        "end_ns": np.ma.masked_array(flows.end_ns, not_done),
        "fct_ns": np.ma.masked_array(flows.end_ns - schedule.start_ns, not_done),
        "ideal_ns": ideal_ns,
        "retransmits": flows.retransmits,
        "status": Names(flows.status, STATUS_NAMES),
    }


def _samples(testbed: Testbed, scope: Scope, samples: Samples) -> dict[str, Any]:
    """Return samples in long format, target by target, so that counters compress well."""
    rows = len(samples.t_ns)
    if scope == FLOW_SCOPE:  # its targets are the schedule's flows, not the testbed's
        count = next(iter(samples.values.values())).shape[1]
        named = {"flow_id": np.repeat(np.arange(count), rows)}
    else:
        count = len(targets(testbed, scope))
        named = _target_columns(testbed, scope, np.repeat(np.arange(count), rows))
    return {
        "t_ns": np.tile(samples.t_ns, count),
        **named,
        **{name: values.T.ravel() for name, values in samples.values.items()},
    }


def _actions(testbed: Testbed, knob: Knob, changes: ChangeRecords) -> dict[str, Any]:
    return {
        "t_ns": changes.observed_ns,
        "decided_ns": changes.decided_ns,
        "applied_ns": changes.applied_ns,
        **_target_columns(testbed, knob.scope, changes.targets),
        **changes.values,
    }


def _target_columns(testbed: Testbed, scope: Scope, rows: Ints) -> dict[str, Any]:
    """Return the columns that name targets; `rows` (rows,) has the index of each row's target.

    A row's queue is the number of its traffic class, 0 if a port has one queue.
    """
    columns: dict[str, Any] = {}
    for index, name in enumerate(TARGET_COLUMNS[scope]):
        parts = [target[index] for target in target_names(testbed, scope)]
        if name == "queue":
            columns[name] = np.array(parts, dtype=np.int16)[rows]
        else:
            # the names of all switches, whether or not they have queues
            words = testbed.switches if name == "device" else map(str, dict.fromkeys(parts))
            codes = {word: code for code, word in enumerate(words)}
            code = np.array([codes[str(part)] for part in parts], dtype=np.int32)
            columns[name] = Names(code[rows], tuple(codes))
    return columns


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=1, default=_plain)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
