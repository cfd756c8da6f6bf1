"""The journal of a run folder: its events, one JSON object a line, never rewritten.

It is also the ledger of temporary folders. A trial is recorded as started before anything of it is
created, so that remains of a killed run can be told from files that are not the runner's.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration.analysis.index import History
from orchestration.core import wall

JOURNAL_FILE = "journal.jsonl"
RUN_STARTED = "run-started"
RUN_FINISHED = "run-finished"
RUN_INTERRUPTED = "run-interrupted"
TRIAL_STARTED = "trial-started"
TRIAL_FINISHED = "trial-finished"
TRIAL_FAILED = "trial-failed"
TRIAL_LOST = "trial-lost"
LOOKED = "looked"


class Journal:
    """An append-only journal; a line is on disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        """Open `path`, creating it if necessary. A line that a crash has cut off is ended first."""
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")

    def add(self, event: str, **details: Any) -> None:
        """Append one event with the time of day."""
        now = datetime.fromtimestamp(wall.now_s(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": now, "event": event, **details}, separators=(",", ":"))
        os.write(self._handle, line.encode() + b"\n")
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's entries in order; nothing if there is no journal.

    Incomplete lines (the run was killed while writing) are skipped.
    """
    if not path.exists():
        return
    yield from entries(path.read_bytes())


def entries(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal's lines, without incomplete ones."""
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            yield entry


def read_history(folder: Path) -> History:
    """Return what a run folder's journal says; nothing is known of one without a journal."""
    planned, state = 0, ""
    failed: dict[str, str] = {}
    began_s = ended_s = math.nan
    for entry in read_journal(folder / JOURNAL_FILE):
        event, trial = entry["event"], str(entry.get("trial", ""))
        at_s = datetime.fromisoformat(entry["at"]).timestamp()
        if event == TRIAL_STARTED and math.isnan(began_s):
            began_s = at_s
        if event in (TRIAL_FINISHED, TRIAL_FAILED):
            ended_s = at_s
        if event == RUN_STARTED:
            planned, state = int(entry["trials"]), ""
        elif event == LOOKED:
            planned = int(entry["trials"])
        elif event == TRIAL_FAILED:
            failed[trial] = str(entry["message"])
        elif event in (TRIAL_STARTED, TRIAL_FINISHED):
            failed.pop(trial, None)
        elif event == RUN_FINISHED:
            state = "finished"
        elif event == RUN_INTERRUPTED:
            state = "interrupted"
    return History(planned, failed, began_s, ended_s, state)


def run_folders(path: Path) -> list[Path]:
    """Return the run folders at and below `path` that have a journal, sorted; hidden ones not."""
    return sorted(
        found.parent
        for found in path.rglob(JOURNAL_FILE)
        if not any(part.startswith(".") for part in found.relative_to(path).parts)
    )
