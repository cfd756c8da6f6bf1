"""A SONiC switch as the rig sees it: its requests, their answers, its numbers' sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inventory.rack import Rack
from orchestration.agent.sonic.asics import Cells, cells_of
from orchestration.backends.hardware.sonic.config import queue_locations
from orchestration.backends.hardware.switches import Switch, SwitchReading
from orchestration.core.records import MISSING, Floats, Ints

# The counters' group in FLEX_COUNTER_TABLE, by field of an observation.
_GROUPS = {"tx_bytes": "QUEUE", "tx_packets": "QUEUE", "dropped_packets": "QUEUE"}
# The period that `closloop provision` sets; SONiC polls no faster.
FLOOR_MS = 100


class _Stream:
    """How many depths came from High Frequency Telemetry, and what is said of its stream."""

    def __init__(self) -> None:
        self.about: Mapping[str, Any] = {}
        self._depths = self._streamed = 0

    def reading(self, streamed: Sequence[int], about: Mapping[str, Any], queues: int) -> None:
        self.about = about
        self._streamed += len(streamed)
        self._depths += queues

    @property
    def used(self) -> bool:
        return self._streamed > 0

    def shortcomings(self) -> list[str]:
        found = []
        if self.used and self._streamed < self._depths:
            share = 1 - self._streamed / self._depths
            found.append(
                f"High Frequency Telemetry had no newer depth for {share:.1%} of readings: they "
                "have the polled one, if any, with its time"
            )
        lost = [
            f"{self.about[name]} {name}" for name in ("broken", "overruns") if self.about.get(name)
        ]
        if lost:
            found.append(f"of High Frequency Telemetry's datagrams: {', '.join(lost)}")
        return found


def shares(percent: Ints) -> Floats:
    """Convert drop probabilities in percent to shares."""
    return np.asarray(percent, dtype=np.float64) / 100


_ROW = 8
# A pause frame asks for at most 65,535 quanta of 512 bits (IEEE 802.1Qbb).
_LONGEST_PAUSE_BITS = 65_535 * 512


class SonicSwitch(Switch):
    """A switch whose queues are an ASIC's; SONiC polls them, and its database is read.

    After a reading, `peak_bytes` has the queues' watermarks and `pauses` the PFC frames received
    and sent, shape (2, queues), of all priorities of the queue's port; `MISSING` where there are
    none.
    """

    services = ("sonic",)
    reads_back = False
    _operations = "sonic"

    def __init__(self, rack: Rack, device: str) -> None:
        super().__init__(device, queue_locations(rack, device))
        queues = [queue for queue in rack.testbed.queues if queue.device == device]
        self._rates_bps = np.array([queue.rate_bps for queue in queues], dtype=np.float64)
        # the switch's answer to `sonic.capabilities`; whether all opened queues have these numbers
        self._about: dict[str, Any] = {}
        self._depth = self._marks = False
        self._stream = _Stream()
        self._requested: Ints = np.zeros((2, 0), dtype=np.int64)
        self.peak_bytes: Ints = np.full(len(self._places), MISSING, dtype=np.int64)
        self.pauses: Ints = np.full((2, len(self._places)), MISSING, dtype=np.int64)
        self.restarts = self.edit_ns = 0

    def _max_p(self, pmax: Floats) -> list[Any]:
        shares: list[Any] = pmax.tolist()
        return shares

    def _reading(self, answer: Any) -> SwitchReading:
        rows = _numbers(answer["rows"]).reshape(len(self._places), _ROW)
        t_ns, marks_ns, depth_ns = (
            _numbers(answer[name]).reshape(len(rows))
            for name in ("t_ns", "marks_t_ns", "depth_t_ns")
        )
        self._about = answer.get("about", self._about)
        self.peak_bytes = _numbers(answer["peak_bytes"]).reshape(len(rows))
        self.restarts, self.edit_ns = int(answer["restarts"]), int(answer["edit_ns"])
        totals = {port: [_total(way) for way in ways] for port, ways in answer["pauses"].items()}
        self.pauses = np.array([totals[port] for port, _, _ in self._places], dtype=np.int64).T
        qlen, sent, packets, marked, dropped, kmin, kmax, percent = rows.T
        self._depth, self._marks = bool((qlen >= 0).all()), bool((marked >= 0).all())
        self._requested = np.stack([kmin, kmax])
        self._stream.reading(answer["streamed"], answer["stream"], marked.size)
        return SwitchReading(
            t_ns=_oldest(t_ns, (marked, marks_ns), (qlen, depth_ns)),
            qlen_bytes=qlen,
            tx_bytes=sent,
            tx_packets=packets,
            marked_packets=marked,
            dropped_packets=dropped,
            kmin_bytes=kmin,
            kmax_bytes=kmax,
            pmax=shares(percent),
            paused_ns=self._paused_ns(),
            peak_bytes=self.peak_bytes,
            signal_t_ns={
                **dict.fromkeys(("tx_bytes", "tx_packets", "dropped_packets"), t_ns),
                "marked_packets": marks_ns,
                "qlen_bytes": depth_ns,
            },
        )

    def _paused_ns(self) -> Ints:
        """Return the longest time that received pauses may have stopped each port, in ns."""
        received = np.maximum(self.pauses[0], 0).astype(np.float64)
        paused_ns = np.rint(received * _LONGEST_PAUSE_BITS * 1e9 / self._rates_bps)
        whole: Ints = paused_ns.astype(np.int64)
        return whole

    def sources(self) -> Mapping[str, str]:
        """Return the source of each number; numbers that the switch does not offer are left out."""
        about, polls = self._about, self._about["polls_ms"]
        polled = "COUNTERS_DB, polled by the switch every {} ms"
        found = {
            field: polled.format(polls[group]) for field, group in _GROUPS.items() if group in polls
        }
        if self._depth and self._stream.used:
            found["qlen_bytes"] = self._streamed()
        elif self._depth and "PFCWD" in polls:
            found["qlen_bytes"] = f"the PFC watchdog's reading, every {polls['PFCWD']} ms"
            if about["telemetry"]["offered"]:
                found["qlen_bytes"] += "; High Frequency Telemetry, which it has, was silent"
        if self._marks and "WRED_ECN_QUEUE" in polls:
            found["marked_packets"] = polled.format(polls["WRED_ECN_QUEUE"])
        found["thresholds"] = "as requested in ASIC_DB, after every change; the ASIC is not read"
        return found

    def _streamed(self) -> str:
        every = " or ".join(
            f"{session['poll_us']} us"
            for session in self._about["telemetry"]["sessions"]
            if session["on"] and session["depth"]
        )
        text = f"High Frequency Telemetry, every {every}, "
        if self._stream.about.get("own_clock"):
            return text + "stamped by a clock of its own, placed by the record that arrived soonest"
        return text + "stamped by the switch's clock"

    def shortcomings(self, sample_period_ns: int) -> list[str]:
        """Return what the switch lacks, or updates less often than it is sampled.

        No number is recorded under another's name: a watermark is not a depth.
        """
        polls, found = self._about["polls_ms"], []
        if not self._depth:
            found.append(self._no_depth())
        if not self._marks:
            found.append(self._no_marks())
        groups = ("QUEUE", "WRED_ECN_QUEUE", *(() if self._stream.used else ("PFCWD",)))
        slow_ms = max(polls.get(group, 0) for group in groups)
        if slow_ms * 1_000_000 > sample_period_ns:
            text = (
                f"counters are polled every {slow_ms} ms and sampled every "
                f"{sample_period_ns / 1e6:g} ms: in between they stay the same, and their age says "
                "so"
            )
            if slow_ms > FLOOR_MS:
                text += f"; `closloop provision` sets {FLOOR_MS} ms, the fastest that SONiC takes"
            found.append(text)
        found += self._stream.shortcomings()
        found.append(
            "pmax is whole percent; thresholds are recorded as requested, and the ASIC has them "
            f"{self._cells().said}: expected, not read"
        )
        if self.restarts:
            found.append(f"its Redis was restarted meanwhile ({self.restarts} times)")
        if self.edit_ns and self._about.get("asic") == "mellanox":
            found.append(
                "each change takes a profile off its queue for a moment, and marking with it: "
                f"less than {self.edit_ns / 1e6:.1f} ms, the longest that a change took"
            )
        return found

    def _no_depth(self) -> str:
        text = "offers no current queue depth: no PFC watchdog reads these queues"
        if self._about["telemetry"]["offered"]:
            text += ", and High Frequency Telemetry, which the ASIC has, streams none of them"
        if "QUEUE_WATERMARK" in self._about["polls_ms"]:
            every = self._about["polls_ms"]["QUEUE_WATERMARK"]
            text += f"; recorded instead is the watermark, the peak of each {every} ms"
        return text

    def _no_marks(self) -> str:
        if self._about["marks_supported"]:
            return "counts no ECN marks: WRED_ECN_QUEUE is off; `closloop provision` turns it on"
        release = self._about.get("release") or "of unknown number"
        return (
            f"counts no ECN marks: release {release} or this ASIC does not support it (releases "
            "from 202505 on may); the hosts' NICs count what arrives marked"
        )

    def _cells(self) -> Cells:
        about = self._about
        return cells_of(about.get("asic", ""), about.get("platform", ""), about.get("cell_bytes"))

    def expected(self) -> Mapping[str, Any]:
        """Return what the ASIC should have for the thresholds that were last requested.

        `thresholds` are [kmin, kmax] in bytes, by interface and queue, null where unknown.
        """
        cells = self._cells()
        return {
            "asic": f"has thresholds {cells.said}",
            "longest_change_ns": self.edit_ns,
            "step_bytes": cells.step_bytes,
            "thresholds": {
                f"{port}|{queue}": [cells.expected(int(value)) for value in column]
                for (port, queue, _), column in zip(self._places, self._requested.T, strict=True)
            },
        }


def _oldest(t_ns: Ints, *others: tuple[Ints, Ints]) -> Ints:
    """Return the oldest of some times; of the others (values and times), where there are values."""
    oldest = t_ns
    for values, other_ns in others:
        oldest = np.where(values == MISSING, oldest, np.minimum(oldest, other_ns))
    return oldest


def _numbers(values: Any) -> Ints:
    """Convert to integers, with `MISSING` for null."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        return MISSING if value is None else value

    return np.array(filled(values), dtype=np.int64)


def _total(counts: list[Any]) -> int:
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else MISSING
