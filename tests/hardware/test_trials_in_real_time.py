"""Emulated trials on the machine's own kernel: marked flows, records, and nothing left behind."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.agent.bpf.load import LoadError, bpf
from orchestration.backends.common.linux import has_link_delays
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.emulated.host_kernel import missing_parts
from orchestration.campaign.expand import load_campaign
from orchestration.core.ports import TrialRun
from orchestration.results.reader import read_trial
from traffic.schedule import make_schedule
from tuners.base import BaseTuner
from tuners.registry import create

sys.path.insert(0, str(Path(__file__).parent))

import everything
from machine_state import family, gone, machine, nothing_stays

from tests.testbeds import leaf_spine

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_machine"),
]

# The uplinks are slower than the hosts: the queues are theirs.
TESTBED = leaf_spine("slow-uplink", 2, 1, 2, "50Mbps", "20Mbps", buffer="200KB")
CAMPAIGN = """
campaign: real
testbed: slow-uplink.yml
clock: real
host: {congestion_control: reno, min_rto: 50ms}
tuners:
  - {name: static, label: shallow, kmin_bytes: 12KB, kmax_bytes: 18KB, pmax: 1.0}
  - {name: static, label: deep, kmin_bytes: 80KB, kmax_bytes: 90KB, pmax: 1.0}
traffic:
  - {kind: flow, src: h1, dst: h3, size: 1200KB}
  - {kind: flow, src: h2, dst: h4, size: 1200KB}
repeats: 1
duration: 100ms
drain: 10s
sample_period: 10ms
"""
# The run, its worker, unshare, the first process, the traffic's.
PROCESSES = 5


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "slow-uplink.yml").write_text(TESTBED)
    (tmp_path / "real.yml").write_text(CAMPAIGN)
    return tmp_path


PROGRAM = [sys.executable, "-c", "from orchestration.cli.main import main; main()"]


def closloop(folder, *arguments):
    argv = [*PROGRAM, *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def busy_queue(trial, name):
    """Return the lengths of the uplink's queue while the flows are past their start."""
    number = [queue.label for queue in trial.testbed.queues].index(name)
    length = trial.ports.qlen_bytes[:, number]
    return length[20:60]


def test_what_the_kernel_is_said_to_measure_and_set_it_does(folder):
    tuners = f"tuners: [{{name: {Path(everything.__file__)}:OnKernel}}]\ntraffic:"
    text = re.sub(r"tuners:\n.*\n.*\ntraffic:", tuners, CAMPAIGN)
    (folder / "real.yml").write_text(text)
    done = closloop(folder, "run", "real.yml", "--no-report", "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    (trial,) = folder.glob("runs/real/*-r1-*")
    everything.check(read_trial(trial), "emulated", ["ecn kmin_bytes"])


def test_two_tuners_mark_by_their_thresholds_and_leave_the_machine_alone(folder):
    before = machine()
    done = closloop(folder, "run", "real.yml", "--no-report", "--json")
    # on a busy machine a trial may be invalid, and says so
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not json.loads(done.stdout)["failed"], done.stdout
    assert "one trial at a time" in done.stderr
    nothing_stays(before)
    trials = {path.name.split("-")[0]: read_trial(path) for path in folder.glob("runs/real/*-r1-*")}
    uplink = next(
        queue.label
        for queue in load_testbed(str(folder / "slow-uplink.yml")).queues
        if queue.port.rate_bps < 50_000_000 and queue.device == "leaf1"
    )
    lacks = missing_parts()
    for trial in trials.values():
        facts = trial.facts
        assert facts["clock"] == "real"
        assert trial.spec.clock == "real"
        assert 0 < facts["machine"]["busy_share"] <= 1
        assert facts["machine"]["timer_lag_us"]["count"] > 0
        assert facts["machine"]["shaper_lag_us"]["count"] > 0
        marks = facts["sources"]["leaf1"]["marked_packets"]
        assert marks.startswith("a BPF program" if "red" in lacks else "Linux RED"), marks
        warned = " ".join(reason.text for reason in trial.stamp.reasons)
        assert ("no propagation delay" in warned) == (not has_link_delays(lacks))
        assert (trial.table("flows")["status"] == "done").all()
        assert trial.ports.marked_packets[-1].sum() > 0
        hosts = trial.table("hosts")
        assert hosts["tx_bytes"].max() > 1_200_000
    shallow, deep = (busy_queue(trials[name], uplink) for name in ("shallow", "deep"))
    # flows that are told at 12 to 18 KB stay a round trip's packets above it
    assert 1_500 < np.median(shallow) < 30_000 < np.median(deep) < 110_000, (shallow, deep)
    assert np.quantile(shallow, 0.9) < 45_000, shallow


def test_a_scaled_trial_is_recorded_in_its_own_time_with_dctcp_by_a_program_if_need_be(folder):
    """A testbed ten times as fast, with a scale of ten: the same bytes by the same clock."""
    (folder / "slow-uplink.yml").write_text(TESTBED.replace("0Mbps", "00Mbps"))
    shorter = CAMPAIGN.replace("duration: 100ms", "duration: 10ms").replace("10ms\n", "1ms\n")
    dctcp = shorter.replace("reno", "dctcp").replace("min_rto: 50ms", "min_rto: 5ms")
    (folder / "real.yml").write_text(dctcp.replace("drain: 10s", "drain: 1s"))
    done = closloop(folder, "run", "real.yml", "--scale", "10", "--no-report", "--json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not json.loads(done.stdout)["failed"], done.stdout
    assert "scale 10" in done.stderr
    for path in folder.glob("runs/real/*-r1-*"):
        trial = read_trial(path)
        assert trial.spec.scale == trial.facts["scale"] == 10
        flows = trial.table("flows")
        assert (flows["status"] == "done").all()
        # two flows share 200 Mbit/s: some 0.1 s of the trial's time, 1 s by the clock
        fct_ns = flows["end_ns"] - flows["start_ns"]
        assert (fct_ns > 70_000_000).all(), fct_ns
        assert fct_ns.max() < 500_000_000, fct_ns
        assert trial.ports.marked_packets[-1].sum() > 0
        if "dctcp" in missing_parts():
            totals = trial.facts["congestion_control"]["dctcp"]["totals"]
            assert totals["connections"] == 4  # their two ends
            assert totals["marked_windows"] > 0


class OfThisProcess(BaseTuner):
    """Decides here, in place of the trial's tuner."""

    observes = ("qlen_bytes", "host.tx_bytes")

    def __init__(self, spec):
        self.tuner, self.seen = create(spec), []

    def reset(self, testbed, seed):
        return self.tuner.reset(testbed, seed)

    def act(self, observation):
        self.seen.append(int(observation["host.tx_bytes"].sum()))
        return self.tuner.act(observation)


def test_a_tuner_of_this_process_decides_while_time_goes_on(folder):
    (trial, _) = load_campaign(folder / "real.yml").trials
    testbed = load_testbed(trial.testbed)
    tuner = OfThisProcess(trial.tuner)
    work = folder / "work"
    work.mkdir()
    schedule = make_schedule(trial, testbed)
    record = EmulatedBackend().run(TrialRun(trial, testbed, schedule, work, tuner=tuner))
    assert record.facts["decisions"] == len(tuner.seen) > 10
    assert tuner.seen == sorted(tuner.seen)
    assert tuner.seen[-1] > 2_400_000


def programs(processes):
    """Return the BPF programs that processes hold, by their numbers in the kernel."""
    found = set()
    for pid, _ in processes:
        with suppress(OSError):  # it may end meanwhile
            for name in os.listdir(f"/proc/{pid}/fdinfo"):
                with suppress(OSError):
                    text = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
                    found |= set(re.findall(r"^prog_id:\s*(\d+)", text, re.MULTILINE))
    return {int(number) for number in found}


def first_process(processes):
    """Return the process that is number 1 of its namespace."""
    found = []
    for pid, _ in processes:
        with suppress(OSError):  # others of the run's end by themselves
            text = Path(f"/proc/{pid}/status").read_text()
            found += [pid] if re.search(r"^NSpid:\t\d+\t1$", text, re.M) else []
    return found


def loaded(number):
    """Return whether the kernel has a BPF program of this number."""
    next_id = 11  # BPF_PROG_GET_NEXT_ID
    attributes = bytearray(struct.pack("=III", number - 1, 0, 0))
    try:
        bpf(next_id, attributes, "next program")
    except LoadError:
        return False
    return struct.unpack("=III", attributes)[1] == number


@pytest.mark.parametrize("victim", ["everything", "the run", "its first process"])
def test_a_sigkill_at_any_moment_leaves_nothing(folder, victim):
    before = machine()
    # each as soon as so many of its processes are there, and the last in the middle of the trial
    moments = (2, 3, 4, PROCESSES, 0) if victim == "everything" else (0,)
    for members in moments:
        argv = [*PROGRAM, "run", "real.yml", "--no-report"]
        run = subprocess.Popen(
            argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        processes = set()
        while len(processes) < (members or PROCESSES) and run.poll() is None:
            processes = family(run.pid)
        if not members:
            time.sleep(0.5)
            processes = family(run.pid)
        assert run.poll() is None
        held = programs(processes)
        if not members and "red" in missing_parts():
            assert held
        victims = {"everything": [pid for pid, _ in processes], "the run": [run.pid]}
        for pid in victims.get(victim) or first_process(processes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim == "its first process":
            # its trial failed, the campaign goes on
            run.terminate()
        run.wait()
        gone(processes)
        nothing_stays(before)
        deadline = time.monotonic() + 60
        while left := [number for number in held if loaded(number)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    if victim == "the run":
        # the same command goes on from there
        assert closloop(folder, "run", "real.yml", "--no-report").returncode in (0, 1)
