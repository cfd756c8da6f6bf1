"""How many flows and bytes a pattern is likely to have, known before any flow is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import assert_never

from orchestration.core.files import here
from orchestration.core.topology import Testbed
from orchestration.core.trial import (
    AllToAllSpec,
    AlternatingSpec,
    ConcurrentSpec,
    IncastSpec,
    MessageMixSpec,
    PatternSpec,
    PoissonSpec,
    ReplaySpec,
    SingleFlowSpec,
)
from traffic.workloads import load_workload

# The shortest row of a file of flows: `0,h1,h2,1,`.
_MIN_ROW_BYTES = 10


@dataclass(frozen=True)
class Expected:
    """The expected number of flows, and their payload in bytes.

    Of replayed flows, which are in a file, this is a bound, and what they send is not known.
    """

    flows: float
    size_bytes: float

    def __add__(self, other: Expected) -> Expected:
        return Expected(self.flows + other.flows, self.size_bytes + other.size_bytes)


def expected(spec: PatternSpec, testbed: Testbed) -> Expected:
    """Return what a pattern is likely to send; of loads, by their mean (`traffic.arrivals`).

    Concurrent flows without a size are to be given one first. Raises InputError for an unknown
    workload, KeyError for a host that is not there.
    """
    match spec:
        case PoissonSpec():
            offered = _share_bytes(spec.load, spec, testbed, "")
            return Expected(offered / load_workload(spec.workload).mean_bytes, offered)
        case MessageMixSpec():
            offered = _share_bytes(spec.load, spec, testbed, spec.receiver)
            return Expected(offered * len(spec.sizes_bytes) / sum(spec.sizes_bytes), offered)
        case IncastSpec() | AllToAllSpec():
            hosts = len(testbed.hosts)
            each = spec.fan_in if isinstance(spec, IncastSpec) else hosts * (hosts - 1)
            flows = -(-max(0, spec.stop_ns - spec.start_ns) // spec.period_ns) * each
            return Expected(flows, flows * spec.size_bytes)
        case SingleFlowSpec():
            return Expected(1, spec.size_bytes)
        case ConcurrentSpec():
            return Expected(spec.flows, spec.flows * spec.size_bytes)
        case AlternatingSpec():
            return _alternating(spec, testbed)
        case ReplaySpec():
            return Expected(os.path.getsize(here(spec.file)) // _MIN_ROW_BYTES, 0)
        case _:
            assert_never(spec)


def phases(spec: AlternatingSpec) -> float:
    """Return how many phases alternating flows are likely to have."""
    return max(0, spec.stop_ns - spec.start_ns) / spec.phase_ns


def _alternating(spec: AlternatingSpec, testbed: Testbed) -> Expected:
    # half of the phases are crowded; see traffic.alternating
    each_bytes = testbed.host_rate_bps(spec.receiver) / 8e9 * spec.phase_ns
    crowded = spec.many + each_bytes * spec.short_load / spec.short_bytes
    sparse = max(spec.few, each_bytes * spec.load / spec.size_bytes)
    sent_bytes = each_bytes * (spec.load + spec.short_load / 2)
    return Expected(
        phases(spec) * (crowded + sparse) / 2,
        phases(spec) * max(sent_bytes, spec.few * spec.size_bytes / 2),
    )


def _share_bytes(
    load: float, spec: PoissonSpec | MessageMixSpec, testbed: Testbed, receiver: str
) -> float:
    hosts = [receiver] if receiver else testbed.hosts
    rate_bps = sum(testbed.host_rate_bps(host) for host in hosts)
    return load * rate_bps / 8e9 * max(0, spec.stop_ns - spec.start_ns)
