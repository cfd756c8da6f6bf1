"""Incast from prebuilt frames: UDP or RoCEv2-shaped packets with ECN bits, built with Scapy.

The controller builds a flow's frames. All senders begin at the same time; the agent of each sends
the frames at a rate or back to back. The agent of the receiving host counts them, and how many are
marked CE. Nothing responds to marks or losses: this is a fixed load, not a transport protocol. A
flow is done when all its frames have arrived. A RoCE NIC consumes RoCEv2 frames itself, so that its
host counts none of them. So use the shape `roce` on hosts with plain NICs, to load the queues of
switches.

A flow sends its distinct frames in turn, again and again. Its size counts payload bytes. Each
payload begins with a tag, which distinguishes the last frame from the others.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from orchestration.agent.senders.frames import MARK, ROCE_PORT
from orchestration.core.status import UNFINISHED
from traffic.drivers.output import json_documents, number
from traffic.drivers.programs import (
    Flow,
    FlowFailed,
    Launch,
    Option,
    Options,
    Outcome,
    Output,
    ProgramDriver,
    completed,
    failure_reason,
    server_and_client,
)

if TYPE_CHECKING:
    from scapy.packet import Packet

    from orchestration.core.topology import Testbed

_NAME = "scapy"
_MIN_PAYLOAD = 8
_ETHERNET_BYTES, _IPV4_BYTES, _UDP_BYTES, _BTH_BYTES, _ICRC_BYTES = 14, 20, 8, 12, 4
_ECN = {"none": 0, "ect1": 1, "ect0": 2}
_FIRST_SOURCE_PORT, _SOURCE_PORTS = 0xC000, 0x4000
_PSNS = 1 << 24


@dataclass(frozen=True)
class Frames:
    """A flow's frames: `packets` in all, those of `cycle` in turn and then `last`."""

    cycle: tuple[bytes, ...]
    last: bytes
    packets: int


def build(flow: Flow, options: Options) -> Frames:
    """Return a flow's frames. The sending host sets their Ethernet addresses."""
    values = ScapyIncast().values(options)
    payload: int = values["payload"]
    packets = -(-flow.size_bytes // payload)
    rest = flow.size_bytes - (packets - 1) * payload
    distinct = max(1, min(values["distinct"], packets - 1))
    cycle = tuple(_frame(flow, values, psn, payload, False) for psn in range(distinct))
    last = _frame(flow, values, packets - 1, max(rest, _MIN_PAYLOAD), True)
    return Frames(cycle, last, packets)


def _frame(flow: Flow, values: dict[str, Any], psn: int, size: int, last: bool) -> bytes:
    from scapy.compat import raw
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    filled = MARK + bytes([last]) + bytes(size - len(MARK) - 1)
    ether: Packet = Ether(src="00:00:00:00:00:00", dst="00:00:00:00:00:00")
    tos = (flow.tos & ~3) | _ECN[values["ecn"]]
    packet = ether / IP(src=flow.src_address, dst=flow.dst_address, tos=tos, id=psn & 0xFFFF)
    # ECMP distinguishes flows by the source port; the range is that of RoCE NICs
    source = _FIRST_SOURCE_PORT + flow.number % _SOURCE_PORTS
    if values["shape"] == "udp":
        return bytes(raw(packet / UDP(sport=source, dport=flow.port) / filled))
    from scapy.contrib.roce import BTH, opcode

    pad = -size % 4
    bth = BTH(
        opcode=opcode("RC", "SEND_ONLY")[0],
        padcount=pad,
        dqpn=queue_pair(flow),
        psn=psn % _PSNS,
        ackreq=int(last),
    )
    # RoCEv2's UDP checksum may be 0, as it is with most NICs
    udp = UDP(sport=source, dport=ROCE_PORT, chksum=0)
    return bytes(raw(packet / udp / bth / (filled + bytes(pad))))


def queue_pair(flow: Flow) -> int:
    """Return the queue pair in a flow's RoCEv2 frames, higher than any real one."""
    return 0x800000 | (flow.number & 0x7FFFFF)


class ScapyIncast(ProgramDriver):
    """Sends flows as prebuilt frames."""

    name = _NAME
    options = (
        Option("shape", "udp", "what a frame looks like", choices=("udp", "roce")),
        Option("payload", 1024, "bytes of a frame's payload", _MIN_PAYLOAD, 9000, unit="bytes"),
        Option("rate", 0, "bits/s, Ethernet headers included; 0 means back to back", 0, unit="bps"),
        Option("ecn", "ect0", "the ECN bits of frames", choices=tuple(_ECN)),
        Option("distinct", 32, "distinct frames that a flow sends in turn", 1, 1024),
    )

    def needs(self, options: Options) -> tuple[str, ...]:
        """Return `ip`, which is used to find routes. Only the controller needs Scapy."""
        return ("ip",)

    def missing_here(self) -> str:
        """Return a message if Scapy is not installed, else ""."""
        if find_spec("scapy") is None:
            return "Scapy is not installed: pip install 'closloop[hardware]'"
        return ""

    def _conflicts(
        self, values: Mapping[str, Any], given: Options, testbed: Testbed | None
    ) -> Iterator[tuple[str, str]]:
        payload, headers = values["payload"], _IPV4_BYTES + _UDP_BYTES
        if values["shape"] == "roce":
            # a RoCEv2 payload is padded to 4-byte words
            headers += _BTH_BYTES + _ICRC_BYTES + -payload % 4
        if testbed is not None and payload + headers > testbed.mtu_bytes:
            yield (
                "payload",
                f"payload {payload} and its headers do not fit testbed {testbed.name}'s MTU of "
                f"{testbed.mtu_bytes}: give at most {testbed.mtu_bytes - headers}",
            )

    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the commands of the receiver (server) and the sender (client)."""
        values = self.values(options)
        frames = build(flow, options)
        identity = {
            "src_address": flow.src_address,
            "dst_address": flow.dst_address,
            "port": flow.port,
            "queue_pair": queue_pair(flow) if values["shape"] == "roce" else None,
        }
        to_send = {
            "frames": [base64.b64encode(frame).decode() for frame in frames.cycle],
            "last": base64.b64encode(frames.last).decode(),
            "packets": frames.packets,
            "rate": values["rate"],
        }
        server, client = server_and_client(flow, (), ())
        return (
            replace(
                server,
                listens=(("udp", flow.port),),
                operation="incast.receive",
                extra=identity,
            ),
            replace(client, operation="incast.send", extra={**identity, **to_send}),
        )

    def _result(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome, given the counts of frames that were sent and that arrived."""
        if why := failure_reason(_NAME, client, "sender") or failure_reason(
            _NAME, server, "receiver"
        ):
            raise FlowFailed(why)
        reports = [json_documents(_NAME, end.stdout) for end in (client, server)]
        if any(len(report) != 1 for report in reports):
            raise FlowFailed(f"{_NAME}: one end has printed several reports")
        (sent,), (arrived,) = reports
        packets = int(number(_NAME, sent, "packets"))
        received, marked, last_ns = (
            int(number(_NAME, arrived, name)) for name in ("packets", "ce_packets", "last_after_ns")
        )
        detail = f"{received} of {packets} frames arrived, {marked} marked CE"
        if received < packets or last_ns < 0:
            return Outcome(client.started_ns, -1, 0, UNFINISHED, detail)
        end_ns = server.started_ns + last_ns
        return completed(client, end_ns - client.started_ns, 0, detail, end_ns)
