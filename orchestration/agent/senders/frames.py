"""Sends prebuilt Ethernet frames (UDP over IPv4) from this host, and counts those that arrive.

    incast.send     send a flow's frames, at a rate or back to back
    incast.receive  count a flow's frames and those marked CE until its last one, or until stopped

Both run as programs (see `program.start` for the times, `program.collect`, `program.stop`) and
print their measurements as JSON. Frames are sent through AF_PACKET as they were built, except that
the two Ethernet addresses are those of the route. Arrivals are counted in the kernel, by filters on
two packet sockets that are never read (PACKET_STATISTICS also counts frames that do not fit into
the buffer). Only the last frame is read.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ..main import Agent, Operation, OperationError
from .programs import Work, programs_of, sleep_until

ROCE_PORT = 4791
# A payload begins with these bytes, then 1 in a flow's last frame and 0 in all others.
MARK = b"clos"
_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER, _SO_TIMESTAMPNS = 26, 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_ADDRESS_BYTES = 12
_IPV4_AT, _UDP_AT, _PAYLOAD_AT, _BTH_BYTES = 14, 34, 42, 12
_CE = 3
_SEND_BUFFER_BYTES = 1 << 22
_QUEUE_FULL_WAIT_S = 20e-6
# Paced frames that are due at the same time are sent together, at most so many at once.
_BURST = 32
_ARP_TIMEOUT_S = 3.0
_NO_MAC = "00:00:00:00:00:00"
_DISCARD_PORT = 9
_SIOCGIFHWADDR = 0x8927


def _filter(flow: dict[str, Any], marked: bool, last: bool) -> bytes:
    """Return a classic BPF program that accepts a flow's frames: all, those marked CE, or the last.

    A flow is identified by its addresses and its destination port, or its queue pair for RoCEv2.
    """
    roce = flow["queue_pair"] is not None
    mark_at = _PAYLOAD_AT + (_BTH_BYTES if roce else 0)
    # (load instruction: 0x28 half word, 0x20 word, 0x30 byte; offset; mask; value)
    tests = [
        (0x28, 12, 0, _ETH_P_IP),
        (0x30, _IPV4_AT, 0, 0x45),
        (0x30, _IPV4_AT + 9, 0, socket.IPPROTO_UDP),
        (0x20, _IPV4_AT + 12, 0, _number(flow["src_address"])),
        (0x20, _IPV4_AT + 16, 0, _number(flow["dst_address"])),
        (0x28, _UDP_AT + 2, 0, ROCE_PORT if roce else int(flow["port"])),
    ]
    if roce:
        tests.append((0x20, _PAYLOAD_AT + 4, 0xFFFFFF, int(flow["queue_pair"])))
    tests.append((0x20, mark_at, 0, int.from_bytes(MARK, "big")))
    if marked:
        tests.append((0x30, _IPV4_AT + 1, _CE, _CE))
    if last:
        tests.append((0x30, mark_at + len(MARK), 0, 1))
    code: list[tuple[int, int, int, int]] = []
    length = sum(3 if mask else 2 for _, _, mask, _ in tests)
    for size, at, mask, value in tests:
        code.append((size, 0, 0, at))
        if mask:
            code.append((0x54, 0, 0, mask))
        code.append((0x15, 0, length - len(code), value))
    # one byte is enough for a frame that is only counted
    code += [(0x06, 0, 0, 1), (0x06, 0, 0, 0)]
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address), "big")


def _packet_socket(code: bytes) -> socket.socket:
    """Return a packet socket on all interfaces that receives what the filter accepts."""
    packet_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
    steps = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    packet_socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    # discard what arrived before the filter was set
    with suppress(BlockingIOError):
        while True:
            packet_socket.recv(1, socket.MSG_DONTWAIT)
    _take_count(packet_socket)
    return packet_socket


def _take_count(packet_socket: socket.socket) -> int:
    return int(
        struct.unpack("=II", packet_socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[0]
    )


class _StopError(Exception):
    pass


def receive(flow: dict[str, Any]) -> Work:
    """Return the work of a program that counts a flow's frames."""

    def work(wait: Callable[[], int]) -> None:
        def stop(*_: Any) -> None:
            raise _StopError

        all_frames = _packet_socket(_filter(flow, marked=False, last=False))
        marked = _packet_socket(_filter(flow, marked=True, last=False))
        last = _packet_socket(_filter(flow, marked=False, last=True))
        last.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # a socket must be bound to the port, so that the kernel sends no ICMP errors and the
        # controller sees that the port is open
        sinks = _sinks(flow)
        signal.signal(signal.SIGTERM, stop)
        began_ns = wait()
        last_ns = -1
        with suppress(_StopError):
            _, ancillary, _, _ = last.recvmsg(1, 64)
            last_ns = _arrival_ns(ancillary) - began_ns
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        arrived, ce = _take_count(all_frames), _take_count(marked)
        for sink in sinks:
            sink.close()
        _print({"packets": arrived, "ce_packets": ce, "last_after_ns": last_ns})

    return work


def _sinks(flow: dict[str, Any]) -> list[socket.socket]:
    ports = [int(flow["port"])]
    if flow["queue_pair"] is not None:
        ports.insert(0, ROCE_PORT)
    sinks = []
    for port in ports:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Soft-RoCE, or another flow's receiver, may already use RoCE's port
        with suppress(OSError):
            sink.bind(("0.0.0.0", port))
        sinks.append(sink)
    return sinks


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the CLOCK_MONOTONIC time of a frame's arrival, converted from its wall-clock stamp."""
    now_ns, real_ns = time.monotonic_ns(), time.time_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("=qq", data[:16])
            return int(now_ns - (real_ns - (seconds * 10**9 + ns)))
    return now_ns


def send(flow: dict[str, Any]) -> Work:
    """Return the work of a program that sends a flow's frames. Raises OperationError."""
    frames = [base64.b64decode(frame) for frame in flow["frames"]]
    last, packets, rate = base64.b64decode(flow["last"]), int(flow["packets"]), int(flow["rate"])
    if not frames or packets < 1 or min(map(len, [*frames, last])) < _PAYLOAD_AT:
        raise OperationError("there are no frames to send", "")
    interface, addresses = _ethernet(str(flow["src_address"]), str(flow["dst_address"]))
    frames = [addresses + frame[_ADDRESS_BYTES:] for frame in frames]
    last = addresses + last[_ADDRESS_BYTES:]

    def work(wait: Callable[[], int]) -> None:
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sender.bind((interface, 0))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        first_ns = wait()
        sent_bytes = queue_full_count = 0
        for number in range(packets):
            frame = frames[number % len(frames)] if number < packets - 1 else last
            if rate and number % _BURST == 0:
                sleep_until(first_ns + sent_bytes * 8 * 10**9 // rate)
            while True:
                try:
                    sent_bytes += sender.send(frame)
                    break
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    queue_full_count += 1  # the queue below is full
                    time.sleep(_QUEUE_FULL_WAIT_S)
        took_ns = time.monotonic_ns() - first_ns
        _print(
            {
                "packets": packets,
                "bytes": sent_bytes,
                "took_ns": took_ns,
                "queue_full": queue_full_count,
            }
        )

    return work


def _ethernet(src: str, dst: str) -> tuple[str, bytes]:
    """Return the interface towards an address, and the two Ethernet addresses for its frames."""
    answer = subprocess.run(
        ["ip", "-json", "route", "get", dst, "from", src],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"},
    )
    try:
        route = json.loads(answer.stdout)[0]
        interface, neighbour = str(route["dev"]), str(route.get("gateway", dst))
    except (ValueError, LookupError, TypeError):
        output = (answer.stderr or answer.stdout).strip()
        raise OperationError(f"has no route to {dst}: {output}", "provision the host") from None
    if interface == "lo":
        return interface, bytes(_ADDRESS_BYTES)
    destination = bytes.fromhex(_neighbour(neighbour, interface, src, dst).replace(":", ""))
    return interface, destination + _own_address(interface)


def _own_address(interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("=16s24x", interface.encode())
        # struct ifreq: the name, then a struct sockaddr whose family is two bytes
        return fcntl.ioctl(any_socket, _SIOCGIFHWADDR, request)[18:24]


def _neighbour(address: str, interface: str, src: str, dst: str) -> str:
    """Return a neighbour's Ethernet address; a datagram to `dst` makes the kernel resolve it."""
    deadline_s = time.monotonic() + _ARP_TIMEOUT_S
    is_asked = False
    while time.monotonic() < deadline_s:
        with open("/proc/net/arp") as table:
            for line in table:
                words = line.split()
                if words[0] == address and words[5] == interface and words[3] != _NO_MAC:
                    return words[3]
        if not is_asked:
            is_asked = True
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
                probe.bind((src, 0))
                probe.sendto(b"", (dst, _DISCARD_PORT))
        time.sleep(0.01)
    raise OperationError(
        f"{address} does not answer on {interface}", "check that the link is up and provisioned"
    )


def _print(result: dict[str, int]) -> NoReturn:
    os.write(1, json.dumps(result).encode())
    os._exit(0)


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name; their programs are listed with all others of the agent."""
    programs = programs_of(agent)
    return {
        "incast.send": lambda request: programs.add(request, send(request)),
        "incast.receive": lambda request: programs.add(request, receive(request)),
    }
