"""The queues of a fabric whose kernel has no RED: a BPF program at each port marks, in its place.

The programs are this process's: they go with it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collectors.readers.tc import PlainReader, QueueReading
from orchestration.agent.bpf.elf import read_program
from orchestration.agent.bpf.load import GPL, LoadedProgram
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux_switch.marks import Marker, offsets
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.core.records import Floats, Ints
from orchestration.core.red_law import line_max_ps, line_pmax
from orchestration.core.topology import Testbed

_MOST = 2**32 - 1


class MarkedQueues:
    """The plain queues of all switches, one a port, in the order of `Testbed.queues`.

    `places` has (namespace, ifindex of the port) of each.
    """

    def __init__(
        self, testbed: Testbed, places: Sequence[tuple[int, int]], fabric: Fabric, program: Path
    ) -> None:
        switches = sorted({place for place, _ in places})
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
        return np.clip(line_max_ps(pmax), 1, _MOST)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the share marked at kmax."""
        return line_pmax(max_p)
