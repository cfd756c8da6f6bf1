"""The sender as a process of its own beside a run: it costs the run nothing, and ends with it.

It is told to finish by a line on its standard input, with the seconds that it may take, and says
what there is to say in lines of JSON on its standard output. The token comes by the environment or
the file, as everywhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestration.model.errors import ClosloopError

_PR_SET_PDEATHSIG = 1
_NICE = 10
_IDLE_S = 0.2
# How long a server that is in trouble is waited for at the end of a run.
_TROUBLE_S = 3.0
# A request without an answer ends after its timeout; the process is ended sooner.
_SLACK_S = 5.0


@dataclass(frozen=True)
class Said:
    """Something the user should know, with what to do."""

    text: str
    remedy: str


@dataclass(frozen=True)
class Outcome:
    """What a run's sender came to; `trials` and `spooled` are left to be sent."""

    points: int = 0
    trials: int = 0
    spooled: int = 0
    trouble: str = ""


class SenderProcess:
    """A running sender. `close` it; `finish` first, to have the rest sent."""

    def __init__(self, campaign_folder: Path) -> None:
        """Start it. The campaign's folder is there."""
        command = [sys.executable, "-m", __name__, str(campaign_folder), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run, which then tells the sender
        )
        self._text = b""
        self.outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def messages(self, timeout_s: float = 0.0) -> Iterator[Said]:
        """Yield what it says within `timeout_s`."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while select.select([handle], [], [], timeout_s)[0]:
            data = os.read(handle, 1 << 16)
            if not data:
                return
            self._text += data
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                values = json.loads(line)
                if "text" in values:
                    yield Said(**values)
                else:
                    self.outcome = Outcome(**values)
            timeout_s = 0.0

    def finish(self, patience_s: float) -> Iterator[Said]:
        """Have it send what is left within `patience_s`; yield what it says meanwhile."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self._process.stdin.write(f"{patience_s}\n".encode())
            self._process.stdin.close()
        until_s = time.monotonic() + patience_s + _SLACK_S
        while self._process.poll() is None and time.monotonic() < until_s:
            yield from self.messages(_IDLE_S)
        yield from self.messages()

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()


class _Patience:
    """How long to go on: for ever until told to finish, then as long as that takes at most."""

    def __init__(self) -> None:
        self._until_s = self._trouble_until_s = float("inf")
        self.trouble = False

    def finishing(self) -> bool:
        """Look whether the end was asked for."""
        if self._until_s == float("inf") and select.select([0], [], [], 0)[0]:
            line = sys.stdin.readline()
            patience_s = float(line) if line.strip() else 0.0
            now_s = time.monotonic()
            self._until_s = now_s + patience_s
            self._trouble_until_s = now_s + min(patience_s, _TROUBLE_S)
        return self._until_s < float("inf")

    def __call__(self) -> bool:
        """Return whether to go on."""
        self.finishing()
        return time.monotonic() < (self._trouble_until_s if self.trouble else self._until_s)


def send(campaign_folder: Path) -> None:
    """Send a campaign until told to finish, and print what there is to say."""
    from collectors.sinks.influx import Answer, InfluxConnection
    from orchestration.telemetry.delivery import Delivery, GaveUp, Refused
    from orchestration.telemetry.sender import Sender
    from orchestration.telemetry.settings import load_settings

    patience = _Patience()

    def say(text: str, remedy: str) -> None:
        _print({"text": text, "remedy": remedy})

    class Watched(InfluxConnection):
        """Tells the patience how the server does."""

        def write(self, lines: Any) -> Answer:
            answer = super().write(lines)
            patience.trouble = answer.meaning != "ok"
            return answer

    settings = load_settings()
    connection = Watched(settings.server)
    # Loading what it needs is over, which happens once a run.
    _stand_back()
    delivery = Delivery(connection, patience, say)
    refused = False
    with Sender(campaign_folder, settings.home(campaign_folder), delivery, say) as sender:
        while True:
            finishing = patience.finishing()
            try:
                busy = not refused and sender.turn()
            except Refused:
                refused, busy = True, False
            except GaveUp:
                break
            if finishing and not busy:
                break
            if not busy:
                select.select([0], [], [], _IDLE_S)
                time.sleep(_IDLE_S / 10)
        left = sender.left()
    trouble = delivery.trouble
    _print(vars(Outcome(delivery.points, left.trials, left.spooled, trouble)))


def _print(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _stand_back() -> None:
    """Leave the cores to the trials, who come first."""
    os.nice(_NICE)
    # Where sessions share the cores between them, a process's own niceness counts within its own.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{_NICE}", encoding="ascii")


def main() -> None:
    """Be the process."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    try:
        send(folder)
    except ClosloopError as error:
        _print({"text": error.message, "remedy": error.remedy})


if __name__ == "__main__":
    main()
