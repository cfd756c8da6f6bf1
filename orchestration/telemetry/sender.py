"""Send a campaign to a server: the spools of running trials, then each trial's archive.

The archive stays the source of truth. Data that a spool could not hold, or that was damaged in it,
are sent from the archive. The database stores points that are sent twice only once.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from collectors.sinks.influx import InfluxConnection
from collectors.sinks.lines import ACTIONS, PORT, SAMPLES
from collectors.sinks.spool import DamagedSpool, SpooledRun, spooled_runs
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.core.problems import Code, Problem
from orchestration.results.reader import TrialResult, finished_trials, read_trial, trial_folders
from orchestration.telemetry.delivery import Delivery, GaveUp, Ledger, Refused, Sent
from orchestration.telemetry.points import ArchivedPoints, spool_batches, started_ns
from orchestration.telemetry.settings import Settings

Say = Callable[[Problem], None]
# How long to wait for a server that does not work before giving up. The ledger has confirmed data.
TROUBLE_S = 60.0
_SPOOLED = tuple(item.table for item in (*SAMPLES.values(), *ACTIONS.values()))


@dataclass(frozen=True)
class Unsent:
    """Data that have not been sent: finished trials, and runs with records in the spool."""

    trials: int
    spooled: int

    def __bool__(self) -> bool:
        return bool(self.trials or self.spooled)


class Sender:
    """Sends one campaign's folder. It holds a lock, so there is only one at a time; close it."""

    def __init__(self, campaign_folder: Path, home: Path, delivery: Delivery, say: Say) -> None:
        """Open the ledger in `home`. Raises NotReadyError if another sender has it."""
        self._folder, self._spool = campaign_folder, home
        self._delivery, self._say = delivery, say
        self._ledger = Ledger(home)
        self._lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise NotReadyError(
                f"{campaign_folder} is being sent by another closloop",
                "wait for it to end: what is left over can be sent then",
            ) from error
        # The finished trials that could not be read.
        self.damaged: set[str] = set()
        self._done: set[str] = set()
        self._clock_reported = False

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()
        os.close(self._lock)

    def send_available(self) -> bool:
        """Send all data that are available now; return whether there were any.

        Raises Refused or GaveUp as the delivery does; the ledger has the data confirmed until then.
        """
        busy = self.send_spooled()
        spooling = {name for run in spooled_runs(self._spool) if (name := self._trial_of(run))}
        for folder in finished_trials(self._folder):
            if folder.name not in spooling:
                busy |= self.send_archive(folder)
        return busy

    def send_spooled(self) -> bool:
        """Send the runs' spooled records; return whether there were any.

        Raises as `send_available`.
        """
        busy = False
        for run in spooled_runs(self._spool):
            busy |= self._send_spool(run)
        return busy

    def unsent(self) -> Unsent:
        """Return how much data has not been sent."""
        waiting = 0
        for folder in finished_trials(self._folder):
            if folder.name in self._done:
                continue
            with suppress(InputError):
                trial = read_trial(folder)
                run = ArchivedPoints(trial, started_ns(trial)).run
                waiting += not self._ledger.of(trial.spec.id, run).done
        return Unsent(waiting, len(spooled_runs(self._spool)))

    def send_archive(self, folder: Path, *, again: bool = False) -> bool:
        """Send the data of a finished trial that the server lacks; return whether there were any.

        With `again`, send all its data. A damaged folder is reported once and skipped.
        """
        if folder.name in self.damaged or (folder.name in self._done and not again):
            return False
        try:
            return self._archive(read_trial(folder), again)
        except InputError as error:
            self.damaged.add(folder.name)
            self._say(error.problems[0].with_end("; it is not sent"))
            return False

    def _archive(self, trial: TrialResult, again: bool) -> bool:
        start_ns = started_ns(trial)
        self._watch_clock(start_ns)
        points = ArchivedPoints(trial, start_ns)
        key = (trial.spec.id, points.run)
        if again:
            self._ledger.forget(*key)
        sent = self._ledger.of(*key)
        if sent.done:
            self._done.add(trial.folder.name)
            return False
        points.check()
        skip = self._fully_spooled(trial, points, sent)
        for lines in islice(points.batches(skip), sent.batches, None):
            self._delivery.send(lines)
            sent.batches += 1
            self._ledger.note(*key)
        sent.done = True
        self._ledger.note(*key)
        self._done.add(trial.folder.name)
        return True

    def _fully_spooled(
        self, trial: TrialResult, points: ArchivedPoints, sent: Sent
    ) -> tuple[str, ...]:
        """Return the tables of which all rows were spooled, so that they need not be sent again."""
        if not sent.spool_done:
            return ()
        counts = {table: (sent.spooled.get(table, 0), points.rows(table)) for table in _SPOOLED}
        spooled, rows = counts[PORT.table]
        if spooled != rows:
            problem = Problem(
                trial.spec.id,
                f"the spool had room for {spooled} of {rows} samples of queues; they are sent from "
                "the archive",
                "nothing is lost; with more space on the disk or in CLOSLOOP_INFLUX_SPOOL, samples "
                "are sent while the trial runs",
                Code.NO_ROOM,
            )
            self._say(problem)
        return tuple(table for table, (spooled, rows) in counts.items() if spooled == rows)

    def _send_spool(self, run: SpooledRun) -> bool:
        busy = False
        try:
            about = run.about()
            # Checked before reading, so that frames written in between are not missed.
            written = run.is_written()
            if about is not None:
                self._watch_clock(int(about["started_ns"]))
                key = (str(about["trial"]), str(about["run"]))
                sent = self._ledger.of(*key)
                for lines, next_part, rows in spool_batches(run, about, sent.part):
                    self._delivery.send(lines)
                    sent.part = next_part
                    sent.spooled.update(rows)
                    self._ledger.note(*key)
                    run.forget(sent.part)
                    busy = True
                if not written:
                    sent.spool_done = True
                    self._ledger.note(*key)
        except (DamagedSpool, KeyError) as error:
            what = f"the spool is damaged: {error}; the trial is sent from the archive"
            remedy = "nothing is lost once the trial is finished"
            self._say(Problem("", what, remedy, Code.DAMAGED_FILE))
            written = False
        if not written:
            run.remove()
        return busy

    def _trial_of(self, run: SpooledRun) -> str:
        try:
            about = run.about()
        except DamagedSpool:
            return ""
        return str(about["trial"]) if about else ""

    def _watch_clock(self, start_ns: int) -> None:
        """Report once if a trial's start is in the future, since the clock was set back."""
        ahead_s = (start_ns - time.time_ns()) / 1e9
        if ahead_s > 1 and not self._clock_reported:
            self._clock_reported = True
            problem = Problem(
                "",
                f"the clock of this machine was set back by {ahead_s:.0f} s or more: a trial's "
                "start is in the future",
                "set the clock; points keep the times at which they were measured",
                Code.NOT_READY,
            )
            self._say(problem)


@dataclass
class Pushed:
    """The outcome of a push. `failed` names the trials whose folders could not be read."""

    trials: int = 0
    points: int = 0
    requests: int = 0
    failed: list[str] = field(default_factory=list)


def push(
    runs: Sequence[Path],
    settings: Settings,
    *,
    again: bool = False,
    say: Say,
    progress: Callable[[str], None] = lambda text: None,
    trouble_s: float = TROUBLE_S,
) -> Pushed:
    """Send the data of the trials in `runs` that the server lacks.

    Raises InputError for a path that is not a run, NotReadyError if the server refuses the token or
    lacks the bucket, and TrialError if the server fails for `trouble_s` seconds. Data that were
    confirmed before are not sent again.
    """
    by_campaign = _trials(runs)
    connection = InfluxConnection(settings.server)
    well_s = time.monotonic()

    def patient() -> bool:
        nonlocal well_s
        now_s = time.monotonic()
        if not delivery.trouble:
            well_s = now_s
        return now_s - well_s < trouble_s

    delivery = Delivery(connection, patient, say)
    pushed = Pushed()
    try:
        for campaign, folders in by_campaign.items():
            home = settings.home(campaign)
            with closing(Sender(campaign, home, delivery, say)) as sender:
                sender.send_spooled()
                for folder in folders:
                    progress(f"{folder.name}, {delivery.points} points sent")
                    sender.send_archive(folder, again=again)
                    pushed.trials += 1
                pushed.failed += sorted(sender.damaged)
    except Refused as refused:
        raise NotReadyError([refused.answer.problem]) from refused
    except GaveUp as error:
        raise TrialError(
            f"{delivery.trouble}; gave up after {trouble_s:.0f} s",
            "give the same command again: it continues from here",
        ) from error
    finally:
        connection.close()
    pushed.points, pushed.requests = delivery.points, delivery.requests
    return pushed


def _trials(runs: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the trials' folders by campaign folder."""
    by_campaign: dict[Path, list[Path]] = {}
    for run in runs:
        path = run.absolute()
        folders = trial_folders(path)
        if not folders and not (path / ".telemetry").is_dir():
            raise InputError.single(
                str(run),
                "is not a run folder: it has no finished trials",
                "give a folder such as runs/quickstart, or that of a trial in it",
            )
        if not folders:
            by_campaign.setdefault(path, [])
        for folder in folders:
            by_campaign.setdefault(folder.parent, []).append(folder)
    return by_campaign
