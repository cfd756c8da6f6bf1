"""The queues and hosts of `fabric: linux`, in the guest: queues by netlink, hosts by files.

Where the kernel has no RED, a BPF program at each port marks in its place.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collectors.readers.tc import PlainReader, QueueReading, RedReader
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.kernel import TCP_FILES, parse_tcp_counters
from orchestration.backends.emulated.namespaces import Fabric, NetlinkError, send_requests
from orchestration.backends.emulated.thresholds import Queues
from orchestration.core.marking_probability import (
    line_max_ps,
    line_pmax,
    read_back_pmax,
    red_max_ps,
)
from orchestration.core.records import MISSING, Floats, Ints
from orchestration.core.signals import names
from orchestration.core.topology import Testbed

if TYPE_CHECKING:
    from orchestration.backends.emulated.job import Job


def linux_queues(job: Job, fabric: Fabric) -> Queues:
    """Return RED queues, or plain queues that a program marks if the kernel has no RED."""
    testbed, locations = job.testbed, job.plan.queue_locations
    if job.mark_object:
        return MarkedQueues(testbed, locations, fabric, Path(job.mark_object))
    return LinuxQueues(testbed, locations, fabric.sockets)


class LinuxQueues:
    """The RED queues of all switches, in the order of `Testbed.queues`.

    `locations` has the namespace and the port's ifindex of each queue, `sockets` a netlink socket
    of each namespace.
    """

    def __init__(
        self,
        testbed: Testbed,
        locations: Sequence[tuple[int, int]],
        sockets: Sequence[socket.socket],
    ) -> None:
        switches = sorted({namespace for namespace, _ in locations})
        switch_of = {namespace: number for number, namespace in enumerate(switches)}
        self._sockets = [sockets[namespace] for namespace in switches]
        # number of the switch, ifindex, handle and parent of each queue
        self._leaves = [
            (
                switch_of[namespace],
                ifindex,
                qdiscs.leaf_handle(queue.klass),
                qdiscs.leaf_parent(queue.klass, testbed.queues_per_port),
            )
            for (namespace, ifindex), queue in zip(locations, testbed.queues, strict=True)
        ]
        self._reader = RedReader(self._sockets, [leaf[:3] for leaf in self._leaves])

    def read(self) -> QueueReading:
        """Read all queues, with one dump per switch."""
        return self._reader.read()

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,).

        Returns when every change is made. Raises NetlinkError for the first refused request.
        """
        requests: dict[int, list[bytes]] = {}
        max_ps = self.in_kernel(pmax).tolist()
        rows = zip(queues.tolist(), kmin_bytes.tolist(), kmax_bytes.tolist(), max_ps, strict=True)
        for queue, *values in rows:
            switch, *leaf = self._leaves[queue]
            requests.setdefault(switch, []).append(qdiscs.red_change(*leaf, *values))
        errors: list[NetlinkError] = []
        for switch in sorted(requests):
            try:
                send_requests(self._sockets[switch], requests[switch])
            except NetlinkError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return RED's `max_P` for marking probabilities `pmax`: see `core.marking_probability`."""
        return red_max_ps(pmax)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the marking probabilities at kmax for RED's `max_p`."""
        return read_back_pmax(max_p)


_MAX = 2**32 - 1


class MarkedQueues:
    """The plain queues of all switches, one per port, in the order of `Testbed.queues`.

    A BPF program marks at each port; the programs end with this process. `locations` has the
    namespace and the port's ifindex of each queue.
    """

    def __init__(
        self, testbed: Testbed, locations: Sequence[tuple[int, int]], fabric: Fabric, program: Path
    ) -> None:
        from orchestration.agent.bpf.elf import read_program
        from orchestration.agent.bpf.load import GPL, LoadedProgram
        from orchestration.agent.linux_switch.marks import Marker, offsets

        switches = sorted({namespace for namespace, _ in locations})
        sockets: list[socket.socket] = [fabric.sockets[namespace] for namespace in switches]
        switch_of = {namespace: number for number, namespace in enumerate(switches)}
        leaf = qdiscs.leaf_handle(0)
        self._reader = PlainReader(
            sockets, [(switch_of[namespace], ifindex, leaf) for namespace, ifindex in locations]
        )
        code, field_offsets = read_program(program.read_bytes()), offsets()
        self._markers = []
        for (namespace, ifindex), queue in zip(locations, testbed.queues, strict=True):
            fabric.enter(namespace)
            loaded = LoadedProgram(code, "closloop_red", GPL)
            self._markers.append(Marker(loaded, ifindex, field_offsets, queue.buffer_bytes))

    def read(self) -> QueueReading:
        """Read all queues with one dump per switch, then the marks, from shared memory."""
        plain = self._reader.read()
        marks = np.array(
            [(marker.words[0], *marker.thresholds) for marker in self._markers],
            dtype=np.int64,
        ).T
        marked, kmin, kmax, share = marks
        return QueueReading(
            **plain,
            marked_packets=marked,
            kmin_bytes=kmin,
            kmax_bytes=kmax,
            max_p=share.astype(np.float64),
        )

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""
        shares = self.in_kernel(pmax).tolist()
        rows = zip(queues.tolist(), kmin_bytes.tolist(), kmax_bytes.tolist(), shares, strict=True)
        for queue, kmin, kmax, share in rows:
            self._markers[queue].set(kmin, kmax, share)

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return marking probabilities at kmax in the program's unit, 1/2^32."""
        return np.clip(line_max_ps(pmax), 1, _MAX)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the marking probabilities at kmax for numbers in units of 1/2^32."""
        return line_pmax(max_p)


_SIGNALS = ("retransmits", "timeouts", "out_of_order", "tx_bytes")
_MAX_BYTES = 1 << 16


class NamespaceHosts:
    """Reads the TCP counters of all hosts, from /proc.

    The files stay open: an open file keeps showing the namespace in which it was opened.
    """

    def __init__(self, fabric: Fabric, hosts: Sequence[str]) -> None:
        self._files: list[dict[str, int]] = []
        for name in hosts:
            fabric.enter(fabric.number[name])
            self._files.append({path: os.open(path, os.O_RDONLY) for path in TCP_FILES})

    def read(self) -> dict[str, Ints]:
        """Return the current signals by name, arrays (hosts,); those of RoCE NICs are missing."""
        rows = [
            parse_tcp_counters(
                {path: os.pread(fd, _MAX_BYTES, 0).decode() for path, fd in files.items()}
            )
            for files in self._files
        ]
        missing = np.full(len(rows), MISSING, dtype=np.int64)
        columns = np.array(rows, dtype=np.int64).T
        return {
            **dict.fromkeys(names("host"), missing),
            **dict(zip(_SIGNALS, columns, strict=True)),
        }
