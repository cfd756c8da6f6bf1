"""A trial's traffic with all frames captured that arrive at hosts, in the guest."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.model.knobs import ECN

_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 28
_MOST_FRAME_BYTES = 65_536


def frames(job: Job, fabric: Fabric, traffic: Traffic) -> dict[str, Any]:
    """Run the job's flows; return the frames of each of the hosts `capture`.

    Frames are hexadecimal, in the order of their arrival. RoCE packets have their CRC. All queues
    mark by the probe's `kmin_bytes`, `kmax_bytes` and `pmax`.
    """
    probe = job.probe
    assert probe is not None
    listening = {host: _open(fabric, host) for host in probe["capture"]}
    rig = EmulatedRig(job, fabric, traffic)
    queues = np.arange(len(job.testbed.queues))
    rig.apply((ECN.change(queues, *(probe[name] for name in ECN.column_names)),))
    rig.start()
    end_ns = job.trial.duration_ns + job.trial.drain_ns
    period_ns = job.trial.sample_period_ns
    for t_ns in range(period_ns, end_ns + 1, period_ns):
        if not rig.wait_until(t_ns):
            break
    return {
        "frames": {host: _received(made) for host, made in listening.items()},
        "done": rig.flows_done(),
    }


def _open(fabric: Fabric, host: str) -> socket.socket:
    fabric.enter(fabric.number[host])
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    made.bind(("eth0", _ETH_P_ALL))
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
