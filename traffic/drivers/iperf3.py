"""iperf3: TCP and UDP flows with a client and a one-off server each; results from its JSON.

Observed behaviour, and why a flow's times need care:

- A test of a number of bytes ends when the sender has passed them to its kernel
  (src/iperf_client_api.c). The receiver then closes its sockets (src/iperf_server_api.c, TEST_END),
  so bytes in flight are not counted. With TCP these are at most what the buffers of both ends hold;
  if more is missing, the flow has failed.
- A receiver of UDP counts gaps in the datagrams' numbers as losses, except datagrams that arrived
  late (src/iperf_udp.c). It does not know of losses after the last datagram that arrived.
- From 3.16 on, the sending threads are checked only at each report interval. The driver uses the
  shortest one, 0.1 s, so the end of a flow may be noticed that late. Use sockets for short flows.
- From 3.16 on, a UDP test of a number of bytes continues to the end of its interval, and so sends
  more than that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traffic.drivers.output import OutputError, excerpt, json_documents, mapping, number, optional
from traffic.drivers.programs import (
    UNKNOWN,
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

_NAME = "iperf3"
_INTERVAL_S = 0.1
_CONNECT_MS = 5000
# The first version with a thread per stream.
_THREADED = (3, 16)

# How far a socket's send buffer grows by default: net.ipv4.tcp_wmem's last number.
_SEND_BUFFER_BYTES = 4 << 20

# The sizes that it accepts for a datagram's payload.
_DATAGRAM_BYTES = range(16, 65_508)


@dataclass(frozen=True)
class Transfer:
    """What one test has transferred. A receiver's values are None if it did not report any.

    `packets` is the number of UDP datagrams up to the last that arrived, `sent_packets` that of all
    sent. `in_flight_bytes` is the most that the sockets of TCP's streams can have held at the end,
    None if unknown.
    """

    version: str
    protocol: str
    sent_bytes: int
    sender_ns: int
    received_bytes: int | None
    receiver_ns: int | None
    retransmits: int | None = None
    packets: int | None = None
    lost_packets: int | None = None
    sent_packets: int | None = None
    in_flight_bytes: int | None = None

    @property
    def duration_ns(self) -> int:
        """The duration by the receiver, or by the sender if the receiver reported none."""
        return self.receiver_ns or self.sender_ns


def parse_json(text: str) -> Transfer:
    """Return the result of the whole test from the output of `--json`.

    Raises OutputError with iperf3's own error, or for an output that is cut short or not its own.
    """
    return _transfer(json_documents(_NAME, text)[-1])


def _transfer(document: Mapping[str, Any]) -> Transfer:
    if error := document.get("error"):
        raise explain(str(error))
    end = document.get("end")
    if not isinstance(end, Mapping) or "sum_sent" not in end:
        raise OutputError(_NAME, "its report has no end", "see whether it was killed")
    start = mapping(document, "start")
    about = mapping(start, "test_start")

    def reported(part: str, name: str, scale: float = 1) -> int | None:
        value = optional(_NAME, end, part, name)
        return None if value is None else round(value * scale)

    return Transfer(
        version=str(start.get("version", "")).removeprefix("iperf "),
        protocol=str(about.get("protocol", "")),
        sent_bytes=int(number(_NAME, end, "sum_sent", "bytes")),
        sender_ns=round(number(_NAME, end, "sum_sent", "seconds") * 1e9),
        received_bytes=reported("sum_received", "bytes"),
        receiver_ns=reported("sum_received", "seconds", 1e9),
        retransmits=reported("sum_sent", "retransmits"),
        packets=reported("sum_received", "packets"),
        lost_packets=reported("sum_received", "lost_packets"),
        sent_packets=reported("sum_sent", "packets"),
        in_flight_bytes=_in_flight_bytes(end),
    )


def _in_flight_bytes(end: Mapping[str, Any]) -> int | None:
    """Return the most bytes that TCP's sockets can have held at the end; None if unknown.

    A sender's buffer grows to two congestion windows, or three with BBR (tcp_sndbuf_expand in
    net/ipv4/tcp_input.c), and does not shrink when they do. A receiver's buffer holds at most the
    window that it has offered.
    """
    streams = end.get("streams")
    total = 0
    for stream in streams if isinstance(streams, list) else ():
        sender = mapping(stream, "sender") if isinstance(stream, Mapping) else {}
        sizes = [optional(_NAME, sender, name) for name in ("max_snd_cwnd", "max_snd_wnd")]
        if not all(sizes):
            return None
        total += round(max(_SEND_BUFFER_BYTES, 3 * (sizes[0] or 0)) + (sizes[1] or 0))
    return total or None


_FAILURES = (
    ("Connection refused", "nothing listens there: see whether the server runs"),
    ("the server is busy", "the port is another flow's, or of an earlier run: see what listens"),
    ("control socket has closed", "the server went away: see what it printed"),
    ("Name or service", "the host's name is unknown: give an address"),
    ("unrecognized option", "this iperf3 is too old for the option, or too new"),
    ("congestion control", "load it on the host and allow it there"),
    ("the client has terminated", "see what the client printed"),
)


def explain(text: str) -> OutputError:
    """Return the error for a message of iperf3."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    message = excerpt(first.removeprefix("iperf3: ").removeprefix("error - "))
    known = (remedy for phrase, remedy in _FAILURES if phrase in message)
    remedy = next(known, "run its command by hand")
    return OutputError(_NAME, message or "it failed without a message", remedy)


class Iperf3(ProgramDriver):
    """Sends flows with iperf3."""

    name = _NAME
    options = (
        Option("protocol", "tcp", "what carries the bytes", choices=("tcp", "udp")),
        Option("rate", 0, "bits/s of each stream; 0 means no limit", 0, unit="bps"),
        Option("streams", 1, "connections that share the flow's bytes", 1, 128),
        Option("congestion_control", "", "TCP's; by default the traffic class's, or the host's"),
        Option("block", 0, "bytes of a write; 0 means iperf3's default", 0, 1 << 20, unit="bytes"),
        Option("zerocopy", False, "send without copying"),
    )

    def _conflicts(
        self, values: Mapping[str, Any], given: Options, testbed: object
    ) -> Iterator[tuple[str, str]]:
        if values["protocol"] == "udp":
            block = values["block"]
            if not values["rate"]:
                yield "protocol", "UDP needs a rate: give one, like rate: 1Gbps"
            if values["congestion_control"]:
                yield "congestion_control", "UDP has no congestion_control: leave it out"
            if block and block not in _DATAGRAM_BYTES:
                first, last = _DATAGRAM_BYTES[0], _DATAGRAM_BYTES[-1]
                yield "block", f"block is {block}: a datagram of UDP has {first} to {last} bytes"

    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the commands of the server and the client."""
        values = self.values(options)
        port = ("--port", str(flow.port))
        client = ["iperf3", "--client", flow.dst_address, "--bind", flow.src_address, *port]
        client += ["--bytes", str(flow.size_bytes), "--json", "--interval", str(_INTERVAL_S)]
        client += ["--connect-timeout", str(_CONNECT_MS)]
        if values["protocol"] == "udp":
            client.append("--udp")
        if values["rate"]:
            client += ["--bitrate", str(values["rate"])]
        if values["streams"] > 1:
            client += ["--parallel", str(values["streams"])]
        if flow.tos:
            client += ["--tos", str(flow.tos)]
        congestion_control = values["congestion_control"] or flow.congestion_control
        if congestion_control and values["protocol"] == "tcp":
            client += ["--congestion", congestion_control]
        if values["block"]:
            client += ["--length", str(values["block"])]
        if values["zerocopy"]:
            client.append("--zerocopy")
        server = ["iperf3", "--server", "--one-off", "--bind", flow.dst_address, *port, "--json"]
        return server_and_client(flow, server, client)

    def _result(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome by the client's report."""
        why = failure_reason(_NAME, client, "client")
        if client.error or client.timed_out or client.cut_bytes:
            raise FlowFailed(why)
        if client.exit_code and not client.stdout.strip():
            raise explain(client.stderr)
        transfer = parse_json(client.stdout)
        if why:
            raise FlowFailed(why)
        if transfer.sent_bytes < flow.size_bytes:
            raise FlowFailed(f"{_NAME}: it sent {transfer.sent_bytes} of {flow.size_bytes} bytes")
        if why := _incomplete(transfer, flow.size_bytes):
            raise FlowFailed(f"{_NAME}: {why}")
        retransmits = UNKNOWN if transfer.retransmits is None else transfer.retransmits
        remarks = "; ".join(_remarks(transfer, flow.size_bytes))
        return completed(client, transfer.duration_ns, retransmits, remarks)


def _incomplete(transfer: Transfer, size_bytes: int) -> str:
    """Return why a flow that was sent is not complete; "" if the missing bytes may be in flight."""
    received = transfer.received_bytes
    if transfer.protocol == "UDP":
        return f"none of {size_bytes} bytes arrived" if received == 0 else ""
    if received is None or transfer.in_flight_bytes is None:
        return ""
    missing = size_bytes - received
    if missing <= transfer.in_flight_bytes:
        return ""
    return (
        f"{received} of {size_bytes} bytes arrived, and at most {transfer.in_flight_bytes} of the "
        "others were in flight when it ended"
    )


def _remarks(transfer: Transfer, size_bytes: int) -> list[str]:
    is_udp = transfer.protocol == "UDP"
    remarks = _losses(transfer) if is_udp else _uncounted(transfer, size_bytes)
    if _version(transfer.version) >= _THREADED:
        remarks.append(f"its end may be noticed up to {_INTERVAL_S} s late")
    return remarks


def _losses(transfer: Transfer) -> list[str]:
    """Return remarks about datagrams that did not arrive: UDP does not retransmit."""
    lost, seen = transfer.lost_packets or 0, transfer.packets or 0
    sent = max(transfer.sent_packets or 0, seen)
    remarks = []
    if lost:
        remarks.append(f"{lost} of {sent} datagrams were lost ({lost / max(sent, 1):.2%})")
    if sent > seen:
        remarks.append(
            f"the last {sent - seen} of {sent} datagrams did not arrive: lost, or in flight when "
            "it ended"
        )
    missing = transfer.sent_bytes - (transfer.received_bytes or transfer.sent_bytes)
    if missing > 0 and not remarks:
        remarks.append(f"{missing} of {transfer.sent_bytes} bytes did not arrive: lost")
    return remarks


def _uncounted(transfer: Transfer, size_bytes: int) -> list[str]:
    """Return a remark about bytes of TCP that the receiver did not count."""
    if transfer.received_bytes is None or transfer.received_bytes >= size_bytes:
        return []
    missing = size_bytes - transfer.received_bytes
    if transfer.in_flight_bytes is None:
        return [f"its receiver counted {missing} bytes too few: in flight when it ended, or lost"]
    return [f"its receiver stopped counting {missing} bytes before the end"]  # in its buffers


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
