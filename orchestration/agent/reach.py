"""Ping other hosts over the fabric, all at once and for a bounded time.

    reach    {own: [address, ...], others: [address, ...]}
             -> {own: those that this host has, unreached: [[from, to, why], ...], problem}

Each request leaves from one of the host's own fabric addresses, so that the answer comes back over
the fabric. No program `ping` is needed.
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
    """Return which own addresses are here, and which pairs had no answer."""
    own: list[str] = []
    unreached: list[list[str]] = []
    problem = ""
    for address in request["own"]:
        try:
            icmp = _icmp(address)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                problem = f"pings cannot be sent: {os.strerror(error.errno or 0)}"
            continue
        own.append(address)
        with icmp:
            why = _ping(icmp, request["others"])
        unreached += [[address, other, said] for other, said in why.items()]
    return {"own": own, "unreached": unreached, "problem": problem}


def _icmp(address: str) -> socket.socket:
    """Return a socket for pings from an address; users who are not root may have one as well."""
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    try:
        made.bind((address, 0))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def _ping(icmp: socket.socket, others: list[str]) -> dict[str, str]:
    """Return why each address does not answer; those that do are left out."""
    token = os.urandom(_TOKEN_BYTES)
    missing = dict.fromkeys(others, "no answer")
    for _ in range(_ROUNDS):
        for number, other in enumerate(others):
            if other in missing:
                try:
                    icmp.sendto(_request(number, token), (other, 0))
                    missing[other] = "no answer"
                except OSError as error:
                    missing[other] = os.strerror(error.errno or 0).lower()
        until = time.monotonic() + _ROUND_S
        while missing and (left := until - time.monotonic()) > 0:
            if select.select([icmp], [], [], left)[0]:
                missing.pop(_answering(icmp, others, token), None)
        if not missing:
            break
    return missing


def _request(number: int, token: bytes) -> bytes:
    body = _HEADER.pack(_ECHO, 0, 0, 0, number & 0xFFFF) + token
    total = sum(struct.unpack(f"!{len(body) // 2}H", body))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~(total + (total >> 16)) & 0xFFFF
    return _HEADER.pack(_ECHO, 0, total, 0, number & 0xFFFF) + token


def _answering(icmp: socket.socket, others: list[str], token: bytes) -> str:
    try:
        packet, (sender, *_) = icmp.recvfrom(2048)
    except OSError:
        return ""
    if icmp.type == socket.SOCK_RAW and packet:
        packet = packet[4 * (packet[0] & 15) :]
    if len(packet) < _HEADER.size or packet[0] != _ECHO_REPLY or packet[_HEADER.size :] != token:
        return ""
    number = _HEADER.unpack_from(packet)[4]
    return sender if number < len(others) and others[number] == sender else ""


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {"reach": reach}
