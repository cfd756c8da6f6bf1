"""Reads and sets DCQCN's parameters of the RoCE NICs, at run time.

The struct is that of `parameters.c`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.backends.emulated.data_path.flows import (
    CNP_INTERVAL,
    MOST_PARAMETERS,
    PARAMETER_ORDER,
)
from orchestration.model.records import Ints
from orchestration.model.roce import DCQCN_PARAMETERS, RoceSpec

PARAMETERS = "/proc/closloop/parameters"
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


class NicParameters:
    """The parameters of all hosts, in the order of `Testbed.hosts`; a host's NICs have the same."""

    def __init__(self, spec: RoceSpec, addresses: Sequence[tuple[str, ...]]) -> None:
        """`addresses` are those of each host's NICs. All hosts begin with those of `spec`."""
        self._fd = os.open(PARAMETERS, os.O_RDWR)
        count = len(addresses)
        # by name, (hosts,); replaced by every change, and never altered
        self.known: Mapping[str, Ints] = {
            name: np.full(count, value, dtype=np.int64) for name, value in spec.parameters.items()
        }
        self._host = np.repeat(np.arange(count), [len(words) for words in addresses])
        self._address = np.array(
            [socket.inet_aton(word) for words in addresses for word in words], dtype="V4"
        )

    def set(self, hosts: Ints, values: Mapping[str, NDArray[Any]]) -> None:
        """Set parameters of `hosts`, by name, shapes (hosts,), and read all of theirs back."""
        wanted = {name: of_all.copy() for name, of_all in self.known.items()}
        for name, value in values.items():
            wanted[name][hosts] = np.rint(value)
        rows = np.flatnonzero(np.isin(self._host, hosts))
        of_nics = np.zeros(len(rows), dtype=_NIC_PARAMETERS)
        of_nics["address"] = self._address[rows]
        of_nics["cnp_interval_ns"] = wanted[CNP_INTERVAL][self._host[rows]] * _NS_PER_US
        for place, name in enumerate(PARAMETER_ORDER):
            of_nics["parameters"][:, place] = wanted[name][self._host[rows]]
        if len(rows):
            os.write(self._fd, of_nics.tobytes())
            self.known = self._read(wanted, rows)

    def _read(self, wanted: Mapping[str, Ints], rows: Ints) -> Mapping[str, Ints]:
        """Return all parameters, those of the NICs `rows` as the kernel has them."""
        data = os.pread(self._fd, len(self._host) * _NIC_PARAMETERS.itemsize, 0)
        found = np.frombuffer(data, dtype=_NIC_PARAMETERS)
        place = {bytes(address): number for number, address in enumerate(found["address"])}
        of_nics = found[[place[bytes(address)] for address in self._address[rows]]]
        hosts = self._host[rows]
        read = {name: wanted[name].copy() for name in DCQCN_PARAMETERS}
        read[CNP_INTERVAL][hosts] = of_nics["cnp_interval_ns"] // _NS_PER_US
        for number, name in enumerate(PARAMETER_ORDER):
            read[name][hosts] = of_nics["parameters"][:, number]
        return read
