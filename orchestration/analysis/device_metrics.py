"""Metrics of hosts' RoCE NICs and of switches with a shared buffer; NaN where a trial has none.

CNPs and pauses count from the warm-up to the trial's end. Rates, round trips and buffers are of the
samples taken while flows arrived, as those of queues.
"""

from __future__ import annotations

import math

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.sample_parts import after_warm_up, arrivals, counted
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import MISSING, Floats, Ints, Samples

NIC_METRICS = ("cnps", "rate_mean_bps", "rtt_p99_ns")
BUFFER_METRICS = ("pauses_sent", "pausing_ns", "buffer_max_bytes", "headroom_max_bytes")


def allowed_bps(testbed: Testbed, hosts: Samples) -> Floats:
    """Return what hosts with unfinished RoCE flows may send: (samples, hosts), else NaN.

    That is the sum of what congestion control allows their flows, and at most the line rate.
    """
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    return np.where(hosts.rate_bps > 0, np.minimum(hosts.rate_bps, line_bps), math.nan)


def round_trips_ns(hosts: Samples) -> Floats:
    """Return the last round trip of hosts with unfinished RoCE flows: (samples, hosts), else NaN.

    A host without such flows still shows that of its last one.
    """
    return np.where((hosts.rtt_ns > 0) & (hosts.rate_bps != 0), hosts.rtt_ns, math.nan)


def measure_devices(result: TrialResult) -> dict[str, float]:
    """Return the metrics of NICs and buffers. Raises InputError for an unreadable table."""
    hosts, pauses = after_warm_up(result, "host"), after_warm_up(result, "priority")
    window = arrivals(result.samples("host"), result.spec.measured_ns)
    buffers = arrivals(result.samples("switch"), result.spec.measured_ns)
    rates = allowed_bps(result.testbed, window)
    trips = round_trips_ns(window)
    return {
        "cnps": counted(hosts.cnps),
        "rate_mean_bps": float(np.nanmean(rates)) if np.isfinite(rates).any() else math.nan,
        "rtt_p99_ns": float(np.nanquantile(trips, 0.99)) if np.isfinite(trips).any() else math.nan,
        "pauses_sent": counted(pauses.pauses_sent),
        "pausing_ns": counted(pauses.pausing_ns),
        "buffer_max_bytes": _highest(buffers.buffer_bytes),
        "headroom_max_bytes": _highest(buffers.headroom_bytes),
    }


def _highest(samples: Ints) -> float:
    known = samples[samples != MISSING]
    return float(known.max()) if len(known) else math.nan
