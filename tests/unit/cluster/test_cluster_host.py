"""The host process that runs a node's trials, by itself: Ray only brings it orders."""

import dataclasses
import pickle
import time
from contextlib import suppress
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.cluster.host import Host, version_difference
from orchestration.cluster.tasks import Task, TaskKind, code_versions
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.worker import Failed, Finished, Progressed, work
from traffic.patterns.incast import IncastSpec

TUNER = """\
import os
import time
from dataclasses import dataclass

from closloop import BaseTuner
from tuners.ecn.static import Secn1


@dataclass(eq=False)
class Mine(BaseTuner):
    nap_s: float = 0.0

    def reset(self, testbed, seed):
        open(NOTE, "a").write(f"{os.getcwd()}\\n")
        time.sleep(self.nap_s)
        return Secn1().reset(testbed, seed)
"""
PATIENCE_S = 60.0


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    made = Host()
    yield made
    with suppress(OSError):  # if the test has done it
        made.end()


def task_of(tmp_path, nap_s=0.0, pickled=b""):
    """An order whose tuner's file is nowhere on this machine under its own path."""
    tuner = TunerSpec("/nowhere/mine.py:Mine", {"nap_s": nap_s})
    traffic = (IncastSpec(4, 64_000, 500_000, 0, 1_000_000),)
    trial = TrialSpec(
        *("own", "rlcc-7", "fluid", tuner, traffic),
        1,
        1,
        duration_ns=1_000_000,
        drain_ns=20_000_000,
    )
    kind = TaskKind(
        *(pickled or pickle.dumps((FluidBackend(), work)), "/nowhere", code_versions(), {}, {}),
        "cache",
    )
    text = TUNER.replace("NOTE", repr(str(tmp_path / "note")))
    files = {"/nowhere/mine.py": text.encode()}
    return Task(kind, load_testbed("rlcc-7"), trial, files, str(tmp_path / "cache"))


@pytest.mark.slow
def test_trials_run_one_after_the_other_and_leave_nothing(host, tmp_path):
    for seed in (1, 2):
        task = task_of(tmp_path)
        task = dataclasses.replace(task, trial=dataclasses.replace(task.trial, seed=seed))
        *before, (message, files) = host.replies(task)
        assert isinstance(message, Finished)
        assert message.valid
        assert all(isinstance(one, Progressed) for one, _ in before)
        assert "trial.json" in files
        assert b"/nowhere/mine.py" in files["trial.json"]
        assert b"brought" not in files["trial.json"]
    where = (tmp_path / "note").read_text().splitlines()
    assert all(line.endswith("/brought/nowhere") for line in where)
    host.end()
    assert not list((tmp_path / "scratch").iterdir())


def test_a_node_is_asked_whether_it_is_ready(host, tmp_path):
    task = dataclasses.replace(task_of(tmp_path), trial=None)
    ((message, files),) = host.replies(task)
    assert isinstance(message, Finished)
    assert files == {}


@pytest.mark.slow
def test_what_the_node_cannot_load_is_a_failure_and_the_host_goes_on(host, tmp_path):
    ((message, _),) = host.replies(task_of(tmp_path, pickled=b"cnowhere\nthing\n."))
    assert isinstance(message, Failed)
    assert "ModuleNotFoundError" in message.problems[0].what
    *_, (message, _) = host.replies(task_of(tmp_path))
    assert isinstance(message, Finished)


@pytest.mark.slow
def test_a_trial_that_nobody_waits_for_is_stopped(host, tmp_path):
    host._connection.send(task_of(tmp_path, nap_s=600.0))  # as `replies` does, but without waiting
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "note").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    begin = time.monotonic()
    host.end()
    assert time.monotonic() - begin < PATIENCE_S
    assert not list(Path(tmp_path / "scratch").iterdir())


def test_a_node_that_differs_says_in_what():
    theirs = {**code_versions(), "files": "0123"}
    kind = TaskKind(b"", "/", theirs, {}, {}, "cache")
    problem = version_difference(kind)
    assert "it has files" in problem.problems[0].what
    assert version_difference(dataclasses.replace(kind, versions=code_versions())) is None
