"""A SONiC switch as the rig sees it: its requests, their answers, the sources of its signals.

SONiC's counters are polled: the switch copies the ASIC's counters into a Redis database
(COUNTERS_DB) every so often. With High Frequency Telemetry the ASIC also streams some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inventory.rack import Rack
from orchestration.agent.sonic.asics import Cells, cells_of
from orchestration.backends.hardware.sonic.config import queue_locations
from orchestration.backends.hardware.switches import Switch, SwitchReading
from orchestration.core.records import MISSING, Floats, Ints

# The group in FLEX_COUNTER_TABLE that polls a signal, by the signal's name.
_GROUPS = {"tx_bytes": "QUEUE", "tx_packets": "QUEUE", "dropped_packets": "QUEUE"}
# The poll period that `closloop provision` sets; SONiC accepts no shorter one.
MIN_POLL_MS = 100


class _Stream:
    """Counts the queue depths that came from High Frequency Telemetry.

    `about` is what the agent reported about the stream at the last reading.
    """

    def __init__(self) -> None:
        self.about: Mapping[str, Any] = {}
        self._depths = self._streamed = 0

    def count(self, streamed: Sequence[int], about: Mapping[str, Any], queues: int) -> None:
        """Count a reading of so many queues, of which those in `streamed` came from the stream."""
        self.about = about
        self._streamed += len(streamed)
        self._depths += queues

    @property
    def used(self) -> bool:
        return self._streamed > 0

    def shortcomings(self) -> list[str]:
        shortcomings = []
        if self.used and self._streamed < self._depths:
            share = 1 - self._streamed / self._depths
            shortcomings.append(
                f"High Frequency Telemetry had no newer depth for {share:.1%} of readings: these "
                "have the polled depth, if any, with its time"
            )
        lost = [
            f"{self.about[name]} {name}" for name in ("broken", "overruns") if self.about.get(name)
        ]
        if lost:
            shortcomings.append(f"of High Frequency Telemetry's datagrams: {', '.join(lost)}")
        return shortcomings


def shares(percent: Ints) -> Floats:
    """Convert drop probabilities in percent to shares."""
    return np.asarray(percent, dtype=np.float64) / 100


_ROW = 8
# A pause frame asks for at most 65,535 quanta of 512 bits (IEEE 802.1Qbb).
_LONGEST_PAUSE_BITS = 65_535 * 512


class SonicSwitch(Switch):
    """A switch whose queues are in an ASIC; SONiC polls the ASIC, and SONiC's database is read.

    After a reading, `peak_bytes` has the queues' watermarks, and `pauses` the PFC frames that were
    received and sent at the queue's port, of all priorities, shape (2, queues). Values that the
    switch does not have are `MISSING`.
    """

    services = ("sonic",)
    reads_back = False
    _operation_prefix = "sonic"

    def __init__(self, rack: Rack, device: str) -> None:
        super().__init__(device, queue_locations(rack, device))
        queues = [queue for queue in rack.testbed.queues if queue.device == device]
        self._rates_bps = np.array([queue.rate_bps for queue in queues], dtype=np.float64)
        # what the switch can do, from its answers
        self._about: dict[str, Any] = {}
        # whether all queues have a depth, and a counter of CE packets
        self._depth = self._marks = False
        self._stream = _Stream()
        self._requested: Ints = np.zeros((2, 0), dtype=np.int64)
        self.peak_bytes: Ints = np.full(len(self._locations), MISSING, dtype=np.int64)
        self.pauses: Ints = np.full((2, len(self._locations)), MISSING, dtype=np.int64)
        self.restarts = self.edit_ns = 0

    def _max_p(self, pmax: Floats) -> list[Any]:
        shares: list[Any] = pmax.tolist()
        return shares

    def _reading(self, answer: Any) -> SwitchReading:
        rows = _numbers(answer["rows"]).reshape(len(self._locations), _ROW)
        t_ns, marks_ns, depth_ns = (
            _numbers(answer[name]).reshape(len(rows))
            for name in ("t_ns", "marks_t_ns", "depth_t_ns")
        )
        self._about = answer.get("about", self._about)
        self.peak_bytes = _numbers(answer["peak_bytes"]).reshape(len(rows))
        self.restarts, self.edit_ns = int(answer["restarts"]), int(answer["edit_ns"])
        totals = {
            port: [_total(counts) for counts in both] for port, both in answer["pauses"].items()
        }
        self.pauses = np.array([totals[port] for port, _, _ in self._locations], dtype=np.int64).T
        qlen, sent, packets, marked, dropped, kmin, kmax, percent = rows.T
        self._depth, self._marks = bool((qlen >= 0).all()), bool((marked >= 0).all())
        self._requested = np.stack([kmin, kmax])
        self._stream.count(answer["streamed"], answer["stream"], marked.size)
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
        """Return an upper bound on the time for which pause frames stopped each port, in ns."""
        received = np.maximum(self.pauses[0], 0).astype(np.float64)
        paused_ns = np.rint(received * _LONGEST_PAUSE_BITS * 1e9 / self._rates_bps)
        whole: Ints = paused_ns.astype(np.int64)
        return whole

    def sources(self) -> Mapping[str, str]:
        """Return the source of each signal that the switch offers."""
        about, polls = self._about, self._about["polls_ms"]
        polled = "COUNTERS_DB, polled by the switch every {} ms"
        sources = {
            name: polled.format(polls[group]) for name, group in _GROUPS.items() if group in polls
        }
        if self._depth and self._stream.used:
            sources["qlen_bytes"] = self._describe_stream()
        elif self._depth and "PFCWD" in polls:
            sources["qlen_bytes"] = f"the PFC watchdog's reading, every {polls['PFCWD']} ms"
            if about["telemetry"]["offered"]:
                sources["qlen_bytes"] += "; High Frequency Telemetry, which it has, was silent"
        if self._marks and "WRED_ECN_QUEUE" in polls:
            sources["marked_packets"] = polled.format(polls["WRED_ECN_QUEUE"])
        sources["thresholds"] = "as requested in ASIC_DB, after every change; the ASIC is not read"
        return sources

    def _describe_stream(self) -> str:
        every = " or ".join(
            f"{session['poll_us']} us"
            for session in self._about["telemetry"]["sessions"]
            if session["on"] and session["depth"]
        )
        text = f"High Frequency Telemetry, every {every}, "
        if self._stream.about.get("own_clock"):
            return text + (
                "with time stamps of a clock of its own, aligned by the record that arrived with "
                "the least delay"
            )
        return text + "with time stamps of the switch's clock"

    def shortcomings(self, sample_period_ns: int) -> list[str]:
        """Return sentences on signals that the switch lacks, or updates more rarely than sampled.

        No number is recorded under another's name: a watermark is not a depth.
        """
        polls, texts = self._about["polls_ms"], []
        if not self._depth:
            texts.append(self._describe_missing_depth())
        if not self._marks:
            texts.append(self._describe_missing_marks())
        groups = ("QUEUE", "WRED_ECN_QUEUE", *(() if self._stream.used else ("PFCWD",)))
        slow_ms = max(polls.get(group, 0) for group in groups)
        if slow_ms * 1_000_000 > sample_period_ns:
            text = (
                f"counters are polled every {slow_ms} ms and sampled every "
                f"{sample_period_ns / 1e6:g} ms: between two polls they stay the same, and their "
                "age grows"
            )
            if slow_ms > MIN_POLL_MS:
                text += (
                    f"; `closloop provision` sets {MIN_POLL_MS} ms, the shortest that SONiC accepts"
                )
            texts.append(text)
        texts += self._stream.shortcomings()
        texts.append(
            "pmax is in whole percent; thresholds are recorded as requested, and the ASIC has them "
            f"{self._cells().description}: expected, not read"
        )
        if self.restarts:
            texts.append(f"its Redis was restarted meanwhile ({self.restarts} times)")
        if self.edit_ns and self._about.get("asic") == "mellanox":
            texts.append(
                "each change takes a profile off its queue for a moment, in which nothing is "
                f"marked: less than {self.edit_ns / 1e6:.1f} ms, the longest time of a change"
            )
        return texts

    def _describe_missing_depth(self) -> str:
        text = "offers no current queue depth: no PFC watchdog reads these queues"
        if self._about["telemetry"]["offered"]:
            text += ", and High Frequency Telemetry, which the ASIC has, streams none of them"
        if "QUEUE_WATERMARK" in self._about["polls_ms"]:
            every = self._about["polls_ms"]["QUEUE_WATERMARK"]
            text += f"; recorded instead is the watermark, the peak of each {every} ms"
        return text

    def _describe_missing_marks(self) -> str:
        if self._about["marks_supported"]:
            return "counts no CE packets: WRED_ECN_QUEUE is off; `closloop provision` turns it on"
        release = self._about.get("release") or "of unknown number"
        return (
            f"counts no CE packets: release {release} or this ASIC does not support it (releases "
            "from 202505 on may); the hosts' NICs count the CE packets that arrive"
        )

    def _cells(self) -> Cells:
        about = self._about
        return cells_of(about.get("asic", ""), about.get("platform", ""), about.get("cell_bytes"))

    def expected(self) -> Mapping[str, Any]:
        """Return the thresholds that the ASIC should have after the last request.

        `thresholds` are [kmin, kmax] in bytes, by interface and queue, null where unknown.
        """
        cells = self._cells()
        return {
            "asic": f"has thresholds {cells.description}",
            "longest_change_ns": self.edit_ns,
            "step_bytes": cells.step_bytes,
            "thresholds": {
                f"{port}|{queue}": [cells.expected(int(value)) for value in column]
                for (port, queue, _), column in zip(self._locations, self._requested.T, strict=True)
            },
        }


def _oldest(t_ns: Ints, *others: tuple[Ints, Ints]) -> Ints:
    """Return, by queue, the oldest of several times.

    `others` are pairs of values and their times, which count only where there is a value.
    """
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
    """Return the sum of the counts that are known, `MISSING` if none is."""
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else MISSING
