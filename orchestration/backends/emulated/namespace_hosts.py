"""Reads hosts that are namespaces of the machine's own kernel, by what every Linux tells of TCP."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from orchestration.agent.linux.kernel import TCP_FILES, counted
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.core.records import MISSING, Ints
from orchestration.core.signals import names
from orchestration.datapath.hosts import KeptHosts

_SIGNALS = ("retransmits", "timeouts", "out_of_order", "tx_bytes")
_MOST_BYTES = 1 << 16


class NamespaceHosts(KeptHosts):
    """All hosts. The files stay open: each tells of the namespace in which it was opened."""

    def __init__(self, fabric: Fabric, hosts: Sequence[str]) -> None:
        super().__init__()
        self._files: list[dict[str, int]] = []
        for name in hosts:
            fabric.enter(fabric.number[name])
            self._files.append({path: os.open(path, os.O_RDONLY) for path in TCP_FILES})

    def read(self) -> dict[str, Ints]:
        """Return the signals by name, arrays (hosts,), now; those of RoCE NICs are missing."""
        rows = [
            counted({path: os.pread(fd, _MOST_BYTES, 0).decode() for path, fd in files.items()})
            for files in self._files
        ]
        missing = np.full(len(rows), MISSING, dtype=np.int64)
        columns = np.array(rows, dtype=np.int64).T
        return {
            **dict.fromkeys(names("host"), missing),
            **dict(zip(_SIGNALS, columns, strict=True)),
        }
