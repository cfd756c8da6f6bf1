"""Checks of ports' counters: against link rates, the bytes of flows, and the marking of packets.

Linux counts a frame without preamble, check sequence and gap: 14 bytes of Ethernet plus 52 bytes of
IPv4 and TCP with timestamps, plus the payload. On the wire `Testbed.framing_bytes` are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from inventory.routing import flow_controls, ignores_marks, roce_flows
from orchestration.core.capabilities import mode_of
from orchestration.core.knobs import ECN
from orchestration.core.records import (
    DONE,
    MISSING,
    ChangeRecords,
    Floats,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration, format_rate, format_size
from orchestration.results.stamp import Reason, Stamp

HEADER_BYTES = ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES
DELIVERED_TOLERANCE = 0.01
# A share of a link's rate, in addition to packets that are in part in the next interval.
RATE_TOLERANCE = 0.01
# SYN, SYN-ACK and FIN have longer options or are repeated; a driver may send a greeting per flow.
_FLOW_SLACK_BYTES = 256
# ARP and similar packets, whose headers are shorter or longer than TCP's.
_PORT_SLACK_BYTES = 4096
# Up to three SACK blocks fit beside timestamps: 2 + 3 x 8 bytes, padded.
_SACK_BYTES = 28
# Sizes of RoCE packets: the header of an acknowledgement has 4 bytes more than data's, a CNP's 16.
_ROCE_ACK_BYTES, _CNP_BYTES = ROCE_HEADER_BYTES + 4, ROCE_HEADER_BYTES + 16


def per_port(testbed: Testbed, values: Floats | Ints) -> Floats:
    """Sum the queues of each port: shape (..., queues) to (..., `Testbed.switch_ports`)."""
    shape = (*values.shape[:-1], len(testbed.switch_ports), testbed.queues_per_port)
    return np.asarray(values.reshape(shape).sum(axis=-1), dtype=np.float64)


def check_rates(
    testbed: Testbed,
    ports: Samples,
    *,
    faults: bool,
    pauses: Samples | None = None,
    taken: tuple[Ints, Ints] | None = None,
    late_ns: int = 0,
) -> Iterator[Reason]:
    """Find intervals in which a link carried more than its rate, or less although it was busy.

    A link was certainly busy if its queues held more at the start of the interval than it can send
    until the end. A single traffic class may use the whole rate, so all classes are summed. With
    `faults`, links may be slower, since they go down as planned; a link may also be slower for the
    time for which its peer paused it, by the samples `pauses` of the lossless classes. `taken` has
    the earliest and the latest time at which each queue was read, if that is not the samples' time:
    on a clock that goes on while counters are read, an interval is as long as these allow. A shaper
    that wakes up to `late_ns` late may send that much more afterwards.
    """
    counters = (ports.tx_bytes, ports.tx_packets, ports.marked_packets, ports.dropped_packets)
    known = known_queues(np.stack([*counters, ports.qlen_bytes], axis=1))
    if any(np.any(np.diff(counter[:, known], axis=0) < 0) for counter in counters):
        yield Reason("counters-disagree", "invalid", "a port's counter went backwards")
        return
    dt_ns = np.diff(ports.t_ns).astype(np.float64)[:, None]
    if not len(dt_ns):
        return
    rate_bps = np.array([port.rate_bps for port in testbed.switch_ports], dtype=np.float64)
    counted = np.diff(ports.tx_bytes, axis=0) + testbed.framing_bytes * np.diff(
        ports.tx_packets, axis=0
    )
    sent, held = per_port(testbed, counted), per_port(testbed, ports.qlen_bytes[:-1])
    max_ns, min_ns = _spans_ns(testbed, taken) if taken else (dt_ns, dt_ns)
    could, surely = rate_bps * max_ns / 8e9, rate_bps * min_ns / 8e9
    split = 2 * (testbed.mtu_bytes + ETHERNET_HEADER_BYTES + testbed.framing_bytes)
    sure = per_port(testbed, (~known)[None, :].astype(np.int64)) == 0
    made_up = rate_bps * late_ns / 8e9
    over = (sent > could * (1 + RATE_TOLERANCE) + split + made_up) & sure
    unpaused = surely - rate_bps * _paused_ns(testbed, pauses, sent.shape) / 8e9
    below = (sent < unpaused * (1 - RATE_TOLERANCE) - split) & (held > could) & sure
    if np.any(over):
        yield _rate_reason(testbed, ports, sent, over, "link-over-rate", "more than")
    if np.any(below) and not faults:
        yield _rate_reason(testbed, ports, sent, below, "link-below-rate", "with a backlog, below")


def _spans_ns(testbed: Testbed, taken: tuple[Ints, Ints]) -> tuple[Floats, Floats]:
    """Return the longest and the shortest possible length of each port's intervals.

    Shapes are (intervals, ports). The queues of a port are read together.
    """
    shape = (-1, len(testbed.switch_ports), testbed.queues_per_port)
    first, last = taken[0].reshape(shape).min(axis=-1), taken[1].reshape(shape).max(axis=-1)
    maximum, minimum = last[1:] - first[:-1], first[1:] - last[:-1]
    return maximum.astype(np.float64), np.maximum(minimum, 0).astype(np.float64)


def _paused_ns(testbed: Testbed, pauses: Samples | None, shape: tuple[int, ...]) -> Floats:
    """Return for how long each port was paused in each interval: shape (intervals, ports)."""
    paused = np.zeros(shape)
    if pauses is None:
        return paused
    port_index = {port.label: index for index, port in enumerate(testbed.switch_ports)}
    grown = np.diff(pauses.paused_ns, axis=0)
    for index, queue in enumerate(testbed.lossless_queues):
        of_port = paused[:, port_index[queue.port.label]]
        np.maximum(of_port, grown[:, index], out=of_port)
    return paused


def known_queues(samples: Ints) -> np.ndarray:
    """Return which queues have a value in every sample: booleans, shape (queues,)."""
    return np.asarray((samples != MISSING).reshape(-1, samples.shape[-1]).all(axis=0))


def _rate_reason(
    testbed: Testbed, ports: Samples, sent: Floats, wrong: np.ndarray, code: str, word: str
) -> Reason:
    interval, port_index = (int(index[0]) for index in np.nonzero(wrong))
    port = testbed.switch_ports[port_index]
    start_ns = int(ports.t_ns[interval])
    dt_ns = int(ports.t_ns[interval + 1]) - start_ns
    seen_bps = sent[interval, port_index] * 8e9 / max(1, dt_ns)
    return Reason(
        code,
        "invalid",
        f"{port.label} carried {format_rate(seen_bps)} for {format_duration(dt_ns)} from "
        f"{format_duration(start_ns)} on, {word} its {format_rate(port.rate_bps)}; "
        f"{np.count_nonzero(wrong)} such readings",
    )


def check_delivered(
    trial: TrialSpec, testbed: Testbed, schedule: Schedule, record: TrialRecord
) -> Iterator[Reason]:
    """Compare the payload that ports sent to each host with the payload of its flows.

    The minimum is the payload of the finished flows. The maximum is the payload of all its flows
    plus every retransmitted segment, and SACK options on acknowledgements if any flow lost a
    segment. Pure acknowledgements carry no payload. The tolerance is 1 % and a few bytes per flow.
    RoCE's headers are shorter than TCP's, but those of CNPs; telemetry may make them longer.
    Hosts whose port was not sampled at the end are not checked.
    """
    hosts = len(testbed.hosts)
    ports = _sent_to_hosts(testbed, record.ports)

    def per_host(host: Ints, weight: Ints | Floats) -> Floats:
        return np.bincount(host, weight, hosts).astype(np.float64)

    done = record.flows.status == DONE
    finished = per_host(schedule.dst, np.where(done, schedule.size_bytes, 0))
    resent = per_host(schedule.dst, record.flows.retransmits * testbed.mss_bytes)
    maximum = per_host(schedule.dst, schedule.size_bytes) + resent
    ones = np.ones(len(schedule))
    slack = _PORT_SLACK_BYTES * ports.attached + _FLOW_SLACK_BYTES * (
        per_host(schedule.dst, ones) + per_host(schedule.src, ones)
    )
    lossy = per_host(schedule.src, record.flows.retransmits) > 0
    acknowledgements = np.maximum(0, ports.packets - finished / testbed.mss_bytes)
    sack = np.where(lossy, _SACK_BYTES * acknowledgements, 0)
    low = finished * (1 - DELIVERED_TOLERANCE) - slack
    high = maximum * (1 + DELIVERED_TOLERANCE) + slack + sack
    if trial.host.roce is not None:
        carried = -(-schedule.size_bytes // trial.host.roce.payload_bytes)
        full = per_host(schedule.dst, roce_flows(testbed, trial, schedule) * carried)
        other = np.maximum(0, ports.packets - full)
        low -= (HEADER_BYTES - ROCE_HEADER_BYTES) * full + (HEADER_BYTES - _ROCE_ACK_BYTES) * other
        high += (_CNP_BYTES - HEADER_BYTES) * other
        high += trial.host.roce.telemetry_bytes * ports.packets
    payload = ports.payload_bytes
    wrong = np.flatnonzero(ports.known & ((payload < low) | (payload > high)))
    if len(wrong):
        worst = int(wrong[np.argmax(np.abs(payload - finished)[wrong])])
        yield Reason(
            "counters-disagree",
            "invalid",
            f"the ports towards {testbed.hosts[worst]} sent {format_size(payload[worst])} of "
            f"payload, its flows account for {format_size(finished[worst])} to "
            f"{format_size(maximum[worst])}; {len(wrong)} of {hosts} hosts disagree by over 1%",
        )


@dataclass(frozen=True)
class _SentToHosts:
    """What ports sent to each host in the whole trial, shapes (hosts,).

    `payload_bytes` are without TCP's headers, `attached` counts ports. `known` are hosts whose
    ports all have a last sample.
    """

    payload_bytes: Floats
    packets: Floats
    attached: Floats
    known: np.ndarray


def _sent_to_hosts(testbed: Testbed, ports: Samples) -> _SentToHosts:
    hosts = {name: number for number, name in enumerate(testbed.hosts)}
    payload, packets, attached = (np.zeros(len(hosts)) for _ in range(3))
    unread = per_port(testbed, (ports.tx_bytes[-1] == MISSING).astype(np.int64)) > 0
    port_bytes = per_port(testbed, ports.tx_bytes[-1])
    port_packets = per_port(testbed, ports.tx_packets[-1])
    read = np.ones(len(hosts), dtype=bool)
    for number, port in enumerate(testbed.switch_ports):
        host = hosts.get(testbed.peer_device(port).name)
        if host is not None:
            read[host] &= not unread[number]
            sent, count = port_bytes[number], port_packets[number]
            payload[host] += sent - HEADER_BYTES * count
            packets[host] += count
            attached[host] += 1
    return _SentToHosts(payload, packets, attached, read & (attached > 0))


UNANSWERED, UNUSED = "marks-unanswered", "setting-unused"


def check_marks(trial: TrialSpec, testbed: Testbed, record: TrialRecord) -> Iterator[Reason] | None:
    """Find ECN thresholds without effect; None if none were set, or if no packet was sent.

    They have no effect if no flow slows down on marks. They have none either if no packet was
    marked although queues grew beyond kmax: then packets are not ECN-capable, or the switches do
    not mark.
    """
    changes, ports = record.changes.get(ECN.name), record.ports
    if changes is None or not len(changes.targets) or not (ports.tx_packets > 0).any():
        return None
    return _findings(trial, testbed, record, changes)


def why_marks_ignored(stamps: Iterable[Stamp]) -> str:
    """Return why thresholds have no effect in all trials with these stamps; "" if they have."""
    texts = {
        next((reason.text for reason in stamp.reasons if reason.code == UNANSWERED), "")
        for stamp in stamps
    }
    causes = {text.partition(":")[0] for text in texts}
    return causes.pop() if len(causes) == 1 else ""


def why_identical(stamps: Iterable[Stamp]) -> str:
    """Return why trials with these stamps have the same results, if their stamps say it, or "".

    A setting that changes nothing explains it also where only some of the trials have it.
    """
    stamps = list(stamps)
    found = (reason for stamp in stamps for reason in stamp.reasons if reason.code == UNUSED)
    unused = dict.fromkeys(reason.text.partition(":")[0] for reason in found)
    return why_marks_ignored(stamps) or " and ".join(unused)


def _findings(
    trial: TrialSpec, testbed: Testbed, record: TrialRecord, changes: ChangeRecords
) -> Iterator[Reason]:
    if ignores_marks(testbed, trial):
        controls = ", ".join(dict.fromkeys(flow_controls(testbed, trial)))
        yield Reason(
            UNANSWERED,
            "warning",
            f"no flow answers ECN marks under {controls}: the thresholds that tuner "
            f"{trial.tuner.name!r} set have no effect",
        )
        return
    marked = record.ports.marked_packets
    if (marked == MISSING).any() or marked.max(initial=0) > 0:
        return
    count = grown_beyond(trial, testbed, record, changes)
    if count:
        yield Reason(
            "marks-missing",
            "warning",
            f"no packet was marked, although {count} readings found a queue grown beyond kmax: "
            "packets are not ECN-capable (net.ipv4.tcp_ecn, a driver's traffic class), or the "
            "switches do not mark; thresholds have no effect, or drop packets",
        )


def grown_beyond(
    trial: TrialSpec, testbed: Testbed, record: TrialRecord, changes: ChangeRecords
) -> int:
    """Return how many samples found a queue grown to a frame or more beyond its kmax.

    The packet that made it so long arrived at a queue of kmax or more, so it had to be marked. Kmax
    is the highest that was in force since the previous sample.
    """
    ports = record.ports
    # a rack's switches poll their counters, so that the latest packets may not be counted yet
    late_ns = mode_of(trial).counters_late_ns
    seen = int(np.searchsorted(ports.t_ns, ports.t_ns[-1] - late_ns, side="right"))
    held = ports.qlen_bytes[:seen]
    frame_bytes = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    beyond = held[1:] >= _highest(changes, ports.t_ns[:seen], held.shape[1])[1:] + frame_bytes
    grown = (held[:-1] != MISSING) & (held[1:] > held[:-1])
    return int(np.count_nonzero(beyond & grown))


def _highest(changes: ChangeRecords, t_ns: np.ndarray, queues: int) -> Floats:
    """Return the highest kmax since the previous sample, shape (samples, queues).

    It is infinite before the first setting.
    """
    highest = np.full((len(t_ns), queues), np.inf)
    order = np.argsort(changes.applied_ns, kind="stable")
    kmax, targets = changes.values["kmax_bytes"][order], changes.targets[order]
    sample_of = np.searchsorted(t_ns, changes.applied_ns[order], side="left")
    current = np.full(queues, np.inf)
    change = 0
    for sample in range(len(t_ns)):
        highest[sample] = current
        while change < len(sample_of) and sample_of[change] <= sample:
            queue = targets[change]
            current[queue] = kmax[change]
            highest[sample, queue] = max(highest[sample, queue], kmax[change])
            change += 1
    return highest
