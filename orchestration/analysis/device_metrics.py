"""Metrics of NICs, of switches' shared buffers and of the paths that switches choose.

CNPs, timeouts and pauses are counted from the end of the warm-up to the trial's end, NACKs from its
start. Rates, round-trip times and buffers are of samples taken while flows arrived, like queue
lengths. A metric that a trial does not have is NaN.
"""

from __future__ import annotations

import math

import numpy as np

from orchestration.analysis.measured_window import (
    after_warm_up,
    counted,
    measured_flows,
    measured_samples,
    totals,
)
from orchestration.core.records import MISSING, Floats, Ints, Samples
from orchestration.core.topology import Testbed
from orchestration.results.reader import TrialResult


def allowed_bps(testbed: Testbed, hosts: Samples) -> Floats:
    """Return the rate allowed to hosts with unfinished RoCE flows, shape (samples, hosts).

    That is the sum of the rates that congestion control allows their flows, and at most the line
    rate. It is NaN for hosts without such flows.
    """
    line_bps = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
    return np.where(hosts.rate_bps > 0, np.minimum(hosts.rate_bps, line_bps), math.nan)


def round_trips_ns(hosts: Samples) -> Floats:
    """Return the last RTT of hosts with unfinished RoCE flows, shape (samples, hosts), or NaN.

    The samples of a host without such flows still have the RTT of its last one.
    """
    return np.where((hosts.rtt_ns > 0) & (hosts.rate_bps != 0), hosts.rtt_ns, math.nan)


def measure_devices(result: TrialResult) -> dict[str, float]:
    """Return the metrics of NICs and buffers. Raises InputError for an unreadable table."""
    hosts, pauses = after_warm_up(result, "host"), after_warm_up(result, "priority")
    window = measured_samples(result.samples("host"), result.spec.measured_ns)
    buffers = measured_samples(result.samples("switch"), result.spec.measured_ns)
    rates = allowed_bps(result.testbed, window)
    trips = round_trips_ns(window)
    return {
        "cnps": counted(hosts.cnps),
        "timeouts": _timeouts(result, counted(hosts.timeouts)),
        "nacks": _of_nics(result, "naks"),
        "rate_mean_bps": float(np.nanmean(rates)) if np.isfinite(rates).any() else math.nan,
        "rtt_p99_ns": float(np.nanquantile(trips, 0.99)) if np.isfinite(trips).any() else math.nan,
        "pauses_sent": counted(pauses.pauses_sent),
        "pausing_ns": counted(pauses.pausing_ns),
        "buffer_max_bytes": _highest(buffers.buffer_bytes),
        "headroom_max_bytes": _highest(buffers.headroom_bytes),
    }


def _of_nics(result: TrialResult, fact: str) -> float:
    """Return what RoCE NICs counted in the whole trial; NaN if they did not, or there are none."""
    value = result.facts.get(fact)
    return math.nan if value is None else float(value)


def _timeouts(result: TrialResult, sampled: float) -> float:
    """Return the retransmission timeouts of all hosts, of which `sampled` are in samples.

    Samples of racks have only those of TCP, and NICs have counted theirs in the whole trial, if
    they count them. So it was on the emulated backend in earlier versions.
    """
    if "nic_timeouts" in result.facts:
        return sampled + _of_nics(result, "nic_timeouts")
    of_nics, in_all = _of_nics(result, "timeouts"), counted(result.samples("host").timeouts)
    if math.isnan(of_nics) or in_all >= of_nics:
        return sampled
    if result.spec.warm_up_ns:
        return sampled if in_all > 0 else math.nan
    return of_nics


def _highest(samples: Ints) -> float:
    known = samples[samples != MISSING]
    return float(known.max()) if len(known) else math.nan


def uplinks(testbed: Testbed) -> dict[str, list[int]]:
    """Return the queues of the uplinks of each switch that has several uplinks.

    They are indices in `Testbed.queues`, in the order of the ports, class by class.
    """
    result: dict[str, list[int]] = {}
    for number, queue in enumerate(testbed.queues):
        if testbed.peer_device(queue).tier > testbed.device[queue.device].tier:
            result.setdefault(queue.device, []).append(number)
    wide = testbed.queues_per_port
    return {name: numbers for name, numbers in result.items() if len(numbers) > wide}


def packets_by_uplink(testbed: Testbed, ports: Samples) -> dict[str, Ints]:
    """Return how many packets each switch with several uplinks sent by each of them."""
    sent = totals(ports.tx_packets)
    return {
        name: sent[numbers].reshape(-1, testbed.queues_per_port).sum(axis=1)
        for name, numbers in uplinks(testbed).items()
    }


def measure_paths(result: TrialResult) -> dict[str, float]:
    """Return the metrics of paths; NaN where a trial has none.

    The imbalance of a switch is the packets of its busiest uplink, relative to the mean of its
    uplinks; it is averaged over switches, weighted by their packets.
    """
    switches, hosts = after_warm_up(result, "switch"), after_warm_up(result, "host")
    received, flows = counted(hosts.received_packets), np.count_nonzero(measured_flows(result))
    by_switch = list(packets_by_uplink(result.testbed, after_warm_up(result, "queue")).values())
    packets = sum(int(row.sum()) for row in by_switch)
    highest = sum(float(row.max()) * len(row) for row in by_switch)
    reroutes = counted(switches.reroutes)
    return {
        "out_of_order_share": counted(hosts.out_of_order_packets) / received
        if received > 0
        else math.nan,
        "reroutes_per_flow": reroutes / flows if flows else math.nan,
        "uplink_imbalance": highest / packets if packets else math.nan,
    }


def shares(row: Ints) -> np.ndarray:
    """Return each uplink's share of its switch's packets; NaN if it sent none."""
    return row / row.sum() if row.sum() else np.full(len(row), math.nan)


def measure_balance(result: TrialResult) -> dict[str, float]:
    """Return the shares of lost and of reordered packets, and flowlets per flow, or NaN.

    Lost packets are relative to those lost and the data packets that hosts received. Flowlets are
    those of all switches that choose a path, per flow that ended: DRLet's "rerouting times",
    "number of flowlets divided by number of flows" (figure 4).
    """
    hosts, switches = after_warm_up(result, "host"), after_warm_up(result, "switch")
    received = _last(hosts.values.get("received_packets"))
    early = _last(hosts.values.get("out_of_order_packets"))
    flowlets = _last(switches.values.get("flowlets"))
    dropped = _last(after_warm_up(result, "queue").dropped_packets)
    ended = result.table("flows")["end_ns"] >= 0
    flows = int(np.count_nonzero(ended & measured_flows(result)))
    return {
        "lost_share": dropped / (received + dropped) if received + dropped else math.nan,
        "reordered_share": early / received if received else math.nan,
        "flowlets_of_a_flow": flowlets / flows if flows else math.nan,
    }


def _last(samples: Ints | None) -> float:
    """Return the sum over targets in the last sample; NaN if nothing was measured."""
    if samples is None or not samples.size or (samples[-1] == MISSING).any():
        return math.nan
    return float(samples[-1].sum())
