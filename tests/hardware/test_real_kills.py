"""SIGKILLs of racks in real time leave the machine as it was; and so does their benchmark."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.bench import machine_state, real_kills
from orchestration.bench.killed_racks import CARDS, KilledRacks
from orchestration.virtual_rack import cleanup, control_groups

pytestmark = [
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("own_machine"),
]

BENCHMARK = """
import sys
from pathlib import Path
from orchestration.core.errors import ClosloopError
from orchestration.bench.real_kills import disturb
try:
    lives = (("exec",),)
    disturb(Path(sys.argv[1]), 50, 1, lives=lives, report=lambda text: print(text, flush=True))
except ClosloopError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    "kind", ["plain", pytest.param("containers", marks=pytest.mark.containers)]
)
def test_sigkills_while_it_is_built_runs_and_is_removed_leave_the_machine_as_it_was(kind, tmp_path):
    seed, said = int(time.time()), []  # another one each time, and said if it fails
    rows = real_kills.disturb(
        tmp_path,
        kills=2,
        seed=seed,
        lives=(("up",), ("run", "down")),
        kinds=(kind,),
        report=said.append,
    )
    assert len(rows) == 2
    assert not any(row["hung"] for row in rows), (seed, rows)
    assert [row["differs"] for row in rows if row.get("differs")] == [], seed
    assert sum("killed after" in text for text in said) == 2


def test_what_a_rack_leaves_is_found(tmp_path):
    (place, *_) = control_groups.hierarchies()
    theirs = place / f"somebodys-{os.getpid()}"
    with (tmp_path / "log").open("ab") as log, real_kills._cards():
        racks = KilledRacks(tmp_path, log, ())
        racks._before = {**racks._before, "mounts": []}
        theirs.mkdir()
        try:
            now = machine_state.differences(racks._before, machine_state.snapshot(CARDS))
        finally:
            theirs.rmdir()
    assert f"+ cgroups: {theirs}" in now
    count = machine_state.count_by_subject(now)
    assert count["mounts"] > 0
    assert sum(count.values()) == len(now)


def test_what_others_begin_and_end_meanwhile_is_not_left_by_a_rack():
    before = {"held": set(), "links": ["mine"], "prog_id": [1, 2], "cgroups": ["/old"]}
    others = iter(range(10, 10**6))

    def found():
        now = {"held": set(), "links": [], "prog_id": [1, 7, next(others)], "cgroups": []}
        return machine_state.differences(before, now)

    assert sorted(machine_state.lasting_differences(found, within_s=0.5)) == [
        "+ prog_id: 7",
        "- links: mine",
    ]


def test_a_process_that_ends_while_it_is_looked_at_has_no_children(monkeypatch):
    def gone(path):
        raise FileNotFoundError(path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, gone)
    assert machine_state.children(os.getpid()) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_told_to_end_takes_its_rack_with_it(number, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = machine_state.snapshot()
    argv = [sys.executable, "-c", BENCHMARK, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as benchmark:
        try:
            process_tree = told_to_end(benchmark, number, tmp_path)
        except BaseException:
            benchmark.terminate()  # in order: it takes its rack with it
            raise
    assert benchmark.returncode == 130
    assert not any(process.lives for process in process_tree)
    assert machine_state.find_processes(str(tmp_path)) == set()
    assert not Path("/sys/class/net", CARDS[0]).exists()
    left = [*cleanup.find_interfaces(), *cleanup.find_racks()]
    assert [row for row in left if not row.in_use_by] == []
    assert machine_state.settled_differences(before) == []


def told_to_end(benchmark, number, folder):
    """Tell the benchmark to end while its rack is there; return the rack's processes."""
    rack = folder / "state" / "closloop" / "racks" / "four"
    wanted = "undisturbed" if number == signal.SIGTERM else ""
    if wanted:  # between two racks, else while the first is built
        assert wanted in benchmark.stdout.readline()
    while not (supervisors := machine_state.find_processes("virtual_rack.supervisor", str(rack))):
        assert benchmark.poll() is None
        time.sleep(0.02)
    process_tree = {process for pid in supervisors for process in machine_state.process_tree(pid)}
    os.kill(benchmark.pid, number)
    benchmark.communicate()
    return process_tree
