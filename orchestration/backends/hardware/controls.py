"""Congestion controls on a rack: those that hosts' kernels lack, and DCTCP as a program there.

The agents' part is orchestration/agent/host/dctcp.py. A campaign says `dctcp` on each backend;
which hosts have it by a program stands in the trial's facts (docs/hardware.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collectors.bpf.compile import DCTCP as SOURCE
from collectors.bpf.compile import compiled
from inventory.rack import Rack
from orchestration.agent.bpf.congestion import read_control
from orchestration.backends import dctcp_program
from orchestration.backends.dctcp_program import DCTCP, new_name
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.backends.linux import host_sysctls
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError

SERVICE = "control"
DEFAULT = "net/ipv4/tcp_congestion_control"


def wanted(trials: Iterable[TrialSpec], testbed: Testbed) -> set[str]:
    """Return the congestion controls that trials want of hosts' kernels."""
    found = set()
    for trial in trials:
        found.add(host_sysctls(trial.host)[DEFAULT])
        found.update(trial.host.control_of(klass.congestion_control) for klass in testbed.classes)
        found.update(spec.congestion_control for spec in trial.traffic)
    return found - {""}


def programmed(rack: Rack, trials: Iterable[TrialSpec]) -> list[str]:
    """Return the hosts that need a program, since their kernel has no DCTCP."""
    if DCTCP not in wanted(trials, rack.testbed):
        return []
    return [host for host in rack.testbed.hosts if DCTCP in rack.access[host].lacks]


def services_for(rack: Rack, trials: Iterable[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return the agent's services that trials need besides a host's own, by host."""
    return dict.fromkeys(programmed(rack, trials), (SERVICE,))


def check_controls(rack: Rack, testbed: Testbed, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError if flows want a control that a host lacks and no program stands for."""
    asked = wanted(trials, testbed) - {DCTCP}
    problems = [
        f"{host}: its kernel has no {name}"
        for host in rack.testbed.hosts
        for name in rack.access[host].lacks
        if name in asked
    ]
    raise_problems(
        "flows want a congestion control that hosts do not have",
        problems,
        "host: {congestion_control: dctcp} or reno in the campaign; or load it (modprobe) and "
        "allow it (net.ipv4.tcp_allowed_congestion_control)",
    )


def check_programs(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every host, if one that lacks DCTCP does not take its program.

    The agents register it and take it away again: no connection has it.
    """
    hosts = programmed(rack, trials)
    if not hosts:
        return
    request = {"programs": _programs(), "name": new_name()}
    answers = gather({host: (fleet.agents[host], ("control.try", request)) for host in hosts})
    problems = [said.problems[0].line for said in answers.values() if isinstance(said, DeviceError)]
    raise_problems(
        "hosts have no DCTCP, and do not take it as a program",
        problems,
        "host: {congestion_control: reno} in the campaign, which answers marks by RFC 3168 where "
        "`closloop provision` has set tcp_ecn",
    )


class Controls:
    """The programs of one trial. `names` has, by host, what stands for a congestion control."""

    def __init__(self, rack: Rack, trial: TrialSpec) -> None:
        self._hosts = programmed(rack, [trial])
        self._name = new_name()
        self.names: dict[str, Mapping[str, str]] = {
            host: {DCTCP: self._name} for host in self._hosts
        }
        self._totals: dict[str, dict[str, Any]] = {}

    def begin(self, fleet: Fleet) -> None:
        """Register the program on every host that needs it. Raises DeviceError."""
        if self._hosts:
            request = {"programs": _programs(), "name": self._name}
            fleet.ask("control.begin", dict.fromkeys(self._hosts, request))

    def finish(self, fleet: Fleet) -> None:
        """Read what connections did. Raises DeviceError."""
        answers = fleet.ask("control.read", {host: {} for host in self._hosts})
        self._totals = {host: dict(said) for host, said in answers.items() if said}

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        if not self._hosts:
            return {}
        return dctcp_program.facts(self._name, self._totals, hosts=self._hosts)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the trial's stamp."""
        astray = sum(int(totals["astray"]) for totals in self._totals.values())
        return dctcp_program.findings(astray)


def _programs() -> dict[str, Any]:
    programs = read_control(compiled(SOURCE).read_bytes())
    return {member: program.to_json() for member, program in programs.items()}
