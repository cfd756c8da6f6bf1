"""How late this machine's shapers send: run as a program of its own beside a trial, by root.

    python shaper_lag.py     until SIGTERM; then it prints how late, as JSON

In a network namespace of its own, one `tbf` a CPU always has packets to send, one every 5 ms, and
its bucket holds one: so what lies beyond that between two departures is by how much the timer
and the softirq behind it were late. That is the way of every shaped port's packets, and says what a
process that wakes does not: a CPU whose softirqs are left to `ksoftirqd` wakes processes in time.
Departures are the kernel's own times of packets at the other end (SO_TIMESTAMPNS). Standard library
only: it starts without the project's modules.
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
from contextlib import suppress

_PR_SET_PDEATHSIG, _CLONE_NEWNET = 1, 0x40000000
_SO_SNDBUFFORCE, _SO_TIMESTAMPNS = 32, 35
_ETHERTYPE = 0x88B5  # for local experiments (IEEE 802)
_FRAME_BYTES = 1000
_FRAME = b"\xff" * 6 + bytes(6) + struct.pack("!H", _ETHERTYPE) + bytes(_FRAME_BYTES - 14)
# Packets that a shaper has to send: this process may wake 0.3 s late.
_PERIOD_NS, _HELD, _REFILL = 5_000_000, 120, 60
_MEMORY_BYTES = 1 << 20
# More CPUs than that are sampled.
_MOST_CPUS = 8
_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


class _End(Exception):  # noqa: N818 (not an error)
    pass


def _end(*_: object) -> None:
    raise _End


def run(*words: str) -> None:
    """Run a program of iproute2. Raises CalledProcessError."""
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    subprocess.run(words, check=True, env={"PATH": path}, stdout=subprocess.DEVNULL)


class Shaper:
    """A shaper whose timer is one CPU's, and the times at which its packets left."""

    def __init__(self, cpu: int) -> None:
        self._cpu = cpu
        self.late_ns: list[int] = []
        self._last_ns = self._held = 0
        near, far = f"s{cpu}", f"r{cpu}"
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        for name in (near, far):
            with suppress(OSError), open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as f:
                f.write("1")  # else it sends packets of its own
            run("ip", "link", "set", name, "up")
        rate = f"{_FRAME_BYTES * 8 * 10**9 // _PERIOD_NS}bit"
        words = ("rate", rate, "burst", str(_FRAME_BYTES), "limit", str(2 * _HELD * _FRAME_BYTES))
        run("tc", "qdisc", "add", "dev", near, "root", "tbf", *words)
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
                    self.late_ns.append(max(0, at_ns - self._last_ns - _PERIOD_NS))
                self._held -= 1
                # without a next packet, the time until the next departure is this process's
                self._last_ns = at_ns if self._held else 0


def watch() -> dict[str, int]:
    """Have packets shaped until SIGTERM; return how late they left."""
    cpus = sorted(os.sched_getaffinity(0))
    chosen = cpus[:: -(-len(cpus) // _MOST_CPUS)]
    shapers = [Shaper(cpu) for cpu in chosen]
    signal.signal(signal.SIGTERM, _end)
    try:
        for shaper in shapers:
            shaper.fill()
        print("ready", flush=True)
        while True:
            select.select([shaper.departures for shaper in shapers], [], [])
            for shaper in shapers:
                shaper.take()
                shaper.fill()
    except _End:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranked = sorted(late for shaper in shapers for late in shaper.late_ns) or [0]
    return {
        "count": len(ranked),
        "p50_ns": ranked[len(ranked) // 2],
        "p99_ns": ranked[len(ranked) * 99 // 100],
        "max_ns": ranked[-1],
    }


if __name__ == "__main__":
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.unshare(_CLONE_NEWNET):
        sys.exit(os.strerror(ctypes.get_errno()))
    print(json.dumps(watch()), flush=True)
