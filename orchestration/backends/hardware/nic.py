"""RoCE NICs seen from the controller: their counters, before and after a trial.

The NIC's hardware counters are 32 or 64 bits wide: `CounterSeries` turns readings into counts that
never go back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inventory.rack import Access, Rack
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError, printable, unreadable
from orchestration.device.fleet import Fleet

# mlx5's hw_counters come from its queue counters, which are 32 bits wide
# (drivers/infiniband/hw/mlx5/counters.c); the ports' and ethtool's are 64.
_WRAP_AT = {"hw": 2**32, "rdma": 2**32, "port": 2**64, "ethtool": 2**64}
# These counters of the 32-bit sources are wider: volume in bytes and packets.
_WIDE = re.compile(r".*_(bytes|packets|pkts)|rdma_(sends|recvs)")
# The agent's service, and the sources that are read during a trial.
SERVICE = "nic"
_WATCHED = ("hw", "rdma", "ethtool")
_MANY = 100_000


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

    def counters(self, sources: Iterable[str] = tuple(_WRAP_AT), port: int = 1) -> list[Reading]:
        """Read counters of some sources: `hw`, `port`, `ethtool`, `rdma`. Raises DeviceError."""
        found = self._ask("nic.counters", sources=list(sources), port=port)
        try:
            return [_reading(source, row) for source, row in found.items()]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise unreadable(self._access.device, "what its NIC says", error) from error

    def optional(self) -> list[str]:
        """Switch on the optional counters of congestion, until the agent ends; name them."""
        return [printable(str(name)) for name in self._ask("nic.optional")]

    def _ask(self, op: str, **arguments: Any) -> Any:
        device = self._access.rdma_device(self._interface)
        return self._agent.call(op, interface=self._interface, rdma_device=device, **arguments)


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
        """Switch on optional counters, and take the first reading of all NICs."""
        for nic in self._nics.values():
            try:
                nic.optional()
            except DeviceError as error:
                self.problems.append(error.message)
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

    def counted(self, name: str) -> dict[str, int]:
        """Return by how much a counter has moved, for each NIC that has it."""
        return {
            nic: last[name] - self._first[nic, source][name]
            for (nic, source), last in self._last.items()
            if name in last and name in self._first.get((nic, source), {})
        }

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
