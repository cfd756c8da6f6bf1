"""A guest whose tuner is in the host's process ends with that process, however that ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Steps an environment on and on; `think` is what it does in between.
PROGRAM = """
import dataclasses, signal, sys, time
from orchestration.campaign.expand import load_campaign
from orchestration.environment import FabricEnv
# a shell without job control starts what runs in the background with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
trial = load_campaign("examples/learning.yml", backend="emulated").trials[0]
env = FabricEnv(dataclasses.replace(trial, duration_ns=10**9), queue="switch1:eth0")
env.reset()
print("ready", flush=True)
{think}
while True:
    env.step(0)
"""


def guests(folder: Path) -> list[int]:
    """The processes of guests whose job is in `folder`, which is on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if f"init={folder}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def wait_for(condition) -> bool:
    until = time.monotonic() + 120
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return bool(condition())


def start(folder: Path, think: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(think=think)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert wait_for(lambda: guests(folder))
    return process


# In pieces: a signal that comes just before a long sleep begins is only seen when it ends.
THINK = "while True: time.sleep(0.05)"


@pytest.mark.parametrize("think", ["", THINK], ids=["steps", "thinks"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_guest_outlives_its_environment(tmp_path, think, how):
    process = start(tmp_path, think)
    process.send_signal(how)
    process.communicate(timeout=120)
    assert wait_for(lambda: not guests(tmp_path))
    if how == signal.SIGINT:
        assert not list(tmp_path.glob("closloop-episode-*"))


def states(folder: Path) -> set[str]:
    return {
        Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] for pid in guests(folder)
    }


def test_a_guest_takes_no_cpu_while_the_host_thinks(tmp_path):
    process = start(tmp_path, THINK)
    # the stop is sent before "ready", and arrives when the guest is next scheduled
    assert wait_for(lambda: states(tmp_path) == {"T"})
    time.sleep(0.2)
    assert states(tmp_path) == {"T"}
    process.kill()
    process.communicate(timeout=120)
    assert wait_for(lambda: not guests(tmp_path))
