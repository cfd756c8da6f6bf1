"""Reads the hosts, which are network namespaces: TCP's counters, and RoCE NICs.

NICs' state and DCQCN's parameters, which are set at run time, are structs of `roce_flows.h` and
`parameters.c`. `pairs.c` has the traffic matrix of edge switches, which they count themselves.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from orchestration.core.records import MISSING, Ints
from orchestration.core.signals import names
from orchestration.core.topology import Testbed
from orchestration.datapath.flows import MAX_PARAMETERS, PARAMETER_ORDER
from orchestration.datapath.ports import read_states

HOSTS = "/proc/closloop/hosts"
# struct cl_host_state; the names are those of signals
HOST_STATE = np.dtype(
    [
        (name, np.int64)
        for name in ("retransmits", "timeouts", "out_of_order", "tx_bytes", "received_packets")
    ]
)


class Hosts:
    """The hosts of a guest, which its kernel reads at once."""

    def __init__(self, namespaces: Sequence[int], nics: NicFile | None) -> None:
        """`namespaces` are file descriptors of the hosts' network namespaces."""
        self._fd = os.open(HOSTS, os.O_RDWR)
        os.write(self._fd, np.array(namespaces, dtype=np.int32).tobytes())
        self.count = len(namespaces)
        self.nics = nics

    def read(self) -> dict[str, Ints]:
        """Return the signals by name, arrays (hosts,), now."""
        own = self.nics.read() if self.nics else {}
        return self._signals(read_states(self._fd, self.count, HOST_STATE, HOSTS), own)

    def values(self, states: np.ndarray, of_nics: np.ndarray) -> dict[str, Ints]:
        """Return the signals by name, from the states of hosts and of their NICs."""
        return self._signals(states, self.nics.values(of_nics) if self.nics else {})

    def _signals(self, states: np.ndarray, own: dict[str, Ints]) -> dict[str, Ints]:
        of_tcp = {name: states[name].copy() for name in HOST_STATE.names or ()}
        of_tcp["out_of_order_packets"] = of_tcp["out_of_order"]
        both = {name: of_tcp[name] + own[name] for name in of_tcp.keys() & own.keys()}
        missing = np.full(self.count, MISSING, dtype=np.int64)
        return {**dict.fromkeys(names("host"), missing), **of_tcp, **own, **both}


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
        found = read_states(self._fd, len(host_of), NIC_STATE, NICS)
        self._host = np.array([host_of[bytes(item)] for item in found["address"]], dtype=np.int64)

        self.count = len(self._host)

    def read(self) -> dict[str, Ints]:
        """Return the hosts' signals by name, now."""
        return self.values(read_states(self._fd, self.count, NIC_STATE, NICS))

    def values(self, states: np.ndarray) -> dict[str, Ints]:
        """Return the hosts' signals by name, arrays (hosts,), from the NICs' states.

        They are sums over a host's NICs, of round trips the longest.
        """
        values = {name: np.zeros(self._hosts, dtype=np.int64) for name in SIGNALS}
        for name, field in SIGNALS.items():
            join = np.maximum if name == "rtt_ns" else np.add
            join.at(values[name], self._host, states[field].astype(np.int64))
        return values


PARAMETERS = "/proc/closloop/parameters"
_OF_POLICY = len(PARAMETER_ORDER)
_NS_PER_US = 1000
# struct nic_parameters
_NIC_PARAMETERS = np.dtype(
    [
        ("cnp_interval_ns", np.uint64),
        ("address", "V4"),
        ("unused", np.uint32),
        ("parameters", np.uint32, (MAX_PARAMETERS,)),
    ]
)


class ParameterFile:
    """The parameters of all NICs; a host's NICs have the same."""

    def __init__(self, addresses: Sequence[tuple[str, ...]]) -> None:
        """`addresses` are those of each host's NICs, in the order of `Testbed.hosts`."""
        self._fd = os.open(PARAMETERS, os.O_RDWR)
        self._addresses = [[socket.inet_aton(word) for word in words] for words in addresses]
        self._count = sum(len(words) for words in addresses)

    def exchange(self, hosts: Ints, values: Ints) -> Ints:
        """Set the parameters of `hosts`, and read them back, shapes (hosts, parameters).

        They are in the order of the policy's, followed by that of the receiver, in us.
        """
        of_nic = [
            (row, address)
            for row, host in enumerate(hosts.tolist())
            for address in self._addresses[host]
        ]
        rows = np.array([row for row, _ in of_nic])
        wanted = np.zeros(len(rows), dtype=_NIC_PARAMETERS)
        wanted["address"] = np.array([address for _, address in of_nic], dtype="V4")
        wanted["parameters"][:, :_OF_POLICY] = values[rows, :_OF_POLICY]
        wanted["cnp_interval_ns"] = values[rows, _OF_POLICY] * _NS_PER_US
        os.write(self._fd, wanted.tobytes())
        return self._read(hosts)

    def _read(self, hosts: Ints) -> Ints:
        found = read_states(self._fd, self._count, _NIC_PARAMETERS, PARAMETERS)
        place = {bytes(address): number for number, address in enumerate(found["address"])}
        of_hosts = found[[place[self._addresses[host][0]] for host in hosts.tolist()]]
        interval_us = of_hosts["cnp_interval_ns"] // _NS_PER_US
        return np.column_stack([of_hosts["parameters"][:, :_OF_POLICY], interval_us]).astype(
            np.int64
        )


PAIRS = "/proc/closloop/pairs"


class TrafficMatrix:
    """Bytes by ordered pair of edge switches, as `signals.targets` orders them."""

    def __init__(
        self, testbed: Testbed, namespaces: Sequence[int], addresses: Mapping[str, Sequence[str]]
    ) -> None:
        """Begin to count.

        `namespaces` are file descriptors of the edge switches' network namespaces, `addresses`
        those of each host, one a NIC.
        """
        self._edges = len(testbed.edges)
        # what the kernel keeps: a number for each edge switch and each
        self.count = self._edges**2
        edge = {name: number for number, name in enumerate(testbed.edges)}
        known = sorted(
            (int.from_bytes(socket.inet_aton(address), "little"), edge[peer.name])
            for host in testbed.hosts
            for nic, address in zip(testbed.ports_of[host], addresses[host], strict=True)
            for peer in [testbed.peer_device(nic)]
        )
        fd = os.open(PAIRS, os.O_WRONLY)
        os.write(
            fd,
            struct.pack("=II", self._edges, len(known))
            + np.array(namespaces, np.int32).tobytes()
            + np.array(known, np.uint32).tobytes(),
        )
        os.close(fd)

    def values(self, numbers: np.ndarray) -> Ints:
        """Return the bytes by pair, from the numbers of a reading."""
        matrix = numbers.astype(np.int64).reshape(self._edges, self._edges)
        return matrix[~np.eye(self._edges, dtype=bool)]
