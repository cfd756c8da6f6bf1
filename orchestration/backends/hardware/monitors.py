"""Watches the links and RoCE NICs of a rack during a trial: carrier changes, and NIC counters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inventory.rack import Rack
from orchestration.backends.hardware.congestion_counters import (
    congestion_facts,
    congestion_growth,
    untested_findings,
)
from orchestration.core.errors import TrialError
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError, DeviceGone, printable, unreadable

_SHOWN = 6
_REMEDY = (
    "check the cable, the optics, and whether somebody shuts the port; `closloop inventory check` "
    "shows ports that are down"
)


class LinkMonitor:
    """Compares the carriers of all linked ports before and after a trial, as a context manager.

    With a flapping port, a trial would measure the cable. So leaving raises TrialError if a carrier
    has changed. That error replaces a DeviceError or TrialError, which the flapping port has
    probably caused.
    """

    def __init__(self, rack: Rack, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names = {device: list(access.interfaces) for device, access in rack.access.items()}
        self._peers = {
            (device, access.interfaces[index]): rack.testbed.peer_device(port).name
            for device, access in rack.access.items()
            for index, port in enumerate(rack.testbed.ports_of[device])
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
        down = [f"{self._describe(port)} is down" for port, (up, _) in links.items() if not up]
        self._raise(down)

    def finish(self) -> None:
        """Read the carriers again. Raises TrialError, naming the ports that changed meanwhile."""
        problems = []
        for port, (up, changes) in self._read().items():
            count = changes - self._changes[port]
            if not up:
                problems.append(f"{self._describe(port)} went down during the trial")
            elif count:
                problems.append(f"{self._describe(port)} flapped during the trial: {count} changes")
        self._raise(problems)

    def _read(self) -> dict[tuple[str, str], tuple[bool, int]]:
        """Return, by device and interface, whether there is a carrier, and how often it changed."""
        requests = {device: {"interfaces": names} for device, names in self._names.items()}
        answers = self._fleet.ask("links.read", requests)
        return {
            (device, name): (bool(answers[device][name][0]), int(answers[device][name][1]))
            for device, name in self._peers
        }

    def _describe(self, port: tuple[str, str]) -> str:
        return f"{port[0]}: {port[1]}, towards {self._peers[port]},"

    def _raise(self, problems: Sequence[str]) -> None:
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise TrialError("; ".join(problems[:_SHOWN]) + more, _REMEDY)


# The agent's service, and the sources that are read. mlx5's hw_counters come from its queue
# counters, which are 32 bits wide (drivers/infiniband/hw/mlx5/counters.c); ethtool's are 64.
NIC_SERVICE = "nic"
_WRAP_AT = {"hw": 2**32, "rdma": 2**32, "ethtool": 2**64}
# These counters of the 32-bit sources are wider: they count bytes or packets.
_WIDE = re.compile(r".*_(bytes|packets|pkts)|rdma_(sends|recvs)")
_MAX_COUNTERS = 100_000
# What a sender's NIC counts of lost packets, by the trial's fact: the names of mlx5
# (drivers/infiniband/hw/mlx5/counters.c), bnxt_re (drivers/infiniband/hw/bnxt_re/hw_counters.c) and
# Soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c), which does not count timeouts.
_RECOVERY = {
    "nic_timeouts": ("local_ack_timeout_err", "to_retransmits"),
    "naks": ("packet_seq_err", "seq_err_naks_rcvd", "rcvd_seq_err"),
}

# By NIC and source, then by counter.
Counters = dict[tuple[str, str], dict[str, int]]


def growth(source: str, name: str, before: int, after: int) -> int:
    """Return by how much a counter has grown, although it may have wrapped.

    A counter that went back by less than half its range was reset, and has counted from 0 since.
    """
    counter_range = 2**64 if before >= 2**32 or _WIDE.fullmatch(name) else _WRAP_AT[source]
    difference = after - before
    if difference >= 0:
        return difference
    return difference + counter_range if difference < -(counter_range // 2) else after


class NicMonitor:
    """The growth of the counters of all RoCE NICs from `start` to `finish`.

    `problems` are messages about NICs that could not be read.
    """

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

    def congestion_facts(self) -> dict[str, dict[str, int | None]]:
        """Return what each NIC counted of congestion, under one name for all drivers."""
        return congestion_facts(congestion_growth(self))

    def untested_findings(self) -> list[dict[str, str]]:
        """Return findings on NICs of which nobody knows whether marks slow them down."""
        answers = self._ask("nic.driver")
        drivers = {nic: printable(str(answers.get(nic, ""))) for nic in self._nics}
        hosts = {nic.partition(":")[0] for nic in self._nics}
        return untested_findings(len(hosts), congestion_growth(self), drivers)

    def facts(self) -> dict[str, Any]:
        """Return the growth of each NIC's counters by source, without those that did not change."""
        facts: dict[str, dict[str, dict[str, int]]] = {}
        for nic, source in self._last:
            growths = self._growths(nic, source).items()
            facts.setdefault(nic, {})[source] = {name: count for name, count in growths if count}
        return facts

    def growth_of(self, name: str) -> dict[str, int]:
        """Return by how much a counter has grown, for each NIC that has it."""
        growths = {(nic, source): self._growths(nic, source) for nic, source in self._last}
        return {nic: counts[name] for (nic, _), counts in growths.items() if name in counts}

    def recovery_facts(self) -> dict[str, int | None]:
        """Return the retransmission timeouts and the NAKs that all NICs together have counted.

        A number is None if one of the NICs was not read, or does not count it.
        """
        facts: dict[str, int | None] = {}
        for fact, names in _RECOVERY.items():
            by_nic: dict[str, int] = {}
            for name in names:
                by_nic = self.growth_of(name) | by_nic
            complete = not self.problems and by_nic.keys() == self._nics.keys()
            facts[fact] = sum(by_nic.values()) if complete else None
        return facts

    def _growths(self, nic: str, source: str) -> dict[str, int]:
        first = self._first.get((nic, source), {})
        return {
            name: growth(source, name, first[name], value)
            for name, value in self._last[nic, source].items()
            if name in first
        }

    def _read(self) -> Counters:
        answers = self._ask("nic.counters", sources=list(_WRAP_AT))
        counters: Counters = {}
        for nic, answer in answers.items():
            try:
                counters |= {(nic, source): values for source, values in _checked(answer)}
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                device = nic.partition(":")[0]
                self.problems.append(unreadable(device, "its NIC's counters", error).message)
        return counters

    def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        """Send a request for each NIC; return the answers by NIC. Errors go to `problems`."""
        answers = gather(
            {
                nic: (agent, (op, {**arguments, **more}))
                for nic, (agent, arguments) in self._nics.items()
            }
        )
        errors = [answer for answer in answers.values() if isinstance(answer, DeviceError)]
        self.problems += [error.message for error in errors]
        return {
            nic: answer for nic, answer in answers.items() if not isinstance(answer, DeviceError)
        }


def _checked(answer: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the counters of each source in an agent's answer.

    Raises KeyError, TypeError, ValueError or AttributeError if the answer is malformed.
    """
    for source, row in answer.items():
        if source not in _WRAP_AT:
            raise ValueError(f"no source {source!r}")
        if "problem" in row:
            continue
        values = row["values"]
        if len(values) > _MAX_COUNTERS or not all(
            isinstance(value, int) for value in values.values()
        ):
            raise ValueError(f"the counters of {source} are not whole numbers, or too many")
        yield source, {printable(name): value for name, value in values.items()}
