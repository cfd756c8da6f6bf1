"""The queues of a fabric of Linux' own qdiscs, in the guest: read and set over netlink."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from collectors.readers.netlink import RingExchange
from collectors.readers.tc import DUMP_QDISCS, QueueReading, RedReader
from inventory.topology import Testbed
from orchestration.backends.emulated.changes import ThresholdChanges
from orchestration.device import qdiscs
from orchestration.model.records import Floats, Ints
from orchestration.model.red_law import read_back_pmax, red_max_ps


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
        mine = [sockets[place] for place in switches]
        leaves = [
            (slot[place], ifindex, queue.klass)
            for (place, ifindex), queue in zip(places, testbed.queues, strict=True)
        ]
        self._exchange = RingExchange(mine, DUMP_QDISCS)
        self._reader = RedReader(
            self._exchange,
            [(place, ifindex, qdiscs.leaf_handle(klass)) for place, ifindex, klass in leaves],
        )
        self._changes = ThresholdChanges(
            mine,
            [
                (place, qdiscs.red_change(ifindex, qdiscs.leaf_handle(klass), parent, 0, 0, 0))
                for place, ifindex, klass in leaves
                for parent in [qdiscs.leaf_parent(klass, testbed.queues_per_port)]
            ],
        )

    @property
    def calls(self) -> int:
        """Return the system calls that the last reading took."""
        return self._exchange.calls

    def read(self) -> QueueReading:
        """Read all queues, with one dump per switch."""
        return self._reader.read()

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""
        self._changes.send(queues, kmin_bytes, kmax_bytes, self.in_kernel(pmax))

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return `max_P` that marks shares `pmax` at kmax: see `model.red_law`."""
        return red_max_ps(pmax)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the shares that RED marks at kmax with `max_p`."""
        return read_back_pmax(max_p)
