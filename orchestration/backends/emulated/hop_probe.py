"""A trial's traffic with the heads of all packets captured that arrive at switches, in a guest."""

from __future__ import annotations

import base64
import socket
import struct
import time
from typing import Any

import numpy as np

from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.model.errors import TrialError
from orchestration.model.knobs import ECN

_ETH_P_ALL = 3
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
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


def hops(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows; return the packets that arrive at each of the switches `capture`.

    Those of a switch are in the order of their arrival, an array of `HOP` in base64. All queues
    mark by the probe's `kmin_bytes`, `kmax_bytes` and `pmax`. Raises TrialError if the capture has
    lost packets.
    """
    probe = job.probe
    assert probe is not None
    taps = {name: _Tap(fabric, name) for name in probe["capture"]}
    rig = EmulatedRig(job, fabric, traffic)
    queues = np.arange(len(job.testbed.queues))
    rig.apply((ECN.change(queues, *(probe[name] for name in ECN.column_names)),))
    rig.start()
    # time 0 by the clock of time stamps
    offset_ns = rig.t0_ns + _real_time_ahead_ns()
    end_ns = job.trial.duration_ns + job.trial.drain_ns
    period_ns = job.trial.sample_period_ns
    more, t_ns = True, 0
    while more and t_ns + period_ns <= end_ns:
        t_ns += period_ns
        more = rig.wait_until(t_ns)
        for tap in taps.values():
            tap.drain(offset_ns)
    return {
        "hops": {name: base64.b64encode(tap.packets()).decode() for name, tap in taps.items()},
        "done": rig.flows_done(),
    }


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
