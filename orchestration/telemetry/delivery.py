"""Getting lines to a server, whatever it does: again and again, ever less often, in order.

The ledger says what it has already: a file that is only appended to, once the server has confirmed.
A line of it that a kill kept from being written costs nothing but sending the same points again,
and the same points are one in the database.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from collectors.sinks.influx import Answer
from collectors.sinks.spool import Place
from orchestration.model.errors import NotReadyError

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 5.0
# A request is halved when it is too large, but not below this.
_FEWEST_LINES = 16
_FILE = "sent.jsonl"


class Connection(Protocol):
    """Something that takes lines: see `collectors.sinks.influx.InfluxConnection`."""

    def write(self, lines: Sequence[str]) -> Answer:
        """Send lines, and return what the server says."""


class Refused(Exception):  # noqa: N818 (the server's answer)
    """The server does not take the records, and trying again would change nothing."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


class GaveUp(Exception):  # noqa: N818
    """It was not to be tried any longer."""


@dataclass
class Delivery:
    """Sends lines until the server has confirmed them.

    `patient` is asked before each further try; `said` is told what goes wrong, each thing once
    until it is well again. `trouble` is what the last answer said, "" if it was good.
    """

    connection: Connection
    patient: Callable[[], bool]
    said: Callable[[str, str], None]
    sleep: Callable[[float], None] = time.sleep
    requests: int = 0
    points: int = 0
    trouble: str = ""
    _known: set[str] = field(default_factory=set)

    def send(self, lines: Sequence[str]) -> None:
        """Send lines. Raises Refused, or GaveUp when patience has ended."""
        waiting = [list(lines)]
        tries = 0
        while waiting:
            if not waiting[0]:
                waiting.pop(0)
                continue
            if not self.patient():
                raise GaveUp
            answer = self.connection.write(waiting[0])
            self.requests += 1
            if answer.meaning == "ok":
                self.points += len(waiting.pop(0))
                self.trouble, tries = "", 0
                self._known.clear()
            elif answer.meaning == "too-large" and len(waiting[0]) >= 2 * _FEWEST_LINES:
                whole = waiting.pop(0)
                middle = len(whole) // 2
                waiting[:0] = [whole[:middle], whole[middle:]]
            elif answer.meaning == "later":
                self._remark(answer)
                self._pause(answer, tries)
                tries += 1
            else:
                self._remark(answer)
                raise Refused(answer)

    def _remark(self, answer: Answer) -> None:
        self.trouble = answer.text
        if answer.text not in self._known:
            self._known.add(answer.text)
            self.said(answer.text, answer.remedy)

    def _pause(self, answer: Answer, tries: int) -> None:
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries, 10))
        # Several senders are not to come back at the same moment.
        wait_s = max(answer.wait_s, wait_s * random.uniform(0.75, 1.25))
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            if not self.patient():
                raise GaveUp
            self.sleep(min(left_s, 0.2))
        if not self.patient():
            raise GaveUp


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
