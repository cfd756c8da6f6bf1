"""perftest: RDMA write, send and read over RoCE NICs, as bandwidth or latency tests.

Each flow has one client and one server, so an N-to-1 incast is N pairs whose clients start at the
same time. A flow's bytes become a number of messages, rounded up; perftest calls them iterations.

perftest creates its queue pairs itself, without rdma_cm (`-R`). Only then do packets carry the
traffic class of `--tclass` and the source address of `--gid-index` (`ctx_modify_qp_to_rtr` in
src/perftest_resources.c; rdma_cm takes `--tos`, or the device's default). Without `--gid-index`,
perftest (`get_best_gid_index`) prefers RoCE v2 and IPv4, but may choose another address of the NIC.

perftest measures time with the CPU's cycle counter, for which it needs the clock rate. If it cannot
find the rate (on a busy or virtual machine), it prints 0.00, inf and nan. Such values are refused,
and the flow's times are then those of the client's process. In virtual time, the cycle counter
follows another clock: only tests that wait for events finish (option `events`), and the process's
times include half a second in which perftest measures the clock rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from traffic.drivers.output import BY_HAND, OutputError, excerpt, unrecognized_output
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
    from orchestration.core.topology import Testbed

_NAME = "perftest"
# perftest refuses fewer iterations.
_MIN_ITERATIONS = 5

# Rates are given in Gbit/s with six places.
_MIN_RATE_BPS = 1000
_MTUS = (256, 512, 1024, 2048, 4096)
# NICs reserve at least so much for a packet's headers: RXE_MAX_HDR_LENGTH of Linux' Soft-RoCE.
_HEADER_BYTES = 80


class NoClockRate(OutputError):  # noqa: N818 (names what is so)
    """The test finished after `iterations`, but perftest could not find the CPU's clock rate."""

    def __init__(self, iterations: int) -> None:
        super().__init__(
            _NAME,
            "it could not measure the CPU's clock rate, so its results are 0, inf or nan",
            "keep the host less busy, or fix its CPU frequency",
        )
        self.iterations = iterations


_ITERATIONS, _RATE, _MEAN = "#iterations", "MsgRate[Mpps]", "t_avg[usec]"
_COLUMN = re.compile(r"BW (?:peak|average)\[\S+?\]|99(?:\.9)?% percentile\[usec\]|tps average|\S+")


def duration_ns(text: str) -> int:
    """Return the duration of a test from the row of results in its text output.

    In a bandwidth test it is the iterations of all queue pairs divided by the message rate, which
    has more digits than the bandwidth. In a latency test it is the iterations times the mean round
    trip. perftest's mean latency is half the round trip for write and send, all of it for read.

    Raises:
        OutputError: there is no row of results, or it cannot be read.
        NoClockRate: there is a row, but its values are not numbers.
    """
    header: list[str] = []
    row: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(" #bytes"):
            header = _COLUMN.findall(line)
        elif header and line[:2].strip().isdigit():
            words = line.split()
            if len(words) != len(header):
                raise unrecognized_output(_NAME, line)
            row = dict(zip(header, words, strict=True))
    if not row:
        raise unrecognized_output(_NAME, text)
    iterations = _count(row, _ITERATIONS)
    if not iterations:
        raise OutputError(_NAME, "it ended before its first message was complete", BY_HAND)
    values = {name: _number(row, name, iterations) for name in header[2:]}
    if _RATE not in values:
        latencies_per_round_trip = 1 if "RDMA_Read" in text else 2
        latency_ns = _number(row, _MEAN, iterations) * 1e3
        return round(latency_ns * iterations * latencies_per_round_trip)
    if not values[_RATE]:
        raise NoClockRate(iterations)
    return round(iterations / (values[_RATE] * 1e6) * 1e9)


def _count(values: Mapping[str, Any], name: str) -> int:
    word = str(values.get(name, ""))
    if not word.isdigit():
        raise OutputError(_NAME, f"its report has no {name} but {excerpt(word)!r}", BY_HAND)
    return int(word)


def _number(values: Mapping[str, Any], name: str, iterations: int) -> float:
    word = values.get(name)
    try:
        number = float(str(word))
    except ValueError:
        raise OutputError(
            _NAME, f"its report has no {name} but {excerpt(repr(word))}", BY_HAND
        ) from None
    if not math.isfinite(number):
        raise NoClockRate(iterations)
    return number


# perftest's error messages and their remedies; the first match is used.
_FAILURES = (
    ("Couldn't connect to", "nothing listens there: see whether the server runs"),
    ("Couldn't listen to port", "the port is in use: see whether an earlier run still listens"),
    ("name resolution", "the host's name is unknown: give an address"),
    ("Did not detect devices", "the host has no RDMA device: see `rdma link`"),
    ("IB device", "see `rdma link` for the devices it has"),
    ("Unable to find the Infiniband/RoCE device", "see `rdma link` for the devices it has"),
    ("Gid index", "see `show_gids` for the existing indexes"),
    ("unrecognized option", "this version of perftest is too old or too new for the option"),
    ("Couldn't read remote address", "the other end failed, or has other options"),
    ("Failed status", "the transport gave up: see whether packets get through at this MTU"),
    ("Couldn't allocate MR", "raise the memlock limit"),
    ("Couldn't create QP", "use fewer queue pairs, or raise the memlock limit"),
)


def explain(text: str) -> OutputError:
    """Return the error for a message of perftest."""
    for phrase, remedy in _FAILURES:
        for line in text.splitlines():
            if phrase in line:
                return OutputError(_NAME, excerpt(line), remedy)
    return OutputError(_NAME, excerpt(text) or "it failed without a message", BY_HAND)


class Perftest(ProgramDriver):
    """Sends flows with perftest."""

    name = _NAME
    rdma = True
    options = (
        Option("verb", "write", "what moves the bytes", choices=("write", "send", "read")),
        Option("test", "bandwidth", "what is measured", choices=("bandwidth", "latency")),
        Option("size", 65_536, "bytes of a message", 1, 1 << 30, unit="bytes"),
        Option("qps", 1, "queue pairs of a flow (bandwidth)", 1, 16_384),
        Option("tx_depth", 128, "messages in flight on a queue pair (bandwidth)", 1, 16_384),
        Option("gid_index", -1, "index of the NIC's GID; -1: its RoCE v2 address", -1, 63),
        Option("traffic_class", -1, "DSCP << 2 | ECN; -1: 106, or the queue class's", -1, 255),
        Option("mtu", 0, "bytes of a packet's payload; 0 is the port's", 0, 4096, unit="bytes"),
        Option("device", "", "RDMA device of all hosts; by default the inventory's"),
        Option("duration", 0, "whole seconds to send, whatever the flow's size", 0, unit="ns"),
        Option("rate_limit", 0, "bits/s of a flow; 0 means no limit (bandwidth)", 0, unit="bps"),
        Option("events", False, "wait for events instead of polling: needed in virtual time"),
    )

    def needs(self, options: Options) -> tuple[str, ...]:
        """Return the program of the test."""
        return (_program(self.values(options)),)

    def _conflicts(
        self, values: Mapping[str, Any], given: Options, testbed: Testbed | None
    ) -> Iterator[tuple[str, str]]:
        mtu, rate = values["mtu"], values["rate_limit"]
        if values["duration"] % 10**9:
            yield "duration", "duration is not whole seconds: perftest counts in seconds"
        if mtu and mtu not in _MTUS:
            yield "mtu", f"mtu is {mtu}: give 256, 512, 1024, 2048 or 4096"
        elif mtu and testbed is not None and mtu + _HEADER_BYTES > testbed.mtu_bytes:
            maximum = max((n for n in _MTUS if n + _HEADER_BYTES <= testbed.mtu_bytes), default=0)
            yield (
                "mtu",
                f"mtu {mtu} and RDMA's headers do not fit testbed {testbed.name}'s MTU of "
                f"{testbed.mtu_bytes}: give at most {maximum}, or leave it out",
            )
        if values["events"] and values["verb"] == "write":
            yield "events", "perftest's write tests only poll: use events with send or read"
        if values["events"] and values["duration"]:
            yield "duration", "perftest takes no duration with events: leave one of them out"
        if values["test"] == "latency":
            if rate or values["qps"] > 1:
                what = "latency tests take neither qps nor rate_limit: leave them out"
                yield "qps" if values["qps"] > 1 else "rate_limit", what
            if "size" not in given:
                yield "test", "latency tests need a size: give the bytes of a message, like 64"
        if 0 < rate < _MIN_RATE_BPS:
            yield "rate_limit", f"rate_limit is {rate} bits/s: give at least {_MIN_RATE_BPS}"

    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the commands of the server and the client."""
        values = self.values(options)
        server = _argv(flow, values, flow.dst_rdma_device, flow.dst_rdma_port, flow.dst_gid_index)
        client = _argv(flow, values, flow.src_rdma_device, flow.src_rdma_port, flow.src_gid_index)
        return server_and_client(
            flow, server, [*client, flow.dst_address], timeout_s=3600.0 + values["duration"] / 1e9
        )

    def _result(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome. Retransmissions are unknown: the NIC does not report them here."""
        if why := failure_reason(_NAME, client, "client"):
            if client.exit_code > 0 and not client.error:
                raise explain(client.stderr + client.stdout)
            raise FlowFailed(why)
        try:
            return completed(client, duration_ns(client.stdout))
        except NoClockRate as error:
            return completed(client, None, detail=f"{error.what}; times are those of its process")


def _program(values: Mapping[str, Any]) -> str:
    return f"ib_{values['verb']}_{'bw' if values['test'] == 'bandwidth' else 'lat'}"


def _argv(
    flow: Flow, values: Mapping[str, Any], device: str, ib_port: int, gid_index: int
) -> list[str]:
    """Return the command of one end; most options must be the same at both ends."""
    argv = [_program(values), "--port", str(flow.port), "--size", str(values["size"]), "-F"]
    if device := values["device"] or device:
        argv += ["--ib-dev", device, "--ib-port", str(ib_port)]
    if values["gid_index"] >= 0:
        gid_index = values["gid_index"]
    if gid_index >= 0:
        argv += ["--gid-index", str(gid_index)]
    traffic_class = values["traffic_class"]
    argv += ["--tclass", str(flow.traffic_class if traffic_class < 0 else traffic_class)]
    if values["mtu"]:
        argv += ["--mtu", str(values["mtu"])]
    if values["duration"]:
        argv += ["--duration", str(values["duration"] // 10**9)]
    else:
        iteration_bytes = values["size"] * (values["qps"] if values["test"] == "bandwidth" else 1)
        iterations = max(_MIN_ITERATIONS, -(-flow.size_bytes // iteration_bytes))
        argv += ["--iters", str(iterations)]
    if values["events"]:
        argv.append("--events")
    if values["test"] == "bandwidth":
        argv += ["--report_gbits", "--qp", str(values["qps"])]
        argv += ["--tx-depth", str(values["tx_depth"])]
        if values["rate_limit"]:
            argv += ["--rate_limit", f"{values['rate_limit'] / 1e9:.6f}", "--rate_units", "g"]
            argv += ["--rate_limit_type", "SW"]
    return argv
