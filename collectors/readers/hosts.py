"""Reads hosts' TCP counters from /proc. The hosts are network namespaces of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from orchestration.model.records import Samples

# Table and name of the hosts' signals in /proc/net/snmp or netstat.
_HOST_COUNTERS = {
    "retransmits": (b"Tcp:", b"RetransSegs"),
    "timeouts": (b"TcpExt:", b"TCPTimeouts"),
    "out_of_order": (b"TcpExt:", b"TCPOFOQueue"),
    "tx_bytes": (b"IpExt:", b"OutOctets"),
}


class HostCounters:
    """Reads every host's TCP counters from /proc, with one open file per host and table.

    `enter` moves this process into the network namespace of a host.
    """

    def __init__(self, hosts: Sequence[str], enter: Callable[[str], None]) -> None:
        self._files = []
        for name in hosts:
            enter(name)
            self._files.append(
                [os.open(f"/proc/self/net/{table}", os.O_RDONLY) for table in ("snmp", "netstat")]
            )
        self._t_ns: list[int] = []
        self._rows: list[np.ndarray] = []

    def sample(self, t_ns: int) -> None:
        """Keep the numbers of one reading, but not its text of 5 KB per host.

        The text would occupy thousands of scattered pages, each a mapping on the guest's host: see
        `Recorder`.
        """
        self._t_ns.append(t_ns)
        texts = (b"".join(os.pread(fd, 16_384, 0) for fd in files) for files in self._files)
        counters = [proc_counters(text) for text in texts]
        self._rows.append(np.array(counters, dtype=np.int64).reshape(-1, len(_HOST_COUNTERS)))

    def samples(self) -> Samples:
        """Return the readings."""
        shape = (len(self._rows), len(self._files), len(_HOST_COUNTERS))
        values = np.array(self._rows, dtype=np.int64).reshape(shape)
        columns = [values[:, :, place] for place in range(len(_HOST_COUNTERS))]
        return Samples.of("host", np.array(self._t_ns, dtype=np.int64), *columns)


def proc_counters(text: bytes) -> list[int]:
    """Return `_HOST_COUNTERS` from snmp and netstat: a line of names, then one of values.

    This runs in the loop, so of some 40 lines it splits only those that are needed.
    """
    values: dict[bytes, list[bytes]] = {}
    found = []
    for table, name in _HOST_COUNTERS.values():
        begin = text.index(b"\n" + table) + 1
        middle = text.index(b"\n", begin) + 1
        if table not in values:
            values[table] = text[middle : text.index(b"\n", middle)].split()
        found.append(int(values[table][_column(text[begin:middle], name)]))
    return found


@cache
def _column(names: bytes, name: bytes) -> int:
    return names.split().index(name)
