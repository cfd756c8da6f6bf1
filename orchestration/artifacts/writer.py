"""Writes the run folder of one trial: into a hidden sibling first, renamed when complete.

A folder with its final name is therefore a finished trial, whatever happens while it is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inventory.testbed_json import testbed_to_json
from inventory.topology import Testbed
from orchestration.artifacts.provenance import versions
from orchestration.artifacts.stamp import Stamp
from orchestration.artifacts.tables import TABLES, Names, write_table
from orchestration.model.errors import TrialError
from orchestration.model.records import DONE, STATUS_NAMES, Ints, Schedule, TrialRecord
from orchestration.model.trial import TrialSpec
from traffic.schedule import ideal_times_ns

TRIAL_FILE, TESTBED_FILE = "trial.json", "testbed.json"
TRIAL_FORMAT = 1
PARTIAL_SUFFIX = ".partial"


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
    """Write the run folder `folder` of one finished trial.

    `facts` is JSON-ready and joins the record's own. `ideal_ns` (flows,) are the ideal completion
    times where they are known already. Raises TrialError, leaving nothing behind, when the folder
    exists or cannot be written (no space, no permission).
    """
    if folder.exists():
        raise TrialError(f"{folder} already holds a finished trial", "remove it to run it again")
    partial = folder.with_name(f".{folder.name}{PARTIAL_SUFFIX}")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
        partial.mkdir(parents=True)
        _write_tables(partial, testbed, schedule, record, ideal_ns)
        _write_json(partial / TESTBED_FILE, testbed_to_json(testbed))
        about = _about(trial, stamp, {**record.facts, **facts})
        _write_json(partial / TRIAL_FILE, about)
        for path in sorted(partial.iterdir()):
            _sync(path)
        _sync(partial)
        partial.rename(folder)
        _sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise TrialError(
                f"the results of trial {trial.id} cannot be written to {folder.parent}: "
                f"{error.strerror or error}",
                "make room there, or make it writable, and give the same command again",
            ) from error
        raise


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
    folder: Path, testbed: Testbed, schedule: Schedule, record: TrialRecord, ideal_ns: Ints | None
) -> None:
    tables = {
        "schedule": _schedule(testbed, schedule),
        "flows": _flows(testbed, schedule, record, ideal_ns),
        "ports": _ports(testbed, record),
        "hosts": _hosts(testbed, record),
        "actions": _actions(testbed, record),
        "events": {
            "t_ns": [event.t_ns for event in record.events],
            "kind": [event.kind for event in record.events],
            "detail": [event.detail for event in record.events],
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


def _flows(
    testbed: Testbed, schedule: Schedule, record: TrialRecord, ideal_ns: Ints | None
) -> dict[str, Any]:
    flows = record.flows
    not_done = flows.status != DONE
    return {
        "flow_id": np.arange(len(schedule)),
        "start_ns": schedule.start_ns,
        "sent_ns": np.ma.masked_array(flows.sent_ns, flows.sent_ns < 0),
        "end_ns": np.ma.masked_array(flows.end_ns, not_done),
        "fct_ns": np.ma.masked_array(flows.end_ns - schedule.start_ns, not_done),
        "ideal_ns": ideal_times_ns(testbed, schedule) if ideal_ns is None else ideal_ns,
        "retransmits": flows.retransmits,
        "status": Names(flows.status, STATUS_NAMES),
    }


def _ports(testbed: Testbed, record: TrialRecord) -> dict[str, Any]:
    """Long format, queue by queue: a counter's neighbours are its own, which packs well."""
    ports, samples = record.ports, len(record.ports.t_ns)
    counters = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
    return {
        "t_ns": np.tile(ports.t_ns, len(testbed.queues)),
        **_port_names(testbed, np.repeat(np.arange(len(testbed.queues)), samples)),
        **{name: getattr(ports, name).T.ravel() for name in counters},
    }


def _hosts(testbed: Testbed, record: TrialRecord) -> dict[str, Any]:
    hosts, samples = record.hosts, len(record.hosts.t_ns)
    return {
        "t_ns": np.tile(hosts.t_ns, len(testbed.hosts)),
        "host": Names(np.repeat(np.arange(len(testbed.hosts)), samples), testbed.hosts),
        **{
            name: getattr(hosts, name).T.ravel()
            for name in ("retransmits", "timeouts", "out_of_order", "tx_bytes")
        },
    }


def _actions(testbed: Testbed, record: TrialRecord) -> dict[str, Any]:
    actions = record.actions
    return {
        "t_ns": actions.observed_ns,
        "decided_ns": actions.decided_ns,
        "applied_ns": actions.applied_ns,
        **_port_names(testbed, actions.queue),
        "kmin_bytes": actions.kmin_bytes,
        "kmax_bytes": actions.kmax_bytes,
        "pmax": actions.pmax,
    }


def _port_names(testbed: Testbed, queues: Ints) -> dict[str, Any]:
    """Return the device, port and queue columns of rows about `queues` (rows,).

    A row's queue is the number of the traffic class, 0 where a port has one queue.
    """
    devices = {name: code for code, name in enumerate(testbed.switches)}
    names = {name: code for code, name in enumerate(dict.fromkeys(p.name for p in testbed.queues))}
    device = np.array([devices[port.device] for port in testbed.queues], dtype=np.int32)
    port = np.array([names[port.name] for port in testbed.queues], dtype=np.int32)
    klass = np.array([queue.klass for queue in testbed.queues], dtype=np.int16)
    return {
        "device": Names(device[queues], tuple(devices)),
        "port": Names(port[queues], tuple(names)),
        "queue": klass[queues],
    }


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=1, default=_plain)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
