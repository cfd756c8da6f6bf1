"""Reads the hosts' signals: TCP counters in /proc, of hosts that are network namespaces here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from orchestration.model.records import Samples

# Where the hosts' signals are: table and name in /proc/net/snmp or netstat.
_HOST_COUNTERS = {
    "retransmits": (b"Tcp:", b"RetransSegs"),
    "timeouts": (b"TcpExt:", b"TCPTimeouts"),
    "out_of_order": (b"TcpExt:", b"TCPOFOQueue"),
    "tx_bytes": (b"IpExt:", b"OutOctets"),
}


class HostCounters:
    """Reads every host's TCP counters from /proc, one open file a host and table.

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
        """Keep one reading; of the text, 5 KB a host, nothing.

        Thousands of scattered pages would be kept, each a mapping of the host: see `Recorder`.
        """
        self._t_ns.append(t_ns)
        texts = (b"".join(os.pread(fd, 16_384, 0) for fd in files) for files in self._files)
        counters = [proc_counters(text) for text in texts]
        self._rows.append(np.array(counters, dtype=np.int64).reshape(-1, len(_HOST_COUNTERS)))

    def samples(self) -> Samples:
        """Return the readings."""
        shape = (len(self._rows), len(self._files), len(_HOST_COUNTERS))
        values = np.array(self._rows, dtype=np.int64).reshape(shape)
        columns = {name: values[:, :, place] for place, name in enumerate(_HOST_COUNTERS)}
        return Samples(np.array(self._t_ns, dtype=np.int64), columns)


def proc_counters(text: bytes) -> list[int]:
    """Return `_HOST_COUNTERS` of snmp and netstat: a line of names, then one of values.

    This runs in the loop: of some 40 lines it splits the three that are wanted.
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
