"""Describes the sources of a SONiC switch's numbers, in words, and which numbers it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestration.agent.sonic.asics import Cells, cells_of
from orchestration.core.records import Floats, Ints

# The counters' group in FLEX_COUNTER_TABLE, by field of an observation.
_GROUPS = {"tx_bytes": "QUEUE", "tx_packets": "QUEUE", "dropped_packets": "QUEUE"}
# The period that `closloop provision` sets; SONiC polls no faster.
FLOOR_MS = 100


class Stream:
    """How many depths came from High Frequency Telemetry, and what is said of its stream."""

    def __init__(self) -> None:
        self.about: Mapping[str, Any] = {}
        self._depths = self._streamed = 0

    def reading(self, streamed: Sequence[int], about: Mapping[str, Any], queues: int) -> None:
        """Take the queues of a reading whose depth was streamed."""
        self.about = about
        self._streamed += len(streamed)
        self._depths += queues

    @property
    def used(self) -> bool:
        """Whether any depth was streamed."""
        return self._streamed > 0

    def shortcomings(self) -> list[str]:
        """Return what readers must know of the stream."""
        found = []
        if self.used and self._streamed < self._depths:
            share = 1 - self._streamed / self._depths
            found.append(
                f"High Frequency Telemetry had no newer depth for {share:.1%} of readings: they "
                "have the polled one, if any, with its time"
            )
        lost = [f"{self.about[name]} {name}" for name in _LOSSES if self.about.get(name)]
        if lost:
            found.append(f"of High Frequency Telemetry's datagrams: {', '.join(lost)}")
        return found


_LOSSES = ("broken", "overruns")


def cells_of_switch(about: Mapping[str, Any]) -> Cells:
    """Return what is known of a switch's cells, from its answer to `sonic.capabilities`."""
    return cells_of(about.get("asic", ""), about.get("platform", ""), about.get("cell_bytes"))


def sources(
    about: Mapping[str, Any], stream: Stream, *, depth: bool, marks: bool
) -> dict[str, str]:
    """Return the source of each field of an observation; missing fields are left out.

    `about` is the switch's answer to `sonic.capabilities`; `depth` and `marks` say whether every
    opened queue has them.
    """
    polls = about["polls_ms"]
    result = {
        field: f"COUNTERS_DB, polled by the switch every {polls[group]} ms"
        for field, group in _GROUPS.items()
        if group in polls
    }
    if depth and stream.used:
        result["qlen_bytes"] = _streamed(about, stream)
    elif depth and "PFCWD" in polls:
        result["qlen_bytes"] = f"the PFC watchdog's reading, every {polls['PFCWD']} ms"
        if about["telemetry"]["offered"]:
            result["qlen_bytes"] += "; High Frequency Telemetry, which it has, was silent"
    if marks and "WRED_ECN_QUEUE" in polls:
        every = polls["WRED_ECN_QUEUE"]
        result["marked_packets"] = f"COUNTERS_DB, polled by the switch every {every} ms"
    result["thresholds"] = "as requested in ASIC_DB, after every change; the ASIC is not read"
    return result


def _streamed(about: Mapping[str, Any], stream: Stream) -> str:
    every = " or ".join(
        f"{session['poll_us']} us"
        for session in about["telemetry"]["sessions"]
        if session["on"] and session["depth"]
    )
    text = f"High Frequency Telemetry, every {every}, "
    if stream.about.get("own_clock"):
        return text + "stamped by a clock of its own, placed by the record that arrived soonest"
    return text + "stamped by the switch's clock"


def shortcomings(
    about: Mapping[str, Any],
    stream: Stream,
    *,
    depth: bool,
    marks: bool,
    sample_period_ns: int,
) -> list[str]:
    """Return what readers of a trial must know: numbers that are missing, replaced or outdated.

    No number is recorded under another's name: a watermark is not a depth.
    """
    polls = about["polls_ms"]
    found = []
    if not depth:
        found.append(_no_depth(about))
    if not marks:
        found.append(_no_marks(about))
    groups = ("QUEUE", "WRED_ECN_QUEUE") if stream.used else ("QUEUE", "WRED_ECN_QUEUE", "PFCWD")
    slow = [polls[group] for group in groups if polls.get(group, 0) * 1_000_000 > sample_period_ns]
    if slow:
        text = (
            f"counters are polled every {max(slow)} ms and sampled every "
            f"{sample_period_ns / 1e6:g} ms: in between they stay the same, and their age says so"
        )
        if max(slow) > FLOOR_MS:
            text += f"; `closloop provision` sets {FLOOR_MS} ms, the fastest that SONiC takes"
        found.append(text)
    found += stream.shortcomings()
    found.append(
        "pmax is whole percent; thresholds are recorded as requested, and the ASIC has them "
        f"{cells_of_switch(about).said}: expected, not read"
    )
    return found


def _no_depth(about: Mapping[str, Any]) -> str:
    text = "offers no current queue depth: no PFC watchdog reads these queues"
    telemetry = about["telemetry"]
    if telemetry["offered"]:
        text += ", and High Frequency Telemetry, which the ASIC has, streams none of them"
    if "QUEUE_WATERMARK" in about["polls_ms"]:
        every = about["polls_ms"]["QUEUE_WATERMARK"]
        text += f"; recorded instead is the watermark, the peak of each {every} ms"
    return text


def _no_marks(about: Mapping[str, Any]) -> str:
    if not about["marks_supported"]:
        release = about.get("release") or "of unknown number"
        return (
            f"counts no ECN marks: release {release} or this ASIC does not support it (releases "
            "from 202505 on may); the hosts' NICs count what arrives marked"
        )
    return "counts no ECN marks: WRED_ECN_QUEUE is off; `closloop provision` turns it on"


def shares(percent: Ints) -> Floats:
    """Convert drop probabilities in percent to shares."""
    return np.asarray(percent, dtype=np.float64) / 100
