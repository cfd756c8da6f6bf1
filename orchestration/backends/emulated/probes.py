"""Measurements of the fabric itself, in the guest: ping, RED's marking curve, decisions.

A probe runs instead of a trial, on a freshly built fabric, and writes `probe.json`. How long a
decision takes is measured on an idle fabric that is made to look busy. The guest's clock stands
still while it computes. So the guest sends a message after each batch of rounds, and the host
measures the time between two messages.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from orchestration.backends.common.rig import Ticker
from orchestration.backends.emulated.capture_probe import frames, hops, pauses
from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import NoTraffic, Traffic
from orchestration.core.knobs import ECN
from orchestration.core.topology import ETHERNET_HEADER_BYTES

_UDP_IP_BYTES = 8 + 20
_ECT0 = 2
_BATCH = 64
_UDP_PORT = 9
# The queue is read at this many moments within a hold. Some reading then falls between a departure
# and an arrival, whatever their phase.
_READINGS = 9


def run_probe(job: Job, fabric: Fabric, folder: Path, traffic: Callable[[], Traffic]) -> None:
    """Run the job's probe and write its measurements; `traffic` makes that of the job's flows."""
    assert job.probe is not None
    kind = job.probe["kind"]
    if kind in _PROBES_OF_TRAFFIC:
        result = _PROBES_OF_TRAFFIC[kind](job, fabric, traffic())
    else:
        result = _PROBES[kind](job, fabric)
    (folder / "probe.json").write_text(json.dumps(result))


def ping(job: Job, fabric: Fabric) -> dict[str, Any]:
    """Ping pairs of hosts on the idle fabric; return the round-trip times in ns."""
    assert job.probe is not None
    replies = []
    for src, dst in job.probe["pairs"]:
        fabric.enter(fabric.number[src])
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
            raw.settimeout(1.0)
            for number in range(job.probe["count"]):
                begin = time.monotonic_ns()
                raw.sendto(_echo(number), (job.plan.host_addresses[dst][0], 0))
                raw.recv(2048)
                replies.append({"src": src, "dst": dst, "rtt_ns": time.monotonic_ns() - begin})
    return {"replies": replies}


def _echo(number: int) -> bytes:
    """Return an ICMP echo request of 64 bytes."""
    body = bytes(56)
    header = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, number)
    words = struct.unpack("!32H", header + body)
    total = sum(words)
    total = (total >> 16) + (total & 0xFFFF)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return struct.pack("!BBHHH", 8, 0, checksum, os.getpid() & 0xFFFF, number) + body


def marking(job: Job, fabric: Fabric) -> dict[str, Any]:
    """Hold a port's queue at given lengths and count the marks.

    One host sends full frames at the port's line rate. Each departure is followed by an arrival, so
    the queue keeps its length. Another host adds frames to lengthen the queue for the next hold. A
    reading has the queue that an arriving packet finds, and the packets that arrived and were
    marked during the hold.
    """
    probe = job.probe
    assert probe is not None
    rig = EmulatedRig(job, fabric, NoTraffic())
    labels = [port.label for port in job.testbed.queues]
    queue = labels.index(probe["port"])
    wanted = ECN.change([queue], probe["kmin_bytes"], probe["kmax_bytes"], probe["pmax"])
    (applied,) = rig.apply((wanted,)).changes
    address = job.plan.host_addresses[probe["receiver"]][0]
    fabric.enter(fabric.number[probe["receiver"]])
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sink.bind(("0.0.0.0", _UDP_PORT))
    fabric.enter(fabric.number[probe["filler"]])
    filler = _ect_socket(address)
    blaster = os.fork()
    if blaster == 0:
        fabric.enter(fabric.number[probe["sender"]])
        _blast(_ect_socket(address), job.testbed.mtu_bytes - _UDP_IP_BYTES)
    try:
        ticker = Ticker()
        rig.start()
        ticker.sleep_until(time.monotonic_ns() + 100_000)
        readings = []
        for frames in probe["levels_frames"]:
            _fill(rig, ticker, filler, queue, frames, job.testbed.mtu_bytes)
            readings.append(_hold(rig, ticker, queue, probe["hold_ns"]))
    finally:
        os.kill(blaster, signal.SIGKILL)
        os.waitpid(blaster, 0)
    return {
        "readings": readings,
        "kmin_bytes": int(applied["kmin_bytes"][0]),
        "kmax_bytes": int(applied["kmax_bytes"][0]),
    }


def _fill(
    rig: EmulatedRig, ticker: Ticker, filler: socket.socket, queue: int, frames: int, mtu: int
) -> None:
    """Lengthen the queue to `frames` full frames, one at a time."""
    frame = mtu + ETHERNET_HEADER_BYTES
    while _shortest_queue(rig, ticker, queue) < frames * frame:
        filler.send(bytes(mtu - _UDP_IP_BYTES))
        ticker.sleep_until(time.monotonic_ns() + 10_000)


def _shortest_queue(rig: EmulatedRig, ticker: Ticker, queue: int) -> int:
    """Return the queue between a departure and the next arrival: what an arriving packet finds."""
    lengths = []
    for _ in range(_READINGS):
        lengths.append(int(rig.observe().qlen_bytes[queue]))
        ticker.sleep_until(time.monotonic_ns() + 1_057)
    return min(lengths)


def _hold(rig: EmulatedRig, ticker: Ticker, queue: int, hold_ns: int) -> dict[str, int]:
    length = _shortest_queue(rig, ticker, queue)
    before = rig.observe()
    ticker.sleep_until(time.monotonic_ns() + hold_ns)
    after = rig.observe()
    return {
        "qlen_bytes": length,
        "qlen_after_bytes": _shortest_queue(rig, ticker, queue),
        "packets": int(after.tx_packets[queue] - before.tx_packets[queue]),
        "marked": int(after.marked_packets[queue] - before.marked_packets[queue]),
        "dropped": int(after.dropped_packets[queue] - before.dropped_packets[queue]),
    }


def _ect_socket(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT0)
    made.connect((address, _UDP_PORT))
    return made


def _blast(sender: socket.socket, payload_bytes: int) -> NoReturn:
    """Send datagrams as fast as the NIC takes them, many with one system call, until killed."""

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    class Header(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_void_p),
            ("name_length", ctypes.c_uint32),
            ("vectors", ctypes.POINTER(Vector)),
            ("vector_count", ctypes.c_size_t),
            ("control", ctypes.c_void_p),
            ("control_length", ctypes.c_size_t),
            ("flags", ctypes.c_long),  # an int, padded
            ("sent", ctypes.c_ulong),  # an int, padded
        )

    payload = ctypes.create_string_buffer(payload_bytes)
    vector = Vector(ctypes.addressof(payload), payload_bytes)
    messages = (Header * _BATCH)()
    for message in messages:
        message.vectors = ctypes.pointer(vector)
        message.vector_count = 1
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.sendmmsg(sender.fileno(), messages, _BATCH, 0) > 0:
        pass
    os._exit(1)


_PROBES = {"ping": ping, "marking": marking}
_PROBES_OF_TRAFFIC = {"pauses": pauses, "frames": frames, "hops": hops}
