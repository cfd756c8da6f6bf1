"""Measurements of the fabric itself, in the guest: ping, RED's marking curve, captured packets.

A probe runs instead of a trial on a newly built fabric, and writes `probe.json`. The dictionary
`Job.probe` has its `kind` and its parameters.
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
# The length of a queue is read this many times in a row. Whatever the phase of the packets, some
# reading is then between a departure and the next arrival.
_READINGS = 9


def run_probe(job: Job, fabric: Fabric, folder: Path, traffic: MakeTraffic) -> None:
    """Run the job's probe and write its measurements; `traffic` makes the senders of its flows."""
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
    """Hold a port's queue at given lengths, and count the CE packets at each length.

    One host (`sender`) sends full frames at the port's line rate. Each departure is followed by an
    arrival, so the queue keeps its length. Another host (`filler`) adds frames to make the queue
    longer for the next measurement. A measurement has the queue length that an arriving packet
    finds, and how many packets arrived and were marked meanwhile.
    """
    probe = job.probe
    assert probe is not None
    rig = EmulatedRig(job, fabric, Traffic())
    labels = [port.label for port in job.testbed.queues]
    queue = labels.index(probe["port"])
    change = ECN.change([queue], probe["kmin_bytes"], probe["kmax_bytes"], probe["pmax"])
    (applied,) = rig.apply((change,)).changes
    address = job.plan.host_addresses[probe["receiver"]][0]
    fabric.enter(fabric.number[probe["receiver"]])
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sink.bind(("0.0.0.0", _UDP_PORT))
    fabric.enter(fabric.number[probe["filler"]])
    filler = _ect_socket(address)
    sender_pid = os.fork()
    if sender_pid == 0:
        fabric.enter(fabric.number[probe["sender"]])
        _send_at_line_rate(_ect_socket(address), job.testbed.mtu_bytes - _UDP_IP_BYTES)
    try:
        ticker = Ticker()
        rig.start()
        ticker.sleep_until(time.monotonic_ns() + 100_000)
        readings = []
        for frames in probe["levels_frames"]:
            _fill(rig, ticker, filler, queue, frames, job.testbed.mtu_bytes)
            readings.append(_hold(rig, ticker, queue, probe["hold_ns"]))
    finally:
        os.kill(sender_pid, signal.SIGKILL)
        os.waitpid(sender_pid, 0)
    return {
        "readings": readings,
        "kmin_bytes": int(applied["kmin_bytes"][0]),
        "kmax_bytes": int(applied["kmax_bytes"][0]),
    }


def _fill(
    rig: EmulatedRig, ticker: Ticker, filler: socket.socket, queue: int, frames: int, mtu: int
) -> None:
    """Make the queue `frames` full frames long, one frame at a time."""
    frame = mtu + ETHERNET_HEADER_BYTES
    while _shortest_queue(rig, ticker, queue) < frames * frame:
        filler.send(bytes(mtu - _UDP_IP_BYTES))
        ticker.sleep_until(time.monotonic_ns() + 10_000)


def _shortest_queue(rig: EmulatedRig, ticker: Ticker, queue: int) -> int:
    """Return the queue's length between a departure and the next arrival, in bytes.

    That is the length that an arriving packet finds.
    """
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
    """Return a UDP socket to a host, whose packets are ECN-capable."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT0)
    udp.connect((address, _UDP_PORT))
    return udp


def _send_at_line_rate(sender: socket.socket, payload_bytes: int) -> NoReturn:
    """Send datagrams as fast as the NIC accepts them, many per system call, until killed."""

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
# One packet: when it arrived (ns since time 0), at which interface, and its first bytes.
_HEAD = ("head", np.uint8, (HEAD_BYTES,))
HOP = np.dtype([("t_ns", np.int64), ("ifindex", np.uint32), ("unused", np.uint32), _HEAD])
# struct sock_filter: load the Ethernet type; accept pause frames whole, and nothing else
_ONLY_PAUSES = struct.pack(
    "=HBBIHBBIHBBIHBBI", 0x28, 0, 0, 12, 0x15, 0, 1, _ETH_P_PAUSE, 0x06, 0, 0, 2048, 0x06, 0, 0, 0
)


def frames(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Run the job's flows; return the frames that arrive at each host in the probe's `capture`.

    Frames are hexadecimal, in the order of their arrival. RoCE packets have their CRC. All queues
    mark by the probe's `kmin_bytes`, `kmax_bytes` and `pmax`.
    """
    assert job.probe is not None
    captures = {host: _open(fabric, f"{host}:eth0") for host in job.probe["capture"]}
    rig = _started(job, fabric, traffic())
    for _ in _periods(job, rig):
        pass
    return {
        "frames": {host: _received(capture) for host, capture in captures.items()},
        "done": rig.flows_done(),
    }


def hops(job: Job, fabric: Fabric, traffic: MakeTraffic) -> dict[str, Any]:
    """Run the job's flows; return the packets that arrive at each switch in the probe's `capture`.

    The packets of a switch are an array of `HOP` in base64, in the order of their arrival. All
    queues mark as for `frames`. Raises TrialError if the capture has lost packets.
    """
    assert job.probe is not None
    taps = {name: _Tap(fabric, name) for name in job.probe["capture"]}
    rig = _started(job, fabric, traffic())
    # time 0 by the clock of the time stamps; all three readings of a clock take equally long
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
    """Return a started rig whose queues mark by the probe's thresholds."""
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

    The probe's parameters are `capture`, the labels of ports at which to capture; `send`, triples
    (time in ns, host, frame in hexadecimal); `sample_ns`, the sample period; and `until_ns`, the
    end.
    """
    probe = job.probe
    assert probe is not None
    captures = {label: _open(fabric, label, _ONLY_PAUSES) for label in probe["capture"]}
    senders = {host: _open(fabric, f"{host}:eth0", _ONLY_PAUSES) for _, host, _ in probe["send"]}
    rig = EmulatedRig(job, fabric, traffic())
    due = [(t_ns, 0, host, frame) for t_ns, host, frame in probe["send"]]
    ticks = range(probe["sample_ns"], probe["until_ns"] + 1, probe["sample_ns"])
    due += [(t_ns, 1, "", "") for t_ns in ticks]
    samples: list[dict[str, list[int]]] = []
    rig.start()
    for t_ns, _, host, frame in sorted(due):
        rig.wait_until(t_ns)
        if host:
            senders[host].send(bytes.fromhex(frame))
        else:
            observation = rig.observe()
            names = (*SHARED_BUFFER_KEYS, "tx_packets", "qlen_bytes", "dropped_packets")
            samples.append({name: np.asarray(observation[name]).tolist() for name in names})
    outcome = rig.finish(Observers())
    return {
        "frames": {label: _received(capture) for label, capture in captures.items()},
        "samples": samples,
        "facts": dict(outcome.facts),
        "end_ns": outcome.flows.end_ns.tolist(),
    }


def _open(fabric: Fabric, label: str, packet_filter: bytes = b"") -> socket.socket:
    """Return a socket that sends and captures frames at a port, through a filter if one is given.

    It is bound to all Ethernet types: the data path consumes pause frames before sockets of their
    own type would get them.
    """
    device, _, port = label.partition(":")
    fabric.enter(fabric.number[device])
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    if packet_filter:
        filters = ctypes.create_string_buffer(packet_filter)
        program = struct.pack("HP", len(packet_filter) // 8, ctypes.addressof(filters))
        raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    raw.bind((port, _ETH_P_ALL))
    raw.setblocking(False)
    return raw


def _received(capture: socket.socket) -> list[str]:
    """Return the frames that a socket has received, in hexadecimal."""
    frames: list[str] = []
    while True:
        try:
            data, (_, _, kind, *_) = capture.recvfrom(_MAX_FRAME_BYTES)
        except BlockingIOError:
            return frames
        if kind != socket.PACKET_OUTGOING:
            frames.append(data.hex())


class _Tap:
    """Captures the packets that arrive at any interface of a device."""

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
        """Read the packets that have arrived; `offset_ns` is time 0 by the time stamps' clock."""
        ancillary_bytes = _TIMESPEC.size + 32
        while True:
            try:
                data, ancillary, _, source = self._socket.recvmsg(HEAD_BYTES, ancillary_bytes)
            except BlockingIOError:
                break
            interface, _, kind, *_ = source
            if kind == socket.PACKET_OUTGOING:
                continue
            seconds, ns = _TIMESPEC.unpack_from(ancillary[0][2])
            self._rows.append((seconds * 10**9 + ns - offset_ns, interface, data))

    def packets(self) -> bytes:
        """Return all packets as an array of `HOP`."""
        statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        lost = struct.unpack("=II", statistics)[1]
        if lost:
            raise TrialError(f"the capture at {self._name} lost {lost} packets", "send less")
        packets = np.zeros(len(self._rows), dtype=HOP)
        for row, (t_ns, interface, data) in enumerate(self._rows):
            padded = data[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0")
            packets[row] = (t_ns, self._index[interface], 0, np.frombuffer(padded, dtype=np.uint8))
        return packets.tobytes()


_PROBES = {"ping": ping, "marking": marking, "pauses": pauses, "frames": frames, "hops": hops}
