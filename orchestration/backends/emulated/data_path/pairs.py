"""The traffic matrix of edge switches, which they count themselves: `pairs.c`."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from inventory.topology import Testbed
from orchestration.model.records import Ints

PAIRS = "/proc/closloop/pairs"


class PairCounters:
    """Bytes by ordered pair of edge switches, as `signals.targets` orders them."""

    def __init__(
        self, testbed: Testbed, namespaces: Sequence[int], addresses: Mapping[str, Sequence[str]]
    ) -> None:
        """Begin to count.

        `namespaces` are file descriptors of the edge switches' network namespaces, `addresses`
        those of each host, one a NIC.
        """
        self._edges = len(testbed.edges)
        edge = {name: number for number, name in enumerate(testbed.edges)}
        known = sorted(
            (
                int.from_bytes(socket.inet_aton(address), "little"),
                edge[testbed.peer_device(nic).name],
            )
            for host in testbed.hosts
            for nic, address in zip(testbed.ports_of[host], addresses[host], strict=True)
        )
        fd = os.open(PAIRS, os.O_WRONLY)
        os.write(
            fd,
            struct.pack("=II", self._edges, len(known))
            + np.array(namespaces, np.int32).tobytes()
            + np.array(known, np.uint32).tobytes(),
        )
        os.close(fd)

    @property
    def count(self) -> int:
        """Return how many numbers the kernel keeps: one for each edge switch and each."""
        return self._edges**2

    def values(self, numbers: np.ndarray) -> Ints:
        """Return the bytes by pair, from the numbers of a reading."""
        matrix = numbers.astype(np.int64).reshape(self._edges, self._edges)
        return matrix[~np.eye(self._edges, dtype=bool)]
