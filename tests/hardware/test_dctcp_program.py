"""DCTCP as a BPF program: its laws, its queue, and that nothing of it stays in the kernel.

Its laws are seen packet by packet (`dctcp_lab`), in which no clock has a part.
"""

import errno
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.bpf.compile import DCTCP, compiled
from orchestration.agent.bpf.congestion import OLDEST, Control, read_control, registered
from orchestration.agent.bpf.load import LoadError, kernel_release
from tests.hardware.dctcp_lab import TUN

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(120),
    pytest.mark.skipif(kernel_release() < OLDEST, reason="the kernel is older than Linux 6.4"),
]

HOLD = """
import sys, time
from collectors.bpf.compile import DCTCP, compiled
from orchestration.agent.bpf.congestion import Control, read_control
held = Control(read_control(compiled(DCTCP).read_bytes()), sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def lab(**wish):
    """Send a flow through the lab's switch, and return what was seen."""
    if not Path(TUN).exists():
        pytest.skip(f"no {TUN}: modprobe tun")
    asked = {"control": "program", "packets": 10_000, "limit_bytes": 1_000_000, **wish}
    argv = [sys.executable, "-m", "tests.hardware.dctcp_lab", json.dumps(asked)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kept(cuts):
    """Return the share of the window that cuts left."""
    return statistics.median(after / before for before, after in cuts)


def spread(queue):
    low, _, high = statistics.quantiles(queue, n=4)
    return high - low


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_alpha_becomes_the_share_of_marks(share):
    seen = lab(marks={"share": share})
    totals, (packets, marked) = seen["totals"], seen["seen"]
    assert totals["astray"] == 0
    assert totals["connections"] == 2
    windows = totals["windows"]
    assert windows > 300
    # alpha begins at 1 and comes to the share by 15/16 a window: 15 windows' worth on the way
    true = marked / packets
    expected = true + (1 - true) * 15 / windows
    assert totals["mean_alpha"] == pytest.approx(expected, rel=0.05)


def test_a_mark_makes_the_window_smaller_by_half_of_alpha():
    # with so few marks windows are large, and whole packets hide little
    seen = lab(marks={"at": 150_000}, packets=20_000)
    cuts = seen["cuts"]
    first_before, first_after = cuts[0]
    # alpha is 1 at first, and a little less after the windows of slow start
    assert first_before / 2 <= first_after <= first_before * 0.75
    totals = seen["totals"]
    late = 1 - kept(cuts[len(cuts) // 3 :])
    # the cut is of alpha then, which is the largest in marked windows: not far from its mean
    assert 0.1 < late / (totals["mean_alpha"] / 2) < 2
    assert late < 0.1


def test_its_queue_is_near_the_threshold_and_reno_s_swings():
    at = 40_000
    dctcp, reno = (lab(control=control, marks={"at": at}) for control in ("program", "reno"))
    assert dctcp["drops"] == 0
    assert dctcp["idle"] == 0  # its queue never runs dry
    assert statistics.median(dctcp["queue"]) == pytest.approx(at, rel=0.1)
    assert spread(dctcp["queue"]) < 0.6 * spread(reno["queue"])
    assert kept(reno["cuts"][-5:]) == pytest.approx(0.5, abs=0.1)
    assert kept(dctcp["cuts"][-5:]) > 0.8


def test_a_loss_is_answered_by_half():
    # 40 packets fit, none is marked, and alpha decays from 1 by each window without marks
    seen = lab(marks={"at": 100_000_000}, limit_bytes=60_000)
    totals = seen["totals"]
    assert totals["marked_windows"] == 0
    assert totals["mean_alpha"] < 0.5
    assert totals["losses"] >= 3
    assert kept(seen["cuts"][-3:]) == pytest.approx(0.5, abs=0.1), seen["cuts"]


def test_it_goes_with_its_process_and_a_name_is_taken_once():
    name = f"bpf_dctcp_{os.getpid() & 0xFFFFF:05x}"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        assert name in registered()
        with pytest.raises(LoadError) as refused:
            Control(read_control(compiled(DCTCP).read_bytes()), name)
        assert refused.value.errno == errno.EEXIST
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    deadline = time.monotonic() + 60
    while name in registered():
        assert time.monotonic() < deadline
        time.sleep(0.05)
