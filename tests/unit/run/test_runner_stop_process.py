"""Ctrl-C while the packet engine's C runs: progress goes on until then, and the run ends at once.

A policy that never returns does not delay it either. What a machine that is busy with other work
adds is allowed for: without what these tests hold, a worker that is in C takes ten seconds to end.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.run.executors import STOP_GRACE_S
from orchestration.run.folder import read_journal

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
ENDS_WITHIN_S = STOP_GRACE_S / 2  # a second, and what a busy machine takes
PROGRAM = "from orchestration.cli.main import main; main()"
# One reading of each fabric in a second of virtual time, which takes several of wall time.
CAMPAIGN = """campaign: stop
testbed: rlcc-7
host: {{congestion_control: {control}}}
tuners: [secn1, secn2]
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 1000GB}}
  - {{kind: flow, src: h3, dst: h4, size: 1000GB}}
  - {{kind: flow, src: h5, dst: h2, size: 1000GB}}
repeats: 1
duration: {duration}
drain: 0ns
sample_period: {duration}
action_period: {duration}
"""
FOREVER = """#include "policy.h"
CL_INLINE void happen(struct cl_flow_state *flow, const u32 *parameters, const struct cl_hop *hop)
{
	for (;;)
		asm volatile("");
}
CL_POLICY(forever, 1, 0);
"""
ENVIRONMENT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs pytest behind
from orchestration.environment import FabricEnv
env = FabricEnv(sys.argv[1], queue="switch1:eth0")
print("ready", flush=True)
env.reset()
"""


def write(folder, control="dcqcn", duration="20s"):
    path = folder / "stop.yml"
    path.write_text(CAMPAIGN.format(control=control, duration=duration))
    (folder / "forever.c").write_text(FOREVER)
    return path


def of_session(leader):
    """Return the living processes that a process has started, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] not in "ZX":
            parents[int(stat.parent.name)] = int(words[1])
    found = {leader}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {leader}


def cpu_s(pid):
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def until(true, what):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.02)


def last_event(folder):
    return [entry["event"] for entry in read_journal(folder / "journal.jsonl")][-1]


def nothing_is_left(workers, folder):
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert {path.name for path in folder.iterdir()} == {"campaign.yml", "journal.jsonl"}
    assert last_event(folder) == "run-interrupted"


def test_progress_moves_while_c_runs_and_ctrl_c_ends_it(tmp_path):
    write(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "run", "stop.yml"])
    printed, pressed_s, workers = "", None, set()
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the terminal's other end is closed
                break
            printed += part.decode(errors="replace")
        if pressed_s is None and len(set(re.findall(r"([\d.]+)ms of 20s", printed))) > 8:
            workers = of_session(pid)
            pressed_s = time.monotonic()
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert pressed_s is not None, printed[-2000:]
    assert time.monotonic() - pressed_s < ENDS_WITHIN_S
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert "2 of 2 trials are not done" in printed
    assert len(workers) == 2
    nothing_is_left(workers, tmp_path / "runs" / "stop")


def started(folder, *arguments):
    """Start closloop; return its process once two workers are in C for a third of a second."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    )

    def are_in_c():
        found = of_session(process.pid)
        return len(found) == 2 and all(cpu_s(worker) > 0.3 for worker in found)

    until(lambda: process.poll() is not None or are_in_c(), "both trials are in C")
    assert process.poll() is None, process.stderr.read()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_policy_that_never_returns_delays_no_end(tmp_path, number):
    write(tmp_path, "{program: forever.c, parameters: [1]}")
    process = started(tmp_path, "run", "stop.yml")
    workers = of_session(process.pid)
    begin_s = time.monotonic()
    process.send_signal(number)
    _, output = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begin_s < ENDS_WITHIN_S
    assert process.returncode == 130, output
    nothing_is_left(workers, tmp_path / "runs" / "stop")


def test_the_same_command_resumes(tmp_path):
    write(tmp_path, duration="1500ms")
    process = started(tmp_path, "run", "stop.yml", "--no-report")
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    command = [sys.executable, "-c", PROGRAM, "run", "stop.yml", "--no-report", "--json"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert '"finished": 2' in again.stdout, again.stderr
    assert last_event(tmp_path / "runs" / "stop") == "run-finished"


def test_an_environments_process_is_interrupted_too(tmp_path):
    """Its engine runs in a thread, and the trial has no decision before a second has passed."""
    path = write(tmp_path)
    path.write_text(path.read_text().replace("period: 20s", "period: 1s"))
    process = subprocess.Popen(
        [sys.executable, "-c", ENVIRONMENT, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # like a container's only process, which leads its session
    )
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    before_s = cpu_s(process.pid)
    until(lambda: process.poll() is not None or cpu_s(process.pid) > before_s + 1, "it is in C")
    begin_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begin_s < ENDS_WITHIN_S
    assert "KeyboardInterrupt" in output.splitlines()[-1], output
    assert process.returncode == -signal.SIGINT
