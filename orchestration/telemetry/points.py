"""Turn a trial into points for InfluxDB: its spool while it runs, then its archive.

The spool holds samples on disk until they are sent. An archive is sent as its tables, its files,
and a last point that marks the trial as complete.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from collectors.sinks.lines import (
    FILE,
    FLOW,
    MEASUREMENTS,
    OF_TABLES,
    ROW,
    TRIAL,
    Column,
    Measurement,
    encode,
    run_tag,
    series,
    unique_times,
)
from collectors.sinks.spool import DamagedSpool, SpooledRun
from collectors.sinks.spool_observer import TARGETS, TIMES
from orchestration.core.codec import unpack
from orchestration.core.errors import InputError
from orchestration.results.reader import TrialResult
from orchestration.results.tables import TABLES
from orchestration.results.writer import TESTBED_FILE, TRIAL_FILE
from orchestration.run.folder import JOURNAL_FILE, TRIAL_STARTED, read_journal

CAMPAIGN_FILE = "campaign.yml"
# InfluxDB's documentation recommends requests of 5,000 lines.
LINES = 5_000
# Files are split into parts that stay below the 64 KB of a string field in any encoding.
_PART_CHARACTERS = 10_000


class ArchivedPoints:
    """The points of one archived trial. Raises InputError if its folder is damaged."""

    def __init__(self, trial: TrialResult, started_ns: int) -> None:
        """Take a trial whose time 0 was at wall-clock time `started_ns`, in ns since 1970."""
        self._trial, self._started_ns = trial, started_ns
        self.run = run_tag(started_ns)
        spec = trial.spec
        self._tags = {"campaign": spec.campaign, "trial": spec.id, "run": self.run}

    def check(self) -> None:
        """Raise InputError if the folder is inconsistent. Call it before anything is sent."""
        _ = self._trial.ports  # reading it checks that its rows are the testbed's queues
        for table in TABLES:
            self._trial.table(table)

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return len(next(iter(self._trial.table(table).values())))

    def batches(self, skip: Collection[str] = ()) -> Iterator[list[str]]:
        """Yield lists of lines, always in the same order, without the tables in `skip`."""
        for measurement in OF_TABLES:
            if measurement.table not in skip:
                yield from self._table(measurement)
        lines = [line for name, text in self._texts().items() for line in self._file(name, text)]
        # These lines are long, so that a request has only a few of them.
        step = max(1, 4_000_000 // (4 * _PART_CHARACTERS))
        yield from (lines[start : start + step] for start in range(0, len(lines), step))
        yield self._last()

    def _table(self, measurement: Measurement) -> Iterator[list[str]]:
        table = dict(self._trial.table(measurement.table))
        if measurement is FLOW:
            schedule = self._trial.table("schedule")
            if not np.array_equal(schedule["flow_id"], table["flow_id"]):
                raise InputError.single(
                    str(self._trial.folder),
                    "its schedule and its flows have different flow numbers",
                    "restore the folder from a copy",
                )
            table |= {name: schedule[name] for name in ("src", "dst", "bytes", "class")}
        begins, codes = self._series(measurement, table)
        table[ROW] = np.arange(len(codes))
        times = self._started_ns + unique_times(table[measurement.time], codes)
        fields = {name: table[name] for name in measurement.fields}
        for start in range(0, len(codes), LINES):
            part = slice(start, start + LINES)
            used, local = np.unique(codes[part], return_inverse=True)
            yield encode(
                measurement,
                [begins[code] for code in used],
                local.ravel(),
                {name: values[part] for name, values in fields.items()},
                times[part],
            )

    def _series(
        self, measurement: Measurement, table: Mapping[str, Column]
    ) -> tuple[list[str], Column]:
        """Return the beginnings of the lines of all series, and the series of each row."""
        columns = [table[tag] for tag in measurement.tags]
        rows = len(columns[0])
        new = np.ones(rows, dtype=bool)
        if rows:
            new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        firsts = np.flatnonzero(new)
        numbers: dict[tuple[Any, ...], int] = {}
        of_run = [
            numbers.setdefault(values, len(numbers))
            for values in zip(*(column[firsts].tolist() for column in columns), strict=True)
        ]
        codes = np.repeat(np.array(of_run, dtype=np.int64), np.diff([*firsts, rows]))
        return _begins(measurement, self._tags, numbers), codes

    def _texts(self) -> dict[str, str]:
        folder = self._trial.folder
        texts = {name: _text(folder / name) for name in (TRIAL_FILE, TESTBED_FILE)}
        if (folder.parent / CAMPAIGN_FILE).is_file():
            texts[CAMPAIGN_FILE] = _text(folder.parent / CAMPAIGN_FILE)
        return texts

    def _file(self, name: str, text: str) -> list[str]:
        starts = range(0, max(1, len(text)), _PART_CHARACTERS)
        pieces = (text[start : start + _PART_CHARACTERS] for start in starts)
        # As JSON strings, because the database's CSV changes line ends.
        texts = [json.dumps(piece, ensure_ascii=False) for piece in pieces]
        parts = np.array(texts, dtype=object)
        number = np.arange(len(parts))
        digest = hashlib.sha256(text.encode()).hexdigest()
        columns = {
            "part": number,
            "parts": np.full(len(parts), len(parts)),
            "text": parts,
            "sha256": np.full(len(parts), digest, dtype=object),
        }
        begin = series(FILE.name, self._tags | {"file": name})
        zeros = np.zeros(len(parts), dtype=np.int64)
        return encode(FILE, [begin], zeros, columns, self._started_ns + number)

    def _last(self) -> list[str]:
        trial, spec = self._trial, self._trial.spec
        tags = {"testbed": spec.testbed, "backend": spec.backend, "tuner": spec.tuner.name}
        fields: dict[str, Any] = {
            "seed": spec.seed,
            "repeat": spec.repeat,
            "started_ns": self._started_ns,
            "duration_ns": spec.duration_ns,
            "valid": trial.stamp.valid,
            "reasons": "; ".join(reason.text for reason in trial.stamp.reasons),
            "wall_s": float(trial.facts.get("wall_s", float("nan"))),
            "parts": sum(len(self._file(name, text)) for name, text in self._texts().items()),
        }
        fields |= {f"rows_{of.table}": self.rows(of.table) for of in OF_TABLES}
        columns = {
            name: np.array([value], dtype=object if isinstance(value, str) else None)
            for name, value in fields.items()
        }
        begin = series(TRIAL.name, self._tags | tags)
        times = np.array([self._started_ns])
        return encode(TRIAL, [begin], np.zeros(1, dtype=np.int64), columns, times)


def _begins(
    measurement: Measurement, tags: Mapping[str, str], targets: Iterable[Sequence[Any]]
) -> list[str]:
    """Return the beginnings of the lines of a measurement's targets."""
    own_tags = (zip(measurement.tags, map(str, target), strict=True) for target in targets)
    return [series(measurement.name, {**tags, **dict(own)}) for own in own_tags]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.single(
            str(path), f"cannot be read: {error}", "restore the folder from a copy"
        ) from error


def started_ns(trial: TrialResult) -> int:
    """Return the wall-clock time of a trial's time 0, in ns since 1970.

    It is in trial.json; for older trials it is the start in the journal. Raises InputError if
    neither has it.
    """
    recorded = trial.facts.get("started_ns")
    if isinstance(recorded, int):
        return recorded
    at = None
    for entry in read_journal(trial.folder.parent / JOURNAL_FILE):
        if entry["event"] == TRIAL_STARTED and entry.get("trial") == trial.spec.id:
            at = entry.get("at", at)
    if at is None:
        raise InputError.single(
            str(trial.folder),
            "neither its trial.json nor the campaign's journal has the time at which it ran",
            f"put the campaign's {JOURNAL_FILE} beside its folder, or run the trial again",
        )
    return round(datetime.fromisoformat(at).timestamp() * 1000) * 1_000_000


def spool_batches(
    run: SpooledRun, about: dict[str, Any], first: int = 0
) -> Iterator[tuple[list[str], int, Counter[str]]]:
    """Yield the points of a run's spool from part `first` on, about `LINES` at a time.

    Each item is the lines, the number of the next part, and the number of rows by table. Raises
    DamagedSpool.
    """
    tags = {name: about[name] for name in ("campaign", "trial", "run")}
    begins = {
        name: _begins(MEASUREMENTS[name], tags, targets)
        for name, targets in about["targets"].items()
    }
    lines: list[str] = []
    rows: Counter[str] = Counter()
    for number, payload in run.parts(first):
        try:
            names, parts = unpack(payload)
            for name, arrays in zip(names, parts.values(), strict=True):
                flat = (array.ravel() for array in np.broadcast_arrays(*arrays.values()))
                columns = dict(zip(arrays, flat, strict=True))
                codes, times = columns.pop(TARGETS), columns.pop(TIMES)
                lines += encode(MEASUREMENTS[name], begins[name], codes, columns, times)
                rows[MEASUREMENTS[name].table] += len(times)
        except (KeyError, ValueError) as error:
            raise DamagedSpool(str(error)) from error
        if rows.total() >= LINES // 2:
            yield lines, number + 1, rows
            lines, rows = [], Counter()
    if rows:
        yield lines, number + 1, rows
