"""How late this machine is: programs of their own beside a trial, which say so at their end.

    python lag.py timers PERIOD_NS     until SIGTERM; then it prints how late, as JSON
    python lag.py shapers              by root

Timers: it sleeps until absolute times, a period apart. A process that does nothing else is as late
as a sender or an agent that has slept.

Shapers: in a network namespace of its own, one `tbf` a CPU always has packets to send, one every 5
ms, and its bucket holds one: so what lies beyond that between two departures is by how much the
timer and the softirq behind it were late. That is the way of every shaped port's packets, and says
what a process that wakes does not: a CPU whose softirqs are left to `ksoftirqd` wakes processes in
time. Departures are the kernel's own times of packets at the other end (SO_TIMESTAMPNS).

Standard library only: a program is not to be late by itself.
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

_END_S = 5.0
# Of fewer moments a 99th percentile says nothing.
MIN_COUNT = 100


@dataclass(frozen=True)
class TimerLatency:
    """How late a machine was, in ns, at `count` moments; 0 of none."""

    p50_ns: int = 0
    p99_ns: int = 0
    count: int = 0

    def exceeds(self, bound_ns: int) -> bool:
        """Return whether it was later than a bound, more often than once in a hundred times."""
        return self.count >= MIN_COUNT and self.p99_ns > bound_ns

    def facts(self) -> dict[str, Any]:
        """Return the numbers for a trial's record, in us."""
        return {
            "p50": round(self.p50_ns / 1e3, 1),
            "p99": round(self.p99_ns / 1e3, 1),
            "count": self.count,
        }


class LatencyProbe:
    """This module as a program that runs until it is told to end, and then says how late it was.

    It has no lag where it does not run, as shapers without root's rights.
    """

    def __init__(self, *words: str) -> None:
        # isolated, so that it starts without the project's modules
        argv = [sys.executable, "-IS", __file__, *words]
        self._process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.pid = self._process.pid

    def await_start(self) -> None:
        """Wait until it measures, or has ended."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> TimerLatency:
        """End it; return what it says."""
        self._process.terminate()
        text = ""
        with suppress(subprocess.TimeoutExpired):
            text, _ = self._process.communicate(timeout=_END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        said = json.loads(text) if text.strip() else {}
        return TimerLatency(*(int(said.get(name, 0)) for name in ("p50_ns", "p99_ns", "count")))


_PR_SET_TIMERSLACK, _PR_SET_PDEATHSIG, _CLONE_NEWNET = 29, 1, 0x40000000
_SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 32, 35
_ETHERTYPE = 0x88B5  # for local experiments (IEEE 802)
_FRAME_BYTES = 1000
_FRAME = b"\xff" * 6 + bytes(6) + struct.pack("!H", _ETHERTYPE) + bytes(_FRAME_BYTES - 14)
# Packets that a shaper has to send: this process may wake 0.3 s late.
_PERIOD_NS, _HELD, _REFILL = 5_000_000, 120, 60
_MEMORY_BYTES = 1 << 20
# More CPUs than that are sampled.
_MAX_CPUS = 8
_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


def watch_timers(period_ns: int, late_ns: list[int]) -> None:
    """Sleep from time to time, and note how late that ends."""
    print("ready", flush=True)
    due_ns = time.monotonic_ns()
    while True:
        now_ns = time.monotonic_ns()
        # times that passed while it was late are one lateness, not many
        due_ns += max(1, -(-(now_ns - due_ns) // period_ns)) * period_ns
        time.sleep((due_ns - now_ns) / 1e9)
        late_ns.append(max(0, time.monotonic_ns() - due_ns))


def _run(*words: str) -> None:
    """Run a program of iproute2. Raises CalledProcessError."""
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    subprocess.run(words, check=True, env={"PATH": path}, stdout=subprocess.DEVNULL)


class _Shaper:
    """A shaper whose timer is one CPU's, and the times at which its packets left."""

    def __init__(self, cpu: int, late_ns: list[int]) -> None:
        self._cpu, self._late_ns = cpu, late_ns
        self._last_ns = self._held = 0
        near, far = f"s{cpu}", f"r{cpu}"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        for name in (near, far):
            with suppress(OSError), open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as f:
                f.write("1")  # else it sends packets of its own
            _run("ip", "link", "set", name, "up")
        rate = f"{_FRAME_BYTES * 8 * 10**9 // _PERIOD_NS}bit"
        words = ("rate", rate, "burst", str(_FRAME_BYTES), "limit", str(2 * _HELD * _FRAME_BYTES))
        _run("tc", "qdisc", "add", "dev", near, "root", "tbf", *words)
        self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _MEMORY_BYTES)
        self._out.bind((near, 0))
        self.departures = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.departures.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.departures.bind((far, _ETHERTYPE))
        self.departures.setblocking(False)

    def fill(self) -> None:
        """Give it packets to send. Whoever does so sets its timer, which is then of that CPU."""
        if self._held <= _REFILL:
            os.sched_setaffinity(0, {self._cpu})
            while self._held < _HELD:
                self._out.send(_FRAME)
                self._held += 1

    def take(self) -> None:
        """Note the departures of since the last time."""
        with suppress(BlockingIOError):
            while True:
                _, said, _, _ = self.departures.recvmsg(64, 64)
                seconds, ns = struct.unpack("=qq", said[0][2])
                at_ns = seconds * 10**9 + ns
                if self._last_ns:
                    self._late_ns.append(max(0, at_ns - self._last_ns - _PERIOD_NS))
                self._held -= 1
                # without a next packet, the time until the next departure is this process's
                self._last_ns = at_ns if self._held else 0


def watch_shapers(late_ns: list[int]) -> None:
    """Have packets shaped, and note how late they leave."""
    cpus = sorted(os.sched_getaffinity(0))
    chosen = cpus[:: -(-len(cpus) // _MAX_CPUS)]
    shapers = [_Shaper(cpu, late_ns) for cpu in chosen]
    for shaper in shapers:
        shaper.fill()
    print("ready", flush=True)
    while True:
        select.select([shaper.departures for shaper in shapers], [], [])
        for shaper in shapers:
            shaper.take()
            shaper.fill()


class _End(Exception):  # noqa: N818 (not an error)
    pass


def _end(*_: object) -> None:
    raise _End


def main(what: str, *words: str) -> None:
    """Watch until SIGTERM, then print how late this machine was."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if what == "shapers" and libc.unshare(_CLONE_NEWNET):
        sys.exit(os.strerror(ctypes.get_errno()))
    late_ns: list[int] = []
    signal.signal(signal.SIGTERM, _end)
    try:
        if what == "shapers":
            watch_shapers(late_ns)
        else:
            watch_timers(int(words[0]), late_ns)
    except _End:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranked = sorted(late_ns) or [0]
    quantiles = {"p50_ns": ranked[len(ranked) // 2], "p99_ns": ranked[len(ranked) * 99 // 100]}
    print(json.dumps({"count": len(late_ns), **quantiles}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
