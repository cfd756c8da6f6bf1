"""Reads the RoCE NICs of all hosts: CNPs, packets sent again, round trips and rates.

The struct is that of `roce.h`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np

from orchestration.model.records import Ints

NICS = "/proc/closloop/nics"
# Signals of scope host by the fields of struct nic_state.
SIGNALS = {
    "cnps": "cnps",
    "roce_resent": "resent",
    "rtt_ns": "rtt_ns",
    "rate_bps": "rate_bps",
    "received_packets": "received_packets",
    "out_of_order_packets": "out_of_order_packets",
}
# struct nic_state
NIC_STATE = np.dtype(
    [
        *((name, np.uint64) for name in SIGNALS.values()),
        ("address", "V4"),
        ("flows", np.uint32),
    ]
)


class NicFile:
    """The NICs of this guest, read with one system call."""

    def __init__(self, addresses: Sequence[tuple[str, ...]]) -> None:
        """`addresses` are those of each host's NICs, in the order of `Testbed.hosts`."""
        self._fd = os.open(NICS, os.O_RDONLY)
        self._hosts = len(addresses)
        host_of = {
            socket.inet_aton(word): host for host, words in enumerate(addresses) for word in words
        }
        found = self._states(len(host_of))
        self._host = np.array([host_of[bytes(item)] for item in found["address"]], dtype=np.int64)

    def _states(self, count: int) -> np.ndarray:
        size = count * NIC_STATE.itemsize
        data = os.pread(self._fd, size, 0)
        if len(data) != size:
            raise OSError(f"{NICS} has {len(data)} bytes instead of {size}")
        return np.frombuffer(data, dtype=NIC_STATE)

    @property
    def count(self) -> int:
        """Return the number of NICs."""
        return len(self._host)

    def read(self) -> dict[str, Ints]:
        """Return the hosts' signals by name, now."""
        return self.values(self._states(self.count))

    def values(self, states: np.ndarray) -> dict[str, Ints]:
        """Return the hosts' signals by name, arrays (hosts,), from the NICs' states.

        They are sums over a host's NICs, of round trips the longest.
        """
        values = {name: np.zeros(self._hosts, dtype=np.int64) for name in SIGNALS}
        for name, field in SIGNALS.items():
            join = np.maximum if name == "rtt_ns" else np.add
            join.at(values[name], self._host, states[field].astype(np.int64))
        return values
