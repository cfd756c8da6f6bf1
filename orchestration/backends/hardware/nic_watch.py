"""What the RoCE NICs of a rack counted during a trial: marks seen, CNPs, retries, pauses."""

from __future__ import annotations

from typing import Any

from inventory.rack import Rack
from orchestration.backends.hardware.nic import CounterSeries, Nic
from orchestration.device.errors import DeviceError
from orchestration.device.fleet import Fleet

SERVICE = "nic"
_SOURCES = ("hw", "rdma", "ethtool")


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
        """Read all NICs for the first time."""
        self._read(self._first)

    def finish(self) -> None:
        """Read all NICs for the last time."""
        self._read(self._last)

    def facts(self) -> dict[str, Any]:
        """Return what each NIC counted meanwhile, by source, without what stayed the same."""
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
                readings = nic.counters(_SOURCES)
            except DeviceError as error:
                self.problems.append(error.message)
                continue
            for reading in readings:
                if reading.problem:
                    continue
                key = (label, reading.source)
                series = self._series.setdefault(key, CounterSeries(reading.source))
                into[key] = series.add(reading.values)
