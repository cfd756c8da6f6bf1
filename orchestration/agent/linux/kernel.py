"""Writes a device's sysctls; reads its TCP counters, offloads and carriers.

    sysctl.write     {values: {name: text}} -> names that this kernel does not have
    tcp.counters     -> segments retransmitted, timeouts, segments out of order, bytes sent
    offloads.read    {interfaces} -> segmentation offloads that are on, each as `interface name`
    links.read       {interfaces} -> {name: [carrier: 1 or 0, carrier changes since boot]}

A missing interface has carrier 0 and -1 changes. The name of a sysctl is its path below /proc/sys;
only those that runs may write are accepted (`sysctls`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..main import Agent, Operation, OperationError
from ..small_files import leading_int, text
from . import ethtool
from .sysctls import sysctl_path

_SNMP, _NETSTAT = TCP_FILES = ("/proc/self/net/snmp", "/proc/self/net/netstat")
_COUNTERS = (
    (_SNMP, "Tcp:", "RetransSegs"),
    (_NETSTAT, "TcpExt:", "TCPTimeouts"),
    (_NETSTAT, "TcpExt:", "TCPOFOQueue"),
    (_NETSTAT, "IpExt:", "OutOctets"),
)
NET = "/sys/class/net"


def write_sysctls(request: dict[str, Any]) -> list[str]:
    """Write sysctls of a device; return the names that this kernel does not have.

    Raises OperationError, and writes nothing, if one of them is not a sysctl that runs may write.
    """
    for name in request["values"]:
        sysctl_path(name)
    return write_present(request["values"])


def write_present(values: Mapping[str, object]) -> list[str]:
    """Write sysctls by path below /proc/sys; return the names that this kernel does not have.

    Any sysctl is accepted: this is for a network namespace that a trial has created for itself.
    """
    missing = []
    for name, value in values.items():
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
    """Return the TCP counters: retransmissions, timeouts, out-of-order segments, bytes sent."""
    texts = {}
    for path in TCP_FILES:
        with open(path) as file:
            texts[path] = file.read()
    return parse_tcp_counters(texts)


def parse_tcp_counters(texts: Mapping[str, str]) -> list[int]:
    """Return the TCP counters from the texts of `TCP_FILES`."""
    lines = {path: [line.split() for line in text.splitlines()] for path, text in texts.items()}
    values = []
    for path, table, name in _COUNTERS:
        names, numbers = (line for line in lines[path] if line[0] == table)
        values.append(int(numbers[names.index(name)]))
    return values


def offloads_on(request: dict[str, Any]) -> list[str]:
    """Return the offloads that are on, each as `interface name`."""
    on = []
    for interface in request["interfaces"]:
        try:
            on += [f"{interface} {name}" for name in ethtool.offloads_on(interface)]
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise OperationError(
                f"the offloads of {interface} cannot be read: {why}",
                "check the interface's name in the inventory",
            ) from error
    return on


def read_links(request: dict[str, Any], net: str = NET) -> dict[str, list[int]]:
    """Return the carrier and the number of its changes, by interface."""
    names = [str(name) for name in request["interfaces"]]
    for name in names:
        if os.sep in name:
            raise OperationError(f"{name!r} is not an interface", "correct closloop_links")
    return {
        # reading the carrier of a port that is shut down fails with EINVAL
        name: [max(0, _number(net, name, "carrier")), _number(net, name, "carrier_changes")]
        for name in names
    }


def _number(*path: str) -> int:
    return leading_int(text(os.path.join(*path)))


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        "sysctl.write": write_sysctls,
        "tcp.counters": tcp_counters,
        "offloads.read": offloads_on,
        "links.read": read_links,
    }
