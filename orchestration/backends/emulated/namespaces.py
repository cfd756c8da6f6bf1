"""Network namespaces and netlink sockets, in the guest."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Sequence

from collectors.readers.netlink import NLMSG_DONE, NLMSG_ERROR

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

_NLM_F_ACK = 0x4
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_SIOCETHTOOL = 0x8946
# ethtool commands: (get, set) of generic receive, generic and TCP segmentation offload
OFFLOADS = {"gro": (0x2B, 0x2C), "gso": (0x23, 0x24), "tso": (0x1E, 0x1F)}


class NetlinkError(OSError):
    """The kernel refused a request; `index` is its place in the batch."""

    def __init__(self, number: int, index: int, reason: str) -> None:
        super().__init__(number, f"request {index}: {os.strerror(number)} {reason}")
        self.index = index


def new_namespace(fd: int) -> None:
    """Move this process into a new network namespace and keep it open at descriptor `fd`."""
    if _libc.unshare(_CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "unshare: new network namespace")
    opened = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.dup2(opened, fd, inheritable=True)
    os.close(opened)


def enter_namespace(fd: int) -> None:
    """Move this process into the namespace open at `fd`."""
    if _libc.setns(fd, _CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), f"setns to descriptor {fd}")


def route_socket() -> socket.socket:
    """A routing-netlink socket in the current namespace."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    so_sndbufforce, so_rcvbufforce = 32, 33
    made.setsockopt(socket.SOL_SOCKET, so_sndbufforce, 1 << 22)
    made.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, 1 << 22)
    made.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
    made.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
    made.bind((0, 0))
    return made


def send_requests(netlink: socket.socket, requests: Sequence[bytes]) -> None:
    """Send requests in few system calls; raise NetlinkError for the first one refused.

    Only the last of a batch asks for an acknowledgement; errors come back without asking.
    """
    batch: list[bytes] = []
    first, size = 0, 0
    for index, request in enumerate(requests):
        batch.append(request)
        size += len(request)
        if size > 200_000 or index == len(requests) - 1:
            _send_batch(netlink, batch, first)
            batch, first, size = [], index + 1, 0


def _send_batch(netlink: socket.socket, batch: Iterable[bytes], first: int) -> None:
    packed = bytearray()
    last = 0
    for number, request in enumerate(batch):
        last = number
        at = len(packed)
        packed += request
        struct.pack_into("=I", packed, at + 8, number + 1)
        packed += b"\0" * (-len(packed) % 4)
    (flags,) = struct.unpack_from("=H", packed, at + 6)
    struct.pack_into("=H", packed, at + 6, flags | _NLM_F_ACK)
    netlink.send(packed)
    await_answer(netlink, last + 1, netlink.recv(65_536), first)


def await_answer(netlink: socket.socket, last: int, answer: bytes, first: int = 0) -> None:
    """Receive until the request numbered `last` has been answered; `answer` has come already.

    Requests of a batch are numbered from 1. Raises NetlinkError for the first one refused; `first`
    is the place of the batch among all requests.
    """
    refused: NetlinkError | None = None
    while True:
        at = 0
        while at + 16 <= len(answer):
            length, kind, _, sequence, _ = struct.unpack_from("=IHHII", answer, at)
            if kind == NLMSG_ERROR:
                (error,) = struct.unpack_from("=i", answer, at + 16)
                if error and refused is None:
                    reason = answer[at + 36 : at + length].decode(errors="replace")
                    printable = "".join(c for c in reason if c.isprintable())
                    refused = NetlinkError(-error, first + sequence - 1, printable)
                if sequence == last:
                    if refused is not None:
                        raise refused
                    return
            at += (length + 3) & ~3
        answer = netlink.recv(65_536)


def links_operational(netlink: socket.socket) -> bool:
    """True when every veth of the socket's namespace is operational (IF_OPER_UP)."""
    loopback, ifla_operstate, if_oper_up = 1, 16, 6
    netlink.send(struct.pack("=IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0))
    good = True
    while True:
        answer = netlink.recv(65_536)
        at = 0
        while at + 16 <= len(answer):
            length, kind = struct.unpack_from("=IH", answer, at)
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return good and kind == NLMSG_DONE
            (index,) = struct.unpack_from("=i", answer, at + 20)
            attribute = at + 32
            while index != loopback and attribute + 4 <= at + length:
                size, name = struct.unpack_from("=HH", answer, attribute)
                if name == ifla_operstate:
                    good = good and answer[attribute + 4] == if_oper_up
                attribute += (max(size, 4) + 3) & ~3
            at += (length + 3) & ~3


def offloads_off(interfaces: Iterable[str]) -> list[str]:
    """Turn segmentation offloads off on interfaces of this namespace; return those still on."""
    still_on = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for interface in interfaces:
            for name, (get, put) in OFFLOADS.items():
                _ethtool(control, interface, put, 0)
                if _ethtool(control, interface, get, 0):
                    still_on.append(f"{interface} {name}")
    return still_on


def _ethtool(control: socket.socket, interface: str, command: int, value: int) -> int:
    data = ctypes.create_string_buffer(struct.pack("=II", command, value))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(data))
    fcntl.ioctl(control.fileno(), _SIOCETHTOOL, request)
    return int(struct.unpack("=II", data.raw[:8])[1])
