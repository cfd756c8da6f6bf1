"""Starts the agents on a rack's devices, and waits for devices that were lost.

An agent is a program that closloop sends to a device over SSH and that runs there as long as the
connection lives. It offers services, such as `sender` or `deadman`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from inventory.rack import Rack
from orchestration.backends.hardware.monitors import NIC_SERVICE
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.backends.hardware.safety.guard import ControllerSlept, Guard
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.settings import control_services
from orchestration.backends.hardware.switch_programs import path_services, table_services
from orchestration.backends.hardware.switches import Switch, make_switch
from orchestration.core.errors import TrialError
from orchestration.core.trial import TrialSpec
from orchestration.device.client import AgentClient, Fleet, holder_name, open_agents
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused
from orchestration.device.ssh import Secrets

_ALWAYS = ("state", "deadman", "lease", "kernel")
_HOST_SERVICES = ("sender", *_ALWAYS)
_RETRY_FOR_S = 600.0
_RETRY_EVERY_S = 5.0


class RackAgents:
    """Starts agents on the devices of a rack; `ledger` is that of its inventory."""

    def __init__(self, rack: Rack, inventory: Path, secrets: Secrets | None) -> None:
        self.rack = rack
        self.ledger = Ledger.of(rack.name, inventory)
        self._secrets = secrets

    def open(
        self,
        host_services: Sequence[str] = (),
        device_services: Mapping[str, Sequence[str]] | None = None,
    ) -> Fleet:
        """Start agents on all devices, with the services that every trial needs of them.

        `host_services` are added on all hosts, `device_services` on some devices, by their names.
        Raises NotReadyError, naming each device that cannot be used.
        """
        rack = self.rack
        services = {device: _services_of(rack, device) for device in rack.access}
        for host in rack.testbed.hosts:
            services[host] = tuple(dict.fromkeys((*services[host], *host_services)))
        for device, more in (device_services or {}).items():
            services[device] = (*services[device], *more)
        agents, problems = open_agents(
            rack.access.values(), rack.known_hosts_file, services, self._secrets
        )
        fleet = Fleet(agents)
        if problems:
            fleet.close()
            gone = [error for error in problems if isinstance(error, DeviceGone)]
            if gone and len(gone) == len(problems):
                raise gone[0]
            lines = [error.problems[0].line for error in problems]
            remedy = "`closloop inventory check` shows what is wrong with each"
            raise_problems("devices cannot be used", lines, remedy)
        return fleet

    def guard(
        self, fleet: Fleet, trial: TrialSpec, sysctls: Mapping[str, Sequence[str]] | None = None
    ) -> Guard:
        """Return the guard of a trial. All trials of a run hold the rack under the same name."""
        return Guard(
            self.rack,
            fleet.agents,
            self.ledger,
            holder_name(f"campaign {trial.campaign} pid {os.getppid()}"),
            sysctls=sysctls,
            note=trial.id,
            reopen=self._reopen,
        )

    def _reopen(self, device: str) -> AgentClient:
        rack = self.rack
        services = _services_of(rack, device)
        return AgentClient(rack.access[device], rack.known_hosts_file, services, self._secrets)

    def await_devices(self, error: DeviceGone | ControllerSlept) -> None:
        """Wait until the lost devices answer again; raise TrialError if they do not in time."""
        until_s = time.monotonic() + _RETRY_FOR_S
        lost = [error.device] if isinstance(error, DeviceGone) else list(self.rack.access)
        while lost:
            try:
                self._reopen(lost[0]).close()
                lost.pop(0)
                continue
            except DeviceError as again:
                if isinstance(again, LoginRefused) or time.monotonic() > until_s:
                    raise TrialError(
                        f"{error.message}; later: {again.message}",
                        "the dead-man's timers put back what was changed: `closloop restore` shows "
                        "whether they did",
                    ) from again
            time.sleep(_RETRY_EVERY_S)


def services_for(rack: Rack, trials: Sequence[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return, by device, the services that these trials need beyond those of every trial."""
    services: dict[str, tuple[str, ...]] = {}
    for services_of in (path_services, control_services, table_services):
        for device, more in services_of(rack, trials).items():
            services[device] = (*services.get(device, ()), *more)
    return services


def _services_of(rack: Rack, device: str) -> tuple[str, ...]:
    """Return the agent's services that every trial needs of a device."""
    if rack.testbed.device[device].kind == "host":
        more = (NIC_SERVICE,) if rack.access[device].nic == "roce" else ()
        return (*_HOST_SERVICES, *more)
    return (*make_switch(rack, device).services, *_ALWAYS)


def switches_of(rack: Rack) -> list[Switch]:
    """Return all switches of a rack, in the testbed's order."""
    return [make_switch(rack, device) for device in rack.testbed.switches]
