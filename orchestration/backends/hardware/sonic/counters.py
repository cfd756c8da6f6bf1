"""Describes the sources of a SONiC switch's numbers, in words, and which numbers it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestration.model.records import Floats, Ints

# The counters' group in FLEX_COUNTER_TABLE, by field of an observation.
_GROUPS = {"tx_bytes": "QUEUE", "tx_packets": "QUEUE", "dropped_packets": "QUEUE"}
# The period that `closloop provision` sets; SONiC polls no faster.
FLOOR_MS = 100


def sources(about: Mapping[str, Any], *, depth: bool, marks: bool) -> dict[str, str]:
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
    if depth and "PFCWD" in polls:
        result["qlen_bytes"] = f"the PFC watchdog's reading, every {polls['PFCWD']} ms"
    if marks and "WRED_ECN_QUEUE" in polls:
        every = polls["WRED_ECN_QUEUE"]
        result["marked_packets"] = f"COUNTERS_DB, polled by the switch every {every} ms"
    result["thresholds"] = "ASIC_DB, after every change"
    return result


def shortcomings(
    about: Mapping[str, Any], *, depth: bool, marks: bool, sample_period_ns: int
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
    slow = [
        (group, polls[group])
        for group in ("QUEUE", "WRED_ECN_QUEUE", "PFCWD")
        if group in polls and polls[group] * 1_000_000 > sample_period_ns
    ]
    if slow:
        longest = max(poll for _, poll in slow)
        text = (
            f"counters are polled every {longest} ms and sampled every "
            f"{sample_period_ns / 1e6:g} ms: in between they stay the same, and their age says so"
        )
        if longest > FLOOR_MS:
            text += f"; `closloop provision` sets {FLOOR_MS} ms, the fastest that SONiC takes"
        found.append(text)
    found.append("pmax is whole percent, and the ASIC rounds thresholds: what it has is recorded")
    return found


def _no_depth(about: Mapping[str, Any]) -> str:
    text = "offers no current queue depth: no PFC watchdog reads these queues"
    streams: Sequence[Mapping[str, Any]] = about.get("telemetry", ())
    if streams:
        text += " (High Frequency Telemetry streams it to a collector, not to the database)"
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
