"""Reads the hosts, which are network namespaces: TCP's counters, and RoCE NICs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from orchestration.backends.emulated.data_path.nics import NicFile
from orchestration.model.records import MISSING, HostReading, Ints, Samples
from orchestration.model.signals import names

HOSTS = "/proc/closloop/hosts"
# struct cl_host_state; the names are those of signals
HOST_STATE = np.dtype(
    [
        (name, np.int64)
        for name in ("retransmits", "timeouts", "out_of_order", "tx_bytes", "received_packets")
    ]
)


class KeptHosts(ABC):
    """The readings of all hosts, in the order of `Testbed.hosts`, that are kept for the record."""

    def __init__(self) -> None:
        self._t_ns: list[int] = []
        self._rows: list[dict[str, Ints]] = []

    @abstractmethod
    def read(self) -> dict[str, Ints]:
        """Return the signals by name, arrays (hosts,), now."""

    def keep(self, t_ns: int, values: dict[str, Ints]) -> None:
        """Keep the signals of one moment for the trial's record."""
        self._t_ns.append(t_ns)
        self._rows.append(values)

    def last(self) -> HostReading | None:
        """Return the signals that were kept last; None if none were."""
        return HostReading(self._t_ns[-1], self._rows[-1]) if self._rows else None

    def samples(self) -> Samples:
        """Return what was kept."""
        columns = [np.array([row[name] for row in self._rows]) for name in names("host")]
        return Samples.of("host", np.array(self._t_ns, dtype=np.int64), *columns)


class Hosts(KeptHosts):
    """The hosts of a guest, which its kernel reads at once."""

    def __init__(self, namespaces: Sequence[int], nics: NicFile | None) -> None:
        """`namespaces` are file descriptors of the hosts' network namespaces."""
        super().__init__()
        self._fd = os.open(HOSTS, os.O_RDWR)
        os.write(self._fd, np.array(namespaces, dtype=np.int32).tobytes())
        self.count = len(namespaces)
        self.nics = nics

    def read(self) -> dict[str, Ints]:
        """Return the signals by name, arrays (hosts,), now."""
        data = os.pread(self._fd, self.count * HOST_STATE.itemsize, 0)
        own = self.nics.read() if self.nics else {}
        return self._signals(np.frombuffer(data, dtype=HOST_STATE), own)

    def values(self, states: np.ndarray, of_nics: np.ndarray) -> dict[str, Ints]:
        """Return the signals by name, from the states of hosts and of their NICs."""
        return self._signals(states, self.nics.values(of_nics) if self.nics else {})

    def _signals(self, states: np.ndarray, own: dict[str, Ints]) -> dict[str, Ints]:
        of_tcp = {name: states[name].copy() for name in HOST_STATE.names or ()}
        of_tcp["out_of_order_packets"] = of_tcp["out_of_order"]
        both = {name: of_tcp[name] + own[name] for name in of_tcp.keys() & own.keys()}
        missing = np.full(self.count, MISSING, dtype=np.int64)
        return {**dict.fromkeys(names("host"), missing), **of_tcp, **own, **both}
