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

_FIRST_WAIT_S, _MAX_WAIT_S = 0.25, 5.0
# A request that is too large is halved, but not below so many lines.
_MIN_LINES = 16
_FILE = "sent.jsonl"


class Refused(Exception):  # noqa: N818 (the server's answer)
    """The server refuses the records, so that a retry would not help."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


class GaveUp(Exception):  # noqa: N818
    """There are no more retries, because `patient` returned False."""


@dataclass
class Delivery:
    """Sends lines until the server has confirmed them.

    `patient` is called before each try, and ends them by returning False. `report` is called with
    each temporary problem, once until a request succeeds. `trouble` is the problem of the last
    answer, "" if it had none.
    """

    connection: InfluxConnection
    patient: Callable[[], bool]
    report: Callable[[Problem], None]
    sleep: Callable[[float], None] = time.sleep
    requests: int = 0
    points: int = 0
    trouble: str = ""
    _reported: set[str] = field(default_factory=set)

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
                self._reported.clear()
            elif answer.meaning == "too-large" and len(waiting[0]) >= 2 * _MIN_LINES:
                request = waiting.pop(0)
                middle = len(request) // 2
                waiting[:0] = [request[:middle], request[middle:]]
            elif answer.meaning == "later":
                self.trouble = answer.text
                if answer.text not in self._reported:
                    self._reported.add(answer.text)
                    self.report(answer.problem)
                self._pause(answer, tries)
                tries += 1
            else:
                self.trouble = answer.text
                raise Refused(answer)

    def _pause(self, answer: Answer, tries: int) -> None:
        wait_s = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(tries, 10))
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

    The parts of the spool before `part` have been sent; `spooled` counts their rows by table, and
    `spool_done` means that there will be no more parts. `batches` of the archive have been sent.
    `done` means that everything has been sent.
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
                folder, error, "make it writable: it records what has been sent"
            ) from error
        self._runs: dict[tuple[str, str], Sent] = {}
        for line in (folder / _FILE).read_bytes().splitlines():
            self._take(line)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":  # truncated by a kill
            self._append(b"\n")

    def of(self, trial: str, run: str) -> Sent:
        """Return the confirmed data of a run, to be changed and then recorded by `note`."""
        return self._runs.setdefault((trial, run), Sent())

    def note(self, trial: str, run: str) -> None:
        """Record the present state of a run's confirmed data."""
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
        # Earlier versions recorded other values: runs that they had not completed are sent again.
        sent = Sent(done=bool(state and state[-1]))
        if len(state) == len(vars(sent)):
            part, spooled, *rest = state
            sent = Sent(part, Counter(spooled), *rest)
        self._runs[trial, run] = sent
