"""Subscribes to a multicast group of generic netlink, and takes messages' payloads apart.

A family in user space cannot exist; where the family is `usersock`, its group is a number of
NETLINK_USERSOCK, over which processes of one network namespace send to each other. Messages look
the same on it. Struct layouts: linux/netlink.h, linux/genetlink.h.
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
# No message of netlink's is as long: a field of an IPFIX message's length has 16 bits, and several
# of them travel in one datagram.
DATAGRAM_BYTES = 1 << 20


class NoFamilyError(OSError):
    """The kernel has no such family, or the family has no such group."""


def group_id(family: str, group: str) -> int:
    """Return the number of a family's multicast group. Raises NoFamilyError, or OSError."""
    wanted = attribute(_FAMILY_NAME, family.encode() + b"\0")
    request = message(_CONTROLLER, GENL_HEADER.pack(_GET_FAMILY, 1, 0) + wanted, NLM_F_REQUEST)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as asked:
        asked.settimeout(_ANSWER_TIMEOUT_S)
        asked.bind((0, 0))
        asked.send(request)
        answer = asked.recv(_ANSWER_BYTES)
    _, kind, *_ = HEADER.unpack_from(answer, 0)
    if kind == NLMSG_ERROR:
        raise NoFamilyError(f"the kernel has no generic netlink family {family}")
    found = attributes(answer, HEADER.size + GENL_HEADER.size)
    # each group is an attribute of its own number
    for nested in attributes(found.get(_GROUPS, b"")).values():
        one = attributes(nested)
        if one.get(_GROUP_NAME, b"").rstrip(b"\0") == group.encode():
            return int(struct.unpack("=I", one[_GROUP_ID])[0])
    raise NoFamilyError(f"generic netlink family {family} has no group {group}")


def subscribe(family: str, group: str, buffer_bytes: int) -> socket.socket:
    """Return a socket that receives what is sent to a group, without waiting.

    `buffer_bytes` is what the kernel keeps for a reader that is late, as far as it allows.
    Raises NoFamilyError, or OSError.
    """
    users = family == USERSOCK
    number = int(group) if users else group_id(family, group)
    protocol = _NETLINK_USERSOCK if users else _NETLINK_GENERIC
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        with suppress(OSError):  # more than net.core.rmem_max needs CAP_NET_ADMIN
            made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        made.bind((0, 0))
        made.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, number)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def payloads(datagram: bytes) -> Iterator[bytes]:
    """Yield what follows the two headers of each complete message of a datagram."""
    at = 0
    while at + HEADER.size <= len(datagram):
        length, *_ = HEADER.unpack_from(datagram, at)
        if length < HEADER.size + GENL_HEADER.size or at + length > len(datagram):
            return
        yield datagram[at + HEADER.size + GENL_HEADER.size : at + length]
        at += (length + 3) & ~3
