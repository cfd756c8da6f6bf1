"""SIGKILLs of racks in real time leave the machine as it was; and so does their benchmark."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.studies.bench import machine, real_kills
from orchestration.studies.bench.killed_racks import CARDS, KilledRacks
from orchestration.virtual_rack import groups
from orchestration.virtual_rack.leftovers import leftovers

pytestmark = [pytest.mark.root, pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(600)]

BENCHMARK = """
import sys
from pathlib import Path
from orchestration.model.errors import ClosloopError
from orchestration.studies.bench.real_kills import disturb
try:
    disturb(Path(sys.argv[1]), 50, 1, lives=(("exec",),), tell=lambda text: print(text, flush=True))
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
        tell=said.append,
    )
    assert len(rows) == 2
    assert not any(row["hung"] for row in rows), (seed, rows)
    assert [row["differs"] for row in rows if row.get("differs")] == [], seed
    assert sum("killed after" in text for text in said) == 2


def test_what_a_rack_leaves_is_found(tmp_path):
    (place, *_) = groups.hierarchies()
    theirs = place / "somebodys"
    with (tmp_path / "log").open("ab") as log, real_kills._cards():
        racks = KilledRacks(tmp_path, log, ())
        racks._before = {**racks._before, "mounts": []}
        theirs.mkdir()
        try:
            now = machine.differences(racks._before, machine.snapshot(CARDS))
        finally:
            theirs.rmdir()
    count = machine.by_subject(now)
    assert (count["mounts"] > 0, count["control groups"]) == (True, 1)
    assert sum(count.values()) == len(now)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_told_to_end_takes_its_rack_with_it(number, tmp_path):
    before = machine.snapshot()
    argv = [sys.executable, "-c", BENCHMARK, str(tmp_path)]
    benchmark = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    rack = tmp_path / "state" / "closloop" / "racks" / "four"
    wanted = "undisturbed" if number == signal.SIGTERM else ""
    if wanted:  # between two racks, else while the first is built
        assert wanted in benchmark.stdout.readline()
    deadline = time.monotonic() + 120
    while not (supervisors := machine.running("virtual_rack.supervisor", str(rack))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = {process for pid in supervisors for process in machine.family(pid)}
    os.kill(benchmark.pid, number)
    assert benchmark.wait(timeout=120) == 130
    assert not any(process.lives for process in family)
    assert machine.running(str(rack)) == set()
    assert not Path("/sys/class/net", CARDS[0]).exists()
    assert [row for row in leftovers() if not row.alive] == []
    assert machine.settled(before) == []
