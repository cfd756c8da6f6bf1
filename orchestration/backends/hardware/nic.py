"""RoCE NICs seen from the controller: DCQCN parameters and counters.

Parameters are validated before they are sent to a NIC. The NIC's hardware counters are 32 or 64
bits wide: `CounterSeries` turns readings into counts that never go back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inventory.rack import Access, Rack
from orchestration.device.agent.dcqcn import BY_NAME, PARAMETERS, refusal
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError, printable, unreadable
from orchestration.device.fleet import Fleet
from orchestration.model.errors import InputError, Problem

# mlx5's hw_counters come from its queue counters, which are 32 bits wide
# (drivers/infiniband/hw/mlx5/counters.c); the ports' and ethtool's are 64.
_WRAP_AT = {"hw": 2**32, "rdma": 2**32, "port": 2**64, "ethtool": 2**64}
# These counters of the 32-bit sources are wider: volume in bytes and packets.
_WIDE = re.compile(r".*_(bytes|packets|pkts)|rdma_(sends|recvs)")
_CAPABILITIES_TIMEOUT_S = 40.0
# The agent's service, and the sources that are read during a trial.
SERVICE = "nic"
_WATCHED = ("hw", "rdma", "ethtool")
_MANY = 100_000


@dataclass(frozen=True)
class Capabilities:
    """What a NIC offers: `surfaces` (debugfs or sysfs) by DCQCN parameter.

    `enabled` are the priorities that react to CNPs (`roce_rp`) and send them (`roce_np`), if the
    driver tells. `persistent` are mlxconfig's values, which apply after the next reset; it is empty
    if mlxconfig cannot be read, with the reason in `persistent_problem`.
    """

    pci: str
    driver: str
    surfaces: Mapping[str, str]
    enabled: Mapping[str, tuple[int, ...]]
    persistent: Mapping[str, int]
    persistent_problem: str = ""


@dataclass(frozen=True)
class Written:
    """A change of DCQCN parameters: the values read back, and the values that undo it."""

    t_ns: int
    previous: Mapping[str, int]
    values: Mapping[str, int]


@dataclass(frozen=True)
class Reading:
    """Counters of one source at `t_ns` of the host's CLOCK_MONOTONIC, or why there are none."""

    source: str
    t_ns: int
    values: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


class Nic:
    """One NIC of a host, reached through the host's agent, which needs the service `nic`."""

    def __init__(self, agent: AgentClient, access: Access, interface: str) -> None:
        self._agent = agent
        self._access = access
        self._interface = interface

    def capabilities(self) -> Capabilities:
        """Return what the NIC offers. Raises DeviceError."""
        found = self._ask("nic.capabilities", _CAPABILITIES_TIMEOUT_S)
        try:
            return Capabilities(
                pci=printable(found["pci"]),
                driver=printable(found["driver"]),
                surfaces={
                    name: printable(found["surfaces"][name])
                    for name in BY_NAME
                    if name in found["surfaces"]
                },
                enabled={
                    name: tuple(int(priority) for priority in found["enabled"][name])
                    for name in ("roce_rp", "roce_np")
                    if name in found["enabled"]
                },
                persistent=parse_mlxconfig(found["mlxconfig"]),
                persistent_problem=printable(found["mlxconfig_problem"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise unreadable(self._access.device, "what its NIC says", error) from error

    def read(self) -> dict[str, int]:
        """Return the value of every DCQCN parameter that the NIC has. Raises DeviceError."""
        return self._values(self._ask("nic.dcqcn.read"), "values")

    def write(self, values: Mapping[str, int], line_rate_bps: int = -1) -> Written:
        """Set parameters, and read them back.

        Raises:
            InputError: a name or value is refused; nothing was sent.
            DeviceError: the NIC refuses one; those set before it are put back.
        """
        validate(values, line_rate_bps)
        found = self._ask("nic.dcqcn.write", values=dict(values))
        previous, applied = self._values(found, "previous"), self._values(found, "values")
        return Written(int(found["t_ns"]), previous, applied)

    def counters(self, sources: Iterable[str] = tuple(_WRAP_AT), port: int = 1) -> list[Reading]:
        """Read counters of some sources: `hw`, `port`, `ethtool`, `rdma`. Raises DeviceError."""
        found = self._ask("nic.counters", sources=list(sources), port=port)
        try:
            return [_reading(source, row) for source, row in found.items()]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise unreadable(self._access.device, "what its NIC says", error) from error

    def _ask(self, op: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
        arguments |= {"interface": self._interface, "rdma_device": self._access.rdma_device}
        return self._agent.call(op, timeout_s, **arguments)

    def _values(self, found: Any, key: str) -> dict[str, int]:
        try:
            values = {name: found[key][name] for name in BY_NAME if name in found[key]}
            if not all(isinstance(value, int) for value in values.values()):
                raise TypeError("a value is no whole number")
        except (KeyError, TypeError) as error:
            raise unreadable(self._access.device, "what its NIC says", error) from error
        return values


class CounterSeries:
    """Counts since the first reading of a source: monotonic across wraps of the counters.

    A counter that goes back by less than half its width has been reset: it counts on from 0.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._last: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def add(self, values: Mapping[str, int]) -> dict[str, int]:
        """Add the next reading and return all counts; a new counter starts at 0."""
        for name, value in values.items():
            before = self._last.get(name, value)
            wide = before >= 2**32 or _WIDE.fullmatch(name)
            width = 2**64 if wide else _WRAP_AT[self._source]
            step = value - before
            if step < 0:
                step = step + width if step < -(width // 2) else value
            self._total[name] = self._total.get(name, 0) + step
            self._last[name] = value
        return dict(self._total)


class NicWatch:
    """Counters of every RoCE host's NICs, from `start` to `finish`."""

    def __init__(self, rack: Rack, fleet: Fleet) -> None:
        self._nics = {
            f"{name}:{interface}": Nic(fleet.agents[name], access, interface)
            for name, access in rack.access.items()
            if access.nic == "roce"
            for interface in access.interfaces
        }
        self._series: dict[tuple[str, str], CounterSeries] = {}
        self._first: dict[tuple[str, str], dict[str, int]] = {}
        self._last: dict[tuple[str, str], dict[str, int]] = {}
        self.problems: list[str] = []

    def start(self) -> None:
        """Take the first reading of all NICs."""
        self._read(self._first)

    def finish(self) -> None:
        """Take the last reading of all NICs."""
        self._read(self._last)

    def facts(self) -> dict[str, Any]:
        """Return each NIC's counts by source, without counters that did not change."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for (nic, source), last in self._last.items():
            first = self._first.get((nic, source), {})
            counted = {
                name: value - first[name]
                for name, value in last.items()
                if name in first and value != first[name]
            }
            found.setdefault(nic, {})[source] = counted
        return found

    def _read(self, into: dict[tuple[str, str], dict[str, int]]) -> None:
        for label, nic in self._nics.items():
            try:
                readings = nic.counters(_WATCHED)
            except DeviceError as error:
                self.problems.append(error.message)
                continue
            for reading in readings:
                if reading.problem:
                    continue
                key = (label, reading.source)
                series = self._series.setdefault(key, CounterSeries(reading.source))
                into[key] = series.add(reading.values)


def validate(values: Mapping[str, int], line_rate_bps: int = -1, where: str = "DCQCN") -> None:
    """Raise InputError with every name and value that no NIC accepts. A rate of -1 is unknown."""
    problems = []
    for name, value in values.items():
        what, remedy = refusal(name, value, line_rate_bps // 10**6 if line_rate_bps > 0 else -1)
        if what:
            problems.append(Problem(where, what, remedy))
    least, most = values.get("rpg_min_rate", 0), values.get("rpg_max_rate", 0)
    if not problems and most and least > most:
        what = f"rpg_min_rate {least} is above rpg_max_rate {most}"
        problems.append(Problem(where, what, "lower the one or raise the other (Mbps)"))
    if problems:
        raise InputError(problems)


def parse_mlxconfig(text: str) -> dict[str, int]:
    """Return the DCQCN parameters of the first port in the output of `mlxconfig -d DEVICE q`.

    A line is a name, with _P1 or _P2, and a value: `50`, `0x10`, `True(1)`, `ECN(0)`.
    """
    wanted = {
        parameter.mlxconfig: parameter.name for parameter in PARAMETERS if parameter.mlxconfig
    }
    values = {}
    for line in text.splitlines():
        match = re.match(r"\s*\*?\s*([A-Z0-9_]+?)(?:_P([12]))?\s+(\S+)\s*$", line)
        if match is None or match[1] not in wanted or match[2] == "2":
            continue
        number = re.fullmatch(r"(?:[^()]*\()?(0x[0-9a-fA-F]+|[0-9]+)\)?", match[3])
        if number is not None:
            values[wanted[match[1]]] = int(number[1], 0)
    return values


def parse_rdma_statistic(text: str) -> dict[str, int]:
    """Return the counters in the output of `rdma -j statistic show link`. Raises ValueError."""
    rows = json.loads(text)
    if not isinstance(rows, list) or len(rows) > 1:
        raise ValueError("not the statistics of one link")
    return {
        printable(name): value
        for row in rows
        for name, value in dict(row).items()
        if name not in ("ifname", "port") and isinstance(value, int)
    }


def _reading(source: str, row: Mapping[str, Any]) -> Reading:
    if source not in _WRAP_AT:
        raise ValueError(f"no source {source!r}")
    if "problem" in row:
        return Reading(source, int(row["t_ns"]), problem=printable(row["problem"]))
    values = parse_rdma_statistic(row["text"]) if source == "rdma" else row["values"]
    if len(values) > _MANY or not all(isinstance(value, int) for value in values.values()):
        raise ValueError(f"the counters of {source} are no counters")
    return Reading(source, int(row["t_ns"]), {printable(n): v for n, v in values.items()})
