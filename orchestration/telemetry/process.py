"""Run the sender as a separate process next to a run, so that it does not slow the run down.

`SendingListener` starts the process with the run, shows its messages, and ends it. A line on the
standard input of the process, with a number of seconds, makes it finish within that time. Its
messages are lines of JSON on its standard output. It reads the token from the environment or the
settings file, like all other verbs.
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
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.sinks.spool_observer import SpoolNote
from orchestration.core.errors import ClosloopError
from orchestration.core.problems import Code, Problem, message_and_remedy
from orchestration.run.runner import Listener

if TYPE_CHECKING:  # the process itself needs none of these
    from orchestration.core.repeats import ConditionStatus, StoppingRule
    from orchestration.core.trial import TrialSpec
    from orchestration.run.worker import Failed, Finished, Progressed
    from orchestration.telemetry.settings import Settings

_PR_SET_PDEATHSIG = 1
_NICE = 10
_IDLE_S = 0.2
# How long to wait at the end of a run for a server that does not answer properly.
_TROUBLE_S = 3.0
# The process is killed this long after its time, even if a request is still unanswered.
_SLACK_S = 5.0
# How long to wait at the end of a run for a server that works; the same if the run is interrupted.
PATIENCE_S, _INTERRUPTED_S = 30.0, 2.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run's sender.

    `points` were sent; `trials` and `spooled` count trials and spooled runs that remain unsent.
    `trouble` is the last problem of the server.
    """

    points: int = 0
    trials: int = 0
    spooled: int = 0
    trouble: str = ""


class SenderProcess:
    """A running sender. Call `finish` to send the rest, and always `close`."""

    def __init__(self, campaign_folder: Path) -> None:
        """Start it. The campaign's folder must exist."""
        command = [sys.executable, "-m", __name__, str(campaign_folder), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # only the run gets Ctrl-C; it then tells the sender
        )
        self._text = b""
        self.outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def messages(self, timeout_s: float = 0.0) -> Iterator[Problem]:
        """Yield the messages that arrive within `timeout_s`."""
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
                    yield Problem("", values["text"], values["remedy"], Code.NOT_READY)
                else:
                    self.outcome = Outcome(**values)
            timeout_s = 0.0

    def finish(self, patience_s: float) -> Iterator[Problem]:
        """Make it send the rest within `patience_s` seconds; yield its messages meanwhile."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has already ended
            self._process.stdin.write(f"{patience_s}\n".encode())
            self._process.stdin.close()
        until_s = time.monotonic() + patience_s + _SLACK_S
        while self._process.poll() is None and time.monotonic() < until_s:
            yield from self.messages(_IDLE_S)
        yield from self.messages()

    def close(self) -> None:
        """End the process, even if it has not finished."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):
                    pipe.close()


def follow(campaign_folder: Path) -> SendingListener:
    """Return the listener that sends a run's records to InfluxDB, by the user's settings."""
    from orchestration.telemetry.settings import load_settings

    return SendingListener(campaign_folder, load_settings())


class SendingListener(Listener):
    """A listener that wraps another one, runs the sender and shows the sender's messages.

    Use it as a context manager around the run; `spool` gives the spools of the run's trials.
    """

    def __init__(self, campaign_folder: Path, settings: Settings) -> None:
        """Take the campaign's folder, and the settings of the server."""
        self._folder, self._settings = campaign_folder, settings
        self._sender: SenderProcess | None = None
        self._listener: Listener

    def before(self, listener: Listener) -> Listener:
        """Pass all events from now on to `listener`; return the listener to use in its place."""
        self._listener = listener
        return self

    def spool(self, trial: TrialSpec) -> SpoolNote:
        """Return where a trial's samples are spooled, and how many bytes they may have."""
        settings = self._settings
        home = settings.home(self._folder.absolute())
        return SpoolNote(str(home), settings.spool_bytes, trial.campaign, trial.id)

    def __enter__(self) -> SendingListener:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        sender = self._sender
        if sender is None:
            return
        try:
            for problem in sender.finish(_INTERRUPTED_S if error else PATIENCE_S):
                _show(problem)
            self._sum_up(sender)
        except KeyboardInterrupt:  # all trials are done, so this ends the wait for the server only
            sender.close()
            self._sum_up(sender)
        finally:
            sender.close()

    def planned(self, trials: int, finished: int, jobs: int) -> None:
        """Pass on the size of the run, and start the sender, since the folder now exists."""
        self._listener.planned(trials, finished, jobs)
        self._sender = SenderProcess(self._folder)

    def started(self, trial: TrialSpec) -> None:
        """Pass it on."""
        self._listener.started(trial)

    def progressed(self, trial: TrialSpec, progress: Progressed) -> None:
        """Pass it on."""
        self._listener.progressed(trial, progress)

    def finished(self, trial: TrialSpec, result: Finished) -> None:
        """Pass it on."""
        self._listener.finished(trial, result)

    def failed(self, trial: TrialSpec, failure: Failed) -> None:
        """Pass it on."""
        self._listener.failed(trial, failure)

    def on_interim_analysis(
        self, found: Sequence[ConditionStatus], rule: StoppingRule, trials: int, finished: int
    ) -> None:
        """Pass it on."""
        self._listener.on_interim_analysis(found, rule, trials, finished)

    def tick(self) -> None:
        """Pass on the tick, and show the sender's messages."""
        self._listener.tick()
        if self._sender is not None:
            for problem in self._sender.messages():
                _show(problem)

    def _sum_up(self, sender: SenderProcess) -> None:
        outcome, server = sender.outcome, self._settings.server
        if outcome is None:
            what = "InfluxDB: not everything has been sent"
        elif not outcome.trials and not outcome.spooled:
            print(f"InfluxDB: {outcome.points} points sent to {server}", file=sys.stderr)
            return
        else:
            what = f"InfluxDB: {outcome.trials} trials have not been sent, or not completely"
        remedy = f"closloop push {self._folder}, at any time"
        print(Problem("", what, remedy), file=sys.stderr)


def _show(problem: Problem) -> None:
    print(problem.at("InfluxDB"), file=sys.stderr, flush=True)


class _Patience:
    """Whether to continue: until a request to finish, and then until its time is over."""

    def __init__(self) -> None:
        self._until_s = self._trouble_until_s = float("inf")
        self.trouble = False

    def finishing(self) -> bool:
        """Return whether there was a request to finish."""
        if self._until_s == float("inf") and select.select([0], [], [], 0)[0]:
            line = sys.stdin.readline()
            patience_s = float(line) if line.strip() else 0.0
            now_s = time.monotonic()
            self._until_s = now_s + patience_s
            self._trouble_until_s = now_s + min(patience_s, _TROUBLE_S)
        return self._until_s < float("inf")

    def __call__(self) -> bool:
        self.finishing()
        return time.monotonic() < (self._trouble_until_s if self.trouble else self._until_s)


def send(campaign_folder: Path) -> None:
    """Send a campaign until there is a request to finish; print messages."""
    from collectors.sinks.influx import Answer, InfluxConnection
    from orchestration.telemetry.delivery import Delivery, GaveUp, Refused
    from orchestration.telemetry.sender import Sender
    from orchestration.telemetry.settings import load_settings

    patience = _Patience()

    def say(problem: Problem) -> None:
        _print(message_and_remedy([problem], "text"))

    class Watched(InfluxConnection):
        """A connection that notes whether the server works."""

        def write(self, lines: Any) -> Answer:
            answer = super().write(lines)
            patience.trouble = answer.meaning != "ok"
            return answer

    settings = load_settings()
    # Only now, after the imports, which are needed once per run.
    _stand_back()
    delivery = Delivery(Watched(settings.server), patience, say)
    refused = False
    home = settings.home(campaign_folder)
    with closing(Sender(campaign_folder, home, delivery, say)) as sender:
        while True:
            finishing = patience.finishing()
            try:
                busy = not refused and sender.send_available()
            except Refused as error:
                say(error.answer.problem)
                refused, busy = True, False
            except GaveUp:
                break
            if finishing and not busy:
                break
            if not busy:
                select.select([0], [], [], _IDLE_S)
                time.sleep(_IDLE_S / 10)
        unsent = sender.unsent()
    _print(vars(Outcome(delivery.points, unsent.trials, unsent.spooled, delivery.trouble)))


def _print(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _stand_back() -> None:
    """Lower the priority of this process below that of the trials."""
    os.nice(_NICE)
    # With autogroups, a process's niceness has effect only within its session.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{_NICE}", encoding="ascii")


def main() -> None:
    """Run the process."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    try:
        send(folder)
    except ClosloopError as error:
        _print(message_and_remedy(error.problems, "text"))


if __name__ == "__main__":
    main()
