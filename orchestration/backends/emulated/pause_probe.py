"""A trial's traffic with pause frames captured at ports, and others sent, in the guest."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Any

import numpy as np

from orchestration.backends.emulated.data_path.pauses import SIGNALS
from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.model.records import Applied, Observation

_ETH_P_ALL, _ETH_P_PAUSE = 3, 0x8808
_SO_ATTACH_FILTER = 26
# struct sock_filter: load the Ethernet type; of a pause frame take all, else nothing
_ONLY_PAUSES = struct.pack(
    "=HBBIHBBIHBBIHBBI", 0x28, 0, 0, 12, 0x15, 0, 1, _ETH_P_PAUSE, 0x06, 0, 0, 2048, 0x06, 0, 0, 0
)
_BUFFER_BYTES = 1 << 24


def pauses(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows, capture pause frames and send some; return frames, samples and facts.

    The probe has `capture`, labels of ports that receive; `send`, (ns, host, frame in hexadecimal);
    `sample_ns`, how often to sample; `until_ns`, the end.
    """
    probe = job.probe
    assert probe is not None
    listening = {label: _open(fabric, *label.split(":")) for label in probe["capture"]}
    sending = {host: _open(fabric, host, "eth0") for _, host, _ in probe["send"]}
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
            names = (*SIGNALS, "tx_packets", "qlen_bytes", "dropped_packets")
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


def _open(fabric: Fabric, device: str, port: str) -> socket.socket:
    """Return a socket that sends and captures pause frames at a device's interface.

    It listens to all types: the data path takes a pause frame before it is offered to its own.
    """
    fabric.enter(fabric.number[device])
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    filters = ctypes.create_string_buffer(_ONLY_PAUSES)
    program = struct.pack("HP", len(_ONLY_PAUSES) // 8, ctypes.addressof(filters))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    made.bind((port, _ETH_P_ALL))
    made.setblocking(False)
    return made


def _received(made: socket.socket) -> list[str]:
    frames: list[str] = []
    while True:
        try:
            data, (_, _, kind, *_) = made.recvfrom(2048)
        except BlockingIOError:
            return frames
        if kind != socket.PACKET_OUTGOING:
            frames.append(data.hex())
