"""Sets DCQCN's parameters of the RoCE NICs at run time, and reads them back.

The struct is that of `parameters.c`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np

from orchestration.backends.emulated.data_path.flows import MOST_PARAMETERS, PARAMETER_ORDER
from orchestration.model.records import Ints

PARAMETERS = "/proc/closloop/parameters"
_OF_POLICY = len(PARAMETER_ORDER)
_NS_PER_US = 1000
# struct nic_parameters
_NIC_PARAMETERS = np.dtype(
    [
        ("cnp_interval_ns", np.uint64),
        ("address", "V4"),
        ("unused", np.uint32),
        ("parameters", np.uint32, (MOST_PARAMETERS,)),
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
        data = os.pread(self._fd, self._count * _NIC_PARAMETERS.itemsize, 0)
        found = np.frombuffer(data, dtype=_NIC_PARAMETERS)
        place = {bytes(address): number for number, address in enumerate(found["address"])}
        of_hosts = found[[place[self._addresses[host][0]] for host in hosts.tolist()]]
        interval_us = of_hosts["cnp_interval_ns"] // _NS_PER_US
        return np.column_stack([of_hosts["parameters"][:, :_OF_POLICY], interval_us]).astype(
            np.int64
        )
