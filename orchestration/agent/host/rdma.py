"""Reads a RoCE NIC's counters, and the GIDs of its addresses.

    nic.counters  {interface, rdma_device, sources: ["hw", "ethtool", "rdma"]}
                  -> {source: {"values": {name: count}} or {"problem": why there are none}}
    nic.optional  {rdma_device} -> names of optional counters that were switched on
    nic.driver    {interface, rdma_device} -> the name of the RDMA device's driver, "" if unknown
    nic.gids      -> [[RDMA device, port, index, IPv4 address], ...] of RoCE v2

A GID is an RDMA port's address; one of RoCE v2 stands for an IP address of the interface. Optional
counters are switched off again when the agent ends.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from ..linux.ethtool import statistics
from ..main import Agent, Operation, OperationError
from ..small_files import listed, text
from ..survey import find_program, run

# Files in hw_counters that are not counters: for how long the driver caches values, in ms.
_NOT_COUNTERS = ("lifespan",)
# The prefix of optional counters of congestion control: CE packets and CNPs.
_CONGESTION_PREFIX = "cc_"
# How a GID of an IPv4-mapped address begins, without its colons; the address follows.
_IPV4_GID = "0" * 20 + "ffff"


class SysfsFolders(NamedTuple):
    """The folders of the kernel's files; tests use others."""

    net: str = "/sys/class/net"
    infiniband: str = "/sys/class/infiniband"


SYSFS_FOLDERS = SysfsFolders()


def counters(request: dict[str, Any], folders: SysfsFolders = SYSFS_FOLDERS) -> dict[str, Any]:
    """Return the counters of the requested sources; an unreadable source has `problem` instead."""
    readers: dict[str, Callable[[], dict[str, int]]] = {
        "hw": lambda: _hw_counters(request, folders),
        "ethtool": lambda: ethtool_statistics(_interface(request, folders)),
        "rdma": lambda: _rdma_statistics(request),
    }
    result: dict[str, Any] = {}
    for source in request["sources"]:
        try:
            result[source] = {"values": readers[source]()}
        except OperationError as error:
            result[source] = {"problem": error.what}
    return result


class OptionalCounters:
    """Counters of congestion that a NIC counts only when they are enabled, such as cc_rx_ce_pkts.

    mlx5 has them since Linux 5.16, and iproute2 can enable them since then. Each one uses a
    steering rule of the NIC.
    """

    def __init__(self, agent: Agent) -> None:
        self._names_before: dict[str, list[str]] = {}
        agent.at_end(self.put_back)

    def switch_on(self, request: dict[str, Any]) -> list[str]:
        """Switch on all of these counters that are off; return their names. A NIC may have none."""
        link = _link(request)
        on = self._names("mode", "link", link)
        offered = self._names("mode", "supported", "link", link)
        switched_on = [
            name for name in offered if name.startswith(_CONGESTION_PREFIX) and name not in on
        ]
        if switched_on:
            self._names_before.setdefault(link, on)
            self._set(link, [*on, *switched_on])
        return switched_on

    def put_back(self) -> None:
        """Switch off the counters that were switched on."""
        for link, names in self._names_before.items():
            self._set(link, names)
        self._names_before.clear()

    def _set(self, link: str, names: list[str]) -> None:
        # setting a list switches all others off
        command = ["set", "link", link, "optional-counters", ",".join(names)]
        self._rdma(*(command if names else ["unset", *command[1:4]]))

    def _names(self, *words: str) -> list[str]:
        """Return the names that `rdma -j statistic mode` lists, [] if the NIC has none."""
        try:
            rows = json.loads(self._rdma(*words) or "[]")
        except ValueError:
            return []
        return [
            str(name)
            for row in rows
            for key, names in row.items()
            if key.endswith("optional-counters")
            for name in names
        ]

    def _rdma(self, *words: str) -> str:
        program = find_program("rdma")
        if program is None:
            return ""
        code, out, _ = run([program, "-j", "statistic", *words])
        return out if code == 0 else ""


def gids(_: dict[str, Any], folders: SysfsFolders = SYSFS_FOLDERS) -> list[list[Any]]:
    """Return device, port, index and address of each GID of RoCE v2 for an IPv4 address."""
    rows: list[list[Any]] = []
    for device in listed(folders.infiniband):
        ports = os.path.join(folders.infiniband, device, "ports")
        for port in listed(ports):
            folder = os.path.join(ports, port)
            for index in sorted(map(int, listed(os.path.join(folder, "gids")))):
                words = text(os.path.join(folder, "gids", str(index))).replace(":", "")
                kind = os.path.join(folder, "gid_attrs", "types", str(index))
                if words.startswith(_IPV4_GID) and text(kind) == "RoCE v2":
                    address = socket.inet_ntoa(bytes.fromhex(words[-8:]))
                    rows.append([device, int(port), index, address])
    return rows


def ethtool_statistics(interface: str) -> dict[str, int]:
    """Return the driver's statistics, as `ethtool -S` prints them. Raises OperationError."""
    try:
        values = statistics(interface)
    except OSError as error:
        raise OperationError(
            f"the statistics of {interface} cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
    if not values:
        raise OperationError(f"{interface} has no statistics of its own")
    return values


def driver_name(request: dict[str, Any], folders: SysfsFolders = SYSFS_FOLDERS) -> str:
    """Return the name of an RDMA device's driver, such as mlx5_core, "" if it is unknown.

    Soft-RoCE's device stands on no bus, but names the interface that it was made for
    (`parent_show` in drivers/infiniband/sw/rxe/rxe_verbs.c).
    """
    folder = os.path.join(folders.infiniband, os.path.basename(str(request["rdma_device"])))
    try:
        return os.path.basename(os.readlink(os.path.join(folder, "device", "driver")))
    except OSError:
        return "rdma_rxe" if os.path.exists(os.path.join(folder, "parent")) else ""


def _interface(request: dict[str, Any], folders: SysfsFolders) -> str:
    name = str(request["interface"])
    if os.sep in name or not os.path.isdir(os.path.join(folders.net, name)):
        raise OperationError(f"has no interface {name}", "correct closloop_links in the inventory")
    return name


def _read(path: str) -> int:
    try:
        with open(path) as file:
            number = file.read(100).strip()
    except PermissionError:
        raise
    except OSError as error:
        raise OperationError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        return int(number, 0)
    except ValueError:
        raise OperationError(f"{path} does not hold a number, but {number[:40]!r}") from None


def _hw_counters(request: dict[str, Any], folders: SysfsFolders) -> dict[str, int]:
    device = str(request["rdma_device"])
    folder = os.path.join(folders.infiniband, device, "ports", "1", "hw_counters")
    if os.sep in device or not device or not os.path.isdir(os.path.dirname(folder)):
        raise OperationError(
            f"has no RDMA device {device} with a port 1",
            "correct closloop_rdma_device in the inventory",
        )
    if not os.path.isdir(folder):
        raise OperationError(f"has no {folder}")
    names = sorted(set(os.listdir(folder)) - set(_NOT_COUNTERS))
    return {name: _read(os.path.join(folder, name)) for name in names}


def _link(request: dict[str, Any]) -> str:
    return f"{request['rdma_device']}/1"


def _rdma_statistics(request: dict[str, Any]) -> dict[str, int]:
    program = find_program("rdma")
    if program is None:
        raise OperationError("has no rdma")
    code, out, errors = run([program, "-j", "statistic", "show", "link", _link(request)])
    if code != 0:
        raise OperationError(f"rdma statistic: {errors[:200] or f'exit code {code}'}")
    return statistics_of_link(out)


def statistics_of_link(printed: str) -> dict[str, int]:
    """Return the counters in the output of `rdma -j statistic show link`. Raises OperationError."""
    try:
        rows = json.loads(printed)
    except ValueError:
        rows = None
    if not isinstance(rows, list) or len(rows) > 1:
        raise OperationError("rdma statistic does not show the counters of one link")
    return {
        name: value
        for row in rows
        for name, value in dict(row).items()
        if name not in ("ifname", "port") and isinstance(value, int)
    }


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        "nic.gids": gids,
        "nic.optional": OptionalCounters(agent).switch_on,
        "nic.counters": counters,
        "nic.driver": driver_name,
    }
