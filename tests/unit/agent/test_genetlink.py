"""Generic netlink as the kernel has it, with families that every kernel has."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys

import pytest

from orchestration.agent.linux.genetlink import (
    GENL_HEADER,
    USERSOCK,
    NoFamilyError,
    group_id,
    payloads,
    subscribe,
)
from orchestration.agent.linux.netlink import HEADER

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_NET_ADMIN")


def framed(payload, kind=0x20):
    length = HEADER.size + GENL_HEADER.size + len(payload)
    head = HEADER.pack(length, kind, 0, 0, 0) + GENL_HEADER.pack(1, 1, 0)
    return head + payload + bytes(-length % 4)


def test_a_familys_group_is_the_kernels():
    assert group_id("nlctrl", "notify") == 0x10
    with pytest.raises(NoFamilyError, match="no generic netlink family sonic_stel"):
        group_id("sonic_stel", "ipfix")
    with pytest.raises(NoFamilyError, match="family nlctrl has no group ipfix"):
        group_id("nlctrl", "ipfix")
    subscribe("nlctrl", "notify", 1 << 20).close()


def test_a_datagram_of_several_messages_is_taken_apart():
    pieces = [b"", b"a", b"IPFIX", bytes(1000)]
    whole = b"".join(framed(piece) for piece in pieces)
    assert list(payloads(whole)) == pieces
    for end in range(len(whole)):
        assert list(payloads(whole[:end])) == pieces[: len(list(payloads(whole[:end])))]
    assert list(payloads(struct.pack("=IHHII", 3, 0, 0, 0, 0) + bytes(20))) == []


@root
def test_what_a_family_of_the_kernel_sends_arrives():
    """The group `monitor` of `ethtool` tells of changed features, in this namespace only."""
    heard = subprocess.run(
        [sys.executable, "-c", "from tests.unit.agent.test_genetlink import heard; heard()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert heard.stdout.split() == ["1", "lo"], heard.stderr


def heard():
    """Change an offload of `lo` in a namespace of one's own; print what the kernel says of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x40000000) == 0  # CLONE_NEWNET
    listener = subscribe("ethtool", "monitor", 1 << 20)
    value = ctypes.create_string_buffer(struct.pack("=II", 0x2C, 0))  # ETHTOOL_SGRO
    asked = struct.pack("16sP", b"lo", ctypes.addressof(value)).ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8946, asked)  # SIOCETHTOOL
    found = list(payloads(listener.recv(1 << 20)))
    print(len(found), "lo" if b"lo\0" in found[0] else found[0])


@root
def test_a_group_of_user_space_stands_for_a_family():
    listener = subscribe(USERSOCK, "7", 1 << 20)
    sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
    with sender, pytest.raises(ConnectionRefusedError):  # the kernel's own end is not there
        sender.sendto(framed(b"IPFIX"), (0, 1 << 6))
    assert list(payloads(listener.recv(1 << 20))) == [b"IPFIX"]
    with pytest.raises(BlockingIOError):
        listener.recv(1)
    listener.close()
