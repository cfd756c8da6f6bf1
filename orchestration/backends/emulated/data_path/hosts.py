"""Reads the TCP counters of all hosts, which are network namespaces of this guest."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from orchestration.model.records import Ints, Samples
from orchestration.model.signals import names

HOSTS = "/proc/closloop/hosts"
# The first of the hosts' signals, in the order of hosts.c.
_COUNTERS = 4


class HostCounters:
    """Reads every host's TCP counters with one system call.

    `namespaces` are file descriptors of the hosts' network namespaces.
    """

    def __init__(self, namespaces: Sequence[int]) -> None:
        self._fd = os.open(HOSTS, os.O_RDWR)
        os.write(self._fd, np.array(namespaces, dtype=np.int32).tobytes())
        self._shape = (len(namespaces), _COUNTERS)
        self._t_ns: list[int] = []
        self._rows: list[bytes] = []

    def sample(self, t_ns: int) -> None:
        """Keep the numbers of one reading."""
        self._t_ns.append(t_ns)
        self._rows.append(os.pread(self._fd, 8 * self._shape[0] * self._shape[1], 0))

    @property
    def last_ns(self) -> int:
        """When the last reading was taken; -1 before the first."""
        return self._t_ns[-1] if self._t_ns else -1

    def last(self) -> dict[str, Ints]:
        """Return the numbers of the last reading, by signal, shape (hosts,)."""
        values = np.frombuffer(self._rows[-1], dtype=np.int64).reshape(self._shape)
        return {name: values[:, place] for place, name in enumerate(names("host")[:_COUNTERS])}

    def samples(self) -> Samples:
        """Return the readings."""
        values = np.frombuffer(b"".join(self._rows), dtype=np.int64)
        values = values.reshape(len(self._rows), *self._shape)
        columns = [values[:, :, place] for place in range(_COUNTERS)]
        return Samples.of("host", np.array(self._t_ns, dtype=np.int64), *columns)
