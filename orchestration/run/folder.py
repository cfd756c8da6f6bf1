"""The run folder of a campaign and its journal: a lock, and which trials are finished.

The journal is a file of JSON lines, one for each event of a run. A trial's folder gets its final
name when it is complete, so that its existence means that the trial is finished.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration.analysis.index import History
from orchestration.campaign.cells import has_old_hpcc
from orchestration.campaign.expand import Campaign
from orchestration.core import machine
from orchestration.core.engines import KERNEL, PROCESS, engine_of, in_words
from orchestration.core.errors import InputError, NotReadyError, unwritable
from orchestration.core.files import CAMPAIGN_FILE, PARTIAL_SUFFIX, write_whole
from orchestration.core.problems import Code
from orchestration.core.roce import FORMER_HPCC
from orchestration.core.trial import TrialSpec, with_independent_draws
from orchestration.results.reader import finished_trials, read_trial

JOURNAL_FILE = "journal.jsonl"
RUN_STARTED = "run-started"
RUN_FINISHED = "run-finished"
RUN_INTERRUPTED = "run-interrupted"
TRIAL_STARTED = "trial-started"
TRIAL_FINISHED = "trial-finished"
TRIAL_FAILED = "trial-failed"
TRIAL_LOST = "trial-lost"
INTERIM_ANALYSIS = "looked"


class Journal:
    """An append-only journal; an event is on disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        """Open `path`, creating it if necessary; a line that a crash has cut off is ended first."""
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")

    def add(self, event: str, **details: Any) -> None:
        """Append an event with the present time (UTC)."""
        now = datetime.fromtimestamp(machine.now_s(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": now, "event": event, **details}, separators=(",", ":"))
        os.write(self._handle, line.encode() + b"\n")
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's entries in order; nothing if there is no journal.

    Lines that are incomplete, because a run was killed while it wrote, are skipped.
    """
    if not path.exists():
        return
    yield from entries(path.read_bytes())


def entries(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal's bytes; incomplete lines are skipped."""
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            yield entry


def read_history(folder: Path) -> History:
    """Return the history of a run folder by its journal; without one, times are NaN."""
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
        elif event == INTERIM_ANALYSIS:
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
    """Return the run folders at and below `path` that have a journal, sorted; no hidden ones."""
    return sorted(
        journal.parent
        for journal in path.rglob(JOURNAL_FILE)
        if not any(part.startswith(".") for part in journal.relative_to(path).parts)
    )


_WORK_SUFFIX = ".work"


class RunFolder:
    """`runs/<campaign>/`, locked for this process while open. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        self.journal: Journal

    def open(
        self, campaign: Campaign, *, fresh: bool, part_of_many: bool = False, engine: str = ""
    ) -> None:
        """Create the folder, or continue in an existing one.

        With `fresh`, an existing one is first renamed: a number is added. With `part_of_many`, the
        folder may have finished trials that are not the campaign's. `engine` is that of the trials
        to run, "" if their backend has one engine only. Raises InputError if it belongs to another
        campaign, or has trials of another engine, and NotReadyError if another run has locked it.
        """
        if fresh and self.path.exists():
            self._acquire_lock()
            self._refuse_foreign()
            self.path.rename(_unused(self.path))
            self._release_lock()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error, "choose another folder with --out") from error
        self._acquire_lock()
        self._refuse_foreign()
        if not part_of_many:
            self._refuse_other_trials(campaign)
        self._refuse_other_engine(campaign, engine)
        self._discard_unfinished()
        self.journal = Journal(self.path / JOURNAL_FILE)
        write_whole(self.path / CAMPAIGN_FILE, campaign.source)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
        self._release_lock()

    def of(self, trial: TrialSpec) -> Path:
        """Return the folder that a trial has when it is finished."""
        return self.path / trial.id

    def work_of(self, trial: TrialSpec) -> Path:
        """Return the hidden folder for the temporary files of a running trial."""
        return work_folder(self.path, trial.id)

    def discard(self, trial: str) -> None:
        """Remove the temporary folders of a trial that is no longer running."""
        for suffix in (_WORK_SUFFIX, PARTIAL_SUFFIX):
            shutil.rmtree(self.path / f".{trial}{suffix}", ignore_errors=True)

    def _acquire_lock(self) -> None:
        """Lock the folder itself: such a lock leaves no file and ends with its process."""
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotReadyError(
                f"{self.path} is in use by another run",
                "wait for it to end, or give this one a folder of its own with --out",
                Code.IN_USE,
            ) from error

    def _release_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _refuse_foreign(self) -> None:
        if any(self.path.iterdir()) and not (self.path / JOURNAL_FILE).is_file():
            raise InputError.single(
                str(self.path),
                f"is not a run folder: it has files but no {JOURNAL_FILE}",
                "choose another folder with --out",
            )

    def _refuse_other_trials(self, campaign: Campaign) -> None:
        """Raise InputError if there are finished trials that the campaign does not have.

        Results of different campaigns must not be mixed; additional repeats are allowed.
        """
        known = {trial.id for trial in campaign.trials}
        other = [folder.name for folder in finished_trials(self.path) if folder.name not in known]
        if not other:
            return
        backend = campaign.trials[0].backend
        former_backend = read_trial(self.path / other[0]).spec.backend
        on = ""
        if former_backend != backend:
            on = f" on the {former_backend} backend, not the {backend} one,"
        raise InputError.single(
            str(self.path),
            f"holds {len(other)} finished trials{on} that {campaign.path} no longer describes "
            f"(such as {other[0]})",
            "; or ".join(self._remedies(campaign, other, backend, former_backend)),
        )

    def _refuse_other_engine(self, campaign: Campaign, engine: str) -> None:
        """Raise InputError if the finished trials ran in another engine; one folder has one."""
        finished = next(iter(finished_trials(self.path)), None) if engine else None
        former, _ = engine_of(read_trial(finished).facts) if finished else ("", "")
        if former in ("", engine):
            return
        again = shlex.join(("closloop", "run", str(campaign.path), "--out", str(self.path.parent)))
        go_on = {
            KERNEL: f"go on with theirs: `{again} --in {KERNEL}`",
            PROCESS: f"run it without --in {KERNEL}, if you gave that",
        }
        raise InputError.single(
            str(self.path),
            f"holds trials that ran {in_words(former)}, and these would run {in_words(engine)}",
            f"{go_on[former]}; or put the old results aside with `{again} --fresh`",
        )

    def _remedies(
        self, campaign: Campaign, other: list[str], backend: str, former_backend: str
    ) -> Iterator[str]:
        """Yield what may be done about trials that the campaign does not have, as texts.

        They ran with independent draws, or with the former DCQCN set `hpcc`, or on another backend;
        or the campaign was changed.
        """

        def run(backend: str, out: str = "", more: str = "") -> str:
            words = ("closloop", "run", campaign.path, "--on", backend, "--out")
            return f"`{shlex.join(map(str, (*words, f'{self.path.parent}{out}')))}{more}`"

        independent = {with_independent_draws(trial).id for trial in campaign.trials}
        if any(name in independent for name in other):
            yield "give its patterns draw: independent, as theirs were"
        if any(has_old_hpcc(self.path / name) for name in other):
            own = f"closloop run {self.path / CAMPAIGN_FILE} --out {self.path.parent}"
            yield f"go on with the DCQCN set that is {FORMER_HPCC} now: {own}"
        if former_backend != backend:
            yield f"go on with theirs, {run(former_backend)}"
        yield (
            f"keep both with {run(backend, f'-{backend}')}, or put the old results aside with "
            f"{run(backend, more=' --fresh')}"
        )

    def _discard_unfinished(self) -> None:
        """Remove the temporary folders of trials that an earlier run has started."""
        for entry in read_journal(self.path / JOURNAL_FILE):
            if entry["event"] == TRIAL_STARTED:
                self.discard(str(entry["trial"]))


def work_folder(campaign_folder: Path, trial: str) -> Path:
    """Return the hidden folder for the temporary files of a trial, given by its id."""
    return campaign_folder / f".{trial}{_WORK_SUFFIX}"


def _unused(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return candidate
