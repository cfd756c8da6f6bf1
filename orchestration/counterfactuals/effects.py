"""The effects of a changed decision on each flow, and on the queue that it was about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inventory.routing import attachment, next_hops
from orchestration.core.records import DONE, MISSING, STATUS_NAMES, Floats, Ints
from orchestration.core.topology import Testbed
from orchestration.results.reader import TrialResult
from orchestration.results.tables import TABLES

# Whether a flow's packets pass a port: on all shortest paths, on some of them, or on none.
Passes = Literal["yes", "maybe", "no"]


@dataclass(frozen=True)
class FlowChanges:
    """The flows of a trial and of its counterfactual, in the order of the schedule.

    All arrays have shape (flows,). `before_ns` and `after_ns` are the FCTs in the trial and in the
    counterfactual, NaN for flows that were not completed. `slowdown_before` and `slowdown_after`
    are these divided by the ideal FCT.
    """

    flow_id: Ints
    start_ns: Ints
    src: NDArray[np.object_]
    dst: NDArray[np.object_]
    klass: NDArray[np.object_]
    size_bytes: Ints
    before_ns: Floats
    after_ns: Floats
    slowdown_before: Floats
    slowdown_after: Floats

    @property
    def done_in_both(self) -> NDArray[np.bool_]:
        """Which flows were completed in both trials."""
        return np.isfinite(self.before_ns) & np.isfinite(self.after_ns)

    @property
    def fct_change_ns(self) -> Floats:
        """The change of FCT; NaN unless the flow was completed in both trials."""
        return self.after_ns - self.before_ns

    @property
    def slowdown_change(self) -> Floats:
        """The change of slowdown; NaN unless the flow was completed in both trials."""
        return self.slowdown_after - self.slowdown_before

    def running_between(self, from_ns: int, to_ns: int) -> NDArray[np.bool_]:
        """Return which flows were running in the parent at some time between two times.

        That does not depend on the change, so that it does not select flows by their outcome.
        """
        end_ns = np.where(np.isfinite(self.before_ns), self.start_ns + self.before_ns, np.inf)
        return np.asarray((self.start_ns <= to_ns) & (end_ns >= from_ns))

    def largest_changes(self, count: int) -> Ints:
        """Return the rows of at most `count` flows whose FCT changed, the largest change first."""
        size = np.abs(np.nan_to_num(self.fct_change_ns))
        order = np.argsort(-size, kind="stable")[: max(0, count)]
        return np.asarray(order[size[order] > 0])


@dataclass(frozen=True)
class FlowTotals:
    """Counts of flows, and sums and means of their changes.

    `changed`, `better` and `worse` count flows that were completed in both trials, by their change
    of FCT. `no_longer` were completed without the change only, `only_now` with it only. Sums and
    means are over all flows that were completed in both, changed or not; NaN if there are none.
    """

    flows: int
    changed: int
    better: int
    worse: int
    no_longer: int
    only_now: int
    sum_fct_ns: float
    mean_fct_ns: float
    sum_slowdown: float
    mean_slowdown: float


def flow_changes(parent: TrialResult, other: TrialResult) -> FlowChanges:
    """Return the flows of a trial and of its counterfactual, which has the same schedule.

    Raises InputError for damaged tables.
    """
    schedule, before, after = parent.table("schedule"), parent.table("flows"), other.table("flows")
    first, then = _fct(before), _fct(after)
    ideal = before["ideal_ns"].astype(np.float64)
    names = ("flow_id", "start_ns", "src", "dst", "class", "bytes")
    flow, start_ns, src, dst, klass, size = (schedule[name] for name in names)
    done_in_both = (first, then, first / ideal, then / ideal)
    return FlowChanges(flow, start_ns, src, dst, klass, size, *done_in_both)


def _fct(flows: Mapping[str, NDArray[np.int64]]) -> Floats:
    done = flows["status"] == STATUS_NAMES[DONE]
    return np.where(done, flows["fct_ns"].astype(np.float64), math.nan)


def totals(flows: FlowChanges, chosen: NDArray[np.bool_] | None = None) -> FlowTotals:
    """Return the counts and changes of the chosen flows, by default of all."""
    own = np.ones(len(flows.flow_id), dtype=bool) if chosen is None else chosen
    done_in_both = own & flows.done_in_both
    fct, slowdown = flows.fct_change_ns[done_in_both], flows.slowdown_change[done_in_both]
    done_before, done_after = np.isfinite(flows.before_ns), np.isfinite(flows.after_ns)
    return FlowTotals(
        flows=int(own.sum()),
        changed=int(np.count_nonzero(fct)),
        better=int((fct < 0).sum()),
        worse=int((fct > 0).sum()),
        no_longer=int((own & done_before & ~done_after).sum()),
        only_now=int((own & ~done_before & done_after).sum()),
        sum_fct_ns=float(fct.sum()),
        mean_fct_ns=float(fct.mean()) if len(fct) else math.nan,
        sum_slowdown=float(slowdown.sum()),
        mean_slowdown=float(slowdown.mean()) if len(fct) else math.nan,
    )


@dataclass(frozen=True)
class QueueMetrics:
    """What happened at a queue between two times; counts are -1 and lengths NaN without samples."""

    marked_packets: int
    dropped_packets: int
    sent_bytes: int
    mean_bytes: float
    max_bytes: float


def queue_metrics(trial: TrialResult, queue: int, from_ns: int, to_ns: int) -> QueueMetrics:
    """Return the metrics of the queue with this number between two sampling times."""
    ports = trial.ports
    at = sampling_times(ports.t_ns, trial.spec.sample_period_ns)
    inside = (at > from_ns) & (at <= to_ns)
    length = ports.qlen_bytes[inside, queue]
    length = length[length != MISSING]
    first, last = (int(np.searchsorted(at, t, side="right")) - 1 for t in (from_ns, to_ns))

    def difference(name: str) -> int:
        column = ports[name][:, queue]
        if last < 0 or column[last] == MISSING:
            return MISSING
        return int(column[last] - (column[first] if first >= 0 else 0))

    lengths = (float(length.mean()), float(length.max())) if len(length) else (math.nan, math.nan)
    return QueueMetrics(
        difference("marked_packets"),
        difference("dropped_packets"),
        difference("tx_bytes"),
        *lengths,
    )


def sampling_times(t_ns: Ints, period_ns: int) -> Ints:
    """Return the sampling time of each reading, which begins a little after it."""
    return np.asarray((t_ns + period_ns // 10) // period_ns * period_ns)


def differing_tables(parent: TrialResult, other: TrialResult) -> list[str]:
    """Return the columns, as `table.column`, that differ between two trials by any bit."""
    differing = []
    for name in TABLES:
        ours, theirs = parent.table(name), other.table(name)
        differing += [
            f"{name}.{column}"
            for column in ours
            if column not in theirs or not np.array_equal(ours[column], theirs[column])
        ]
    return differing


class Paths:
    """Answers which flows can pass a queue, by the routes of the fabric without faults."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._hops = next_hops(testbed)

    def passes(self, queue: int, src: str, dst: str) -> Passes:
        """Return whether flows from host `src` to host `dst` pass the queue with this number."""
        port = self._testbed.queues[queue].port.index
        last_hops = {self._testbed.ports[nic.peer].index for nic in self._testbed.ports_of[dst]}
        if port in last_hops:
            return "yes" if len(last_hops) == 1 else "maybe"
        for target in attachment(self._testbed, dst):
            switches = set(attachment(self._testbed, src))
            while switches and switches != {target}:
                ports = [p for name in sorted(switches) for p in self._hops[name].get(target, ())]
                if any(hop.index == port for hop in ports):
                    return "yes" if len(ports) == 1 and len(last_hops) == 1 else "maybe"
                switches = {self._testbed.peer_device(hop).name for hop in ports}
        return "no"
