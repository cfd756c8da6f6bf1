"""The device's kernel: settings to write, TCP counters and offloads to read.

    sysctl.write     {values: {name: text}} -> names that this kernel does not have
    tcp.counters     -> segments sent again, timeouts, segments out of order, bytes sent
    offloads.read    {interfaces} -> which segmentation offloads are on, as `interface name`

A sysctl's name is its path below /proc/sys. Only names below `net/` are written.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

from orchestration.device.agent.main import Agent, Operation, OperationError

_SIOCETHTOOL = 0x8946
# ethtool commands that read generic receive, generic and TCP segmentation offload
_OFFLOADS = {"gro": 0x2B, "gso": 0x23, "tso": 0x1E}
_COUNTERS = (
    ("/proc/self/net/snmp", "Tcp:", "RetransSegs"),
    ("/proc/self/net/netstat", "TcpExt:", "TCPTimeouts"),
    ("/proc/self/net/netstat", "TcpExt:", "TCPOFOQueue"),
    ("/proc/self/net/netstat", "IpExt:", "OutOctets"),
)


def write_sysctls(request: dict[str, Any]) -> list[str]:
    """Write settings; return the names that are not there."""
    missing = []
    for name, value in request["values"].items():
        if not name.startswith("net/") or ".." in name:
            raise OperationError(f"{name!r} is no network setting", "write only names below net/")
        path = f"/proc/sys/{name}"
        if not os.path.exists(path):
            missing.append(name)
            continue
        try:
            with open(path, "w") as file:
                file.write(str(value))
        except OSError as error:
            raise OperationError(
                f"the kernel refuses {name} = {value}: {os.strerror(error.errno or 0)}",
                "a congestion control must be loaded (modprobe) and allowed "
                "(net.ipv4.tcp_allowed_congestion_control): `closloop provision` does both",
            ) from error
    return missing


def tcp_counters(_: dict[str, Any]) -> list[int]:
    """Return the host's TCP counters, in the order of the module's text."""
    texts: dict[str, list[list[str]]] = {}
    values = []
    for path, table, name in _COUNTERS:
        if path not in texts:
            with open(path) as file:
                texts[path] = [line.split() for line in file]
        names, numbers = (line for line in texts[path] if line[0] == table)
        values.append(int(numbers[names.index(name)]))
    return values


def offloads_on(request: dict[str, Any]) -> list[str]:
    """Return the offloads that are on."""
    on = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for interface in request["interfaces"]:
            for name, command in _OFFLOADS.items():
                data = ctypes.create_string_buffer(struct.pack("=II", command, 0))
                ask = struct.pack("16sP16x", interface.encode(), ctypes.addressof(data))
                try:
                    fcntl.ioctl(control.fileno(), _SIOCETHTOOL, ask)
                except OSError as error:
                    why = os.strerror(error.errno or 0)
                    raise OperationError(
                        f"the offloads of {interface} cannot be read: {why}",
                        "see whether the inventory has the interface's right name",
                    ) from error
                if struct.unpack("=II", data.raw[:8])[1]:
                    on.append(f"{interface} {name}")
    return on


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        "sysctl.write": write_sysctls,
        "tcp.counters": tcp_counters,
        "offloads.read": offloads_on,
    }
