"""RoCE NICs from the controller: DCQCN parameters and counters.

Parameters are validated before a NIC sees them. Counters of the NIC's hardware are 32 or 64 bits
wide: `CounterSeries` turns readings into counts that never go back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inventory.rack import Access
from orchestration.device.agent.dcqcn import BY_NAME, PARAMETERS, Parameter, refusal
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError, printable
from orchestration.model.errors import InputError, Problem

__all__ = [
    "BY_NAME",
    "PARAMETERS",
    "Capabilities",
    "CounterSeries",
    "Nic",
    "Parameter",
    "Reading",
    "Written",
    "validate",
]

# mlx5's hw_counters come from its queue counters, which are 32 bits wide
# (drivers/infiniband/hw/mlx5/counters.c); the ports' and ethtool's are 64.
_WRAP_AT = {"hw": 2**32, "rdma": 2**32, "port": 2**64, "ethtool": 2**64}
# What the 32-bit sources also have that is wider: volume in bytes and packets.
_WIDE = re.compile(r".*_(bytes|packets|pkts)|rdma_(sends|recvs)")
_CAPABILITIES_TIMEOUT_S = 40.0
_MANY = 100_000


@dataclass(frozen=True)
class Capabilities:
    """What a NIC offers: `surfaces` (debugfs or sysfs) by parameter; none if it has no DCQCN.

    `enabled` are the priorities that react to CNPs (`roce_rp`) and send them (`roce_np`), where the
    driver says. `persistent` are mlxconfig's values, which count from the next reset on; empty
    where it cannot be asked, for `persistent_problem`.
    """

    pci: str
    driver: str
    surfaces: Mapping[str, str]
    enabled: Mapping[str, tuple[int, ...]]
    persistent: Mapping[str, int]
    persistent_problem: str = ""


@dataclass(frozen=True)
class Written:
    """A change of DCQCN parameters: what was read back, and what to write to undo it."""

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
    """One NIC of a host, through the host's agent, which needs the service `nic`."""

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
            raise self._unreadable(error) from error

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
            raise self._unreadable(error) from error

    def _ask(self, op: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
        arguments |= {"interface": self._interface, "rdma_device": self._access.rdma_device}
        return self._agent.call(op, timeout_s, **arguments)

    def _values(self, found: Any, key: str) -> dict[str, int]:
        try:
            values = {name: found[key][name] for name in BY_NAME if name in found[key]}
            if not all(isinstance(value, int) for value in values.values()):
                raise TypeError("a value is no whole number")
        except (KeyError, TypeError) as error:
            raise self._unreadable(error) from error
        return values

    def _unreadable(self, error: Exception) -> DeviceError:
        return DeviceError(
            self._access.device,
            f"what its NIC says cannot be read: {printable(f'{type(error).__name__}: {error}')}",
            "see whether something changes what its agent sends",
        )


class CounterSeries:
    """Counts since the first reading of a source: monotonic, over wraps of the counters.

    A counter that goes back by less than half its width has been reset: it counts on from 0.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._last: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def add(self, values: Mapping[str, int]) -> dict[str, int]:
        """Take the next reading and return all counts; a counter that is new starts at 0."""
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


def validate(values: Mapping[str, int], line_rate_bps: int = -1, where: str = "DCQCN") -> None:
    """Raise InputError with every name and value that no NIC takes. A rate of -1 is unknown."""
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
    """Return the DCQCN parameters in what `mlxconfig -d DEVICE q` prints, of the first port.

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
    """Return the counters in what `rdma -j statistic show link` prints. Raises ValueError."""
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
