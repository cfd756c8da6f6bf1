"""A trial's traffic with packets captured, in the guest: frames, their heads, pauses.

`frames` are whole, at hosts; `hops` are the heads of all packets that arrive at switches; `pauses`
are pause frames at ports, of which some are sent, too.
"""

from __future__ import annotations

import base64
import ctypes
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.records import Applied, Observation
from orchestration.core.signals import SHARED_BUFFER_KEYS

_ETH_P_ALL, _ETH_P_PAUSE = 3, 0x8808
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 26, 33, 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_BUFFER_BYTES = 1 << 29
_MOST_FRAME_BYTES = 65_536
_TIMESPEC = struct.Struct("=qq")
HEAD_BYTES = 72
# One packet: when it came (ns since time 0), to which interface, and its first bytes.
HOP = np.dtype(
    [
        ("t_ns", np.int64),
        ("ifindex", np.uint32),
        ("unused", np.uint32),
        ("head", np.uint8, (HEAD_BYTES,)),
    ]
)
# struct sock_filter: load the Ethernet type; of a pause frame take all, else nothing
_ONLY_PAUSES = struct.pack(
    "=HBBIHBBIHBBIHBBI", 0x28, 0, 0, 12, 0x15, 0, 1, _ETH_P_PAUSE, 0x06, 0, 0, 2048, 0x06, 0, 0, 0
)


def frames(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows; return the frames of each of the hosts `capture`.

    Frames are hexadecimal, in the order of their arrival. RoCE packets have their CRC. All queues
    mark by the probe's `kmin_bytes`, `kmax_bytes` and `pmax`.
    """
    assert job.probe is not None
    listening = {host: _open(fabric, f"{host}:eth0") for host in job.probe["capture"]}
    rig = _started(job, fabric, traffic)
    for _ in _periods(job, rig):
        pass
    return {
        "frames": {host: _received(made) for host, made in listening.items()},
        "done": rig.flows_done(),
    }


def hops(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows; return the packets that arrive at each of the switches `capture`.

    Those of a switch are in the order of their arrival, an array of `HOP` in base64. All queues
    mark as for `frames`. Raises TrialError if the capture has lost packets.
    """
    assert job.probe is not None
    taps = {name: _Tap(fabric, name) for name in job.probe["capture"]}
    rig = _started(job, fabric, traffic)
    # time 0 by the clock of time stamps
    offset_ns = rig.t0_ns + _real_time_ahead_ns()
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


def pauses(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows, capture pause frames and send some; return frames, samples and facts.

    The probe has `capture`, labels of ports that receive; `send`, (ns, host, frame in hexadecimal);
    `sample_ns`, how often to sample; `until_ns`, the end.
    """
    probe = job.probe
    assert probe is not None
    listening = {label: _open(fabric, label, _ONLY_PAUSES) for label in probe["capture"]}
    sending = {host: _open(fabric, f"{host}:eth0", _ONLY_PAUSES) for _, host, _ in probe["send"]}
    rig = EmulatedRig(job, fabric, traffic)
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
    outcome = rig.finish(_Nobody())
    return {
        "frames": {label: _received(made) for label, made in listening.items()},
        "samples": samples,
        "facts": dict(outcome.facts),
        "end_ns": outcome.flows.end_ns.tolist(),
    }


class _Nobody:
    """An observer that keeps nothing."""

    def observed(self, observation: Observation) -> None:
        """Do nothing."""

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Do nothing."""


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
            data, (_, _, kind, *_) = made.recvfrom(_MOST_FRAME_BYTES)
        except BlockingIOError:
            return found
        if kind != socket.PACKET_OUTGOING:
            found.append(data.hex())


def _real_time_ahead_ns() -> int:
    """Return CLOCK_REALTIME less CLOCK_MONOTONIC; each reading of a clock takes equally long."""
    before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return real - (before + after) // 2


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
