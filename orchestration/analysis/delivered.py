"""What receivers accepted of each flow in the measured time, and what they discarded.

A port towards a host counts all that arrives. A receiver discards of it what comes a second time,
and under go-back-N whatever does not come in order: InfiniBand's reliable connection keeps nothing
behind a gap (InfiniBand Architecture 1.2.1, 9.7.5.1; `RdmaHw::ReceiverCheckSeq` of HPCC's
simulator). TCP and selective repeat discard repetitions only. So ports bound what was accepted,
and these say what it was, the first that a flow has:

- readings of what its receiver had acknowledged, around the ends of the measured time (RoCE NICs);
- its size, of a flow that starts and ends in that time;
- of a finished flow that reaches over an end of it, what the port towards its host carried beside
  the host's other flows; without samples of the port, as if it had one rate from start to end;
- of one that did not finish, the same, but only where none of the host's flows sent anything again:
  else nobody knows what its receiver kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inventory.routing import roce_flows
from orchestration.analysis.counters import HEADER_BYTES
from orchestration.core.capabilities import mode_of
from orchestration.core.records import DONE, LASTING, MISSING, Floats, Ints, Samples, Schedule
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from traffic.schedule import expected_bytes

# An acknowledgement has an extended transport header (AETH) beside the headers that data has.
_AETH_BYTES = 4


@dataclass(frozen=True)
class Ends:
    """How flows ended and what is known of their way there; arrays (flows,) as in `FlowRecords`.

    `acked` has readings of `acked_bytes` (readings, flows), as in `TrialRecord`, or None.
    """

    end_ns: Ints
    status: Ints
    retransmits: Ints
    acked: Samples | None = None


@dataclass(frozen=True)
class Delivered:
    """Payload in bytes in the measured time, by flow, shapes (flows,); NaN if unknown.

    `accepted` is what receivers had for the first time and in order, or held until it was.
    `discarded` arrived and was thrown away; a host's is divided among the flows to it by what they
    sent again.
    """

    accepted: Floats
    discarded: Floats


def measure_delivered(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: Ends, ports: Samples
) -> Delivered:
    """Return what receivers accepted and discarded in the time that is measured."""
    arrived = arrived_bytes(trial, testbed, schedule, ports, trial.measured_ns)
    later = arrived_bytes(trial, testbed, schedule, ports, (trial.warm_up_ns, _end_ns(trial)))
    begin_ns, stop_ns = trial.measured_ns
    accepted = _acked_at(schedule, ends, stop_ns) - _acked_at(schedule, ends, begin_ns)
    done = ends.status == DONE
    within = done & (schedule.start_ns >= begin_ns) & (ends.end_ns <= stop_ns)
    outside = (schedule.start_ns >= stop_ns) | (done & (ends.end_ns <= begin_ns))
    resent = np.where(outside, 0.0, _resent_bytes(trial, testbed, schedule, ends))
    unread = np.isnan(accepted)
    accepted[unread & within] = schedule.size_bytes[unread & within]
    accepted[unread & outside] = 0.0
    open_ = np.isnan(accepted)
    guess = _at_one_rate(trial, schedule, ends, stop_ns)
    accepted[open_ & done] = guess[open_ & done]

    def by_host(values: Floats | Ints) -> Floats:
        return np.asarray(np.bincount(schedule.dst, values, len(arrived)), dtype=np.float64)

    # of a host whose flows all finished: repetitions, overhead of programs and the options of
    # acknowledgements are in the bytes until the trial's end as they are in the window's
    finished, in_order = by_host(~done) == 0, by_host(resent) == 0
    in_all = by_host(_at_one_rate(trial, schedule, ends, _end_ns(trial)))
    share = np.where(finished & (later > 0), in_all / np.maximum(later, 1.0), 1.0)
    rest = arrived * np.minimum(share, 1.0) - by_host(np.where(open_, 0.0, accepted))
    whole = by_host(np.where(open_, guess, 0.0))
    counted = np.isfinite(arrived) & (finished | in_order) & (whole > 0)
    scale = np.where(counted, np.maximum(rest, 0.0) / np.where(whole > 0, whole, 1.0), math.nan)
    refined = np.minimum(guess * scale[schedule.dst], schedule.size_bytes)
    accepted = np.where(open_ & counted[schedule.dst], refined, accepted)
    return Delivered(accepted, _discarded(testbed, schedule, arrived, accepted, resent, ends))


def _discarded(
    testbed: Testbed,
    schedule: Schedule,
    arrived: Floats,
    accepted: Floats,
    resent: Floats,
    ends: Ends,
) -> Floats:
    """Return what hosts discarded, divided among the flows to them by what they sent again.

    Nothing is discarded of flows that sent nothing twice: then what arrived and is not accepted yet
    is on its way to be. Readings of flows apart, no more is than was sent again.
    """
    hosts = len(testbed.hosts)
    again = np.bincount(schedule.dst, resent, hosts)
    beside = arrived - np.bincount(schedule.dst, accepted, hosts)
    if ends.acked is None:
        beside = np.minimum(beside, again)
    thrown = np.where(again == 0, 0.0, np.maximum(beside, 0.0))
    part = resent / np.where(again > 0, again, 1.0)[schedule.dst]
    return np.asarray(thrown[schedule.dst] * part)


def _resent_bytes(trial: TrialSpec, testbed: Testbed, schedule: Schedule, ends: Ends) -> Floats:
    """Return what each flow sent again in the whole trial; NaN if that was not counted."""
    if not mode_of(trial).has_packets:  # lost fluid is sent again, nothing arrives twice
        return np.zeros(len(schedule))
    counted = np.where(ends.retransmits == MISSING, math.nan, ends.retransmits.astype(np.float64))
    payload = np.full(len(schedule), float(testbed.mss_bytes))
    if trial.host.roce is not None and trial.traffic:
        payload[roce_flows(testbed, trial, schedule)] = trial.host.roce.payload_bytes
    return np.asarray(counted * payload)


def _acked_at(schedule: Schedule, ends: Ends, at_ns: int) -> Floats:
    """Return what each flow had acknowledged at a time, (flows,); NaN without readings.

    Between two readings it is at one rate.
    """
    size = schedule.size_bytes.astype(np.float64)
    found = np.full(len(schedule), math.nan)
    if ends.acked is None or not len(ends.acked.t_ns):
        return found
    t_ns, rows = ends.acked.t_ns, ends.acked["acked_bytes"]
    counted = np.where(rows == MISSING, math.nan, rows.astype(np.float64))
    later = int(np.searchsorted(t_ns, at_ns))
    if later < len(t_ns):
        high_ns, high = np.full(len(schedule), t_ns[later]), counted[later]
    else:  # the trial was over before: all that ended has its size
        high_ns, high = ends.end_ns, np.where(ends.status == DONE, size, math.nan)
        high = np.where(np.isnan(counted[-1]), math.nan, high)
    low_ns, low = schedule.start_ns, np.where(np.isnan(counted[0]), math.nan, 0.0)
    if later:
        after = t_ns[later - 1] > low_ns
        low_ns = np.where(after, t_ns[later - 1], low_ns)
        low = np.where(after, counted[later - 1], low)
    part = (at_ns - low_ns) / np.maximum(high_ns - low_ns, 1)
    found = low + (high - low) * np.clip(part, 0.0, 1.0)
    known = ~np.isnan(counted[0])
    over = known & (ends.status == DONE) & (ends.end_ns <= at_ns)
    found[over] = size[over]
    found[known & (schedule.start_ns >= at_ns)] = 0.0
    return np.asarray(found, dtype=np.float64)


def _at_one_rate(trial: TrialSpec, schedule: Schedule, ends: Ends, stop_ns: int) -> Floats:
    """Return what each flow delivers from the warm-up's end until a time, at one rate: (flows,)."""
    begin_ns = trial.warm_up_ns
    ends_ns = np.where(ends.status == DONE, ends.end_ns, _end_ns(trial))
    ends_ns = np.where(ends.status == LASTING, trial.duration_ns, ends_ns)
    size = expected_bytes(trial, schedule) if trial.traffic else schedule.size_bytes
    within = np.minimum(ends_ns, stop_ns) - np.maximum(schedule.start_ns, begin_ns)
    lasts_ns = np.maximum(ends_ns - schedule.start_ns, 1)
    return np.asarray(size * np.clip(within / lasts_ns, 0.0, 1.0))


def arrived_bytes(
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    ports: Samples,
    window_ns: tuple[int, int],
) -> Floats:
    """Return the payload that ports sent to each host in a window, (hosts,); NaN if unknown.

    It includes what arrives twice or is discarded. Between two samples a port sends evenly. Headers
    are TCP's or RoCE's; at a host that gets both kinds, by their shares of its payload.
    """
    arrived = np.full(len(testbed.hosts), math.nan)
    if not len(ports.t_ns):
        return arrived
    number = {name: place for place, name in enumerate(testbed.hosts)}
    wire, packets = np.zeros(len(arrived)), np.zeros(len(arrived))
    for place, queue in enumerate(testbed.queues):
        host = number.get(testbed.peer_device(queue).name)
        if host is None:
            continue
        for total, counter in ((wire, ports.tx_bytes), (packets, ports.tx_packets)):
            read = not (counter[:, place] == MISSING).any()
            total[host] += _grown(ports.t_ns, counter[:, place], window_ns) if read else math.nan
    share = _roce_share(trial, testbed, schedule)
    roce = trial.host.roce
    roce_header = ROCE_HEADER_BYTES + (roce.telemetry_bytes if roce else 0)
    arrived = wire - (HEADER_BYTES + share * (roce_header - HEADER_BYTES)) * packets
    if roce is not None:
        # of full packets and acknowledgements, by the number of both together and their bytes
        full, ack = roce.payload_bytes, _AETH_BYTES
        only = share == 1
        arrived[only] = (arrived - ack * packets)[only] * full / (full - ack)
    return np.asarray(np.maximum(arrived, 0.0))


def _grown(t_ns: Ints, counter: Ints, window_ns: tuple[int, int]) -> float:
    """Return by how much a counter grew in a window; it was 0 at time 0, when nothing was sent."""
    begin, end = np.interp(window_ns, np.r_[0, t_ns], np.r_[0, counter])
    return float(end - begin)


def _roce_share(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> Floats:
    """Return which share of each host's payload comes from RoCE NICs, (hosts,)."""
    hosts = len(testbed.hosts)
    if trial.host.roce is None or not trial.traffic:
        return np.zeros(hosts)
    by_roce = schedule.size_bytes * roce_flows(testbed, trial, schedule)
    share = np.bincount(schedule.dst, by_roce, hosts).astype(np.float64)
    return share / np.maximum(np.bincount(schedule.dst, schedule.size_bytes, hosts), 1)


def _end_ns(trial: TrialSpec) -> int:
    return trial.duration_ns + trial.drain_ns
