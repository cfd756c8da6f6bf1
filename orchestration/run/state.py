"""The progress of a run: counts of its trials, and its state as read from its folder.

`RunReader` follows a run of another process by its journal and the running trials' snapshots.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.snapshot import (
    ABOUT_FILE,
    SNAPSHOT_FILE,
    Snapshot,
    SnapshotError,
    decode_snapshot,
)
from inventory.testbed_json import testbed_from_json
from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.render.numbers import clock_text
from orchestration.run import folder as log
from orchestration.run.folder import JOURNAL_FILE, work_folder


@dataclass
class RunningTrial:
    """A running trial: its start `began_s`, by the clock of its `TrialCounts`, and its progress."""

    began_s: float
    virtual_ns: int = 0
    end_ns: int = 0
    wall_s: float = 0.0


@dataclass
class TrialCounts:
    """Counts of a run's trials, and the running trials by id.

    `earlier` counts those that earlier runs finished; `spent_s` is the wall time of ended ones.
    """

    trials: int = 0
    earlier: int = 0
    jobs: int = 1
    finished: int = 0
    invalid: int = 0
    failed: int = 0
    spent_s: float = 0.0
    running: dict[str, RunningTrial] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of trials with results, including those of earlier runs."""
        return self.earlier + self.finished

    def left_s(self, now_s: float) -> float | None:
        """Return the estimated wall time left in s, or None while no trial has made progress.

        Each trial is assumed to take the mean time of ended trials; before one has ended, the mean
        time that running ones will take at their present speed.
        """
        ended = self.finished + self.failed
        if ended:
            mean_s = self.spent_s / ended
        else:
            expected_s = [
                trial.wall_s * max(1.0, trial.end_ns / trial.virtual_ns)
                for trial in self.running.values()
                if trial.virtual_ns
            ]
            if not expected_s:
                return None
            mean_s = sum(expected_s) / len(expected_s)
        waiting = self.trials - self.done - self.failed - len(self.running)
        started = sum(max(0.0, mean_s - now_s + t.began_s) for t in self.running.values())
        return (waiting * mean_s + started) / self.jobs


def status_line(counts: TrialCounts, now_s: float) -> str:
    """Return `3 of 10 done, 2 running, 1 failed, 40.0 s of wall time left`."""
    parts = [f"{counts.done} of {counts.trials} done", f"{len(counts.running)} running"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.invalid:
        parts.append(f"{counts.invalid} invalid")
    left_s = counts.left_s(now_s)
    if left_s is not None:
        parts.append(f"{clock_text(left_s)} of wall time left")
    return ", ".join(parts)


_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class TrialState:
    """A running trial. `snapshot` is None before its first reading."""

    id: str
    spec: TrialSpec
    testbed: Testbed
    flows: int
    began_s: float
    snapshot: Snapshot | None


@dataclass(frozen=True)
class RunState:
    """The state of a run at one moment. Times are in seconds (`time.time`).

    `ended` says how the run ended, "" while it continues. `remarks` are the messages of stamps and
    failures so far, as (trial, "invalid" | "warning" | "failed", text), oldest first. `trials` are
    the running ones, oldest first; one that has just started may be missing.
    """

    folder: Path
    now_s: float
    counts: TrialCounts
    ended: str
    trials: tuple[TrialState, ...]
    remarks: tuple[tuple[str, str, str], ...]

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.folder.name


def find_run(path: Path) -> Path:
    """Return `path` if it is a run folder, or else the run folder in it with the newest journal.

    Raises InputError if there is none.
    """
    if (path / JOURNAL_FILE).is_file():
        return path
    inside = path.iterdir() if path.is_dir() else iter(())
    journals = [folder / JOURNAL_FILE for folder in inside if not folder.name.startswith(".")]
    runs = [(journal.stat().st_mtime, journal) for journal in journals if journal.is_file()]
    if not runs:
        raise InputError.single(
            str(path),
            "is not a run folder and has none in it",
            "name the folder of a campaign that is running or has run, such as runs/quickstart; "
            "`closloop run FILE` starts one",
        )
    return max(runs)[1].parent


class RunReader:
    """Reads a run folder repeatedly, only new entries each time. It writes and locks nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tail = _Tail(folder / JOURNAL_FILE)
        self._journal = _JournalState()
        # what running trials say about themselves, by id
        self._about: dict[str, Mapping[str, Any]] = {}

    def read(self) -> RunState:
        """Return the present state of the run."""
        entries, replaced = self._tail.read()
        if replaced:
            self._journal, self._about = _JournalState(), {}
        for entry in entries:
            self._journal.add(entry)
        journal, now_s = self._journal, time.time()
        trials = []
        for name, running in journal.counts.running.items():
            if (state := self._trial(name, running)) is not None:
                trials.append(state)
                running.end_ns = state.spec.duration_ns
                running.wall_s = now_s - running.began_s
                running.virtual_ns = state.snapshot.t_ns if state.snapshot else 0
        self._about = {n: about for n, about in self._about.items() if n in journal.counts.running}
        ended = journal.ended
        if not ended and not _is_locked(self.folder):
            # It may have ended normally since the journal was read.
            entries, _ = self._tail.read()
            for entry in entries:
                journal.add(entry)
            ended = journal.ended or "was killed: no process locks its folder any more"
        return RunState(
            self.folder, now_s, journal.counts, ended, tuple(trials), tuple(journal.remarks)
        )

    def _trial(self, name: str, running: RunningTrial) -> TrialState | None:
        """Return a running trial's state; None if it has not described itself yet."""
        work = work_folder(self.folder, name)
        try:
            if name not in self._about:
                data = json.loads((work / ABOUT_FILE).read_bytes())
                self._about[name] = {
                    "spec": TrialSpec.from_json(data["spec"]),
                    "testbed": testbed_from_json(data["testbed"]),
                    "flows": int(data["flows"]),
                }
            snapshot: Snapshot | None = decode_snapshot((work / SNAPSHOT_FILE).read_bytes())
        except SnapshotError:
            snapshot = None
        except (OSError, KeyError, TypeError, ValueError):  # not written yet, or removed already
            snapshot = None
        if name not in self._about:
            return None
        about = self._about[name]
        testbed = about["testbed"]
        if snapshot is not None and len(snapshot.qlen_bytes) != len(testbed.queues):
            snapshot = None
        return TrialState(name, began_s=running.began_s, snapshot=snapshot, **about)


@dataclass
class _JournalState:
    """What a journal's entries so far say about the run."""

    counts: TrialCounts = field(default_factory=TrialCounts)
    ended: str = ""
    verdicts: dict[str, bool] = field(default_factory=dict)
    remarks: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, entry: Mapping[str, Any]) -> None:
        event, trial = entry["event"], str(entry.get("trial", ""))
        if event == log.RUN_STARTED:
            self.counts = TrialCounts(entry["trials"], entry["finished"], entry["jobs"])
            self.ended = ""
            self.remarks = [remark for remark in self.remarks if remark[1] != "failed"]
        elif event == log.INTERIM_ANALYSIS:
            self.counts.trials, self.counts.earlier = entry["trials"], entry["finished"]
        elif event == log.TRIAL_STARTED:
            self.counts.running[trial] = RunningTrial(
                datetime.fromisoformat(entry["at"]).timestamp()
            )
        elif event == log.TRIAL_FINISHED:
            self._end(trial, entry)
            self.counts.finished += 1
            self.verdicts[trial] = valid = bool(entry["valid"])
            word = "warning" if valid else "invalid"
            self.remarks += [(trial, word, str(text)) for text in entry["reasons"]]
        elif event == log.TRIAL_FAILED:
            self._end(trial, entry)
            self.counts.failed += 1
            self.remarks.append((trial, "failed", str(entry["message"])))
        elif event == log.RUN_FINISHED:
            self.ended = f"finished at {_clock(entry['at'])}"
        elif event == log.RUN_INTERRUPTED:
            self.counts.running.clear()
            self.ended = f"was interrupted at {_clock(entry['at'])}"
        self.counts.invalid = sum(not valid for valid in self.verdicts.values())

    def _end(self, trial: str, entry: Mapping[str, Any]) -> None:
        self.counts.running.pop(trial, None)
        self.counts.spent_s += float(entry.get("wall_s", 0.0))


class _Tail:
    """Reads new entries of a journal, and notices when the journal was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._offset = 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the new entries, and whether they are those of another journal."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                replaced = status.st_ino != self._inode or status.st_size < self._offset
                if replaced:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:  # just moved away by --fresh
            return [], False
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        return list(log.entries(lines)), replaced


def _is_locked(folder: Path) -> bool:
    """Return whether a process holds the run folder's lock; True if that is unknown.

    The lock is looked up, not tried: trying could make a run fail that is about to start.
    """
    try:
        inode = folder.stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return True
    return any(f":{inode} " in line and "FLOCK" in line for line in lines)


def _clock(at: str) -> str:
    return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
