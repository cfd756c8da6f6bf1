"""What a server has of a campaign already: a file that is only appended to.

A line is written after the server has confirmed. One that a kill kept from being written costs
nothing but sending the same points again, and the same points are one in the database.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from collectors.sinks.spool import Place
from orchestration.model.errors import NotReadyError

_FILE = "sent.jsonl"


@dataclass
class Sent:
    """What has arrived of one run of a trial.

    `readings` and `changes` are those of the spool, up to `place`; `spool_done` says that no more
    of them will come. `table` and `rows` are how far the archive has been sent. `done`: all has.
    """

    place: Place = field(default_factory=Place)
    readings: int = 0
    changes: int = 0
    spool_done: bool = False
    table: str = ""
    rows: int = 0
    done: bool = False


class Ledger:
    """The ledger of one campaign and server. Runs are named by (trial's id, tag `run`)."""

    def __init__(self, folder: Path) -> None:
        """Open it, or begin one in `folder`. Raises NotReadyError if that cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(
                folder / _FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise NotReadyError(
                f"{folder} cannot be written: {error.strerror}",
                "make it writable: what has been sent is noted there",
            ) from error
        self._runs: dict[tuple[str, str], Sent] = {}
        for line in (folder / _FILE).read_bytes().splitlines():
            self._take(line)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":  # torn by a kill
            self._append(b"\n")

    def of(self, trial: str, run: str) -> Sent:
        """Return what has arrived of a run."""
        return self._runs.setdefault((trial, run), Sent())

    def note(self, trial: str, run: str) -> None:
        """Write down what `of` has now."""
        sent = self.of(trial, run)
        values = [
            trial, run, sent.place.segment, sent.place.byte, sent.readings, sent.changes,
            sent.spool_done, sent.table, sent.rows, sent.done,
        ]  # fmt: skip
        self._append(json.dumps(values, separators=(",", ":")).encode() + b"\n")

    def forget(self, trial: str, run: str) -> None:
        """Have all of a run sent again."""
        self._runs[trial, run] = Sent()
        self.note(trial, run)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _append(self, data: bytes) -> None:
        try:
            os.write(self._handle, data)
        except OSError:
            return  # a full disk: it will be sent again, which changes nothing

    def _take(self, line: bytes) -> None:
        try:
            trial, run, segment, byte, readings, changes, spooled, table, rows, done = json.loads(
                line
            )
        except ValueError:
            return
        self._runs[trial, run] = Sent(
            Place(segment, byte), readings, changes, spooled, table, rows, done
        )
