"""Whether ECN thresholds reached anything in a trial: a finding for its stamp if they did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from inventory.routing import flow_controls, ignores_marks
from orchestration.core.capabilities import mode_of
from orchestration.core.knobs import ECN
from orchestration.core.records import MISSING, ChangeRecords, Floats, TrialRecord
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.stamp import Reason, Stamp

UNANSWERED = "marks-unanswered"


def check_marks(trial: TrialSpec, testbed: Testbed, record: TrialRecord) -> Iterator[Reason] | None:
    """Find thresholds that reached nothing; None if none were set or no packet was seen.

    That is certain where no flow answers marks. Elsewhere packets are not ECN-capable, or the
    switches do not mark, if no packet at all was marked although queues grew beyond kmax.
    """
    changes, ports = record.changes.get(ECN.name), record.ports
    if changes is None or not len(changes.targets) or not (ports.tx_packets > 0).any():
        return None
    return _findings(trial, testbed, record, changes)


def why_identical(stamps: Iterable[Stamp]) -> str:
    """Return why tuners of thresholds cannot differ in trials with these stamps; "" if unknown."""
    said = {
        next((one.text for one in stamp.reasons if one.code == UNANSWERED), "") for stamp in stamps
    }
    causes = {text.partition(":")[0] for text in said}
    return causes.pop() if len(causes) == 1 else ""


def _findings(
    trial: TrialSpec, testbed: Testbed, record: TrialRecord, changes: ChangeRecords
) -> Iterator[Reason]:
    if ignores_marks(testbed, trial):
        controls = ", ".join(dict.fromkeys(flow_controls(testbed, trial)))
        yield Reason(
            UNANSWERED,
            "warning",
            f"no flow answers ECN marks under {controls}: the thresholds that tuner "
            f"{trial.tuner.name!r} set reached nothing",
        )
        return
    marked = record.ports.marked_packets
    if (marked == MISSING).any() or marked.max(initial=0) > 0:
        return
    count = grown_beyond(trial, testbed, record, changes)
    if count:
        yield Reason(
            "marks-missing",
            "warning",
            f"no packet was marked, although {count} readings found a queue grown beyond kmax: "
            "packets are not ECN-capable (net.ipv4.tcp_ecn, a driver's traffic class), or the "
            "switches do not mark; thresholds reached nothing, or dropped packets",
        )


def grown_beyond(
    trial: TrialSpec, testbed: Testbed, record: TrialRecord, changes: ChangeRecords
) -> int:
    """Return how many readings found a queue grown to a frame or more beyond its kmax.

    The packet that made it so then arrived at a queue of kmax or more, and was to be marked. Kmax
    is the highest that was in force since the reading before.
    """
    ports = record.ports
    # of what a rack's switches poll, the latest may not be counted yet
    late_ns = mode_of(trial).counters_late_ns
    seen = int(np.searchsorted(ports.t_ns, ports.t_ns[-1] - late_ns, side="right"))
    held = ports.qlen_bytes[:seen]
    frame_bytes = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    beyond = held[1:] >= _highest(changes, ports.t_ns[:seen], held.shape[1])[1:] + frame_bytes
    grown = (held[:-1] != MISSING) & (held[1:] > held[:-1])
    return int(np.count_nonzero(beyond & grown))


def _highest(changes: ChangeRecords, t_ns: np.ndarray, queues: int) -> Floats:
    """Return the highest kmax since the last reading, shape (samples, queues); inf before any."""
    highest = np.full((len(t_ns), queues), np.inf)
    order = np.argsort(changes.applied_ns, kind="stable")
    kmax, targets = changes.values["kmax_bytes"][order], changes.targets[order]
    due = np.searchsorted(t_ns, changes.applied_ns[order], side="left")
    now = np.full(queues, np.inf)
    begin = 0
    for sample in range(len(t_ns)):
        highest[sample] = now
        while begin < len(due) and due[begin] <= sample:
            queue = targets[begin]
            now[queue] = kmax[begin]
            highest[sample, queue] = max(highest[sample, queue], kmax[begin])
            begin += 1
    return highest
