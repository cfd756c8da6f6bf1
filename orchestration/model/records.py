"""What a trial observes and leaves behind, as NumPy arrays.

Per-queue arrays have one entry per switch port, in the order of `Testbed.queues`. Counters are
cumulative from the start of the fabric. Times are ns of the rig's clock since the trial's start.
A count or a size that a device does not offer is `MISSING`, and so is a sample of it at which
there was nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.model.status import DONE, FAILED, STATUS_NAMES, UNFINISHED

__all__ = [
    "DONE",
    "FAILED",
    "STATUS_NAMES",
    "UNFINISHED",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MISSING = -1


@dataclass(frozen=True)
class Schedule:
    """Every flow of a trial before it starts, sorted by start; all arrays of shape (flows,).

    `src` and `dst` index `Testbed.hosts`; `klass` indexes `classes` (the pattern that made it).
    """

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints
    klass: Ints
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Observation:
    """One reading of every queue. Shapes (queues,); `t_ns` is when the reading began.

    `taken_ns` is when each queue's numbers were true, where that is not `t_ns`: switches that poll
    themselves show the same numbers until the next poll. `age_ns` says how old they are.

    `qlen_mean_bytes` is the mean of the samples since the last decision, which the loop adds. The
    flow table's fields are None where no flow table is kept: `incast_degree` is the largest number
    of senders that one receiver has through the queue, `mice_flows` and `elephant_flows` count the
    queue's flows of up to and of more than 1 MB so far (PET, section 4.2.1), all within the flow
    table's window.
    """

    t_ns: int
    age_ns: Ints
    qlen_bytes: Ints
    tx_bytes: Ints
    tx_packets: Ints
    marked_packets: Ints
    dropped_packets: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats
    taken_ns: Ints | None = None
    qlen_mean_bytes: Floats | None = None
    incast_degree: Ints | None = None
    mice_flows: Ints | None = None
    elephant_flows: Ints | None = None


@dataclass(frozen=True)
class SetThresholds:
    """Set RED on some queues: arrays of one shape (changes,); `queues` indexes them."""

    queues: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats
    kind: str = "thresholds"


@dataclass(frozen=True)
class NoAction:
    """Leave everything as it is."""

    kind: str = "none"


# A union by kind: flowlet timeouts and NIC policies join it with the backends that take them.
Action = SetThresholds | NoAction


@dataclass(frozen=True)
class Applied:
    """What the device reported back after an action, shapes (changes,)."""

    t_ns: int
    queues: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


@dataclass(frozen=True)
class FlowRecords:
    """Outcome of each flow of the schedule, shapes (flows,). `end_ns` is -1 if not done.

    `sent_ns` is when the driver handed the flow's first byte to TCP; its distance to the
    schedule's start is the generator's lateness.
    """

    sent_ns: Ints
    end_ns: Ints
    retransmits: Ints
    status: Ints


@dataclass(frozen=True)
class PortRecords:
    """Samples: `t_ns` of shape (samples,), the rest (samples, queues), counters cumulative."""

    t_ns: Ints
    qlen_bytes: Ints
    tx_bytes: Ints
    tx_packets: Ints
    marked_packets: Ints
    dropped_packets: Ints


@dataclass(frozen=True)
class ActionRecords:
    """Changes of thresholds, one row a changed queue, shapes (changes,)."""

    observed_ns: Ints
    decided_ns: Ints
    applied_ns: Ints
    queue: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


@dataclass(frozen=True)
class HostRecords:
    """Hosts' TCP counters: `t_ns` (samples,), the rest (samples, hosts), cumulative.

    `out_of_order` counts segments that arrived before an earlier one.
    """

    t_ns: Ints
    retransmits: Ints
    timeouts: Ints
    out_of_order: Ints
    tx_bytes: Ints


@dataclass(frozen=True)
class Event:
    """Something that happened at a time: a fault, a warning, a change of routes."""

    t_ns: int
    kind: str
    detail: str


@dataclass(frozen=True)
class TrialRecord:
    """All that a backend returns of one trial. `facts` is JSON-ready: kernel, settings, checks.

    `trace` is what the tuner kept for learning (see `Tuner.trace`); it is no part of a run folder.
    """

    flows: FlowRecords
    ports: PortRecords
    actions: ActionRecords
    hosts: HostRecords
    events: tuple[Event, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict)
