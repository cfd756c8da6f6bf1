"""What the switch ports counted against what links can carry and flows delivered.

Linux counts a frame without preamble, check sequence and gap: 14 bytes of Ethernet and 52 of
IPv4 and TCP with timestamps around the payload. `Testbed.framing_bytes` come on top on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inventory.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed
from orchestration.artifacts.stamp import Reason
from orchestration.model.records import (
    DONE,
    MISSING,
    Floats,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.model.units import format_duration, format_rate, format_size

HEADER_BYTES = ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES
DELIVERED_TOLERANCE = 0.01
# Of a link's rate, besides the packets that an interval cuts in two.
RATE_TOLERANCE = 0.01
# SYN, SYN-ACK and FIN carry longer options or come twice; a driver may say hello in each flow.
_FLOW_SLACK_BYTES = 256
# Address resolution and the like, shorter or longer than a TCP header.
_PORT_SLACK_BYTES = 4096
# Up to three SACK blocks, as fit beside timestamps: 2 + 3 x 8, padded.
_SACK_BYTES = 28


def per_port(testbed: Testbed, values: Floats | Ints) -> Floats:
    """Add up the queues of each port: shape (..., queues) to (..., `Testbed.switch_ports`)."""
    shape = (*values.shape[:-1], len(testbed.switch_ports), testbed.queues_per_port)
    return np.asarray(values.reshape(shape).sum(axis=-1), dtype=np.float64)


def check_rates(testbed: Testbed, ports: Samples, *, faults: bool) -> Iterator[Reason]:
    """Find intervals in which a link carried more than its rate, or less while it was surely busy.

    Surely busy: its queues held more at the start than the link can send until the end. A traffic
    class alone may take all of the link's rate, hence all classes are taken together. Links that go
    down by a planned fault (`faults`) may be slow.
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
    could = rate_bps * dt_ns / 8e9
    cut = 2 * (testbed.mtu_bytes + ETHERNET_HEADER_BYTES + testbed.framing_bytes)
    sure = per_port(testbed, (~known)[None, :].astype(np.int64)) == 0
    over = (sent > could * (1 + RATE_TOLERANCE) + cut) & sure
    below = (sent < could * (1 - RATE_TOLERANCE) - cut) & (held > could) & sure
    if np.any(over):
        yield _rate_reason(testbed, ports, sent, over, "link-over-rate", "more than")
    if np.any(below) and not faults:
        yield _rate_reason(testbed, ports, sent, below, "link-below-rate", "with a backlog, below")


def known_queues(samples: Ints) -> np.ndarray:
    """Return which queues have a number at every sample: booleans (queues,), the last axis."""
    return np.asarray((samples != MISSING).reshape(-1, samples.shape[-1]).all(axis=0))


def _rate_reason(
    testbed: Testbed, ports: Samples, sent: Floats, wrong: np.ndarray, code: str, word: str
) -> Reason:
    interval, number = (int(index[0]) for index in np.nonzero(wrong))
    port = testbed.switch_ports[number]
    start_ns = int(ports.t_ns[interval])
    dt_ns = int(ports.t_ns[interval + 1]) - start_ns
    seen_bps = sent[interval, number] * 8e9 / max(1, dt_ns)
    return Reason(
        code,
        "invalid",
        f"{port.label} carried {format_rate(seen_bps)} for {format_duration(dt_ns)} from "
        f"{format_duration(start_ns)} on, {word} its {format_rate(port.rate_bps)}; "
        f"{np.count_nonzero(wrong)} such readings",
    )


def check_delivered(testbed: Testbed, schedule: Schedule, record: TrialRecord) -> Iterator[Reason]:
    """Compare what the ports towards each host sent, headers taken off, with what it was due.

    At least the payload of the flows that are done; at most that of all its flows, with every
    retransmitted segment on top (and SACK options on the acknowledgements, if any flow lost one).
    Pure acknowledgements carry nothing. 1 % and a few bytes for each flow are allowed either way.
    A host whose port was not read at the end is not judged.
    """
    hosts = {name: number for number, name in enumerate(testbed.hosts)}
    payload, packets = np.zeros(len(hosts)), np.zeros(len(hosts))
    attached = np.zeros(len(hosts))
    unread = per_port(testbed, (record.ports.tx_bytes[-1] == MISSING).astype(np.int64)) > 0
    port_bytes = per_port(testbed, record.ports.tx_bytes[-1])
    port_packets = per_port(testbed, record.ports.tx_packets[-1])
    judged = np.ones(len(hosts), dtype=bool)
    for number, port in enumerate(testbed.switch_ports):
        host = hosts.get(testbed.peer_device(port).name)
        if host is not None:
            judged[host] &= not unread[number]
            sent, count = port_bytes[number], port_packets[number]
            payload[host] += sent - HEADER_BYTES * count
            packets[host] += count
            attached[host] += 1

    def per_host(host: Ints, weight: Ints | Floats) -> Floats:
        return np.bincount(host, weight, len(hosts)).astype(np.float64)

    done = record.flows.status == DONE
    due = per_host(schedule.dst, np.where(done, schedule.size_bytes, 0))
    resent = per_host(schedule.dst, record.flows.retransmits * testbed.mss_bytes)
    most = per_host(schedule.dst, schedule.size_bytes) + resent
    one = np.ones(len(schedule))
    slack = _PORT_SLACK_BYTES * attached + _FLOW_SLACK_BYTES * (
        per_host(schedule.dst, one) + per_host(schedule.src, one)
    )
    lossy = per_host(schedule.src, record.flows.retransmits) > 0
    acknowledgements = np.maximum(0, packets - due / testbed.mss_bytes)
    sack = np.where(lossy, _SACK_BYTES * acknowledgements, 0)
    low = due * (1 - DELIVERED_TOLERANCE) - slack
    high = most * (1 + DELIVERED_TOLERANCE) + slack + sack
    wrong = np.flatnonzero((attached > 0) & judged & ((payload < low) | (payload > high)))
    if len(wrong):
        worst = int(wrong[np.argmax(np.abs(payload - due)[wrong])])
        yield Reason(
            "counters-disagree",
            "invalid",
            f"the ports towards {testbed.hosts[worst]} sent {format_size(payload[worst])} of "
            f"payload, its flows account for {format_size(due[worst])} to "
            f"{format_size(most[worst])}; {len(wrong)} of {len(hosts)} hosts disagree by over 1%",
        )
