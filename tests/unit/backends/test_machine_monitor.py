"""What a machine did during a trial in real time, and when that was too much."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from orchestration.backends.common import machine_monitor
from orchestration.backends.common.machine_monitor import (
    Counters,
    Load,
    MachineMonitor,
    load_findings,
    round_up_scale,
)
from orchestration.backends.common.timer_latency import TimerLatency
from orchestration.core.trial import TrialSpec, TunerSpec

STAT = """cpu  0 0 0 0 0 0 0 0 0 0
cpu0 {user} 0 10 {idle} 5 1 {softirq} {steal} 0 0
cpu1 100 0 10 500 5 1 20 0 0 0
intr 1 2 3
"""
IDLE = Load(
    cpus=2,
    busy=0.3,
    others=0.05,
    stolen=0.0,
    softirq=0.1,
    squeezed=0.0,
    dropped=0,
    waiting=0.1,
    processes=TimerLatency(60_000, 1_300_000, 400),
    shapers=TimerLatency(35_000, 90_000, 400),
)
LATE = TimerLatency(60_000, 9_000_000, 400)


def proc(folder, *, user=100, idle=500, softirq=20, steal=0, squeezed=0, dropped=0, own=0, at=10):
    folder.mkdir()
    (folder / "stat").write_text(STAT.format(user=user, idle=idle, softirq=softirq, steal=steal))
    (folder / "net").mkdir()
    line = f"{1000 + user:08x} {dropped:08x} {squeezed:08x} 00000000 00000000\n"
    (folder / "net" / "softnet_stat").write_text(line + "00000000 00000000 00000000 00000000\n")
    (folder / "pressure").mkdir()
    (folder / "pressure" / "cpu").write_text(f"some avg10=0.00 avg60=0.00 total={at * 100_000}\n")
    (folder / "uptime").write_text(f"{at}.00 5.00\n")
    (folder / "42").mkdir()
    text = f"42 (a) b) S 1 1 1 0 -1 0 0 0 0 0 {own} 0 0 0 20 0\n"
    (folder / "42" / "stat").write_text(text)
    return Counters.now(folder)


def test_a_load_is_the_growth_of_counters(tmp_path):
    first = proc(tmp_path / "a")
    last = proc(
        tmp_path / "b", user=200, idle=560, softirq=40, steal=20, squeezed=3, dropped=2, own=50,
        at=14,
    )  # fmt: skip
    load = Load.between(first, last, TimerLatency(5, 7, 9), TimerLatency(1, 2, 3))
    # 100 + 20 + 20 of 200 ticks; cpu1 stood still
    assert load.busy == pytest.approx(140 / 200)
    assert load.stolen == pytest.approx(20 / 200)
    assert load.softirq == pytest.approx(20 / 200)
    assert load.others == pytest.approx((140 - 20 - 50 - 20) / 200)
    assert (load.squeezed, load.dropped) == (3 / 100, 2)
    assert load.waiting == pytest.approx(0.1)
    assert (load.processes, load.shapers) == (TimerLatency(5, 7, 9), TimerLatency(1, 2, 3))
    assert load.facts()["shaper_lag_us"] == {"p50": 0.0, "p99": 0.0, "count": 3}


def test_a_kernel_without_pressure_counters_is_read_too(tmp_path):
    proc(tmp_path / "a")
    (tmp_path / "a" / "pressure" / "cpu").unlink()
    assert Counters.now(tmp_path / "a").waiting_us == 0


@pytest.mark.parametrize(
    ("code", "beyond", "says"),
    [
        ("cpu-busy", {"busy": 0.97, "others": 0.0}, "busy 97% of 2 cores, above 80%"),
        ("softirq-busy", {"softirq": 0.9}, "forwarded packets 90% of the time, above 80%"),
        ("cpu-stolen", {"stolen": 0.05}, "took 5.0% of this machine's CPU time, above 2%"),
        ("packets-squeezed", {"squeezed": 0.01}, "1.00% of packets were left for later"),
        ("packets-lost", {"dropped": 3}, "3 packets were dropped before a CPU processed them"),
        ("timers-late", {"processes": LATE}, "a process woke up to 9.00 ms late (p99), above 5 ms"),
        ("shapers-late", {"shapers": LATE}, "a shaper sent up to 9.00 ms late (p99), above 0.2 ms"),
    ],
)
def test_beyond_a_bound_a_trial_is_invalid_and_the_scale_that_fits_is_named(code, beyond, says):
    assert load_findings(IDLE, 50) == []
    (found,) = load_findings(dataclasses.replace(IDLE, **beyond), 50)
    assert (found["code"], found["severity"]) == (code, "invalid")
    assert says in found["text"]
    assert "--scale " in found["text"]
    named = int(found["text"].rpartition("--scale ")[2])
    assert named > 50


def test_the_factor_is_that_of_the_racks_own_share():
    (found,) = load_findings(dataclasses.replace(IDLE, busy=0.96, others=0.0), 100)
    assert found["text"].endswith("about 1.2 times the scale would fit, --scale 120")
    (found,) = load_findings(dataclasses.replace(IDLE, busy=1.0, others=0.7), 100)
    assert "70% by programs that are not the rack's: end them" in found["text"]
    assert found["text"].endswith("about 3 times the scale would fit, --scale 300")
    # beside programs that leave nothing no scale is right, and one is still above the present
    (found,) = load_findings(dataclasses.replace(IDLE, busy=1.0, others=0.9), 100)
    assert found["text"].endswith("--scale 130")


def test_lateness_is_harmless_in_slow_time():
    late = dataclasses.replace(IDLE, processes=LATE, shapers=LATE)
    assert [found["code"] for found in load_findings(late, 4_000)] == [
        "timers-late",
        "shapers-late",
    ]
    assert load_findings(late, 5_000) == []
    few = TimerLatency(0, 9_000_000, 20)
    assert load_findings(dataclasses.replace(late, processes=few, shapers=few), 1) == []


def test_scales_have_two_digits():
    assert [round_up_scale(x) for x in (0.2, 1, 9.1, 99, 101, 1999)] == [1, 1, 10, 99, 110, 2000]


def a_trial():
    return TrialSpec(
        "c", "graphcc", "hardware", TunerSpec("secn1"), (), 1, 1, 1_000, 1_000, scale=50
    )


def watched(seconds):
    with MachineMonitor(a_trial()) as watch:
        time.sleep(seconds)
    return watch


@pytest.mark.slow
def test_with_all_cores_spinning_a_trial_is_invalid():
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.2)
        watch = watched(1.0)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    if watch.load.cpus != len(spinning):
        pytest.skip("this process may not use all of the machine's cores")
    assert "cpu-busy" in [found["code"] for found in watch.findings()], watch.facts()
    assert watch.facts()["machine"]["busy_share"] > 0.95


@pytest.mark.slow
def test_a_watch_ends_its_process_also_after_an_error():
    with suppress(KeyError), MachineMonitor(a_trial()) as watch:
        pids = [program.pid for program in watch._probes]
        time.sleep(0.4)
        raise KeyError
    assert watch.load.processes.count > 20
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.root
def test_departures_of_shapers_are_timed_on_each_cpu():
    shapers = watched(1.0).load.shapers
    # 200 a second and CPU, on a machine that is busy, too
    assert shapers.count > 100
    assert 0 < shapers.p50_ns < 5_000_000


def test_only_a_rack_in_real_time_is_watched(monkeypatch):
    for clock, watched_kind in (("real", MachineMonitor), ("virtual", machine_monitor.NoMonitor)):
        monkeypatch.setenv(machine_monitor.RACK_CLOCK, clock)
        assert type(machine_monitor.monitor_for(a_trial())) is watched_kind
    with machine_monitor.NoMonitor() as watch:
        pass
    assert (watch.facts(), list(watch.findings())) == ({}, [])
