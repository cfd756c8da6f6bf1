"""The queues of a fabric of Linux' own qdiscs, in the guest: read and set over netlink."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from collectors.readers.tc import QueueReading, RedReader
from orchestration.agent.linux import qdiscs
from orchestration.backends.emulated.namespaces import NetlinkError, send_requests
from orchestration.core.records import Floats, Ints
from orchestration.core.red_law import read_back_pmax, red_max_ps
from orchestration.core.topology import Testbed


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
        """Return `max_P` that marks shares `pmax` at kmax: see `model.red_law`."""
        return red_max_ps(pmax)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the shares that RED marks at kmax with `max_p`."""
        return read_back_pmax(max_p)
