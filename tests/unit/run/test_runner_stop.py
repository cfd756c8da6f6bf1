"""A run that is stopped at any moment keeps its finished trials and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.run.folder import read_journal
from orchestration.run.launcher import run_campaign
from tests.trials import incast_campaign

SCRIPT = Path(__file__).parents[1] / "scripts" / "run_slowly.py"
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120.0
CAMPAIGN = incast_campaign("slow", "secn1, secn2", 2)


class Silent:
    def planned(self, trials, finished, jobs):
        pass

    def started(self, trial):
        pass

    def progressed(self, trial, progress):
        pass

    def finished(self, trial, result):
        pass

    def failed(self, trial, failure):
        pass

    def tick(self):
        pass


def until(true, what):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Slow:
    """A run in a process of its own whose last two of four trials never end."""

    def __init__(self, tmp_path):
        self.file = tmp_path / "slow.yml"
        self.file.write_text(CAMPAIGN)
        self.campaign = load_campaign(self.file)
        self.out = tmp_path / "runs"
        self.folder = self.out / "slow"
        self.notes = tmp_path / "runs.pids"
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.file), str(self.out)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: len(self.pids()) == 4, "two trials run")

    def pids(self):
        """Numbers of the running workers and of their children."""
        if not self.notes.exists():
            return []
        return [int(word) for word in self.notes.read_text().split()]

    def finished(self):
        return {
            trial.id: {
                path.name: (path.read_bytes(), path.stat().st_mtime_ns)
                for path in (self.folder / trial.id).iterdir()
            }
            for trial in self.campaign.trials
            if (self.folder / trial.id).exists()
        }

    def events(self):
        return [entry["event"] for entry in read_journal(self.folder / "journal.jsonl")]


@pytest.fixture
def slow(tmp_path):
    run = Slow(tmp_path)
    yield run
    run.process.kill()
    run.process.wait()
    run.process.stderr.close()


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_is_resumed(slow):
    slow.process.send_signal(signal.SIGKILL)
    slow.process.wait()
    until(lambda: not any(map(alive, slow.pids())), "the workers and their children are gone")
    kept = slow.finished()
    assert len(kept) == 2
    assert "run-interrupted" not in slow.events()

    # As a crash may leave it: torn in the middle of a line.
    journal = slow.folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    summary = run_campaign(slow.campaign, FluidBackend(), slow.out, 2, Silent())
    assert (summary.skipped, summary.finished, summary.exit_code) == (2, 2, 0)
    assert {trial: slow.finished()[trial] for trial in kept} == kept
    assert [path.name for path in slow.folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_with_130_and_nothing_left_over(slow, number):
    slow.process.send_signal(number)
    _, said = slow.process.communicate(timeout=PATIENCE_S)
    assert slow.process.returncode == 130
    assert "2 of 4 trials are not done" in said
    assert "same command" in said
    assert not any(map(alive, slow.pids()))
    assert len(slow.finished()) == 2
    assert slow.events()[-1] == "run-interrupted"
    assert [path.name for path in slow.folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_its_children_along(slow):
    worker, child, *others = slow.pids()
    os.kill(worker, signal.SIGKILL)
    until(lambda: "trial-failed" in slow.events(), "its failure is noted")
    until(lambda: not alive(child), "its child is gone")
    assert all(map(alive, others))
    assert slow.process.poll() is None
