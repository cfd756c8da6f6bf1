"""Reads the hosts, which are network namespaces: their TCP counters, and their RoCE NICs.

The layouts of the NICs' state and of DCQCN's parameters, which can be set while flows are sent, are
those in `roce_flows.h` and `parameters.c`. `pairs.c` counts the traffic matrix of edge switches.
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
# struct cl_host_state; the names are those of the signals
HOST_STATE = np.dtype(
    [
        (name, np.int64)
        for name in ("retransmits", "timeouts", "out_of_order", "tx_bytes", "received_packets")
    ]
)


class Hosts:
    """The hosts of a guest. The kernel reads them all at one moment."""

    def __init__(self, namespaces: Sequence[int], nics: NicFile | None) -> None:
        """`namespaces` are file descriptors of the hosts' network namespaces."""
        self._fd = os.open(HOSTS, os.O_RDWR)
        os.write(self._fd, np.array(namespaces, dtype=np.int32).tobytes())
        self.count = len(namespaces)
        self.nics = nics

    def read(self) -> dict[str, Ints]:
        """Read the hosts, and return the signals by name, arrays (hosts,)."""
        of_nics = self.nics.read() if self.nics else {}
        return self._signals(read_states(self._fd, self.count, HOST_STATE, HOSTS), of_nics)

    def values(self, states: np.ndarray, nic_states: np.ndarray) -> dict[str, Ints]:
        """Return the signals by name, from the states of hosts and of their NICs."""
        return self._signals(states, self.nics.values(nic_states) if self.nics else {})

    def _signals(self, states: np.ndarray, of_nics: dict[str, Ints]) -> dict[str, Ints]:
        of_tcp = {name: states[name].copy() for name in HOST_STATE.names or ()}
        of_tcp["out_of_order_packets"] = of_tcp["out_of_order"]
        sums = {name: of_tcp[name] + of_nics[name] for name in of_tcp.keys() & of_nics.keys()}
        missing = np.full(self.count, MISSING, dtype=np.int64)
        return {**dict.fromkeys(names("host"), missing), **of_tcp, **of_nics, **sums}


NICS = "/proc/closloop/nics"
# For each signal of scope host, its field in struct nic_state.
SIGNALS = {
    "cnps": "cnps",
    "roce_resent": "resent",
    "rtt_ns": "rtt_ns",
    "rate_bps": "rate_bps",
    "received_packets": "received_packets",
    "out_of_order_packets": "out_of_order_packets",
    "timeouts": "timeouts",
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
    """The RoCE NICs of this guest, which one system call reads."""

    def __init__(self, addresses: Sequence[tuple[str, ...]]) -> None:
        """`addresses` are those of each host's NICs, in the order of `Testbed.hosts`."""
        self._fd = os.open(NICS, os.O_RDONLY)
        self._hosts = len(addresses)
        host_of = {
            socket.inet_aton(word): host for host, words in enumerate(addresses) for word in words
        }
        states = read_states(self._fd, len(host_of), NIC_STATE, NICS)
        numbers = [host_of[bytes(address)] for address in states["address"]]
        self._host = np.array(numbers, dtype=np.int64)
        self.count = len(self._host)

    def read(self) -> dict[str, Ints]:
        """Read the NICs, and return the hosts' signals by name."""
        return self.values(read_states(self._fd, self.count, NIC_STATE, NICS))

    def values(self, states: np.ndarray) -> dict[str, Ints]:
        """Return the hosts' signals by name, arrays (hosts,), from the NICs' states.

        A host's value is the sum over its NICs; for round-trip times it is the longest.
        """
        values = {name: np.zeros(self._hosts, dtype=np.int64) for name in SIGNALS}
        for name, field in SIGNALS.items():
            combine = np.maximum if name == "rtt_ns" else np.add
            combine.at(values[name], self._host, states[field].astype(np.int64))
        return values


PARAMETERS = "/proc/closloop/parameters"
_POLICY_PARAMETERS = len(PARAMETER_ORDER)
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
    """The parameters of DCQCN of all NICs. All NICs of a host have the same."""

    def __init__(self, addresses: Sequence[tuple[str, ...]]) -> None:
        """`addresses` are those of each host's NICs, in the order of `Testbed.hosts`."""
        self._fd = os.open(PARAMETERS, os.O_RDWR)
        self._addresses = [[socket.inet_aton(word) for word in words] for words in addresses]
        self._count = sum(len(words) for words in addresses)

    def exchange(self, hosts: Ints, values: Ints) -> Ints:
        """Set the parameters of `hosts`, and return those that their NICs then have.

        `values` and the result have the shape (hosts, parameters). The parameters are those of
        `PARAMETER_ORDER`, then the interval between CNPs in us.
        """
        nics = [
            (row, address)
            for row, host in enumerate(hosts.tolist())
            for address in self._addresses[host]
        ]
        rows = np.array([row for row, _ in nics])
        settings = np.zeros(len(rows), dtype=_NIC_PARAMETERS)
        settings["address"] = np.array([address for _, address in nics], dtype="V4")
        settings["parameters"][:, :_POLICY_PARAMETERS] = values[rows, :_POLICY_PARAMETERS]
        settings["cnp_interval_ns"] = values[rows, _POLICY_PARAMETERS] * _NS_PER_US
        os.write(self._fd, settings.tobytes())
        return self._read(hosts)

    def _read(self, hosts: Ints) -> Ints:
        nics = read_states(self._fd, self._count, _NIC_PARAMETERS, PARAMETERS)
        index = {bytes(address): number for number, address in enumerate(nics["address"])}
        first_nics = nics[[index[self._addresses[host][0]] for host in hosts.tolist()]]
        interval_us = first_nics["cnp_interval_ns"] // _NS_PER_US
        parameters = first_nics["parameters"][:, :_POLICY_PARAMETERS]
        return np.column_stack([parameters, interval_us]).astype(np.int64)


PAIRS = "/proc/closloop/pairs"


class TrafficMatrix:
    """Counts the bytes of each ordered pair of edge switches, as `signals.targets` orders them."""

    def __init__(
        self, testbed: Testbed, namespaces: Sequence[int], addresses: Mapping[str, Sequence[str]]
    ) -> None:
        """Begin to count.

        `namespaces` are file descriptors of the edge switches' network namespaces. `addresses` has
        the addresses of each host, one for each of its NICs.
        """
        self._edges = len(testbed.edges)
        # the kernel counts a full matrix, also with the pairs of a switch with itself
        self.count = self._edges**2
        edge_number = {name: number for number, name in enumerate(testbed.edges)}
        edge_of_address = sorted(
            (int.from_bytes(socket.inet_aton(address), "little"), edge_number[peer.name])
            for host in testbed.hosts
            for nic, address in zip(testbed.ports_of[host], addresses[host], strict=True)
            for peer in [testbed.peer_device(nic)]
        )
        fd = os.open(PAIRS, os.O_WRONLY)
        os.write(
            fd,
            struct.pack("=II", self._edges, len(edge_of_address))
            + np.array(namespaces, np.int32).tobytes()
            + np.array(edge_of_address, np.uint32).tobytes(),
        )
        os.close(fd)

    def values(self, numbers: np.ndarray) -> Ints:
        """Return the bytes by pair, from the counts of a reading."""
        matrix = numbers.astype(np.int64).reshape(self._edges, self._edges)
        return matrix[~np.eye(self._edges, dtype=bool)]
