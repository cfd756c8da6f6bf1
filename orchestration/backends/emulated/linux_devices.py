"""Queues and hosts of a fabric that is Linux' own, in the guest: queues by netlink, hosts by files.

Where the kernel has no RED, a BPF program at each port marks in its place.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from collectors.readers.tc import PlainReader, QueueReading, RedReader
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.kernel import TCP_FILES, parse_tcp_counters
from orchestration.backends.emulated.namespaces import Fabric, NetlinkError, send_requests
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


class Queues(Protocol):
    """All queues of the fabric, in the order of `Testbed.queues`."""

    def read(self) -> QueueReading:
        """Read all queues."""

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""

    def in_kernel(self, pmax: Floats) -> Ints:
        """Return the kernel's numbers for probabilities at kmax."""

    def from_kernel(self, max_p: Floats) -> Floats:
        """Return the probabilities at kmax that the kernel's numbers stand for."""


def linux_queues(job: Job, fabric: Fabric) -> Queues:
    """Return the queues of Linux' qdiscs, which a program marks where the kernel has no RED."""
    testbed, places = job.testbed, job.plan.queue_places
    if job.mark_object:
        return MarkedQueues(testbed, places, fabric, Path(job.mark_object))
    return LinuxQueues(testbed, places, fabric.sockets)


class LinuxQueues:
    """The RED queues of all switches, in the order of `Testbed.queues`.

    `places` has (namespace, ifindex of the port) of each queue, `sockets` one of each namespace.
    """

    def __init__(
        self,
        testbed: Testbed,
        places: Sequence[tuple[int, int]],
        sockets: Sequence[socket.socket],
    ) -> None:
        switches = sorted({place for place, _ in places})
        slot = {place: i for i, place in enumerate(switches)}
        self._links = [sockets[place] for place in switches]
        # namespace, port, handle and parent of each queue
        self._leaves = [
            (
                slot[place],
                ifindex,
                qdiscs.leaf_handle(queue.klass),
                qdiscs.leaf_parent(queue.klass, testbed.queues_per_port),
            )
            for (place, ifindex), queue in zip(places, testbed.queues, strict=True)
        ]
        self._reader = RedReader(self._links, [leaf[:3] for leaf in self._leaves])

    def read(self) -> QueueReading:
        """Read all queues, with one dump per switch."""
        return self._reader.read()

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,).

        Returns when every change is made. Raises NetlinkError for the first one refused.
        """
        requests: dict[int, list[bytes]] = {}
        max_ps = self.in_kernel(pmax).tolist()
        rows = zip(queues.tolist(), kmin_bytes.tolist(), kmax_bytes.tolist(), max_ps, strict=True)
        for queue, *values in rows:
            place, *leaf = self._leaves[queue]
            requests.setdefault(place, []).append(qdiscs.red_change(*leaf, *values))
        refused: list[NetlinkError] = []
        for place in sorted(requests):
            try:
                send_requests(self._links[place], requests[place])
            except NetlinkError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return `max_P` that marks shares `pmax` at kmax: see `core.red_law`."""
        return red_max_ps(pmax)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the shares that RED marks at kmax with `max_p`."""
        return read_back_pmax(max_p)


_MAX = 2**32 - 1


class MarkedQueues:
    """The plain queues of all switches, one a port, in the order of `Testbed.queues`.

    The programs that mark are this process's: they go with it.

    `places` has (namespace, ifindex of the port) of each.
    """

    def __init__(
        self, testbed: Testbed, places: Sequence[tuple[int, int]], fabric: Fabric, program: Path
    ) -> None:
        switches = sorted({place for place, _ in places})
        from orchestration.agent.bpf.elf import read_program
        from orchestration.agent.bpf.load import GPL, LoadedProgram
        from orchestration.agent.linux_switch.marks import Marker, offsets

        mine: list[socket.socket] = [fabric.sockets[place] for place in switches]
        slot = {place: number for number, place in enumerate(switches)}
        leaf = qdiscs.leaf_handle(0)
        self._reader = PlainReader(
            mine, [(slot[place], ifindex, leaf) for place, ifindex in places]
        )
        code, found = read_program(program.read_bytes()), offsets()
        self._markers = []
        for (place, ifindex), queue in zip(places, testbed.queues, strict=True):
            fabric.enter(place)
            loaded = LoadedProgram(code, "closloop_red", GPL)
            self._markers.append(Marker(loaded, ifindex, found, queue.buffer_bytes))

    def read(self) -> QueueReading:
        """Read all queues with one dump per switch, then the marks, from shared memory."""
        plain = self._reader.read()
        marks = np.array(
            [(one.words[0], *one.thresholds) for one in self._markers],
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
        """Return the shares of 2^32 that the program marks at kmax."""
        return np.clip(line_max_ps(pmax), 1, _MAX)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the share marked at kmax."""
        return line_pmax(max_p)


_SIGNALS = ("retransmits", "timeouts", "out_of_order", "tx_bytes")
_MAX_BYTES = 1 << 16


class NamespaceHosts:
    """All hosts. The files stay open: each tells of the namespace in which it was opened."""

    def __init__(self, fabric: Fabric, hosts: Sequence[str]) -> None:
        self._files: list[dict[str, int]] = []
        for name in hosts:
            fabric.enter(fabric.number[name])
            self._files.append({path: os.open(path, os.O_RDONLY) for path in TCP_FILES})

    def read(self) -> dict[str, Ints]:
        """Return the signals by name, arrays (hosts,), now; those of RoCE NICs are missing."""
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
