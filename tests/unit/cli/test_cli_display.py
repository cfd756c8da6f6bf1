"""What a run shows while it goes on."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestration.cli.display import Display, TrialCounts, live_view, status_line, summary_table
from orchestration.core import machine
from orchestration.core.problems import Problem
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.runner import Summary
from orchestration.run.worker import Failed, Finished, Progressed

MS = 1_000_000


def trial(repeat: int) -> TrialSpec:
    return TrialSpec(
        "c",
        "rlcc-7",
        "fluid",
        TunerSpec("secn1"),
        (),
        1,
        repeat,
        10 * MS,
        0,
        cell={"tuner": "secn1"},
    )


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def display(clock, said):
    return Display("quick on fluid", said.append, lambda counts: None, clock)


def text(renderable) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_lines_for_the_start_and_every_end(display, said):
    display.planned(3, 1, 2)
    display.started(trial(1))
    display.finished(trial(1), Finished(True, (), 12 * MS, 4.0))
    display.started(trial(2))
    display.failed(
        trial(2), Failed((Problem("", "the guest died", "try again"),), "boot\npanic", 1.0)
    )
    assert said[0] == "quick on fluid: 3 trials, 1 of them finished earlier, 2 side by side"
    assert said[1] == f"[2/3] {trial(1).id} done (12ms of virtual time in 4.0 s)"
    assert said[2].splitlines() == [
        f"[3/3] {trial(2).id} FAILED: the guest died",
        "  -> try again",
        "    | boot",
        "    | panic",
    ]


def test_an_invalid_trial_says_why(display, said):
    display.planned(1, 0, 1)
    display.started(trial(1))
    display.finished(trial(1), Finished(False, ("2 of 9 flows had not ended", "late"), MS, 1.0))
    assert "INVALID: 2 of 9 flows had not ended; late" in said[-1]
    assert display.counts.invalid == 1
    display.started(trial(2))
    display.finished(trial(2), Finished(False, ("2 of 9 flows had not ended", "late"), MS, 1.0))
    assert f"INVALID: as {trial(1).id} (1ms of virtual time in 1.0 s)" in said[-1]


def test_a_trial_in_real_time_has_one_time(display, said):
    for number, changes in enumerate(
        (
            {"backend": "emulated", "clock": "real"},
            {"backend": "hardware"},
        ),
        start=1,
    ):
        real = replace(trial(number), **changes)
        display.started(real)
        display.finished(real, Finished(True, (), 12 * MS, 4.0))
        assert said[-1].endswith("done (4.0 s of wall time)")


def test_on_a_virtual_rack_a_trial_has_two_times(display, said, monkeypatch):
    monkeypatch.setenv(machine.FOLDER_VARIABLE, "/nowhere")
    there = replace(trial(1), backend="hardware")
    display.started(there)
    display.finished(there, Finished(True, (), 12 * MS, 4.0))
    assert said[-1].endswith("done (12ms of virtual time in 4.0 s)")


def test_time_left_is_the_mean_of_what_ended(display, clock):
    display.planned(5, 0, 2)
    assert display.counts.left_s(clock()) is None
    display.started(trial(1))
    display.started(trial(2))
    clock.now_s += 10
    display.finished(trial(1), Finished(True, (), MS, 10.0))
    # trial 2 should end now; three more of 10 s, two at a time
    assert display.counts.left_s(clock()) == 15.0
    display.started(trial(3))
    clock.now_s += 4
    assert display.counts.left_s(clock()) == (6 + 2 * 10) / 2


def test_time_left_follows_progress_before_a_trial_has_ended(display, clock):
    display.planned(1, 0, 1)
    display.started(trial(1))
    clock.now_s += 2
    display.progressed(trial(1), Progressed(2 * MS, 10 * MS, 2.0))
    assert display.counts.left_s(clock()) == 8.0


def test_the_live_picture_has_virtual_time_and_speed(display, clock):
    display.planned(3, 0, 1)
    display.started(trial(1))
    clock.now_s += 2
    display.progressed(trial(1), Progressed(5 * MS, 10 * MS, 2.0))
    picture = text(live_view("quick on fluid", display.counts, clock()))
    assert "quick on fluid: 0 of 3 done, 1 running, 10.0 s of wall time left" in picture
    assert "5ms of 10ms" in picture
    assert "2.5 ms/s" in picture
    display.progressed(trial(1), Progressed(15 * MS, 10 * MS, 6.0))
    assert "15ms of 10ms draining" in text(live_view("x", display.counts, clock()))


def test_the_status_line_names_what_is_wrong():
    counts = TrialCounts(trials=130, jobs=1, finished=20, failed=2, invalid=1, spent_s=22 * 65.0)
    said = "20 of 130 done, 0 running, 2 failed, 1 invalid, 1 h 57 min of wall time left"
    assert status_line(counts, 0.0) == said


def test_the_summary_names_every_trial_that_is_not_as_it_should_be():
    summary = Summary(
        Path("runs/c"),
        trials=5,
        skipped=2,
        finished=2,
        invalid={"a-r1": ("[late]",)},
        failed={"b-r1": Failed((Problem("", "died"),))},
        wall_s=61,
    )
    said = text(summary_table(summary))
    assert "3 of 5 trials" in said
    assert "a-r1: [late]" in said
    assert "b-r1: died" in said
    assert "1 min 01 s" in said


def test_the_summary_says_once_what_is_the_same_in_every_trial():
    warned = {f"a-r{number}": ("leaf1 counts no marks",) for number in range(1, 13)}
    summary = Summary(Path("runs/c"), trials=12, finished=12, warned=warned)
    said = text(summary_table(summary))
    assert said.count("leaf1 counts no marks") == 1
    assert "in all 12 trials: leaf1 counts no marks" in said
    assert "leaf1" not in text(summary_table(summary, warnings=False))
