"""Watches ports and RoCE NICs of a rack during a trial: lost carriers, and what NICs counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inventory.rack import Rack
from orchestration.core.errors import TrialError
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError, DeviceGone, printable, unreadable

_SHOWN = 6
_REMEDY = "look at cable and optics, and at who shuts the port; `closloop inventory check` sees it"


class LinkMonitor:
    """Compares the carriers of all linked ports before and after a trial.

    With a flapping port, a trial measures the cable.

    On leaving it raises TrialError if a carrier has changed. That error replaces a DeviceError or
    TrialError, which a flapping port has probably caused.
    """

    def __init__(self, rack: Rack, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names = {device: list(access.interfaces) for device, access in rack.access.items()}
        self._peers = {
            (device, access.interfaces[place]): rack.testbed.peer_device(port).name
            for device, access in rack.access.items()
            for place, port in enumerate(rack.testbed.ports_of[device])
        }
        self._changes: dict[tuple[str, str], int] = {}

    def __enter__(self) -> LinkMonitor:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (
            isinstance(error, (DeviceError, TrialError)) and not isinstance(error, DeviceGone)
        ):
            self.finish()

    def start(self) -> None:
        """Read all ports' carriers. Raises TrialError, naming the ports that are down."""
        links = self._read()
        self._changes = {port: changes for port, (_, changes) in links.items()}
        down = [f"{self._words(port)} is down" for port, (up, _) in links.items() if not up]
        self._raise(down)

    def finish(self) -> None:
        """Read them again. Raises TrialError, naming the ports that went down meanwhile."""
        said = []
        for port, (up, changes) in self._read().items():
            times = changes - self._changes[port]
            if not up:
                said.append(f"{self._words(port)} went down during the trial")
            elif times:
                said.append(f"{self._words(port)} flapped during the trial: {times} changes")
        self._raise(said)

    def _read(self) -> dict[tuple[str, str], tuple[bool, int]]:
        asked = {device: {"interfaces": names} for device, names in self._names.items()}
        answers = self._fleet.ask("links.read", asked)
        return {
            (device, name): (bool(answers[device][name][0]), int(answers[device][name][1]))
            for device, name in self._peers
        }

    def _words(self, port: tuple[str, str]) -> str:
        return f"{port[0]}: {port[1]}, towards {self._peers[port]},"

    def _raise(self, said: Sequence[str]) -> None:
        if said:
            more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
            raise TrialError("; ".join(said[:_SHOWN]) + more, _REMEDY)


# The agent's service, and the sources that are read. mlx5's hw_counters come from its queue
# counters, which are 32 bits wide (drivers/infiniband/hw/mlx5/counters.c); ethtool's are 64.
NIC_SERVICE = "nic"
_WRAP_AT = {"hw": 2**32, "rdma": 2**32, "ethtool": 2**64}
# These counters of the 32-bit sources are wider: volume in bytes and packets.
_WIDE = re.compile(r".*_(bytes|packets|pkts)|rdma_(sends|recvs)")
_MANY = 100_000

# By NIC and source, then by counter.
Counters = dict[tuple[str, str], dict[str, int]]


def growth(source: str, name: str, before: int, after: int) -> int:
    """Return by how much a counter grew, though it may have wrapped.

    One that went back by less than half its width has been reset: it counted on from 0.
    """
    width = 2**64 if before >= 2**32 or _WIDE.fullmatch(name) else _WRAP_AT[source]
    step = after - before
    if step >= 0:
        return step
    return step + width if step < -(width // 2) else after


class NicMonitor:
    """Counters of every RoCE host's NICs, from `start` to `finish`."""

    def __init__(self, rack: Rack, fleet: Fleet) -> None:
        self._nics = {
            f"{host}:{interface}": (
                fleet.agents[host],
                {"interface": interface, "rdma_device": access.rdma_device(interface)},
            )
            for host, access in rack.access.items()
            if access.nic == "roce"
            for interface in access.interfaces
        }
        self._first: Counters = {}
        self._last: Counters = {}
        self.problems: list[str] = []

    def start(self) -> None:
        """Switch on optional counters, and take the first reading of all NICs."""
        self._ask("nic.optional")
        self._first = self._read()

    def finish(self) -> None:
        """Take the last reading of all NICs."""
        self._last = self._read()

    def facts(self) -> dict[str, Any]:
        """Return each NIC's counts by source, without counters that did not change."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for nic, source in self._last:
            moved = self._moved(nic, source).items()
            found.setdefault(nic, {})[source] = {name: count for name, count in moved if count}
        return found

    def counted(self, name: str) -> dict[str, int]:
        """Return by how much a counter has moved, for each NIC that has it."""
        moved = {(nic, source): self._moved(nic, source) for nic, source in self._last}
        return {nic: counts[name] for (nic, _), counts in moved.items() if name in counts}

    def _moved(self, nic: str, source: str) -> dict[str, int]:
        first = self._first.get((nic, source), {})
        return {
            name: growth(source, name, first[name], value)
            for name, value in self._last[nic, source].items()
            if name in first
        }

    def _read(self) -> Counters:
        answers = self._ask("nic.counters", sources=list(_WRAP_AT))
        found: Counters = {}
        for nic, answer in answers.items():
            try:
                found |= {(nic, source): values for source, values in _checked(answer)}
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                device = nic.partition(":")[0]
                self.problems.append(unreadable(device, "what its NIC says", error).message)
        return found

    def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        """Ask about all NICs; return the answers by NIC. Errors are `problems`."""
        answers = gather(
            {nic: (agent, (op, {**where, **more})) for nic, (agent, where) in self._nics.items()}
        )
        failed = [said for said in answers.values() if isinstance(said, DeviceError)]
        self.problems += [error.message for error in failed]
        return {nic: said for nic, said in answers.items() if not isinstance(said, DeviceError)}


def _checked(answer: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the counters of each source that there is. Raises what tells that they are none."""
    for source, row in answer.items():
        if source not in _WRAP_AT:
            raise ValueError(f"no source {source!r}")
        if "problem" in row:
            continue
        values = row["values"]
        if len(values) > _MANY or not all(isinstance(value, int) for value in values.values()):
            raise ValueError(f"the counters of {source} are no counters")
        yield source, {printable(name): value for name, value in values.items()}
