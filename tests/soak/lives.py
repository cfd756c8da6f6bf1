"""A campaign's life: it is run, disturbed, and run again, and what it must keep is looked at."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster_trials import contents
from left import commands_of, processes

from orchestration.bench.rack import program
from orchestration.run.folder import read_journal

ROOT = Path(__file__).resolve().parents[2]
# Longer than any of these campaigns takes: who has not ended by then hangs.
HANGS_S = 240.0
# Whoever runs trials here shares the processors by these files, which stay.
_LOCKS = "closloop-cpu-"
_SETTLES_S = 15.0
_TOLD = 4_000  # characters of what a command has said
# Files of finished trials by name: see `cluster_trials.contents`.
Files = Mapping[str, object]
# `worker` runs a trial, `guest` is its virtual-time kernel.
VICTIMS = ("controller", "interrupt", "terminate", "worker", "guest", "disk", "memory")


@dataclass
class Row:
    """One disturbance, and what was found after it; `wrong` is empty if all is well.

    `said` is the end of what the command said, if not.
    """

    life: str
    victim: str
    after_s: float
    exit_code: int = 0
    finished: int = 0
    wrong: list[str] = field(default_factory=list)
    said: str = ""


@dataclass(frozen=True)
class Around:
    """What there is beside a run: `own` tells its processes, `files` its names in /tmp.

    `victims` are disturbances of its own, which take the run's command.
    """

    options: tuple[str, ...] = ()
    common: tuple[str, ...] = VICTIMS
    victims: Mapping[str, Callable[[subprocess.Popen[bytes]], None]] = field(default_factory=dict)
    own: Callable[[], set[int]] = set
    files: tuple[str, ...] = ()
    loads_s: float = 0.8  # before it, a command loads its program


NOTHING = Around()


class Campaign:
    """A campaign file that `closloop run` plays in a folder, as a user would."""

    def __init__(self, file: Path, runs: Path, around: Around = NOTHING) -> None:
        self.file, self.runs, self.around = file, runs, around
        self.log = runs.with_suffix(".log")

    @property
    def folder(self) -> Path:
        """Where the trials are."""
        return next(iter(self.runs.glob("*/")), self.runs / "none")

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the run; what it says is in `log`."""
        words = ["run", str(self.file), "--out", str(self.runs), "--no-report"]
        words += self.around.options
        with self.log.open("wb") as log:
            return begin(words, log)

    def finished(self) -> Files:
        """Return the files of finished trials by name: see `cluster_trials.contents`."""
        return contents(self.folder) if self.folder.exists() else {}

    def entries(self) -> int:
        """Return how many entries the journal has."""
        return len(self._journal())

    def failures(self) -> list[str]:
        """Return why trials have failed so far."""
        failed = [entry for entry in self._journal() if entry["event"] == "trial-failed"]
        return [str(entry.get("message")) for entry in failed]

    def _journal(self) -> list[dict[str, object]]:
        journal = self.folder / "journal.jsonl"
        return list(read_journal(journal)) if journal.exists() else []

    def said(self) -> str:
        """Return what the last command has said."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tracebacks(self) -> int:
        """Return how many tracebacks the last command has printed, not those that it quotes."""
        return sum(line.startswith("Traceback") for line in self.said().splitlines())


def begin(words: list[str], log: object) -> subprocess.Popen[bytes]:
    """Start `closloop WORDS` in a session of its own."""
    return subprocess.Popen(
        program(*words),
        stdin=subprocess.DEVNULL,
        stdout=log,  # type: ignore[arg-type]
        stderr=log,  # type: ignore[arg-type]
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def ends(command: subprocess.Popen[bytes]) -> bool:
    """Wait for a command's end; kill it, and return False, if it hangs."""
    try:
        command.wait(HANGS_S)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        return False
    return True


class Disk:
    """The small file system where run folders are, which can be filled."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / ".ballast"

    def fill(self) -> None:
        """Take all that is left."""
        with self._ballast.open("ab", buffering=0) as out, suppress(OSError):
            while True:
                out.write(bytes(65_536))

    def empty(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)


def undisturbed(campaign: Campaign) -> tuple[Files, float, list[str]]:
    """Run a campaign to its end; return its trials' files, how long it took, and what is wrong."""
    began = time.monotonic()
    command = campaign.begin()
    wrong = [] if ends(command) else ["hangs without a disturbance"]
    if command.returncode not in (0, 1):
        wrong.append(f"ends with {command.returncode} without a disturbance")
    wrong += [f"a trial fails without a disturbance: {why}" for why in campaign.failures()]
    wrong += left(campaign)
    return campaign.finished(), time.monotonic() - began, wrong


def disturbed(
    life: str,
    campaign: Campaign,
    reference: Files,
    takes_s: float,
    kills: int,
    dice: random.Random,
    disk: Disk,
) -> Iterator[Row]:
    """Run a campaign until it is done, disturbed each time; yield what was found each time."""
    trials, around = len(names(reference)), campaign.around
    for _ in range(kills):
        before, entries = campaign.finished(), campaign.entries()
        rest_s = max(takes_s - NOTHING.loads_s, 0.0) * (1 - len(names(before)) / trials)
        row = Row(
            life,
            dice.choice((*around.common, *around.victims)),
            round(around.loads_s + dice.random() * rest_s, 2),
        )
        command = campaign.begin()
        with suppress(subprocess.TimeoutExpired):
            command.wait(row.after_s)
        had = campaign.finished()
        busy = bool(_others(command, around)) and campaign.entries() > entries
        met = command.poll() is None
        if met:
            row.victim = _disturb(row.victim, command, dice, disk, around)
        if not ends(command):
            row.wrong.append("hangs")
        disk.empty()
        row.exit_code = command.returncode
        now = campaign.finished()
        row.finished = len(names(now))
        row.wrong += lost(before, now) + lost(had, now) + left(campaign)
        # all may have been done when the signal came
        if row.exit_code not in _expected(row.victim, busy and row.finished < trials):
            row.wrong.append(f"ends with exit code {row.exit_code}")
        if campaign.tracebacks():
            row.wrong.append("prints a traceback")
        if row.wrong:
            row.said = campaign.said()[-_TOLD:]
        if met or row.wrong:
            yield row
        if len(names(now)) == trials:
            return


# What `closloop run --help` says, and the signal that nobody can answer. Where a disk is full or
# memory is short it may stop (3, or 1 by an error that it reports), or lose single trials (1).
_EXPECTED = {
    "controller": (-signal.SIGKILL, 0, 1),
    "interrupt": (130, 0, 1),
    "terminate": (143, 130, 0, 1),
    "disk": (0, 1, 3),
    "memory": (0, 1, 3),
}


def _expected(victim: str, busy: bool) -> tuple[int, ...]:
    """Return the exit codes that are right. Before and after all work a signal just ends it."""
    idle = () if busy else (-signal.SIGINT, -signal.SIGTERM)
    return (*_EXPECTED.get(victim, (0, 1)), *idle)


def _others(command: subprocess.Popen[bytes], around: Around) -> set[int]:
    """Return the processes that a command has made."""
    return processes() - {os.getpid(), command.pid} - around.own()


def _disturb(
    victim: str,
    command: subprocess.Popen[bytes],
    dice: random.Random,
    disk: Disk,
    around: Around,
) -> str:
    """Do it; return whom it met, which is the controller if there is none of that kind."""
    if victim in around.victims:
        around.victims[victim](command)
        return victim
    family = _others(command, around)
    guests = {pid for pid in family if Path(commands_of(pid)[0]).name in ("linux", "")}
    # short of memory the kernel kills a guest, whose memory is a file; others are refused more
    of_kind = {"worker": family - guests, "guest": guests, "memory": family - guests}.get(victim)
    if of_kind is not None and not of_kind:
        victim = "controller"
    with suppress(ProcessLookupError):
        match victim:
            case "controller":
                command.kill()
            case "interrupt":
                command.send_signal(signal.SIGINT)
            case "terminate":
                command.terminate()
            case "disk":
                disk.fill()
            case "memory":
                assert of_kind
                one = dice.choice(sorted(of_kind))
                resource.prlimit(one, resource.RLIMIT_AS, (1 << 20, 1 << 20))
            case _:
                assert of_kind
                os.kill(dice.choice(sorted(of_kind)), signal.SIGKILL)
    return victim


def completed(campaign: Campaign, reference: Files) -> list[str]:
    """Run a disturbed campaign to its end; return what differs from one that was not."""
    wrong = []
    command = campaign.begin()
    if not ends(command):
        wrong.append("hangs when it is run again")
    if command.returncode not in (0, 1):
        wrong.append(f"ends with {command.returncode} when it is run again")
    now = campaign.finished()
    wrong += [f"is missing at the end: {name}" for name in sorted(reference.keys() - now.keys())]
    wrong += [f"is too much at the end: {name}" for name in sorted(now.keys() - reference.keys())]
    wrong += [
        f"differs from the undisturbed run: {name}"
        for name in sorted(reference.keys() & now.keys())
        if reference[name] != now[name]
    ]
    # of one that was killed they are there until the next, which is this one
    wrong += [f"left in the run folder: {path.name}" for path in campaign.folder.glob(".*.work")]
    return wrong + left(campaign)


def names(files: Files) -> set[str]:
    """Return the names of the trials of which these are files."""
    return {name.split("/")[0] for name in files}


def lost(before: Files, now: Files) -> list[str]:
    """Return which files of trials that had finished are gone, or have changed."""
    return [f"lost: {name}" for name, content in before.items() if now.get(name) != content]


def left(campaign: Campaign) -> list[str]:
    """Return what a run that has ended has left: processes, and files where none should be."""
    around = campaign.around
    until = time.monotonic() + _SETTLES_S
    while (rest := processes() - {os.getpid()} - around.own()) and time.monotonic() < until:
        time.sleep(0.05)
    wrong = [f"left a process: {' '.join(commands_of(pid))[:80]}" for pid in rest]
    return wrong + [
        f"left {path}"
        for place in (Path("/tmp"), Path("/dev/shm"))
        for path in place.iterdir()
        if not path.name.startswith((_LOCKS, *around.files))
    ]
