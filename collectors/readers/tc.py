"""Reads RED queues over routing netlink: backlog, bytes, packets, marks, drops, thresholds.

One pass asks every namespace for its qdiscs. Where the counters are in the answers is learned in
the first pass, and checked in each later one.
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


class _Reader:
    """Reads the queues of one kind of several namespaces.

    `links` has a netlink socket of each namespace. `places` has (index of the namespace, ifindex,
    handle) of each queue.
    """

    kind: str
    fields: tuple[str, ...]

    def __init__(
        self, links: Sequence[socket.socket], places: Sequence[tuple[int, int, int]]
    ) -> None:
        of = [[place[1:] for place in places if place[0] == at] for at in range(len(links))]
        self._readers = [
            CounterReader(own, self.kind, link) for own, link in zip(of, links, strict=True)
        ]
        by_namespace = np.argsort([place[0] for place in places], kind="stable")
        self._order = np.argsort(by_namespace)
        self._wraps = CounterUnwrapper()

    def counted(self) -> dict[str, Ints]:
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

    def plain(self, got: dict[str, Ints]) -> dict[str, Ints]:
        """Return the signals that every queue has, of what `counted` returned."""
        return {
            "qlen_bytes": got["backlog"],
            "tx_bytes": got["bytes_low"] + (got["bytes_high"] << 32),
            "tx_packets": self._wraps("packets", got["packets"]),
            "dropped_packets": self._wraps("drops", got["drops"]),
        }


class RedReader(_Reader):
    """Reads RED queues."""

    kind, fields = "red", RED

    def read(self) -> QueueReading:
        """Read all queues once. Raises ReaderError if a queue is missing."""
        got = self.counted()
        return QueueReading(
            **self.plain(got),
            marked_packets=self._wraps("marked", got["marked"]),
            kmin_bytes=got["kmin"],
            kmax_bytes=got["kmax"],
            max_p=got["max_p"].astype(np.float64),
        )


class PlainReader(_Reader):
    """Reads plain queues (bfifo), which mark nothing themselves."""

    kind, fields = "bfifo", PLAIN

    def read(self) -> dict[str, Ints]:
        """Read all queues once: the signals but for marks. Raises ReaderError if one is missing."""
        return self.plain(self.counted())


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
