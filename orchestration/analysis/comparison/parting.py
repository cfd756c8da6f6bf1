"""Where two trials part: which ports hold other queues, and from when on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.comparison.ports import TrialPorts
from orchestration.analysis.counters import known_queues
from orchestration.analysis.metrics import arrivals
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import Floats, Ints, Samples

# The queues part where for so many samples on end they differ by so much of what A holds on
# average, and by more than two packets.
_SAMPLES, _SHARE, _LEAST_BYTES = 3, 0.1, 3_000


@dataclass(frozen=True)
class PortParting:
    """Two trials on the same ports: arrays by queue, (queues,); what is not known is NaN.

    `parted_ns` is when the queues part for the first time (None: never), first at `parted_at`.
    `identical` says that all samples are the same.
    """

    labels: tuple[str, ...]
    kinds: tuple[str, ...]
    queue_a_bytes: Floats
    queue_b_bytes: Floats
    marked_a: Floats
    marked_b: Floats
    wire_a_bytes: Floats
    wire_b_bytes: Floats
    parted_ns: int | None
    parted_at: str
    identical: bool


def part_ports(
    trials: tuple[TrialResult, TrialResult],
    ports: tuple[TrialPorts, TrialPorts],
    notes: list[str],
) -> PortParting | None:
    """Return where two trials' ports part; None, with a note, where they have other ports."""
    testbed, other = trials[0].testbed, trials[1].testbed
    labels = tuple(_label(testbed, number) for number in range(len(testbed.queues)))
    if [queue.label for queue in testbed.queues] != [queue.label for queue in other.queues]:
        notes.append(
            f"the testbeds have other ports ({testbed.name}: {len(testbed.queues)} queues, "
            f"{other.name}: {len(other.queues)}): no port is compared with its twin"
        )
        return None
    first, second = (arrivals(trial.ports, trial.spec.duration_ns) for trial in trials)
    parted_ns, place = _parted(first, second)
    a, b = ports
    return PortParting(
        labels=labels,
        kinds=tuple(_kind(testbed, number) for number in range(len(labels))),
        queue_a_bytes=a.queue_mean_bytes,
        queue_b_bytes=b.queue_mean_bytes,
        marked_a=a.marked,
        marked_b=b.marked,
        wire_a_bytes=a.wire_bytes,
        wire_b_bytes=b.wire_bytes,
        parted_ns=parted_ns,
        parted_at=labels[place] if parted_ns is not None else "",
        identical=_identical(first, second),
    )


def _label(testbed: Testbed, number: int) -> str:
    queue = testbed.queues[number]
    return f"{queue.label} to {testbed.peer_device(queue).name}"


def _kind(testbed: Testbed, number: int) -> str:
    """Return `ports to hosts, tier 1`, `ports up, tier 1`."""
    queue = testbed.queues[number]
    here, there = testbed.device[queue.device], testbed.peer_device(queue)
    if there.kind == "host":
        return f"ports to hosts, tier {here.tier}"
    return f"ports {'up' if there.tier > here.tier else 'down'}, tier {here.tier}"


def _parted(a: Samples, b: Samples) -> tuple[int | None, int]:
    """Return when the queues part first, and the queue that differs most then."""
    known = known_queues(a.qlen_bytes) & known_queues(b.qlen_bytes)
    if not known.any():
        return None, 0
    upto = int(np.searchsorted(a.t_ns, b.t_ns[-1], side="right"))
    ours, t_ns = a.qlen_bytes[:upto], a.t_ns[:upto]
    apart = np.abs(at_times(b.t_ns, b.qlen_bytes, t_ns) - ours) * known
    bound = max(_LEAST_BYTES, _SHARE * float((ours * known).sum(axis=1).mean()) if upto else 0)
    beyond = apart.sum(axis=1) > bound
    run = np.convolve(beyond, np.ones(_SAMPLES), "valid") if len(beyond) >= _SAMPLES else beyond
    found = np.flatnonzero(run >= min(_SAMPLES, len(beyond)))
    if not len(found):
        return None, 0
    at = int(found[0])
    return int(t_ns[at]), int(np.argmax(apart[at]))


def at_times(t_ns: Ints, values: Ints, wanted_ns: Ints) -> Floats:
    """Return samples (samples, queues) at other times, straight lines between them."""
    if np.array_equal(t_ns, wanted_ns):
        return values.astype(np.float64)
    columns = [np.interp(wanted_ns, t_ns, column) for column in values.T]
    return np.stack(columns, axis=1)


def _identical(a: Samples, b: Samples) -> bool:
    names = ("t_ns", "qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
