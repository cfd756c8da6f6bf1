"""Makes flow records of sFlow samples, as `sflowtool` prints them: a tag and a value a line.

A sample stands for as many packets as the sampling rate says. A packet may be sampled at every
switch that it passes: of one flow, the switch with the most samples counts. Times are those of
datagrams, whole seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from orchestration.exchange.packets import ends_of, parse
from orchestration.exchange.records import FlowRecord, Recorded, counted
from orchestration.exchange.textrows import opened, refuse, shown
from orchestration.model.errors import InputError

_ETHERNET = 1
_AGAIN = "print it with `sflowtool -r FILE`, without -l, -L or -J: they leave out times or headers"


@dataclass
class _Seen:
    """The samples of one flow at one switch."""

    start_s: int
    end_s: int
    samples: int
    size_bytes: int


def read_sflowtool(path: Path, idle_ns: int) -> Recorded:
    """Return the flows of sflowtool's lines. A gap of more than `idle_ns` (and 1 s) ends a flow.

    Raises InputError, with the line, for other output, and for a clock that runs backwards.
    """
    reader = _Reader(path, max(1, idle_ns // 10**9))
    with opened(path) as file:
        number, line = 0, b"\n"
        for number, line in enumerate(file, start=1):
            reader.take(number, line)
    if not line.endswith(b"\n"):
        refuse(path, number, "the last line has no end: the file may be cut off", "copy it again")
    return reader.result()


class _Reader:
    def __init__(self, path: Path, idle_s: int) -> None:
        self._path, self._idle_s = path, idle_s
        self._time_s = -1
        self._agent = ""
        self._rate = 0
        self._open: dict[tuple[bytes, str], _Seen] = {}
        self._ended: dict[bytes, list[tuple[str, _Seen]]] = defaultdict(list)
        self._rates: set[int] = set()
        self._samples = self._other = 0

    def take(self, number: int, line: bytes) -> None:
        """Take a line."""
        tag, _, rest = line.strip().partition(b" ")
        value = rest.strip()
        if tag == b"unixSecondsUTC":
            time_s = self._integer(number, value)
            if time_s < self._time_s:
                what = f"the clock runs back by {self._time_s - time_s} s"
                refuse(self._path, number, what, "give the output of one run of sflowtool")
            self._time_s = time_s
        elif tag == b"agent":
            self._agent = value.decode("ascii", "replace")
        elif tag == b"meanSkipCount":
            self._rate = self._integer(number, value)
            if self._rate < 1:
                refuse(self._path, number, "a sampling rate of 0", "sample packets, not counters")
        elif tag == b"headerBytes":
            self._sample(number, value)
        elif tag.startswith((b"FLOW,", b"CNTR,", b"{")):
            refuse(self._path, number, "is not sflowtool's plain output", _AGAIN)

    def _integer(self, number: int, value: bytes) -> int:
        if not value.isdigit():
            refuse(self._path, number, f"{shown(value)} is not a whole number", _AGAIN)
        return int(value)

    def _sample(self, number: int, value: bytes) -> None:
        if self._time_s < 0 or not self._rate:
            refuse(self._path, number, "a packet before its time or its sampling rate", _AGAIN)
        self._samples += 1
        self._rates.add(self._rate)
        try:
            data = bytes.fromhex(value.decode("ascii").replace("-", ""))
        except ValueError:
            refuse(self._path, number, f"{shown(value)} is no packet in hexadecimal", _AGAIN)
        packet = parse(data, _ETHERNET)
        if packet is None:
            self._other += 1
            return
        seen = self._open.get((packet.key, self._agent))
        if seen is None or self._time_s - seen.end_s > self._idle_s:
            if seen is not None:
                self._ended[packet.key].append((self._agent, seen))
            seen = self._open[packet.key, self._agent] = _Seen(self._time_s, self._time_s, 0, 0)
        seen.end_s = self._time_s
        seen.samples += 1
        seen.size_bytes += packet.payload_bytes * self._rate

    def result(self) -> Recorded:
        """Return the flows of what was taken."""
        if not self._samples:
            raise InputError.single(str(self._path), "has no sampled packets", _AGAIN)
        for (key, agent), seen in self._open.items():
            self._ended[key].append((agent, seen))
        records = []
        for key, found in self._ended.items():
            src, dst, protocol = ends_of(key)
            for seen in _of_one_switch(found):
                start_ns, end_ns = seen.start_s * 10**9, seen.end_s * 10**9
                record = (src, dst, start_ns, end_ns, seen.size_bytes, protocol)
                records.append(FlowRecord((key,), *record))
        kept = [record for record in records if record.size_bytes > 0]
        rates = ", ".join(str(rate) for rate in sorted(self._rates))
        notes = [
            f"sizes are estimates: sampled payload times the sampling rate (1 in {rates})",
            "starts are known to a second only",
            *counted(
                [
                    (self._other, "samples are neither TCP nor UDP"),
                    (len(records) - len(kept), "flows carry no payload (acknowledgements)"),
                ]
            ),
        ]
        kept.sort(key=lambda record: record.start_ns)
        return Recorded(f"{self._samples} samples", kept, notes)


def _of_one_switch(found: list[tuple[str, _Seen]]) -> list[_Seen]:
    """Return what the switch with the most samples saw."""
    samples: dict[str, int] = defaultdict(int)
    for agent, seen in found:
        samples[agent] += seen.samples
    most = max(samples, key=lambda agent: (samples[agent], agent))
    return [seen for agent, seen in found if agent == most]
