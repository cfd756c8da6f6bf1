"""Wall and virtual time are told apart."""

import time

from orchestration.core import machine
from orchestration.core.machine import ElapsedTime, Stopwatch


def test_both_times_are_said_where_they_differ():
    assert ElapsedTime(0.4, 37.2, virtual=True).in_words() == "0.4 s of virtual time in 37 s"
    assert ElapsedTime(37.2, 37.2).in_words() == "37 s"
    assert ElapsedTime(0.04, 1.26, virtual=True).in_words(2) == "0.04 s of virtual time in 1.26 s"


def test_outside_a_virtual_rack_there_is_one_clock(monkeypatch):
    monkeypatch.delenv(machine.FOLDER_VARIABLE, raising=False)
    took = Stopwatch().took()
    assert not took.virtual
    assert abs(took.own_s - took.wall_s) < 1
    assert abs(machine.now_s() - time.time()) < 1


def test_inside_one_a_file_says_how_late_it_is_and_is_gone(monkeypatch, tmp_path):
    monkeypatch.setenv(machine.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    stopwatch = Stopwatch()
    assert machine.now_s() > 1e9
    took = stopwatch.took()
    assert took.virtual
    assert took.own_s == 0.0 <= took.wall_s < 10
    assert list(tmp_path.iterdir()) == []


def test_a_rack_that_is_being_removed_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv(machine.FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert Stopwatch().took().wall_s >= 0
