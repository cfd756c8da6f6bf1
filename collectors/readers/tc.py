"""Reads RED queues over routing netlink: backlog, bytes, packets, marks, drops, thresholds.

One pass asks every namespace for its qdiscs, with one system call for all of them. A few array
operations then extract the counters of all queues. Their offsets are learned in the first pass and
checked in each later one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.readers.netlink import Exchange
from orchestration.device.netlink import NLM_F_DUMP, NLM_F_REQUEST
from orchestration.device.qdisc_counters import attributes_within
from orchestration.device.qdiscs import (
    RED_MAX_P,
    RED_PARMS,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    STATS_BASIC,
    STATS_QUEUE,
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STATS2,
    TCA_XSTATS,
    tc_message,
)
from orchestration.model.records import Floats, Ints

# A dump of all queueing disciplines of a namespace with their counters.
DUMP_QDISCS = tc_message(RTM_GETQDISC, 0, flags=NLM_F_REQUEST | NLM_F_DUMP)


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


# Fields of a queue; their places are indices of 32-bit words in a pass's buffer.
_PLAIN = (
    "header", "ifindex", "handle", "bytes_low", "bytes_high", "packets", "backlog", "drops",
)  # fmt: skip
_OF_RED = ("prob_drops", "tail_drops", "marked", "kmin", "kmax", "max_p")


class _Reader:
    """Reads the queues of one kind of several namespaces.

    `exchange` asks the namespaces (see `DUMP_QDISCS`). `places` has (namespace in the exchange's
    order, ifindex, handle) of each queue.
    """

    kind: str
    fields: tuple[str, ...]

    def __init__(self, exchange: Exchange, places: Sequence[tuple[int, int, int]]) -> None:
        self._exchange = exchange
        self._places = places
        self._words: dict[str, Ints] | None = None
        self._ifindexes = np.array([place[1] for place in places], dtype=np.uint32)
        self._handles = np.array([place[2] for place in places], dtype=np.uint32)
        self._wraps = Unwrapped()

    def counted(self) -> dict[str, Ints]:
        """Read the fields of all queues once. Raises ReaderError if a queue is missing."""
        answers = self._exchange.ask()
        buffer = self._exchange.buffer
        words = np.frombuffer(buffer, dtype=np.uint32)
        places = self._words
        if places is None or not self._fits(words, places, answers):
            places = self._words = self._learn(buffer, answers)
        return {name: words[places[name]].astype(np.int64) for name in self.fields[3:]}

    def plain(self, got: dict[str, Ints]) -> dict[str, Ints]:
        """Return the signals that every queue has, of what `counted` returned."""
        return {
            "qlen_bytes": got["backlog"],
            "tx_bytes": got["bytes_low"] + (got["bytes_high"] << 32),
            "tx_packets": self._wraps("packets", got["packets"]),
            "dropped_packets": self._wraps("drops", got["drops"]),
        }

    def _fits(
        self, words: np.ndarray, places: dict[str, Ints], answers: list[tuple[int, int]]
    ) -> bool:
        if places["header"].max() * 4 >= answers[-1][1]:
            return False
        same = words[places["handle"]] == self._handles
        return bool(same.all() and (words[places["ifindex"]] == self._ifindexes).all())

    def _learn(self, buffer: bytearray, answers: list[tuple[int, int]]) -> dict[str, Ints]:
        found: dict[tuple[int, int, int], dict[str, int]] = {}
        for number, (start, end) in enumerate(answers):
            at = start
            while at + 16 <= end:
                length, kind = struct.unpack_from("=IH", buffer, at)
                if length < 16:
                    raise ReaderError("the kernel's answer is cut short")
                if kind == RTM_NEWQDISC:
                    place = self._locate(buffer, at, at + length)
                    if place:
                        ifindex, handle = struct.unpack_from("=iI", buffer, at + 20)
                        found[number, ifindex, handle] = place
                at += (length + 3) & ~3
        missing = [place for place in self._places if place not in found]
        if missing:
            namespace, ifindex, handle = missing[0]
            raise ReaderError(
                f"no {self.kind} queue {handle:#x} at interface {ifindex} of namespace {namespace}"
            )
        return {
            name: np.array([found[place][name] for place in self._places], dtype=np.int64)
            for name in self.fields
        }

    def _locate(self, buffer: bytearray, at: int, end: int) -> dict[str, int] | None:
        attributes = attributes_within(buffer, at + 36, end)
        kind_at, kind_end = attributes[TCA_KIND]
        if bytes(buffer[kind_at:kind_end]) != f"{self.kind}\0".encode():
            return None
        stats = attributes_within(buffer, *attributes[TCA_STATS2])
        basic, queue = stats[STATS_BASIC][0], stats[STATS_QUEUE][0]
        places = {
            "header": at, "ifindex": at + 20, "handle": at + 24,
            "bytes_low": basic, "bytes_high": basic + 4, "packets": basic + 8,
            "backlog": queue + 4, "drops": queue + 8,
            **self.more(buffer, attributes),
        }  # fmt: skip
        return {name: place // 4 for name, place in places.items()}

    def more(self, buffer: bytearray, attributes: dict[int, tuple[int, int]]) -> dict[str, int]:
        """Return the offsets of the fields that only queues of this kind have."""
        return {}


class RedReader(_Reader):
    """Reads RED queues."""

    kind, fields = "red", (*_PLAIN, *_OF_RED)

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

    def more(self, buffer: bytearray, attributes: dict[int, tuple[int, int]]) -> dict[str, int]:
        """Return the offsets of marks and parameters."""
        options = attributes_within(buffer, *attributes[TCA_OPTIONS])
        extra, parameters = attributes[TCA_XSTATS][0], options[RED_PARMS][0]
        return {
            "prob_drops": extra, "tail_drops": extra + 4, "marked": extra + 12,
            "kmin": parameters + 4, "kmax": parameters + 8, "max_p": options[RED_MAX_P][0],
        }  # fmt: skip


class PlainReader(_Reader):
    """Reads plain queues (bfifo), which mark nothing themselves."""

    kind, fields = "bfifo", _PLAIN

    def read(self) -> dict[str, Ints]:
        """Read all queues once: the signals but for marks. Raises ReaderError if one is missing."""
        return self.plain(self.counted())


class Unwrapped:
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
