"""What there is to send of a campaign: what running trials have spooled, then their archives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from collectors.sinks.lines import encode, series
from collectors.sinks.names import ACTIONS, PORT, ROW, Measurement
from collectors.sinks.spool import DamagedSpool, Place, SpooledRun
from collectors.sinks.spooling import Readings, SpooledChange, decode
from orchestration.artifacts.reader import TrialResult
from orchestration.model.errors import InputError
from orchestration.model.knobs import KNOBS
from orchestration.model.signals import Scope
from orchestration.runner.folder import JOURNAL_FILE
from orchestration.runner.journal import TRIAL_STARTED, read_journal
from orchestration.telemetry.points import LINES

_MEASUREMENTS: list[tuple[Measurement, Scope]] = [
    (PORT, "queue"),
    *((ACTIONS[knob.name], knob.scope) for knob in KNOBS.values()),
]


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
    begins = {
        one.name: [
            series(one.name, tags | dict(zip(one.tags, map(str, names), strict=True)))
            for names in about["targets"][scope]
        ]
        for one, scope in _MEASUREMENTS
    }
    queues = about["targets"]["queue"]
    readings: list[Readings] = []
    changes: list[SpooledChange] = []
    waiting = 0
    place = after

    def batch(end: Place) -> SpoolBatch:
        lines = _port_lines(begins[PORT.name], readings) + _action_lines(begins, changes)
        rows = sum(len(one.t_ns) for one in readings)
        changed = sum(len(one.change.targets) for one in changes)
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
            waiting += len(record.change.targets)
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


def _action_lines(begins: dict[str, list[str]], changes: list[SpooledChange]) -> list[str]:
    lines: list[str] = []
    for one in changes:
        rows, measurement = len(one.change.targets), ACTIONS[one.change.knob]
        columns = {
            "t_ns": np.full(rows, one.observed_ns),
            "decided_ns": np.full(rows, one.decided_ns),
            "applied_ns": np.full(rows, one.applied_ns),
            **one.change.values,
            ROW: one.first_row + np.arange(rows),
        }
        places = one.change.targets
        lines += encode(measurement, begins[measurement.name], places, columns, one.times_ns)
    return lines
