"""Measures how many packets this machine forwards, which limits a fabric in real time.

    python -m orchestration.backends.emulated.forwarding SECONDS    prints `ForwardingRate` as JSON

The measurement uses one router and, for each CPU, a sender and a receiver, in temporary network
namespaces. They send full frames of TCP and its acknowledgements. Each port has a shaper, and each
port of the router also the BPF program that marks where there is no RED. A packet-hop is a packet
that a port has judged, queued, shaped and sent. The shapers are faster than the machine, so no
queue builds up and hardly a packet is marked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from collectors.bpf.compile import RED_LAW, compiled
from inventory.rack import MAX_SCALE, scaled
from orchestration.agent.bpf.btf import LayoutError
from orchestration.agent.bpf.elf import read_program
from orchestration.agent.bpf.load import GPL, LoadedProgram
from orchestration.agent.linux_switch.marks import Marker, offsets
from orchestration.backends.common.machine_monitor import round_up_scale
from orchestration.backends.emulated.host_kernel import run_in_namespaces
from orchestration.backends.emulated.namespaces import offloads_off
from orchestration.backends.emulated.system import run_batch, unshare_network
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.files import state_folder, write_whole
from orchestration.core.topology import Testbed
from orchestration.core.units import format_rate

MEASURE_S = 2.0
# The measurement shows the machine's limit, with all cores forwarding and doing little else. A
# trial should need only a quarter of that: senders, agents and the controller run on the machine
# too, there are several switches, and above the bounds of `machine_monitor` packets wait for a CPU.
_SAFETY_FACTOR = 4.0
# A process, such as an agent, wakes up to 2 ms late where nothing else runs (p99,
# `machine_monitor`). In the trial's time that should be no longer than four frames of the fastest
# NIC: 2 us at 25 Gbit/s, as in virtual time.
_LATE_NS, _LATE_FRAMES = 2_000_000, 4
# The senders of an incast begin together; on one core, each runs for so long before the next.
_TIME_SLICE_NS = 500_000
_FLOWS = 4
_PAYLOAD = bytes(1 << 16)
_PORT = 7000
# A receiver sends an acknowledgement for every second segment (RFC 9293, 3.8.6.3).
_PACKETS_PER_SEGMENT = 1.5
_KMIN_BYTES, _KMAX_BYTES, _LIMIT_BYTES = 30_000, 300_000, 1_000_000
_START_S = 20.0
_MODULE = "orchestration.backends.emulated.forwarding"
_OWN = ("--net", "--pid", "--mount-proc")


class ForwardingRate(NamedTuple):
    """Packet-hops per second, and whether the marking program ran.

    A kernel may not accept the program: then the rate is without it.
    """

    hops_per_s: int
    judged: bool


def measure(seconds: float) -> ForwardingRate:
    """Measure for so many seconds and return the rate. Raises NotReadyError if that fails."""
    try:
        return ForwardingRate(*run_in_namespaces(_OWN, _MODULE, str(seconds)))
    except RuntimeError as error:
        raise NotReadyError(
            f"how much this machine forwards cannot be measured: {error}",
            "the measurement needs root, and a kernel with veth and tbf",
        ) from error


def store_hops_per_s(hops_per_s: int) -> None:
    """Write a measurement to the state folder, for `stored_hops_per_s`."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({"packet_hops_per_s": hops_per_s}))


def line_rate_hops_per_s(testbed: Testbed) -> float:
    """Return the packet-hops per second of a testbed whose NICs all send full frames at line rate.

    Each frame and each acknowledgement is taken to use one of the longest paths.
    """
    frame_bits = 8 * (testbed.mtu_bytes + testbed.framing_bytes)
    nics = (port for host in testbed.hosts for port in testbed.ports_of[host])
    links = 2 * max(device.tier for device in testbed.devices)
    return sum(port.rate_bps for port in nics) / frame_bits * links * _PACKETS_PER_SEGMENT


def stored_hops_per_s() -> int | None:
    """Return the latest measurement of this machine; None if it was never measured."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(_file().read_text())["packet_hops_per_s"])
    return None


def stored_or_measured_hops_per_s() -> int:
    """Return the packet-hops per second of this machine; measure them if that was never done.

    Raises NotReadyError as `measure` does.
    """
    hops_per_s = stored_hops_per_s()
    if hops_per_s is None:
        hops_per_s = measure(MEASURE_S).hops_per_s
        store_hops_per_s(hops_per_s)
    return hops_per_s


def smallest_scale(testbed: Testbed, hops_per_s: int) -> int:
    """Return the smallest scale at which a machine can emulate a testbed in real time.

    At this scale the machine forwards at most 1/`_SAFETY_FACTOR` of what it can, and its lateness
    is harmless. It is 1 if the testbed's rates fit unscaled, else rounded up to two digits.
    """
    fastest_bps = max(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])
    frames_ns = _LATE_FRAMES * testbed.frame_bytes * 8e9 / fastest_bps
    late_ns = _LATE_NS + _TIME_SLICE_NS * len(testbed.hosts) / len(os.sched_getaffinity(0))
    load = line_rate_hops_per_s(testbed) * _SAFETY_FACTOR / hops_per_s
    return round_up_scale(max(load, late_ns / frames_ns))


def parse_scale(text: str, testbed: Testbed) -> int:
    """Return the scale in the value of `--scale`: a number, or `auto` for the smallest that fits.

    Raises InputError for any other text, and NotReadyError as `measure` does.
    """
    if text == "auto":
        return smallest_scale(testbed, stored_or_measured_hops_per_s())
    if not (text.isdecimal() and 1 <= int(text) <= MAX_SCALE):
        raise InputError.single(
            "--scale", f"{text!r} is no scale", f"use a whole number from 1 to {MAX_SCALE}, or auto"
        )
    return int(text)


def describe_scale(testbed: Testbed, scale: int) -> str:
    """Return text on the links of a testbed at a scale, and on whether this machine can carry them.

    `testbed` is unscaled.
    """
    hops_per_s, needed = stored_hops_per_s(), line_rate_hops_per_s(testbed) / scale
    rates = sorted({port.rate_bps for port in scaled(testbed, scale).ports})
    links = " and ".join(format_rate(rate) for rate in rates)
    machine = "how much this machine forwards is not known: closloop doctor --benchmark measures it"
    if hops_per_s is not None:
        machine = (
            f"NICs at line rate need {needed:,.0f} packet-hops per second, and this machine "
            f"managed {hops_per_s:,}"
        )
        if smallest_scale(scaled(testbed, scale), hops_per_s) > 1:
            machine += f": --scale {smallest_scale(testbed, hops_per_s)} would fit"
    scaled_links = f"links of {links}, and a second of a trial takes {scale} s"
    return f"{scaled_links if scale > 1 else 'no scale'}; {machine}"


def _file() -> Path:
    return state_folder() / "forwarding.json"


def _start_host(number: int, work: Callable[[], None]) -> tuple[int, socket.socket]:
    """Start the process of a host in a network namespace of its own.

    Returns its process id, and a socket on which the process waits for two bytes: the first says
    that its interface eth0 is there, the second that it is to begin `work`.
    """
    near, far = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        unshare_network()
        far.sendall(b"1")
        far.recv(1)
        own, router = f"10.0.{number}.2/24", f"10.0.{number}.1"
        lines = ("link set eth0 up", f"address add {own} dev eth0")
        run_batch("ip", (*lines, f"route add default via {router}"))
        Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1")
        offloads_off(["eth0"])
        run_batch("tc", _shaper("eth0"))
        far.sendall(b"1")
        far.recv(1)
        work()
        os._exit(0)
    _await(near)
    return pid, near


def _shaper(port: str) -> Iterator[str]:
    limit = f"limit {_LIMIT_BYTES}"
    yield f"qdisc add dev {port} root handle 2: tbf rate 10gbit burst 100k {limit}"
    yield f"qdisc add dev {port} parent 2:1 handle 3: bfifo {limit}"


def _await(line: socket.socket) -> None:
    """Wait until a host's process has done its part."""
    line.settimeout(_START_S)
    if not line.recv(1):
        raise RuntimeError("a namespace could not be set up")


def _sender(to: int) -> Callable[[], None]:
    """Return a function that sends to host `to` over several connections, for ever."""

    def send() -> None:
        lines = [socket.create_connection((f"10.0.{to}.2", _PORT)) for _ in range(_FLOWS)]
        for line in lines:
            line.setblocking(False)
        while True:
            for line in select.select([], lines, [])[1]:
                line.send(_PAYLOAD)

    return send


def _receive() -> None:
    server = socket.create_server(("", _PORT))
    readable = [server]
    while True:
        for line in select.select(readable, [], [])[0]:
            if line is server:
                readable.append(server.accept()[0])
            else:
                line.recv(len(_PAYLOAD))


def _sent_packets(pid: int) -> int:
    """Return the packets that all ports of a process's namespace have sent."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[9]) for line in lines)


def _measure_here(seconds: float) -> ForwardingRate:
    """Make this namespace the router, and measure."""
    count = 2 * len(os.sched_getaffinity(0))
    # receivers come first, so that they listen before senders connect
    works = [_receive] * (count // 2) + [_sender(to) for to in range(count // 2)]
    hosts = [_start_host(number, work) for number, work in enumerate(works)]
    ports = [f"to-{number}" for number in range(count)]
    for number, ((pid, line), port) in enumerate(zip(hosts, ports, strict=True)):
        link = f"link add name {port} type veth peer name eth0 netns {pid}"
        address = f"address add 10.0.{number}.1/24 dev {port}"
        run_batch("ip", (link, address, f"link set {port} up"))
        run_batch("tc", _shaper(port))
        line.sendall(b"1")
        _await(line)
    offloads_off(ports)
    markers = _attach_markers(ports)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for _, line in hosts:
        line.sendall(b"1")
        time.sleep(0.1)
    pids = [pid for pid, _ in hosts]
    namespaces = [os.getpid(), *pids]

    before, began = sum(map(_sent_packets, namespaces)), time.monotonic()
    time.sleep(seconds)
    sent, elapsed_s = sum(map(_sent_packets, namespaces)) - before, time.monotonic() - began
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return ForwardingRate(round(sent / elapsed_s), bool(markers))


def _attach_markers(ports: Sequence[str]) -> list[Marker]:
    """Attach the marking program to the router's ports; return [] if the kernel refuses it."""
    markers: list[Marker] = []
    with suppress(OSError, LayoutError, NotReadyError):
        program, field_offsets = read_program(compiled(RED_LAW).read_bytes()), offsets()
        for port in ports:
            loaded = LoadedProgram(program, "closloop_red", GPL)
            index = socket.if_nametoindex(port)
            markers.append(Marker(loaded, index, field_offsets, _LIMIT_BYTES))
            markers[-1].set(_KMIN_BYTES, _KMAX_BYTES, 2**32 - 1)
    return markers


if __name__ == "__main__":
    print(json.dumps(_measure_here(float(sys.argv[1]))))
