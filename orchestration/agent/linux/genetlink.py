"""Subscribes to a multicast group of generic netlink, and extracts the payloads of its messages.

Only the kernel can offer a family of generic netlink. For a sender in user space, the family is
called `usersock`, and its group is a number of NETLINK_USERSOCK, over which processes of one
network namespace send to each other; messages have the same form there. Struct layouts:
linux/netlink.h, linux/genetlink.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from .netlink import HEADER, NLM_F_REQUEST, NLMSG_ERROR, attribute, attributes, message

USERSOCK = "usersock"
GENL_HEADER = struct.Struct("=BBH")
_NETLINK_GENERIC, _NETLINK_USERSOCK = 16, 2
_CONTROLLER, _GET_FAMILY = 0x10, 3
_FAMILY_NAME, _GROUPS, _GROUP_NAME, _GROUP_ID = 2, 7, 1, 2
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_ANSWER_BYTES = 1 << 16
_ANSWER_TIMEOUT_S = 5.0
# Longer than any datagram: the length of an IPFIX message has 16 bits, and one datagram carries
# several messages.
DATAGRAM_BYTES = 1 << 20


class NoFamilyError(OSError):
    """The kernel has no such family, or the family has no such group."""


def group_id(family: str, group: str) -> int:
    """Return the number of a family's multicast group. Raises NoFamilyError or OSError."""
    name_attribute = attribute(_FAMILY_NAME, family.encode() + b"\0")
    request = message(
        _CONTROLLER, GENL_HEADER.pack(_GET_FAMILY, 1, 0) + name_attribute, NLM_F_REQUEST
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as control:
        control.settimeout(_ANSWER_TIMEOUT_S)
        control.bind((0, 0))
        control.send(request)
        answer = control.recv(_ANSWER_BYTES)
    _, kind, *_ = HEADER.unpack_from(answer, 0)
    if kind == NLMSG_ERROR:
        raise NoFamilyError(f"the kernel has no generic netlink family {family}")
    answered = attributes(answer, HEADER.size + GENL_HEADER.size)
    # each group is a nested attribute
    for nested in attributes(answered.get(_GROUPS, b"")).values():
        fields = attributes(nested)
        if fields.get(_GROUP_NAME, b"").rstrip(b"\0") == group.encode():
            return int(struct.unpack("=I", fields[_GROUP_ID])[0])
    raise NoFamilyError(f"generic netlink family {family} has no group {group}")


def subscribe(family: str, group: str, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket that receives what is sent to a group.

    `buffer_bytes` is the size of its receive buffer, as far as the kernel allows it. Raises
    NoFamilyError or OSError.
    """
    is_usersock = family == USERSOCK
    number = int(group) if is_usersock else group_id(family, group)
    protocol = _NETLINK_USERSOCK if is_usersock else _NETLINK_GENERIC
    receiver = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        with suppress(OSError):  # more than net.core.rmem_max needs CAP_NET_ADMIN
            receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        receiver.bind((0, 0))
        receiver.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, number)
        receiver.setblocking(False)
    except OSError:
        receiver.close()
        raise
    return receiver


def payloads(datagram: bytes) -> Iterator[bytes]:
    """Yield the payload, after both headers, of each complete message in a datagram."""
    at = 0
    while at + HEADER.size <= len(datagram):
        length, *_ = HEADER.unpack_from(datagram, at)
        if length < HEADER.size + GENL_HEADER.size or at + length > len(datagram):
            return
        yield datagram[at + HEADER.size + GENL_HEADER.size : at + length]
        at += (length + 3) & ~3
