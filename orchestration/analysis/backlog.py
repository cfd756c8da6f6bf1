"""Backlog: the payload that has been offered and not been accepted yet, and whether it grows.

A stationary load delivers what it offers, so that its backlog has no trend. The slope is that of
the least-squares line through the backlog in the measured time; relative to the offered rate it is
the share of the offered payload that accumulates: 0 in a stationary trial, and 1 if nothing
arrives. A queue is stable only if it is served faster than it fills (Loynes, "The stability of a
queue with non-independent inter-arrival and service times", 1962).

A flow is offered when it starts. What has been accepted at a time follows from what the ports
towards hosts had carried by then, of which repetitions, headers and acknowledgements are taken to
be a constant share. Without samples of them, and where some flows are long-lived or some hosts send
by TCP and by RoCE NICs, each flow is taken to have one rate from its start to its end, as in
`load`: if flows wait for each other, that shows a part of the slope only. Long-lived flows offer an
unknown payload, and do not count.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from inventory.routing import flow_controls
from orchestration.analysis.counters import HEADER_BYTES
from orchestration.analysis.measured_window import after_warm_up
from orchestration.core.records import DONE, LONG_LIVED, MISSING, STATUS_NAMES, Floats, Ints
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.results.reader import TrialResult

# At how many times the backlog is evaluated, from the warm-up's end to the trial's duration.
_TIMES = 101
# A few bursts have no trend: at least at so many times flows have to start.
_MIN_STARTS = 10


def measure_backlog(result: TrialResult) -> dict[str, float]:
    """Return the slope of a trial's backlog, as a share of the offered rate.

    It is NaN if flows of a known size start at fewer than ten times in the measured time, or if one
    of them has failed or has not finished, because what was accepted of it is unknown. Raises
    InputError for a table that cannot be read.
    """
    begin_ns, end_ns = result.spec.measured_ns
    schedule = result.table("schedule")
    start_ns = schedule["start_ns"]
    started = ~_long_lived(result) & (start_ns >= begin_ns) & (start_ns < end_ns)
    if np.count_nonzero(np.diff(start_ns[started])) < _MIN_STARTS - 1:  # a schedule is sorted
        return {"backlog_slope_share": math.nan}
    offered = float(schedule["bytes"][started].sum())
    t_ns, backlog = backlog_over_time(result)
    centred = t_ns - t_ns.mean()
    slope = float(centred @ backlog / (centred @ centred))  # in bytes per ns
    return {"backlog_slope_share": slope * (end_ns - begin_ns) / offered}


def backlog_over_time(result: TrialResult) -> tuple[Floats, Floats]:
    """Return times in ns and the backlog in bytes at each, shapes (times,), in the measured time.

    The backlog is NaN if a flow of a known size did not finish. Raises InputError for a table that
    cannot be read.
    """
    flows, schedule = result.table("flows"), result.table("schedule")
    begin_ns, stop_ns = result.spec.measured_ns
    t_ns = np.linspace(begin_ns, stop_ns, _TIMES)
    counted = ~_long_lived(result) & (schedule["start_ns"] < stop_ns)
    if (flows["status"][counted] != STATUS_NAMES[DONE]).any():
        return t_ns, np.full(len(t_ns), math.nan)
    counted &= flows["end_ns"] > begin_ns
    start_ns, end_ns = schedule["start_ns"][counted], flows["end_ns"][counted]
    size_bytes = schedule["bytes"][counted]
    carried = _carried_bytes(result, t_ns)
    if carried is None:
        return t_ns, backlog_bytes(start_ns, end_ns, size_bytes, t_ns)
    at_begin = np.clip((end_ns - begin_ns) / (end_ns - start_ns), 0.0, 1.0) * size_bytes
    offered = _upto(start_ns, at_begin, t_ns)
    payload, in_all = carried
    accepted = payload * min(1.0, float(at_begin.sum()) / in_all)
    return t_ns, np.maximum(offered - accepted, 0.0)


def _long_lived(result: TrialResult) -> NDArray[np.bool_]:
    """Return which flows are long-lived, shape (flows,)."""
    return np.asarray(result.table("flows")["status"] == STATUS_NAMES[LONG_LIVED])


def _carried_bytes(result: TrialResult, t_ns: Floats) -> tuple[Floats, float] | None:
    """Return the payload that ports towards hosts carried from the warm-up's end to each time.

    The second value is that until the last sample. Payload that arrives twice is counted twice.
    None if it is unknown, or if some of it is that of long-lived flows.
    """
    roce, testbed = result.spec.host.roce, result.testbed
    controls = set(flow_controls(testbed, result.spec))
    ports = after_warm_up(result, "queue")
    if not len(ports.t_ns) or _long_lived(result).any():
        return None
    header = HEADER_BYTES
    if roce is not None:
        if controls != {roce.control}:
            return None
        header = ROCE_HEADER_BYTES + roce.telemetry_bytes
    to_host = [testbed.peer_device(queue).kind == "host" for queue in testbed.queues]
    sent, packets = ports.tx_bytes[:, to_host], ports.tx_packets[:, to_host]
    if (sent == MISSING).any() or (packets == MISSING).any():
        return None
    payload = np.maximum(sent.sum(axis=1) - header * packets.sum(axis=1), 0).astype(np.float64)
    known = np.interp(t_ns, np.r_[t_ns[0], ports.t_ns], np.r_[0.0, payload])
    return (known, float(payload[-1])) if payload[-1] else None


def backlog_bytes(start_ns: Ints, end_ns: Ints, size_bytes: Ints, t_ns: Floats) -> Floats:
    """Return the backlog in bytes at each of `t_ns`, shape (times,), of flows given as (flows,).

    Of a flow that takes from s to e, the share (e - t) / (e - s) is left at a time t between them.
    So the backlog is a sum over the flows that have started less that over those that have ended.
    """
    rate = size_bytes / np.maximum(end_ns - start_ns, 1)  # in bytes per ns
    # relative to a time near all of them, so that the products do not lose digits
    origin = t_ns[0]
    whole = rate * (np.maximum(end_ns, start_ns + 1) - origin)
    left = _upto(start_ns, whole, t_ns) - _upto(end_ns, whole, t_ns)
    rates = _upto(start_ns, rate, t_ns) - _upto(end_ns, rate, t_ns)
    return np.asarray(np.maximum(left - rates * (t_ns - origin), 0.0), dtype=np.float64)


def _upto(times_ns: Ints, values: Floats, t_ns: Floats) -> Floats:
    """Return the sum of the values of which the time is not after each of `t_ns`, (times,)."""
    order = np.argsort(times_ns, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(values[order])])
    return np.asarray(sums[np.searchsorted(times_ns[order], t_ns, side="right")])
