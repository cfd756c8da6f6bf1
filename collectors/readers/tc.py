"""Reads RED queues over routing netlink: backlog, bytes, packets, marks, drops, thresholds.

One reading asks every network namespace for its qdiscs. The first reading learns where the counters
are in the answers; each later one checks that they are still there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.agent.linux.qdisc_counters import PLAIN, RED, CounterReader
from orchestration.core.records import Floats, Ints


class ReaderError(OSError):
    """The kernel's answer cannot be read as queue counters."""


# The signals of a RED queue.
RED_SIGNALS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")


@dataclass(frozen=True)
class QueueReading:
    """Counters of all queues, shapes (queues,). `max_p` is the kernel's 32-bit probability."""

    qlen_bytes: Ints
    tx_bytes: Ints
    tx_packets: Ints
    marked_packets: Ints
    dropped_packets: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    max_p: Floats

    def counters(self) -> dict[str, Ints]:
        """Return the signals of queues, by key."""
        return {name: getattr(self, name) for name in RED_SIGNALS}


class _QueueReader:
    """Reads the queues of one kind in several namespaces.

    `sockets` has a netlink socket of each namespace. `queues` has (index of the namespace, index of
    the interface, handle of the qdisc) for each queue.
    """

    kind: str
    fields: tuple[str, ...]

    def __init__(
        self, sockets: Sequence[socket.socket], queues: Sequence[tuple[int, int, int]]
    ) -> None:
        of_namespace = [
            [(ifindex, handle) for namespace, ifindex, handle in queues if namespace == number]
            for number in range(len(sockets))
        ]
        self._readers = [
            CounterReader(handles, self.kind, link)
            for handles, link in zip(of_namespace, sockets, strict=True)
        ]
        by_namespace = np.argsort([namespace for namespace, _, _ in queues], kind="stable")
        self._order = np.argsort(by_namespace)
        self._unwrap = CounterUnwrapper()

    def read_fields(self) -> dict[str, Ints]:
        """Read the fields of all queues once. Raises ReaderError if a queue is missing."""
        parts = []
        for number, reader in enumerate(self._readers):
            try:
                parts.append(np.array(reader.words(), dtype=np.int64))
            except KeyError as error:
                ifindex, handle = error.args[0]
                raise ReaderError(
                    f"no {self.kind} queue {handle:#x} at interface {ifindex} of namespace {number}"
                ) from None
        rows = np.concatenate(parts, axis=1)[:, self._order]
        return dict(zip(self.fields, rows, strict=True))

    def common_signals(self, fields: dict[str, Ints]) -> dict[str, Ints]:
        """Return the signals that queues of every kind have, from the fields of a reading."""
        return {
            "qlen_bytes": fields["backlog"],
            "tx_bytes": fields["bytes_low"] + (fields["bytes_high"] << 32),
            "tx_packets": self._unwrap("packets", fields["packets"]),
            "dropped_packets": self._unwrap("drops", fields["drops"]),
        }


class RedReader(_QueueReader):
    """Reads RED queues."""

    kind, fields = "red", RED

    def read(self) -> QueueReading:
        """Read all queues once. Raises ReaderError if a queue is missing."""
        fields = self.read_fields()
        return QueueReading(
            **self.common_signals(fields),
            marked_packets=self._unwrap("marked", fields["marked"]),
            kmin_bytes=fields["kmin"],
            kmax_bytes=fields["kmax"],
            max_p=fields["max_p"].astype(np.float64),
        )


class PlainReader(_QueueReader):
    """Reads plain queues (bfifo), which do not mark packets."""

    kind, fields = "bfifo", PLAIN

    def read(self) -> dict[str, Ints]:
        """Return all signals except marks. Raises ReaderError if a queue is missing."""
        return self.common_signals(self.read_fields())


class CounterUnwrapper:
    """Extends the kernel's 32-bit counters to 64 bits, reading by reading."""

    def __init__(self) -> None:
        self._last: dict[str, Ints] = {}
        self._total: dict[str, Ints] = {}

    def __call__(self, name: str, value: Ints) -> Ints:
        """Return the counter `name` in 64 bits, given the kernel's new `value`."""
        last = self._last.get(name)
        total = value if last is None else self._total[name] + ((value - last) & 0xFFFFFFFF)
        self._last[name], self._total[name] = value, total
        return total.copy()
