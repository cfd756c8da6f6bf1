"""The sender as a process of its own beside a run: it costs the run nothing, and ends with it.

`Following` starts it with the run, and shows what it says.

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
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from collectors.sinks.spooling import SpoolNote
from orchestration.model.errors import ClosloopError

if TYPE_CHECKING:  # the process itself needs none of these
    from orchestration.model.trial import TrialSpec
    from orchestration.runner.run import Listener
    from orchestration.runner.worker import Failed, Finished, Progressed
    from orchestration.telemetry.settings import Settings

_PR_SET_PDEATHSIG = 1
_NICE = 10
_IDLE_S = 0.2
# How long a server that is in trouble is waited for at the end of a run.
_TROUBLE_S = 3.0
# A request without an answer ends after its timeout; the process is ended sooner.
_SLACK_S = 5.0
# A server that answers is given so long for what is left at the end of a run.
PATIENCE_S, _INTERRUPTED_S = 30.0, 2.0


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


class Following:
    """A listener before another: it runs the sender, and shows what the sender says.

    Use it as a context manager around the run, and `spool` for the run's trials.
    """

    def __init__(
        self, campaign_folder: Path, settings: Settings, patience_s: float = PATIENCE_S
    ) -> None:
        """Take the campaign's folder, and how long its end may wait for what is left to be sent."""
        self._folder, self._settings, self._patience_s = campaign_folder, settings, patience_s
        self._sender: SenderProcess | None = None
        self._listener: Listener

    def before(self, listener: Listener) -> Listener:
        """Pass all that is told from now on to `listener`; return what is to be told instead."""
        self._listener = listener
        return self

    def spool(self, trial: TrialSpec) -> SpoolNote:
        """Return where a trial's records go."""
        settings = self._settings
        home = settings.home(self._folder.absolute())
        return SpoolNote(str(home), settings.spool_bytes, trial.campaign, trial.id)

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sender = self._sender
        if sender is None:
            return
        try:
            for said in sender.finish(_INTERRUPTED_S if error else self._patience_s):
                _show(said)
            self._sum_up(sender)
        except KeyboardInterrupt:  # the trials are done: only the wait for the server is over
            sender.close()
            self._sum_up(sender)
        finally:
            sender.close()

    def planned(self, trials: int, finished: int, jobs: int) -> None:
        """Pass on the size of the run, and start the sender: the campaign's folder is there."""
        self._listener.planned(trials, finished, jobs)
        self._sender = SenderProcess(self._folder)

    def started(self, trial: TrialSpec) -> None:
        """Pass on a trial's start."""
        self._listener.started(trial)

    def progressed(self, trial: TrialSpec, progress: Progressed) -> None:
        """Pass on how far a trial has come."""
        self._listener.progressed(trial, progress)

    def finished(self, trial: TrialSpec, result: Finished) -> None:
        """Pass on a trial's good end."""
        self._listener.finished(trial, result)

    def failed(self, trial: TrialSpec, failure: Failed) -> None:
        """Pass on a trial's bad end."""
        self._listener.failed(trial, failure)

    def tick(self) -> None:
        """Pass on that time passes, and show what the sender says."""
        self._listener.tick()
        if self._sender is not None:
            for said in self._sender.messages():
                _show(said)

    def _sum_up(self, sender: SenderProcess) -> None:
        found, where = sender.outcome, self._settings.server
        if found is None:
            what = "InfluxDB: not everything is sent yet"
        elif not found.trials and not found.spooled:
            print(f"InfluxDB: {found.points} points sent to {where}", file=sys.stderr)
            return
        else:
            what = f"InfluxDB: {found.trials} trials are not sent yet, or not as a whole"
        print(f"{what}\n  -> closloop push {self._folder}, any time", file=sys.stderr)


def _show(said: Said) -> None:
    remedy = f"\n  -> {said.remedy}" if said.remedy else ""
    print(f"InfluxDB: {said.text}{remedy}", file=sys.stderr, flush=True)


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
    home = settings.home(campaign_folder)
    with closing(Sender(campaign_folder, home, delivery, say)) as sender:
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
