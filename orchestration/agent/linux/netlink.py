"""Routing netlink (rtnetlink): messages, attributes, and a socket that waits for answers.

Struct layouts: linux/netlink.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence

RTM_NEWLINK, RTM_GETLINK = 16, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWRULE, RTM_GETRULE = 32, 34

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
_NLM_F_DUMP_INTR, _NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x10, 0x100, 0x200
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_NLMSGERR_ATTR_MSG = 1

NESTED = 0x8000
HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")

_RECEIVE_BYTES = 1 << 18
_TIMEOUT_S = 10.0
# The acknowledgements of one batch must fit into the socket's receive buffer.
_BATCH = 64
_DUMP_TRIES = 8


def route_socket(groups: int = 0) -> socket.socket:
    """Return an rtnetlink socket of this namespace, subscribed to the changes of `groups`."""
    netlink_socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
    netlink_socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
    netlink_socket.bind((0, groups))
    return netlink_socket


class RouteSocket:
    """An rtnetlink socket that waits for the answers to each request or dump."""

    def __init__(self) -> None:
        self._socket = route_socket()
        self._socket.settimeout(_TIMEOUT_S)
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._number = 0

    def __enter__(self) -> RouteSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, requests: Sequence[bytes]) -> None:
        """Send all requests, in order. Raises OSError for the first one that failed.

        Requests after a failed one are still sent. The error has the kernel's own text if there is
        one.
        """
        for error in self.answers(requests):
            if error is not None:
                raise error

    def answers(self, requests: Sequence[bytes]) -> list[OSError | None]:
        """Send all requests, in order; return the error of each, or None."""
        result: list[OSError | None] = []
        for start in range(0, len(requests), _BATCH):
            batch = requests[start : start + _BATCH]
            first = self._number + 1
            self._number += len(batch)
            self._socket.send(
                b"".join(
                    _numbered(message, NLM_F_REQUEST | NLM_F_ACK, first + offset)
                    for offset, message in enumerate(batch)
                )
            )
            errors: dict[int, OSError | None] = {}
            while len(errors) < len(batch):
                for kind, flags, number, payload in self._receive():
                    # lower numbers belong to requests that were abandoned
                    if kind == NLMSG_ERROR and first <= number < first + len(batch):
                        errors[number] = _error(flags, payload)
            result.extend(errors[first + offset] for offset in range(len(batch)))
        return result

    def dump(self, request: bytes) -> list[tuple[int, bytes]]:
        """Return all messages that answer a dump request, as (type, payload).

        A dump during which the kernel's table changed is repeated. Raises OSError.
        """
        for _ in range(_DUMP_TRIES):
            messages, interrupted = self._dump(request)
            if not interrupted:
                return messages
        raise OSError("the kernel's tables keep changing while they are read")

    def _dump(self, request: bytes) -> tuple[list[tuple[int, bytes]], bool]:
        self._number += 1
        self._socket.send(_numbered(request, NLM_F_REQUEST | NLM_F_DUMP, self._number))
        messages: list[tuple[int, bytes]] = []
        interrupted = False
        while True:
            for kind, flags, number, payload in self._receive():
                if number != self._number:
                    continue
                interrupted = interrupted or bool(flags & _NLM_F_DUMP_INTR)
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    code = struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return messages, interrupted
                messages.append((kind, payload))

    def _receive(self) -> list[tuple[int, int, int, bytes]]:
        size, _, flags, _ = self._socket.recvmsg_into([self._buffer])
        if flags & socket.MSG_TRUNC:
            raise OSError("the kernel's answer is longer than the buffer")
        return messages(memoryview(self._buffer)[:size])


def messages(data: bytes | memoryview) -> list[tuple[int, int, int, bytes]]:
    """Return the messages in the received bytes: (type, flags, number, payload)."""
    result, at = [], 0
    while at + HEADER.size <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            raise OSError("the kernel's answer is cut short")
        result.append((kind, flags, number, bytes(data[at + HEADER.size : at + length])))
        at += (length + 3) & ~3
    return result


def _numbered(message: bytes, flags: int, number: int) -> bytes:
    length, kind, own, _, _ = HEADER.unpack_from(message)
    return HEADER.pack(length, kind, own | flags, number, 0) + message[HEADER.size :]


def refusal(flags: int, payload: bytes) -> tuple[int, str]:
    """Return the errno in an NLMSG_ERROR message (0 for success) and the kernel's own text."""
    code = -int(struct.unpack_from("=i", payload)[0])
    if not code or not flags & _NLM_F_ACK_TLVS:
        return code, ""
    # with NETLINK_CAP_ACK the answer repeats only the header of the request
    request_bytes = struct.unpack_from("=I", payload, 4)[0]
    at = 4 + (HEADER.size if flags & _NLM_F_CAPPED else (request_bytes + 3) & ~3)
    text = attributes(payload, at).get(_NLMSGERR_ATTR_MSG, b"")
    return code, text.rstrip(b"\0").decode(errors="replace")


def _error(flags: int, payload: bytes) -> OSError | None:
    code, text = refusal(flags, payload)
    name = os.strerror(code)
    return OSError(code, f"{name} ({text})" if text else name) if code else None


def message(kind: int, body: bytes, flags: int = 0) -> bytes:
    """Return a netlink message; `RouteSocket` adds the number and the flags it needs."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0) + body


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one netlink attribute, padded."""
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def attributes(payload: bytes, at: int = 0) -> dict[int, bytes]:
    """Return the attributes from an offset on, by type without its flag bits."""
    result = {}
    while at + 4 <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < 4 or at + length > len(payload):
            break
        result[kind & 0x3FFF] = payload[at + 4 : at + length]
        at += (length + 3) & ~3
    return result


def interface_index(name: str) -> int:
    """Return an interface's index. Raises OSError with the interface's name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise OSError(errno.ENODEV, f"there is no interface {name!r}") from None
