"""A RoCE NIC: DCQCN parameters and counters, read and set.

    nic.capabilities  {interface} -> {surface of each parameter, pci, driver, mlxconfig's text}
    nic.dcqcn.read    {interface} -> {"t_ns", "values": {name: value}}
    nic.dcqcn.write   {interface, values: {name: value}}
                      -> {"t_ns", "previous": {name: value}, "values": as read back}
    nic.counters      {interface, rdma_device, port, sources: ["hw", "port", "ethtool", "rdma"]}
                      -> {source: {"t_ns": CLOCK_MONOTONIC of the reading, ...}}

`agent.dcqcn` has the parameters. A write that fails half-way is undone. `previous` includes the
parameters that the NIC changes by itself along with a write, so writing it back undoes everything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestration.device.agent.dcqcn import PARAMETERS, refusal
from orchestration.device.agent.dcqcn import places as places_of
from orchestration.device.agent.main import Agent, Operation, OperationError
from orchestration.device.agent.survey import find_program, run
from orchestration.device.ethtool import driver, statistics

SOURCES = ("hw", "port", "ethtool", "rdma")

_MLXCONFIG = ("mlxconfig", "mstconfig")
_MLXCONFIG_TIMEOUT_S = 20.0
# A file in hw_counters that is not a counter: how long the driver caches values, in ms.
_NO_COUNTERS = ("lifespan",)


class Places(NamedTuple):
    """Folders of the kernel's files; tests use others."""

    net: str = "/sys/class/net"
    infiniband: str = "/sys/class/infiniband"
    debugfs: str = "/sys/kernel/debug"


HERE = Places()


def capabilities(request: dict[str, Any], places: Places = HERE) -> dict[str, Any]:
    """Return what the NIC offers; mlxconfig's text is "" if it is not installed or fails."""
    interface = _interface(request, places)
    files = parameter_files(interface, places)
    pci = pci_address(interface, places)
    text, problem = "", "no mlxconfig"
    program = next(filter(None, map(find_program, _MLXCONFIG)), None)
    if program is not None and pci:
        code, text, problem = run([program, "-d", pci, "q"], _MLXCONFIG_TIMEOUT_S)
        text, problem = (text, "") if code == 0 else ("", problem or text[-200:])
    return {
        "pci": pci,
        "driver": driver(interface),
        "surfaces": {name: surface for name, (surface, _) in files.items()},
        "enabled": _enabled(interface, places),
        "mlxconfig": text,
        "mlxconfig_problem": problem,
    }


def read_dcqcn(request: dict[str, Any], places: Places = HERE) -> dict[str, Any]:
    """Return the values of all parameters that the NIC has."""
    files = _found_files(_interface(request, places), places)
    t_ns = time.monotonic_ns()
    return {"t_ns": t_ns, "values": {name: _read(path) for name, (_, path) in files.items()}}


def write_dcqcn(request: dict[str, Any], places: Places = HERE) -> dict[str, Any]:
    """Set parameters and read them back; nothing is changed if one of them is refused."""
    interface = _interface(request, places)
    files = _found_files(interface, places)
    wanted = request["values"]
    rate_mbps = _line_rate_mbps(interface, places)
    for name, value in wanted.items():
        what, remedy = refusal(name, value, rate_mbps)
        if not what and name not in files:
            what = f"the NIC at {interface} has no {name}"
            remedy = f"it has {', '.join(files)}"
        if what:
            raise OperationError(what, remedy)
    in_order = [p.name for p in PARAMETERS if p.name in wanted]
    previous = {name: _read(files[name][1]) for name in in_order}
    if "cnp_802p_prio" in wanted and "cnp_prio_mode" in files:
        previous["cnp_prio_mode"] = _read(files["cnp_prio_mode"][1])
    try:
        for name in in_order:
            _write(files[name][1], name, wanted[name])
        values = {name: _read(files[name][1]) for name in in_order}
        other = [name for name in in_order if values[name] != wanted[name]]
        if other:
            raise OperationError(
                f"the NIC at {interface} keeps {other[0]} at {values[other[0]]}, "
                f"not {wanted[other[0]]}",
                "give a value that the NIC takes; see its firmware's notes",
            )
    except (OperationError, PermissionError) as error:
        left = _put_back(files, previous)
        if left:
            raise OperationError(
                f"{error}; and {', '.join(left)} could not be put back",
                f"set them by hand to {', '.join(str(previous[name]) for name in left)}",
            ) from error
        raise
    return {"t_ns": time.monotonic_ns(), "previous": previous, "values": values}


def counters(request: dict[str, Any], places: Places = HERE) -> dict[str, Any]:
    """Return the counters of the sources asked for, each with its time.

    A missing source has `problem` instead.
    """
    readers: dict[str, Callable[[], dict[str, Any]]] = {
        "hw": lambda: _folder(_port_folder(request, places), "hw_counters"),
        "port": lambda: _folder(_port_folder(request, places), "counters"),
        "ethtool": lambda: {"values": ethtool_statistics(_interface(request, places))},
        "rdma": lambda: _rdma_statistics(request),
    }
    result: dict[str, Any] = {}
    for source in request.get("sources", SOURCES):
        if source not in readers:
            raise OperationError(f"no counters {source!r}", f"use some of {', '.join(readers)}")
        t_ns = time.monotonic_ns()
        try:
            result[source] = {"t_ns": t_ns, **readers[source]()}
        except OperationError as error:
            result[source] = {"t_ns": t_ns, "problem": error.what}
    return result


def parameter_files(interface: str, places: Places = HERE) -> dict[str, tuple[str, str]]:
    """Return the surface and file of each parameter that the NIC has, debugfs preferred."""
    ecn = os.path.join(places.net, interface, "ecn")
    debugfs = os.path.join(
        places.debugfs, "mlx5", pci_address(interface, places) or "none", "cc_params"
    )
    found = {}
    for parameter in PARAMETERS:
        for surface, path in places_of(parameter, debugfs, ecn):
            if os.path.isfile(path):
                found[parameter.name] = (surface, path)
                break
    return found


def pci_address(interface: str, places: Places = HERE) -> str:
    """Return the NIC's PCI address, like 0000:3b:00.0, "" for a virtual interface."""
    link = os.path.join(places.net, interface, "device")
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def ethtool_statistics(interface: str) -> dict[str, int]:
    """Return what `ethtool -S` prints. Raises OperationError if the driver has none."""
    try:
        found = statistics(interface)
    except OSError as error:
        raise OperationError(
            f"the statistics of {interface} cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
    if not found:
        raise OperationError(f"{interface} has no statistics of its own")
    return found


def _interface(request: dict[str, Any], places: Places) -> str:
    name = str(request["interface"])
    if os.sep in name or not os.path.isdir(os.path.join(places.net, name)):
        raise OperationError(f"has no interface {name}", "correct closloop_links in the inventory")
    return name


def _found_files(interface: str, places: Places) -> dict[str, tuple[str, str]]:
    files = parameter_files(interface, places)
    if not files:
        raise OperationError(
            f"the NIC at {interface} offers no DCQCN parameters",
            "an mlx5 NIC is needed, with debugfs mounted and firmware that lets the host set "
            "congestion control, or with MLNX_OFED",
        )
    return files


def _read(path: str) -> int:
    try:
        with open(path) as file:
            text = file.read(100).strip()
    except PermissionError:
        raise
    except OSError as error:
        raise OperationError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        return int(text, 0)
    except ValueError:
        raise OperationError(f"{path} has no number, but {text[:40]!r}") from None


def _write(path: str, name: str, value: int) -> None:
    try:
        with open(path, "w") as file:
            file.write(str(value))
    except PermissionError:
        raise
    except OSError as error:
        raise OperationError(
            f"the NIC refuses {name} = {value}: {os.strerror(error.errno or 0)}",
            "see the range in the NIC's documentation",
        ) from error


def _put_back(files: dict[str, tuple[str, str]], previous: dict[str, int]) -> list[str]:
    """Write back parameters that differ; return those that cannot be written."""
    left = []
    for parameter in PARAMETERS:
        name = parameter.name
        if name in previous:
            try:
                if _read(files[name][1]) != previous[name]:
                    _write(files[name][1], name, previous[name])
            except (OperationError, PermissionError):
                left.append(name)
    return left


def _enabled(interface: str, places: Places) -> dict[str, list[int]]:
    """Return the priorities that react to CNPs and those that send them, if sysfs shows them."""
    result = {}
    for side in ("roce_rp", "roce_np"):
        folder = os.path.join(places.net, interface, "ecn", side, "enable")
        if os.path.isdir(folder):
            on = (p for p in range(8) if os.path.isfile(os.path.join(folder, str(p))))
            result[side] = [p for p in on if _read(os.path.join(folder, str(p)))]
    return result


def _line_rate_mbps(interface: str, places: Places) -> int:
    try:
        return _read(os.path.join(places.net, interface, "speed"))
    except OperationError:
        return -1


def _port_folder(request: dict[str, Any], places: Places) -> str:
    device, port = str(request["rdma_device"]), int(request.get("port", 1))
    folder = os.path.join(places.infiniband, device, "ports", str(port))
    if os.sep in device or not device or not os.path.isdir(folder):
        raise OperationError(
            f"has no RDMA device {device} with a port {port}",
            "correct closloop_rdma_device in the inventory",
        )
    return folder


def _folder(port_folder: str, name: str) -> dict[str, Any]:
    folder = os.path.join(port_folder, name)
    if not os.path.isdir(folder):
        raise OperationError(f"has no {folder}")
    names = sorted(set(os.listdir(folder)) - set(_NO_COUNTERS))
    return {"values": {name: _read(os.path.join(folder, name)) for name in names}}


def _rdma_statistics(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output of `rdma statistic`, which includes the optional counters."""
    program = find_program("rdma")
    if program is None:
        raise OperationError("has no rdma")
    link = f"{request['rdma_device']}/{int(request.get('port', 1))}"
    code, text, said = run([program, "-j", "statistic", "show", "link", link])
    if code != 0:
        raise OperationError(f"rdma statistic: {said[:200] or f'exit code {code}'}")
    return {"text": text}


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        "nic.capabilities": capabilities,
        "nic.dcqcn.read": read_dcqcn,
        "nic.dcqcn.write": write_dcqcn,
        "nic.counters": counters,
    }
