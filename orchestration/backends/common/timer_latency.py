"""Measures how late this machine wakes processes and shapers, with programs beside a trial.

    python timer_latency.py timers PERIOD_NS    until SIGTERM; then prints the lateness as JSON
    python timer_latency.py shapers             the same; needs root

`timers` sleeps until absolute times, one period apart. A process that does nothing else wakes as
late as a sender or an agent that has slept.

`shapers` makes a network namespace with one `tbf` per CPU. Each always has packets to send, one
every 5 ms, and its bucket holds one packet. So any time beyond 5 ms between two departures is the
lateness of the timer and of the softirq after it. The packets of every shaped port pass through
these two, and a process that wakes says nothing about them: a CPU whose softirqs are left to
`ksoftirqd` still wakes processes in time. The kernel's time stamps of packets at the other end
(SO_TIMESTAMPNS) tell when they departed.

It uses the standard library only, so that it starts fast and is not itself the cause of lateness.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_END_TIMEOUT_S = 5.0
# With fewer measurements a 99th percentile says nothing.
MIN_COUNT = 100


@dataclass(frozen=True)
class TimerLatency:
    """How late a machine was: quantiles in ns of `count` measurements; all 0 if there are none."""

    p50_ns: int = 0
    p99_ns: int = 0
    count: int = 0

    def exceeds(self, bound_ns: int) -> bool:
        """Return whether the 99th percentile is above a bound; False for too few measurements."""
        return self.count >= MIN_COUNT and self.p99_ns > bound_ns

    def facts(self) -> dict[str, Any]:
        """Return the numbers for a trial's record, in us."""
        return {
            "p50": round(self.p50_ns / 1e3, 1),
            "p99": round(self.p99_ns / 1e3, 1),
            "count": self.count,
        }


class LatencyProbe:
    """Runs this module as a program beside a trial until `end`, which returns its measurements.

    Where the program cannot run, as `shapers` without root's rights, there are no measurements.
    """

    def __init__(self, *arguments: str) -> None:
        # isolated, so that it starts without the project's modules
        argv = [sys.executable, "-IS", __file__, *arguments]
        self._process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.pid = self._process.pid

    def await_start(self) -> None:
        """Wait until the program measures, or has ended."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> TimerLatency:
        """End the program; return what it has measured."""
        self._process.terminate()
        output = ""
        with suppress(subprocess.TimeoutExpired):
            output, _ = self._process.communicate(timeout=_END_TIMEOUT_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        fields = json.loads(output) if output.strip() else {}
        return TimerLatency(*(int(fields.get(name, 0)) for name in ("p50_ns", "p99_ns", "count")))


_PR_SET_TIMERSLACK, _PR_SET_PDEATHSIG, _CLONE_NEWNET = 29, 1, 0x40000000
_SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 32, 35
_ETHERTYPE = 0x88B5  # for local experiments (IEEE 802)
_FRAME_BYTES = 1000
_FRAME = b"\xff" * 6 + bytes(6) + struct.pack("!H", _ETHERTYPE) + bytes(_FRAME_BYTES - 14)
# A shaper is filled up to this many packets as soon as it has no more than so many: this process
# may then wake 0.3 s late.
_PERIOD_NS, _FULL_PACKETS, _REFILL_PACKETS = 5_000_000, 120, 60
_MEMORY_BYTES = 1 << 20
# With more CPUs, only some have a shaper.
_MAX_CPUS = 8
_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


def watch_timers(period_ns: int, late_ns: list[int]) -> None:
    """Sleep until times one period apart, and append to `late_ns` how late each sleep ends."""
    print("ready", flush=True)
    due_ns = time.monotonic_ns()
    while True:
        now_ns = time.monotonic_ns()
        # times that passed while it was late count as one lateness, not as many
        due_ns += max(1, -(-(now_ns - due_ns) // period_ns)) * period_ns
        time.sleep((due_ns - now_ns) / 1e9)
        late_ns.append(max(0, time.monotonic_ns() - due_ns))


def _run(*argv: str) -> None:
    """Run a program of iproute2. Raises CalledProcessError."""
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    subprocess.run(argv, check=True, env={"PATH": path}, stdout=subprocess.DEVNULL)


class _Shaper:
    """A shaper whose timer runs on one CPU, and the times at which its packets departed."""

    def __init__(self, cpu: int, late_ns: list[int]) -> None:
        self._cpu, self._late_ns = cpu, late_ns
        self._last_ns = self._queued = 0
        near, far = f"s{cpu}", f"r{cpu}"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        for name in (near, far):
            with suppress(OSError), open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as f:
                f.write("1")  # otherwise the interface sends packets of its own
            _run("ip", "link", "set", name, "up")
        rate = f"{_FRAME_BYTES * 8 * 10**9 // _PERIOD_NS}bit"
        limit = str(2 * _FULL_PACKETS * _FRAME_BYTES)
        options = ("rate", rate, "burst", str(_FRAME_BYTES), "limit", limit)
        _run("tc", "qdisc", "add", "dev", near, "root", "tbf", *options)
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _MEMORY_BYTES)
        self._out.bind((near, 0))
        self.departures = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.departures.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.departures.bind((far, _ETHERTYPE))
        self.departures.setblocking(False)

    def fill(self) -> None:
        """Give the shaper packets, from its CPU: its timer runs on the CPU that sends to it."""
        if self._queued <= _REFILL_PACKETS:
            os.sched_setaffinity(0, {self._cpu})
            while self._queued < _FULL_PACKETS:
                self._out.send(_FRAME)
                self._queued += 1

    def record_departures(self) -> None:
        """Record how late the packets were that have departed since the last call."""
        with suppress(BlockingIOError):
            while True:
                _, ancillary, _, _ = self.departures.recvmsg(64, 64)
                seconds, ns = struct.unpack("=qq", ancillary[0][2])
                at_ns = seconds * 10**9 + ns
                if self._last_ns:
                    self._late_ns.append(max(0, at_ns - self._last_ns - _PERIOD_NS))
                self._queued -= 1
                # after the last packet, the shaper waits for this process, not for its timer
                self._last_ns = at_ns if self._queued else 0


def watch_shapers(late_ns: list[int]) -> None:
    """Keep shapers busy, and append to `late_ns` how late each packet departs."""
    cpus = sorted(os.sched_getaffinity(0))
    chosen = cpus[:: -(-len(cpus) // _MAX_CPUS)]
    shapers = [_Shaper(cpu, late_ns) for cpu in chosen]
    for shaper in shapers:
        shaper.fill()
    print("ready", flush=True)
    while True:
        select.select([shaper.departures for shaper in shapers], [], [])
        for shaper in shapers:
            shaper.record_departures()
            shaper.fill()


class _End(Exception):  # noqa: N818 (not an error)
    pass


def _end(*_: object) -> None:
    raise _End


def main(kind: str, *arguments: str) -> None:
    """Measure `timers` or `shapers` until SIGTERM, then print how late this machine was."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if kind == "shapers" and libc.unshare(_CLONE_NEWNET):
        sys.exit(os.strerror(ctypes.get_errno()))
    late_ns: list[int] = []
    signal.signal(signal.SIGTERM, _end)
    try:
        if kind == "shapers":
            watch_shapers(late_ns)
        else:
            watch_timers(int(arguments[0]), late_ns)
    except _End:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranked = sorted(late_ns) or [0]
    quantiles = {"p50_ns": ranked[len(ranked) // 2], "p99_ns": ranked[len(ranked) * 99 // 100]}
    print(json.dumps({"count": len(late_ns), **quantiles}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
