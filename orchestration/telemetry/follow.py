"""A run with a sender beside it: started with the run, told to finish at its end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from collectors.sinks.spooling import SpoolNote
from orchestration.model.trial import TrialSpec
from orchestration.runner.run import Listener
from orchestration.runner.worker import Failed, Finished, Progressed
from orchestration.telemetry.process import Said, SenderProcess
from orchestration.telemetry.settings import Settings

# A server that answers is given so long for what is left at the end of a run.
PATIENCE_S, _INTERRUPTED_S = 30.0, 2.0


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
        self._listener: Listener | None = None

    def before(self, listener: Listener) -> Listener:
        """Return a listener that passes all on to `listener`."""
        self._listener = listener
        return _Passing(self, listener)

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

    def start(self) -> None:
        """Start the sender: the campaign's folder is there."""
        self._sender = SenderProcess(self._folder)

    def look(self) -> None:
        """Show what the sender has said."""
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


class _Passing:
    """Passes on what a listener is told, and lets the sender start and speak."""

    def __init__(self, following: Following, listener: Listener) -> None:
        self._following, self._listener = following, listener

    def planned(self, trials: int, finished: int, jobs: int) -> None:
        """Pass on the size of the run, and start the sender."""
        self._listener.planned(trials, finished, jobs)
        self._following.start()

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
        self._following.look()


def _show(said: Said) -> None:
    remedy = f"\n  -> {said.remedy}" if said.remedy else ""
    print(f"InfluxDB: {said.text}{remedy}", file=sys.stderr, flush=True)
