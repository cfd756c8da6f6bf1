"""Measurements of the fabric itself, in the guest: ping, RED's marking curve, packets captured.

A probe runs instead of a trial, on a freshly built fabric, and writes `probe.json`.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from orchestration.backends.common.rig import Ticker
from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.signals import SHARED_BUFFER_KEYS
from orchestration.core.topology import ETHERNET_HEADER_BYTES
from orchestration.session import Observers

MakeTraffic = Callable[[], Traffic]

_UDP_IP_BYTES = 8 + 20
_ECT0 = 2
_BATCH = 64
_UDP_PORT = 9
# The queue is read at this many moments within a hold. Some reading then falls between a departure
# and an arrival, whatever their phase.
_READINGS = 9


def run_probe(job: Job, fabric: Fabric, folder: Path, traffic: MakeTraffic) -> None:
    """Run the job's probe and write its measurements; `traffic` makes that of the job's flows."""
    assert job.probe is not None
    result = _PROBES[job.probe["kind"]](job, fabric, traffic)
    (folder / "probe.json").write_text(json.dumps(result))


def ping(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
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


def marking(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Hold a port's queue at given lengths and count the marks.

    One host sends full frames at the port's line rate. Each departure is followed by an arrival, so
    the queue keeps its length. Another host adds frames to lengthen the queue for the next hold. A
    reading has the queue that an arriving packet finds, and the packets that arrived and were
    marked during the hold.
    """
    probe = job.probe
    assert probe is not None
    rig = EmulatedRig(job, fabric, Traffic())
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


_ETH_P_ALL, _ETH_P_PAUSE = 3, 0x8808
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 26, 33, 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_BUFFER_BYTES = 1 << 29
_MAX_FRAME_BYTES = 65_536
_TIMESPEC = struct.Struct("=qq")
HEAD_BYTES = 72
# One packet: when it came (ns since time 0), to which interface, and its first bytes.
_HEAD = ("head", np.uint8, (HEAD_BYTES,))
HOP = np.dtype([("t_ns", np.int64), ("ifindex", np.uint32), ("unused", np.uint32), _HEAD])
# struct sock_filter: load the Ethernet type; of a pause frame take all, else nothing
_ONLY_PAUSES = struct.pack(
    "=HBBIHBBIHBBIHBBI", 0x28, 0, 0, 12, 0x15, 0, 1, _ETH_P_PAUSE, 0x06, 0, 0, 2048, 0x06, 0, 0, 0
)


def frames(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Run the job's flows; return the frames of each of the hosts `capture`.

    Frames are hexadecimal, in the order of their arrival. RoCE packets have their CRC. All queues
    mark by the probe's `kmin_bytes`, `kmax_bytes` and `pmax`.
    """
    assert job.probe is not None
    listening = {host: _open(fabric, f"{host}:eth0") for host in job.probe["capture"]}
    rig = _started(job, fabric, traffic())
    for _ in _periods(job, rig):
        pass
    return {
        "frames": {host: _received(made) for host, made in listening.items()},
        "done": rig.flows_done(),
    }


def hops(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Run the job's flows; return the packets that arrive at each of the switches `capture`.

    Those of a switch are in the order of their arrival, an array of `HOP` in base64. All queues
    mark as for `frames`. Raises TrialError if the capture has lost packets.
    """
    assert job.probe is not None
    taps = {name: _Tap(fabric, name) for name in job.probe["capture"]}
    rig = _started(job, fabric, traffic())
    # time 0 by the clock of time stamps; each reading of a clock takes equally long
    before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    offset_ns = rig.t0_ns + real - (before + after) // 2
    for _ in _periods(job, rig):
        for tap in taps.values():
            tap.drain(offset_ns)
    return {
        "hops": {name: base64.b64encode(tap.packets()).decode() for name, tap in taps.items()},
        "done": rig.flows_done(),
    }


def _started(job: Job, fabric: Fabric, traffic: Traffic) -> EmulatedRig:
    """Return a rig whose queues mark by the probe's thresholds, and whose flows have begun."""
    assert job.probe is not None
    rig = EmulatedRig(job, fabric, traffic)
    queues = np.arange(len(job.testbed.queues))
    rig.apply((ECN.change(queues, *(job.probe[name] for name in ECN.column_names)),))
    rig.start()
    return rig


def _periods(job: Job, rig: EmulatedRig) -> Iterator[None]:
    """Let one sample period after another pass, until every flow has ended."""
    end_ns = job.trial.duration_ns + job.trial.drain_ns
    period_ns = job.trial.sample_period_ns
    for t_ns in range(period_ns, end_ns + 1, period_ns):
        more = rig.wait_until(t_ns)
        yield
        if not more:
            return


def pauses(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Run the job's flows, capture pause frames and send some; return frames, samples and facts.

    The probe has `capture`, labels of ports that receive; `send`, (ns, host, frame in hexadecimal);
    `sample_ns`, how often to sample; `until_ns`, the end.
    """
    probe = job.probe
    assert probe is not None
    listening = {label: _open(fabric, label, _ONLY_PAUSES) for label in probe["capture"]}
    sending = {host: _open(fabric, f"{host}:eth0", _ONLY_PAUSES) for _, host, _ in probe["send"]}
    rig = EmulatedRig(job, fabric, traffic())
    due = [(t_ns, 0, host, frame) for t_ns, host, frame in probe["send"]]
    ticks = range(probe["sample_ns"], probe["until_ns"] + 1, probe["sample_ns"])
    due += [(t_ns, 1, "", "") for t_ns in ticks]
    samples: list[dict[str, list[int]]] = []
    rig.start()
    for t_ns, _, host, frame in sorted(due):
        rig.wait_until(t_ns)
        if host:
            sending[host].send(bytes.fromhex(frame))
        else:
            seen = rig.observe()
            names = (*SHARED_BUFFER_KEYS, "tx_packets", "qlen_bytes", "dropped_packets")
            samples.append({name: np.asarray(seen[name]).tolist() for name in names})
    outcome = rig.finish(Observers())
    return {
        "frames": {label: _received(made) for label, made in listening.items()},
        "samples": samples,
        "facts": dict(outcome.facts),
        "end_ns": outcome.flows.end_ns.tolist(),
    }


def _open(fabric: Fabric, label: str, only: bytes = b"") -> socket.socket:
    """Return a socket that sends and captures frames at a port, by a filter if any.

    It listens to all types: the data path takes a pause frame before it is offered to its own.
    """
    device, _, port = label.partition(":")
    fabric.enter(fabric.number[device])
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    if only:
        filters = ctypes.create_string_buffer(only)
        program = struct.pack("HP", len(only) // 8, ctypes.addressof(filters))
        made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    made.bind((port, _ETH_P_ALL))
    made.setblocking(False)
    return made


def _received(made: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            data, (_, _, kind, *_) = made.recvfrom(_MAX_FRAME_BYTES)
        except BlockingIOError:
            return found
        if kind != socket.PACKET_OUTGOING:
            found.append(data.hex())


class _Tap:
    """A socket that has the packets that arrive at any interface of a device."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        fabric.enter(fabric.number[name])
        self._name = name
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setblocking(False)
        self._rows: list[tuple[int, str, bytes]] = []
        self._index = {name: number for number, name in socket.if_nameindex()}

    def drain(self, offset_ns: int) -> None:
        """Take what has come."""
        room = _TIMESPEC.size + 32
        while True:
            try:
                data, said, _, source = self._socket.recvmsg(HEAD_BYTES, room)
            except BlockingIOError:
                break
            interface, _, kind, *_ = source
            if kind == socket.PACKET_OUTGOING:
                continue
            seconds, ns = _TIMESPEC.unpack_from(said[0][2])
            self._rows.append((seconds * 10**9 + ns - offset_ns, interface, data))

    def packets(self) -> bytes:
        """Return all packets as an array of `HOP`."""
        counted = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        lost = struct.unpack("=II", counted)[1]
        if lost:
            raise TrialError(f"the capture at {self._name} lost {lost} packets", "send less")
        found = np.zeros(len(self._rows), dtype=HOP)
        for place, (t_ns, interface, data) in enumerate(self._rows):
            padded = data[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0")
            found[place] = (t_ns, self._index[interface], 0, np.frombuffer(padded, dtype=np.uint8))
        return found.tobytes()


_PROBES = {"ping": ping, "marking": marking, "pauses": pauses, "frames": frames, "hops": hops}
