"""What a trial sets in the kernels of a rack: sysctls, and a program for DCTCP where hosts lack it.

The agent's part of the program is orchestration/agent/host/dctcp.py. A campaign says `dctcp` on
every backend; the trial's facts tell which hosts use the program instead (docs/hardware.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collectors.bpf.compile import DCTCP as SOURCE
from collectors.bpf.compile import compiled
from inventory.rack import Rack
from orchestration.agent.bpf.congestion import read_control
from orchestration.backends.common.linux import (
    DCTCP,
    dctcp_facts,
    dctcp_findings,
    host_sysctls,
    new_program_name,
    switch_sysctls,
)
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.backends.hardware.switch_programs import SETTINGS as PATH_SETTINGS
from orchestration.backends.hardware.switch_programs import chooses_paths
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError

_SERVICE = "control"  # the agent's
_CONTROL = "net/ipv4/tcp_congestion_control"


def needed_controls(trials: Iterable[TrialSpec], testbed: Testbed) -> set[str]:
    """Return the congestion controls that trials need in hosts' kernels."""
    names = set()
    for trial in trials:
        names.add(host_sysctls(trial.host)[_CONTROL])
        names.update(trial.host.control_of(klass.congestion_control) for klass in testbed.classes)
        names.update(spec.congestion_control for spec in trial.traffic)
    return names - {""}


def hosts_without_dctcp(rack: Rack, trials: Iterable[TrialSpec]) -> list[str]:
    """Return the hosts that need the program: trials use DCTCP, and their kernel lacks it."""
    if DCTCP not in needed_controls(trials, rack.testbed):
        return []
    return [host for host in rack.testbed.hosts if DCTCP in rack.access[host].lacks]


def control_services(rack: Rack, trials: Iterable[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return, by host, the agent's services that trials need for congestion control."""
    return dict.fromkeys(hosts_without_dctcp(rack, trials), (_SERVICE,))


def check_controls(rack: Rack, testbed: Testbed, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError if flows need a control that a host lacks and no program replaces."""
    needed = needed_controls(trials, testbed) - {DCTCP}
    problems = [
        f"{host}: its kernel has no {name}"
        for host in rack.testbed.hosts
        for name in rack.access[host].lacks
        if name in needed
    ]
    raise_problems(
        "flows need a congestion control that hosts do not have",
        problems,
        "host: {congestion_control: dctcp} or reno in the campaign; or load it (modprobe) and "
        "allow it (net.ipv4.tcp_allowed_congestion_control)",
    )


def check_programs(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every host, if one that lacks DCTCP does not accept the program.

    The agents register the program and remove it again; no connection uses it meanwhile.
    """
    hosts = hosts_without_dctcp(rack, trials)
    if not hosts:
        return
    request = {"programs": _programs(), "name": new_program_name()}
    answers = gather({host: (fleet.agents[host], ("control.try", request)) for host in hosts})
    errors = [answer for answer in answers.values() if isinstance(answer, DeviceError)]
    raise_problems(
        "hosts have no DCTCP, and do not accept a program in its place",
        [error.problems[0].line for error in errors],
        "host: {congestion_control: reno} in the campaign, which responds to CE packets by RFC "
        "3168 where `closloop provision` has set tcp_ecn",
    )


class Controls:
    """The congestion-control programs of one trial.

    `names` has, by host, the name of the program in place of each congestion control.
    """

    def __init__(self, rack: Rack, trial: TrialSpec) -> None:
        self._hosts = hosts_without_dctcp(rack, [trial])
        self._name = new_program_name()
        self.names = {host: {DCTCP: self._name} for host in self._hosts}
        self._totals: dict[str, dict[str, Any]] = {}

    def begin(self, fleet: Fleet) -> None:
        """Register the program on every host that needs it. Raises DeviceError."""
        if self._hosts:
            request = {"programs": _programs(), "name": self._name}
            fleet.ask("control.begin", dict.fromkeys(self._hosts, request))

    def finish(self, fleet: Fleet) -> None:
        """Read the programs' counters. Raises DeviceError."""
        answers = fleet.ask("control.read", {host: {} for host in self._hosts})
        self._totals = {host: dict(totals) for host, totals in answers.items() if totals}

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        if not self._hosts:
            return {}
        return dctcp_facts(self._name, self._totals, hosts=self._hosts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the trial's stamp."""
        astray = sum(int(totals["astray"]) for totals in self._totals.values())
        return dctcp_findings(astray)


def _programs() -> dict[str, Any]:
    programs = read_control(compiled(SOURCE).read_bytes())
    return {member: program.to_json() for member, program in programs.items()}


# Provisioning sets this: a trial does not write it, so restoring a trial cannot turn it off.
_FORWARDING = "net/ipv4/ip_forward"
# The next trial's flows use the same ports, so old connections must not linger.
_NO_TIME_WAIT = {"net/ipv4/tcp_max_tw_buckets": "0"}


class Settings:
    """The sysctls of one trial, by device.

    Switches that do not run Linux have none: their ASIC forwards.
    """

    def __init__(
        self, rack: Rack, trial: TrialSpec, names: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`names` has, by host, programs in place of congestion controls (`Controls.names`)."""
        self._values: dict[str, dict[str, str]] = {}
        for number, device in enumerate(rack.testbed.devices):
            if device.kind == "host":
                values = {**host_sysctls(trial.host), **_NO_TIME_WAIT}
                own = (names or {}).get(device.name, {})
                values[_CONTROL] = own.get(values[_CONTROL], values[_CONTROL])
                self._values[device.name] = values
            elif rack.access[device.name].is_linux:
                more = PATH_SETTINGS if chooses_paths(trial) else {}
                values = {**switch_sysctls(trial.seed, number), **more}
                del values[_FORWARDING]
                self._values[device.name] = values

    def names(self) -> dict[str, list[str]]:
        """Return, by device, the names of the written sysctls, which a snapshot must contain."""
        return {device: sorted(values) for device, values in self._values.items()}

    def write(self, fleet: Fleet) -> dict[str, list[str]]:
        """Write the sysctls; return, by device, the names of those that its kernel lacks."""
        requests = {device: {"values": values} for device, values in self._values.items()}
        answers = fleet.ask("sysctl.write", requests)
        return {device: list(map(str, names)) for device, names in answers.items() if names}
