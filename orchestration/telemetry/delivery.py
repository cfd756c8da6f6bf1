"""Deliver lines to a server in order, with retries at growing intervals.

The ledger is an append-only file of what the server has confirmed. If a kill prevents the writing
of a line, the same points are sent again, which is harmless: the database stores equal points once.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from collectors.sinks.influx import Answer, InfluxConnection
from orchestration.core.errors import unwritable
from orchestration.core.problems import Problem

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 5.0
# A request that is too large is halved, but not below this.
_FEWEST_LINES = 16
_FILE = "sent.jsonl"


class Refused(Exception):  # noqa: N818 (the server's answer)
    """The server refuses the records, and a retry would not help."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


class GaveUp(Exception):  # noqa: N818
    """The patience for retries has ended."""


@dataclass
class Delivery:
    """Sends lines until the server has confirmed them.

    `patient` is called before each retry. `said` is called with each problem that may pass, once
    until it is over. `trouble` is the problem of the last answer, "" if there was none.
    """

    connection: InfluxConnection
    patient: Callable[[], bool]
    said: Callable[[Problem], None]
    sleep: Callable[[float], None] = time.sleep
    requests: int = 0
    points: int = 0
    trouble: str = ""
    _known: set[str] = field(default_factory=set)

    def send(self, lines: Sequence[str]) -> None:
        """Send lines. Raises Refused, or GaveUp when `patient` returns False."""
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
                self.trouble = answer.text
                if answer.text not in self._known:
                    self._known.add(answer.text)
                    self.said(answer.problem)
                self._pause(answer, tries)
                tries += 1
            else:
                self.trouble = answer.text
                raise Refused(answer)

    def _pause(self, answer: Answer, tries: int) -> None:
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries, 10))
        # Random, so that several senders do not retry at the same moment.
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
    """The data of one run of a trial that the server has confirmed.

    `spooled` counts rows by table, of the spool before `part`; `spool_done` is True if there will
    be no more. `batches` of the archive have been sent. `done` is True if everything has been.
    """

    part: int = 0
    spooled: Counter[str] = field(default_factory=Counter)
    spool_done: bool = False
    batches: int = 0
    done: bool = False


class Ledger:
    """The ledger of one campaign and server. Runs are identified by (trial id, tag `run`)."""

    def __init__(self, folder: Path) -> None:
        """Open or create it in `folder`. Raises NotReadyError if the folder is not writable."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(
                folder / _FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise unwritable(
                folder, error, "make it writable: what has been sent is noted there"
            ) from error
        self._runs: dict[tuple[str, str], Sent] = {}
        for line in (folder / _FILE).read_bytes().splitlines():
            self._take(line)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":  # truncated by a kill
            self._append(b"\n")

    def of(self, trial: str, run: str) -> Sent:
        """Return the confirmed data of a run."""
        return self._runs.setdefault((trial, run), Sent())

    def note(self, trial: str, run: str) -> None:
        """Record the present state of `of`."""
        sent = self.of(trial, run)
        values = [
            trial, run, sent.part, sent.spooled, sent.spool_done, sent.batches, sent.done
        ]  # fmt: skip
        self._append(json.dumps(values, separators=(",", ":")).encode() + b"\n")

    def forget(self, trial: str, run: str) -> None:
        """Forget a run, so that all of it is sent again."""
        self._runs[trial, run] = Sent()
        self.note(trial, run)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _append(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk: the points will be sent again, which is harmless
            os.write(self._handle, data)

    def _take(self, line: bytes) -> None:
        try:
            trial, run, *state = json.loads(line)
        except ValueError:
            return
        # Earlier versions noted more, and other places: what they had not done is sent again.
        sent = Sent(done=bool(state and state[-1]))
        if len(state) == len(vars(sent)):
            part, spooled, *rest = state
            sent = Sent(part, Counter(spooled), *rest)
        self._runs[trial, run] = sent
