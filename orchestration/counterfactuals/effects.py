"""What a changed decision did: flow by flow, and at the queue that it was about."""

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

# Whether a flow's packets take a port: on every shortest path, on some, on none.
Passes = Literal["yes", "maybe", "no"]


@dataclass(frozen=True)
class FlowChanges:
    """Each flow of a trial and of its counterfactual; arrays of shape (flows,), in their order.

    `before_ns` and `after_ns` are FCTs, NaN for flows that were not done; `slowdown_before` and
    `slowdown_after` these over the ideal FCT.
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
        """The flows that were done in both."""
        return np.isfinite(self.before_ns) & np.isfinite(self.after_ns)

    @property
    def fct_change_ns(self) -> Floats:
        """The change of FCT; NaN unless the flow was done in both."""
        return self.after_ns - self.before_ns

    @property
    def slowdown_change(self) -> Floats:
        """The change of slowdown; NaN unless the flow was done in both."""
        return self.slowdown_after - self.slowdown_before

    def running_between(self, from_ns: int, to_ns: int) -> NDArray[np.bool_]:
        """Return which flows were under way in the parent between two times.

        It is known before anything is changed, so it selects nothing by the outcome.
        """
        end_ns = np.where(np.isfinite(self.before_ns), self.start_ns + self.before_ns, np.inf)
        return np.asarray((self.start_ns <= to_ns) & (end_ns >= from_ns))

    def largest_changes(self, count: int) -> Ints:
        """Return the flows whose FCT changed most, first the most, at most `count`."""
        size = np.abs(np.nan_to_num(self.fct_change_ns))
        order = np.argsort(-size, kind="stable")[: max(0, count)]
        return np.asarray(order[size[order] > 0])


@dataclass(frozen=True)
class FlowTotals:
    """Counts of flows, and changes over those that were done in both.

    `changed` counts them, `no_longer` and `only_now` are done before or after the change only. The
    means are over all flows that were done in both, changed or not; NaN if there are none.
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
    """Return the flows of both, which have the same schedule. Raises InputError."""
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
    """Return the counts and changes of all flows, or of the chosen ones."""
    own = np.ones(len(flows.flow_id), dtype=bool) if chosen is None else chosen
    done_in_both = own & flows.done_in_both
    fct, slowdown = flows.fct_change_ns[done_in_both], flows.slowdown_change[done_in_both]
    done_before, done_after = np.isfinite(flows.before_ns), np.isfinite(flows.after_ns)
    some = len(fct) > 0
    return FlowTotals(
        flows=int(own.sum()),
        changed=int(np.count_nonzero(fct)),
        better=int((fct < 0).sum()),
        worse=int((fct > 0).sum()),
        no_longer=int((own & done_before & ~done_after).sum()),
        only_now=int((own & ~done_before & done_after).sum()),
        sum_fct_ns=float(fct.sum()),
        mean_fct_ns=float(fct.mean()) if some else math.nan,
        sum_slowdown=float(slowdown.sum()),
        mean_slowdown=float(slowdown.mean()) if some else math.nan,
    )


@dataclass(frozen=True)
class QueueMetrics:
    """A queue between two times; -1 counts and NaN lengths where nothing was read."""

    marked_packets: int
    dropped_packets: int
    sent_bytes: int
    mean_bytes: float
    max_bytes: float


def queue_metrics(trial: TrialResult, queue: int, from_ns: int, to_ns: int) -> QueueMetrics:
    """Return what happened at a queue between two sampling times."""
    ports = trial.ports
    at = sampling_times(ports.t_ns, trial.spec.sample_period_ns)
    inside = (at > from_ns) & (at <= to_ns)
    length = ports.qlen_bytes[inside, queue]
    length = length[length != MISSING]
    first, last = (int(np.searchsorted(at, t, side="right")) - 1 for t in (from_ns, to_ns))

    def counted(name: str) -> int:
        column = ports[name][:, queue]
        if last < 0 or column[last] == MISSING:
            return MISSING
        return int(column[last] - (column[first] if first >= 0 else 0))

    lengths = (float(length.mean()), float(length.max())) if len(length) else (math.nan, math.nan)
    return QueueMetrics(
        counted("marked_packets"), counted("dropped_packets"), counted("tx_bytes"), *lengths
    )


def sampling_times(t_ns: Ints, period_ns: int) -> Ints:
    """Return the sampling times of readings, which begin a little after them."""
    return np.asarray((t_ns + period_ns // 10) // period_ns * period_ns)


def differing_tables(parent: TrialResult, other: TrialResult) -> list[str]:
    """Return the columns, as `table.column`, that are not the same to the bit in both trials."""
    found = []
    for name in TABLES:
        ours, theirs = parent.table(name), other.table(name)
        found += [
            f"{name}.{column}"
            for column in ours
            if column not in theirs or not np.array_equal(ours[column], theirs[column])
        ]
    return found


class Paths:
    """Says which flows can go through a queue, by the routes of the fabric without faults."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._hops = next_hops(testbed)

    def passes(self, queue: int, src: str, dst: str) -> Passes:
        """Return whether flows from one host to another go through a queue."""
        port = self._testbed.queues[queue].port.index
        last = {self._testbed.ports[own.peer].index: own for own in self._testbed.ports_of[dst]}
        if port in last:
            return "yes" if len(last) == 1 else "maybe"
        for target in attachment(self._testbed, dst):
            here = set(attachment(self._testbed, src))
            while here and here != {target}:
                ports = [p for name in sorted(here) for p in self._hops[name].get(target, ())]
                if any(one.index == port for one in ports):
                    return "yes" if len(ports) == 1 and len(last) == 1 else "maybe"
                here = {self._testbed.peer_device(one).name for one in ports}
        return "no"
