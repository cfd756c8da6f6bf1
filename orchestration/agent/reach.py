"""Pings other hosts over the fabric, all at once and for a bounded time.

    reach    {own: [address, ...], others: [address, ...]}
             -> {own: those that this host has, unreached: [[from, to, why], ...], problem}

Each request is sent from one of the host's own fabric addresses, so that the answer comes back over
the fabric. The program `ping` is not needed.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import Any

from .main import Agent, Operation

_ROUNDS = 3
# The first packets of a round wait for ARP at every hop.
_ROUND_S = 0.5
_ECHO, _ECHO_REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_TOKEN_BYTES = 8


def reach(request: dict[str, Any]) -> dict[str, Any]:
    """Return the own addresses that this host has, and the pairs of addresses without an answer."""
    own: list[str] = []
    unreached: list[list[str]] = []
    problem = ""
    for address in request["own"]:
        try:
            ping_socket = _ping_socket(address)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                problem = f"pings cannot be sent: {os.strerror(error.errno or 0)}"
            continue
        own.append(address)
        with ping_socket:
            reasons = _ping(ping_socket, request["others"])
        unreached += [[address, other, reason] for other, reason in reasons.items()]
    return {"own": own, "unreached": unreached, "problem": problem}


def _ping_socket(address: str) -> socket.socket:
    """Return a non-blocking socket for pings from an address. Raises OSError.

    Linux may allow such a socket to users who are not root (net.ipv4.ping_group_range).
    """
    try:
        ping_socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        ping_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    try:
        ping_socket.bind((address, 0))
    except OSError:
        ping_socket.close()
        raise
    ping_socket.setblocking(False)
    return ping_socket


def _ping(ping_socket: socket.socket, others: list[str]) -> dict[str, str]:
    """Return the reason for each address that does not answer."""
    token = os.urandom(_TOKEN_BYTES)
    unreached_reasons = dict.fromkeys(others, "no answer")
    for _ in range(_ROUNDS):
        for number, other in enumerate(others):
            if other in unreached_reasons:
                try:
                    ping_socket.sendto(_echo_request(number, token), (other, 0))
                    unreached_reasons[other] = "no answer"
                except OSError as error:
                    unreached_reasons[other] = os.strerror(error.errno or 0).lower()
        deadline = time.monotonic() + _ROUND_S
        while unreached_reasons and (remaining_s := deadline - time.monotonic()) > 0:
            if select.select([ping_socket], [], [], remaining_s)[0]:
                unreached_reasons.pop(_answered_by(ping_socket, others, token), None)
        if not unreached_reasons:
            break
    return unreached_reasons


def _echo_request(number: int, token: bytes) -> bytes:
    body = _HEADER.pack(_ECHO, 0, 0, 0, number & 0xFFFF) + token
    checksum = sum(struct.unpack(f"!{len(body) // 2}H", body))
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = ~(checksum + (checksum >> 16)) & 0xFFFF
    return _HEADER.pack(_ECHO, 0, checksum, 0, number & 0xFFFF) + token


def _answered_by(ping_socket: socket.socket, others: list[str], token: bytes) -> str:
    try:
        packet, (sender, *_) = ping_socket.recvfrom(2048)
    except OSError:
        return ""
    if ping_socket.type == socket.SOCK_RAW and packet:
        packet = packet[4 * (packet[0] & 15) :]
    if len(packet) < _HEADER.size or packet[0] != _ECHO_REPLY or packet[_HEADER.size :] != token:
        return ""
    number = _HEADER.unpack_from(packet)[4]
    return sender if number < len(others) and others[number] == sender else ""


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {"reach": reach}
