"""What there is to send of a campaign: what running trials have spooled, then their archives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from collectors.sinks.lines import encode, series
from collectors.sinks.names import ACTION, PORT, ROW
from collectors.sinks.spool import DamagedSpool, Place, SpooledRun
from collectors.sinks.spooling import QueueChanges, Readings, decode
from orchestration.artifacts.reader import TrialResult
from orchestration.model.errors import InputError
from orchestration.runner.folder import JOURNAL_FILE
from orchestration.runner.journal import TRIAL_STARTED, read_journal
from orchestration.telemetry.points import LINES


@dataclass(frozen=True)
class SpoolBatch:
    """Lines from a spool, the place after them, and how many readings and changes they are of."""

    lines: list[str]
    place: Place
    readings: int
    changes: int


def started_ns(trial: TrialResult) -> int:
    """Return the wall clock, ns since 1970, at a trial's time 0.

    It is in trial.json; for a trial that is older than that, the journal says when it was started.
    Raises InputError if neither tells.
    """
    found = trial.facts.get("started_ns")
    if isinstance(found, int):
        return found
    at = None
    for entry in read_journal(trial.folder.parent / JOURNAL_FILE):
        if entry["event"] == TRIAL_STARTED and entry.get("trial") == trial.spec.id:
            at = entry.get("at", at)
    if at is None:
        raise InputError.single(
            str(trial.folder),
            "neither its trial.json nor the campaign's journal says when it was run",
            f"put the campaign's {JOURNAL_FILE} beside it, or run the trial again",
        )
    return round(datetime.fromisoformat(at).timestamp() * 1000) * 1_000_000


def spool_batches(run: SpooledRun, about: dict[str, Any], after: Place) -> Iterator[SpoolBatch]:
    """Yield what a run has spooled since `after`, some `LINES` lines at a time.

    Raises DamagedSpool.
    """
    tags = {name: about[name] for name in ("campaign", "trial", "run")}
    queues = [
        {"device": device, "port": port, "queue": str(number)}
        for device, port, number in about["queues"]
    ]
    ports = [series(PORT.name, tags | queue) for queue in queues]
    actions = [series(ACTION.name, tags | queue) for queue in queues]
    readings: list[Readings] = []
    changes: list[QueueChanges] = []
    waiting = 0
    place = after

    def batch(end: Place) -> SpoolBatch:
        lines = _port_lines(ports, readings) + _action_lines(actions, changes)
        rows = sum(len(one.t_ns) for one in readings)
        changed = sum(len(one.queues) for one in changes)
        return SpoolBatch(lines, end, rows, changed)

    for kind, payload, place in run.frames(after):
        try:
            record = decode(kind, payload)
        except ValueError as error:
            raise DamagedSpool(str(error)) from error
        if isinstance(record, Readings):
            readings.append(record)
            waiting += len(record.t_ns) * len(queues)
        else:
            changes.append(record)
            waiting += len(record.queues)
        if waiting >= LINES // 2:
            yield batch(place)
            readings, changes, waiting = [], [], 0
    if waiting:
        yield batch(place)


def _port_lines(begins: list[str], readings: list[Readings]) -> list[str]:
    if not readings:
        return []
    count = len(begins)
    t_ns = np.concatenate([one.t_ns for one in readings])
    columns: dict[str, Any] = {"t_ns": np.repeat(t_ns, count)}
    for name in readings[0].columns:
        columns[name] = np.concatenate([one.columns[name].ravel() for one in readings])
    times = np.repeat(np.concatenate([one.times_ns for one in readings]), count)
    return encode(PORT, begins, np.tile(np.arange(count), len(t_ns)), columns, times)


def _action_lines(begins: list[str], changes: list[QueueChanges]) -> list[str]:
    lines: list[str] = []
    for one in changes:
        rows = len(one.queues)
        columns = {
            "t_ns": np.full(rows, one.observed_ns),
            "decided_ns": np.full(rows, one.decided_ns),
            "applied_ns": np.full(rows, one.applied_ns),
            "kmin_bytes": one.kmin_bytes,
            "kmax_bytes": one.kmax_bytes,
            "pmax": one.pmax,
            ROW: one.first_row + np.arange(rows),
        }
        lines += encode(ACTION, begins, one.queues, columns, one.times_ns)
    return lines
