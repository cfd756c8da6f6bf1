"""The trials of a calibration: lone flows on all kinds of paths, a marked queue, a busy loop.

Virtual time is exact, so a few milliseconds of it are enough. In real time a reading takes as long
as SSH does, and medians need many readings.
"""

from __future__ import annotations

from dataclasses import dataclass

from inventory.routing import PathTable
from orchestration.core.capabilities import capabilities
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from traffic.patterns.single_flow import SingleFlowSpec

_MS_NS = 1_000_000
TINY_BYTES = 1
# Lone tiny flows on each kind of path, with a gap after each.
_TINY_FLOWS = 9
# Durations of the two long flows at line rate. The difference of their times is sending in steady
# state.
_SHORT_NS, _LONG_NS = 4 * _MS_NS, 12 * _MS_NS
_MARK_SENDERS = 4
# RED's ramp in the marking probe, per 25 Gbit/s of the receiver's rate.
_KMIN_BYTES, _KMAX_BYTES, _PER_BPS = 30_000, 240_000, 25e9
PMAX = 0.1


@dataclass(frozen=True)
class Pace:
    """How often a backend is sampled, how long a queue is held, and the gap between lone flows."""

    sample_period_ns: int
    hold_ns: int
    gap_ns: int


VIRTUAL = Pace(sample_period_ns=20_000, hold_ns=20 * _MS_NS, gap_ns=_MS_NS)
REAL = Pace(sample_period_ns=10 * _MS_NS, hold_ns=3_000 * _MS_NS, gap_ns=20 * _MS_NS)


def pace_of(backend: str) -> Pace:
    """Return the pace at which a backend is measured: it depends on its clock."""
    return REAL if capabilities(backend).modes[0].real_time else VIRTUAL


@dataclass(frozen=True)
class PathKind:
    """A kind of path: a pair of hosts, and how many links of each tier are between them.

    A link's tier is that of its upper end. It is 1 for links between hosts and leaves.
    """

    src: str
    dst: str
    links_of_tier: dict[int, int]


def path_kinds(testbed: Testbed) -> list[PathKind]:
    """Return each kind of path from the testbed's first host, the shortest first."""
    paths = PathTable(testbed)
    src = testbed.hosts[0]
    kinds: dict[tuple[tuple[int, int], ...], PathKind] = {}
    for dst in testbed.hosts[1:]:
        count: dict[int, int] = {}
        for link in paths.path(src, dst).links:
            tier = link_tier(testbed, link)
            count[tier] = count.get(tier, 0) + 1
        kinds.setdefault(tuple(sorted(count.items())), PathKind(src, dst, count))
    return sorted(kinds.values(), key=lambda kind: sum(kind.links_of_tier.values()))


def link_tier(testbed: Testbed, link: int) -> int:
    """Return the tier of a link's upper end."""
    ends = testbed.links[link]
    return max(testbed.device[testbed.ports[end].device].tier for end in (ends.a, ends.b))


def path_trial(testbed: Testbed, name: str, backend: str) -> TrialSpec:
    """Return a trial of lone flows: tiny ones on each kind of path, then a short and a long one.

    Flows of one kind are adjacent, in the order of `path_kinds`; the last two are the long ones.
    """
    pace = pace_of(backend)
    at_ns = pace.gap_ns
    flows = []
    kinds = path_kinds(testbed)
    for kind in kinds:
        for _ in range(_TINY_FLOWS):
            flows.append(SingleFlowSpec(kind.src, kind.dst, TINY_BYTES, at_ns))
            at_ns += pace.gap_ns
    far = kinds[-1]
    rate_bps = PathTable(testbed).path(far.src, far.dst).rate_bps
    for lasts_ns in (_SHORT_NS, _LONG_NS):
        size_bytes = rate_bps * lasts_ns // (8 * 10**9)
        flows.append(SingleFlowSpec(far.src, far.dst, size_bytes, at_ns))
        at_ns += 3 * lasts_ns + pace.gap_ns
    # thresholds so high that no mark slows the lone flows down
    high = min(queue.buffer_bytes for queue in testbed.queues)
    tuner = TunerSpec("static", {"kmin_bytes": high // 2, "kmax_bytes": high, "pmax": 0.01})
    return _trial(testbed, name, backend, "paths", tuner, flows, at_ns, 1_000_000)


def tiny_flows(kind: int) -> slice:
    """Return the indices of the tiny flows on a kind of path, among the flows of `path_trial`."""
    return slice(kind * _TINY_FLOWS, (kind + 1) * _TINY_FLOWS)


def marking_trial(testbed: Testbed, name: str, backend: str) -> TrialSpec:
    """Return a trial in which a few hosts keep the queue to one host on RED's ramp."""
    pace = pace_of(backend)
    receiver = testbed.hosts[0]
    rate_bps = testbed.host_rate_bps(receiver)
    senders = testbed.hosts[1 : 1 + _MARK_SENDERS]
    size_bytes = rate_bps * pace.hold_ns // (8 * 10**9 * len(senders))
    flows = [SingleFlowSpec(src, receiver, size_bytes, 0) for src in senders]
    kmin, kmax = ramp(testbed)
    tuner = TunerSpec("static", {"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": PMAX})
    period_ns = pace.sample_period_ns
    return _trial(testbed, name, backend, "marking", tuner, flows, pace.hold_ns, period_ns)


def ramp(testbed: Testbed) -> tuple[int, int]:
    """Return kmin and kmax of the marking probe, in bytes."""
    share = testbed.host_rate_bps(testbed.hosts[0]) / _PER_BPS
    buffer_bytes = min(queue.buffer_bytes for queue in testbed.queues)
    kmax = min(round(_KMAX_BYTES * share), buffer_bytes // 2)
    return min(round(_KMIN_BYTES * share), kmax // 8), kmax


def loop_trial(testbed: Testbed, name: str, backend: str) -> TrialSpec:
    """Return a trial in which every reading leads to changes of thresholds at some queues."""
    pace = pace_of(backend)
    lasts_ns = 50 * pace.sample_period_ns
    rate_bps = testbed.host_rate_bps(testbed.hosts[0])
    size_bytes = max(1, rate_bps * lasts_ns // (8 * 10**9))
    flows = [SingleFlowSpec(testbed.hosts[1], testbed.hosts[0], size_bytes, 0)]
    tuner = TunerSpec("random", {"of": "graphcc"})
    period_ns = pace.sample_period_ns
    return _trial(testbed, name, backend, "loop", tuner, flows, lasts_ns, period_ns)


def _trial(
    testbed: Testbed,
    name: str,
    backend: str,
    what: str,
    tuner: TunerSpec,
    flows: list[SingleFlowSpec],
    duration_ns: int,
    sample_period_ns: int,
) -> TrialSpec:
    return TrialSpec(
        campaign=f"calibrate-{testbed.name}",
        testbed=name,
        backend=backend,
        tuner=tuner,
        traffic=tuple(flows),
        seed=1,
        repeat=1,
        duration_ns=duration_ns,
        drain_ns=1_000 * _MS_NS,
        sample_period_ns=sample_period_ns,
        action_period_ns=sample_period_ns,
        cell={"probe": what},
    )
