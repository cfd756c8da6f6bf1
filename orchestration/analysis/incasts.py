"""Incast completion time: from the start of an incast's first flow to the end of its last one.

It is what an application waits for that needs all answers: the query completion time of DCTCP
(Alizadeh et al., SIGCOMM 2010, section 4.2.1). It is compared with the ideal: the time that the
incast takes if its bytes, with headers, follow each other on the receiver's link without a gap, as
NDP (Handley et al., SIGCOMM 2017, section 6.1) divides by the optimal completion time. Incasts
count if they start after the warm-up. One with a flow that has not finished has no completion time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inventory.routing import flow_controls
from orchestration.analysis.measured_window import measured_flows
from orchestration.core.records import DONE, STATUS_NAMES, Floats, Ints
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES
from orchestration.results.reader import TrialResult
from traffic.schedule import class_names, incast_of_flow


@dataclass(frozen=True)
class Incasts:
    """A trial's incasts by start, arrays of shape (incasts,).

    `receiver` indexes `Testbed.hosts`. `fairness` is Jain's index of the flows' throughputs. It and
    `completion_ns` are NaN for incasts that did not finish.
    """

    start_ns: Ints
    receiver: Ints
    flows: Ints
    size_bytes: Ints
    completion_ns: Floats
    ideal_ns: Floats
    fairness: Floats


def measure_incasts(result: TrialResult) -> dict[str, float]:
    """Return the metrics of a trial's incasts; empty without incasts, NaN where none finished.

    Raises InputError for a table that cannot be read.
    """
    found = incasts(result)
    if found is None:
        return {}
    done = np.isfinite(found.completion_ns)
    times = found.completion_ns[done]
    return {
        "incasts_unfinished": float(np.count_nonzero(~done)),
        "incast_completion_mean_ns": _mean(times),
        "incast_completion_p99_ns": float(np.quantile(times, 0.99)) if len(times) else math.nan,
        "incast_completion_ratio": _mean(times / found.ideal_ns[done]),
        "incast_goodput_bps": _mean(found.size_bytes[done] * 8e9 / times),
        "incast_fairness": _mean(found.fairness[done]),
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def incasts(result: TrialResult) -> Incasts | None:
    """Return the incasts that start after a trial's warm-up; None if there are none.

    Raises InputError for a table that cannot be read.
    """
    traffic = result.spec.traffic
    if not any(spec.incasts for spec in traffic):
        return None
    schedule, flows, testbed = result.table("schedule"), result.table("flows"), result.testbed
    klass = np.full(len(schedule["class"]), -1, dtype=np.int64)
    for number, (name, spec) in enumerate(zip(class_names(traffic), traffic, strict=True)):
        if spec.incasts:
            klass[schedule["class"] == name] = number
    chosen = np.flatnonzero((klass >= 0) & measured_flows(result))
    if not len(chosen):
        return None
    host = {name: index for index, name in enumerate(testbed.hosts)}
    src, dst = (
        np.fromiter(map(host.__getitem__, schedule[side][chosen].tolist()), np.int64)
        for side in ("src", "dst")
    )
    start_ns, end_ns = flows["start_ns"][chosen], flows["end_ns"][chosen]
    size_bytes, ideal_ns = schedule["bytes"][chosen], flows["ideal_ns"][chosen]
    of = incast_of_flow(traffic, klass[chosen], start_ns, dst)
    count = int(of.max()) + 1
    done = flows["status"][chosen] == STATUS_NAMES[DONE]

    def total(values: Floats | Ints) -> Floats:
        return np.bincount(of, values, count).astype(np.float64)

    def highest(values: Floats | Ints) -> Floats:
        result = np.full(count, -math.inf)
        np.maximum.at(result, of, values)
        return result

    first = np.zeros(count, dtype=np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]
    size = total(np.ones(len(of)))
    finished = total(~done) == 0
    wire, packet = _wire_bytes(result, klass[chosen], size_bytes)
    rates_bps = np.array([testbed.host_rate_bps(name) for name in testbed.hosts], dtype=np.float64)
    nic_bps = np.array([testbed.ports_of[name][0].rate_bps for name in testbed.hosts])
    own_ns = (wire - packet) * 8e9 / np.minimum(nic_bps[src], nic_bps[dst])
    # the link cannot be busy before the first packet of the nearest sender
    base_ns = -highest(-np.maximum(ideal_ns - own_ns, 0.0))
    on_link_ns = (total(wire) - highest(packet)) * 8e9 / rates_bps[dst[first]]
    bps = size_bytes / np.maximum(end_ns - start_ns, 1)
    return Incasts(
        start_ns=start_ns[first],
        receiver=dst[first],
        flows=size.astype(np.int64),
        size_bytes=total(size_bytes).astype(np.int64),
        completion_ns=np.where(finished, highest(end_ns) - start_ns[first], math.nan),
        ideal_ns=np.maximum(base_ns + on_link_ns, highest(ideal_ns)),
        fairness=np.where(finished, jain(total(bps), total(bps**2), size), math.nan),
    )


def jain(total: Floats, squares: Floats, count: Floats) -> Floats:
    """Return Jain's index of values, given their sum, their sum of squares and their number.

    It is 1 if all are equal, and 1/n if one of n has all. Jain, Chiu and Hawe, "A Quantitative
    Measure of Fairness", DEC-TR-301, 1984.
    """
    return np.asarray(total**2 / (count * squares))


def _wire_bytes(result: TrialResult, klass: Ints, size_bytes: Ints) -> tuple[Ints, Ints]:
    """Return the bytes of flows on a link, with headers and framing, and of a full packet of each.

    `klass` are the flows' patterns; all shapes are (flows,).
    """
    testbed, roce = result.testbed, result.spec.host.roce
    payload = np.full(len(klass), testbed.mss_bytes, dtype=np.int64)
    header = np.full(len(klass), ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES, dtype=np.int64)
    if roce is not None:
        controls = flow_controls(testbed, result.spec)
        by_roce = np.array([control == roce.control for control in controls])[klass]
        payload[by_roce] = roce.payload_bytes
        header[by_roce] = ROCE_HEADER_BYTES + roce.telemetry_bytes
    header += testbed.framing_bytes
    packets = np.maximum(-(-size_bytes // payload), 1)
    return size_bytes + packets * header, np.minimum(size_bytes, payload) + header
