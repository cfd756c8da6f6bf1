"""The hardware backend: one trial on a rack, guarded from its first change to its restore."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from inventory.ansible import load_rack
from inventory.rack import Access, Rack
from inventory.scale import shapers_late_ns
from orchestration.backends.dilation import (
    dilated,
    stretched,
    stretched_schedule,
    unscalable,
)
from orchestration.backends.hardware.balancing import (
    Balancing,
    check_paths,
    check_platforms,
    chooses,
)
from orchestration.backends.hardware.balancing import services_for as services_of_switches
from orchestration.backends.hardware.controls import Controls, check_controls, check_programs
from orchestration.backends.hardware.controls import services_for as services_of_controls
from orchestration.backends.hardware.flow_tables import RackFlowTables, check_tables
from orchestration.backends.hardware.flow_tables import services_for as services_of_tables
from orchestration.backends.hardware.links import LinkWatch
from orchestration.backends.hardware.marking import try_marking
from orchestration.backends.hardware.nic import SERVICE as NIC_SERVICE
from orchestration.backends.hardware.nic import NicWatch
from orchestration.backends.hardware.readiness import (
    check_free,
    check_queues,
    check_same_fabric,
    check_scale,
    check_sources,
    raise_unreachable,
)
from orchestration.backends.hardware.rig import HardwareRig
from orchestration.backends.hardware.safety.breaker import CorridorWatch
from orchestration.backends.hardware.safety.guard import ControllerSlept, Guard
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.limiter import ChangeLimiter
from orchestration.backends.hardware.safety.recovery import dead_runs
from orchestration.backends.hardware.settings import Settings
from orchestration.backends.hardware.sonic.switch import SonicSwitch
from orchestration.backends.hardware.switches import LinuxSwitch, MarkedSwitch, Switch
from orchestration.backends.realtime import on_this_machine, watch_for
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import Progress, Tuner
from orchestration.core.records import SHAPERS_LATE, Event, Schedule, TrialRecord
from orchestration.core.signals import wants_flow_table
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.client import AgentClient, Clock, Fleet, holder_name, open_agents
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused
from orchestration.device.ssh import Secrets
from orchestration.session import run_trial
from traffic.drivers.rack import RackTraffic
from traffic.drivers.rack_programs import check_drivers, services_for, uses_rdma
from tuners.registry import create

_ALWAYS = ("state", "deadman", "lease", "kernel")
_HOST_SERVICES = ("sender", *_ALWAYS)
# Attempts at a trial whose controller slept, or whose devices were lost and came back.
_ATTEMPTS = 3
_PATIENCE_S = 600.0
_RETRY_EVERY_S = 5.0


class HardwareBackend:
    """Runs trials on the rack of an Ansible inventory, one at a time."""

    name = "hardware"

    def __init__(self, inventory: Path, secrets: Secrets | None = None) -> None:
        self._inventory = inventory
        self._secrets = secrets
        self._rack = load_rack(inventory)

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError unless the rack is wired as `testbed`, reached, provisioned and free.

        A tuner that needs a signal which a switch does not offer is refused too, and so is RoCE
        traffic that marks do not slow down.
        """
        if jobs > 1:
            raise NotReadyError("a rack runs one trial at a time", "use --jobs 1")
        rack = self._rack
        check_same_fabric(rack, testbed)
        check_scale(rack, trials)
        check_controls(rack, testbed, trials)
        tuners = {t.tuner.name: create(t.tuner) for t in trials}
        check_platforms(rack, trials)
        over_rdma = [trial for trial in trials if uses_rdma(trial)]
        of_hosts = services_for(over_rdma[0]) if over_rdma else ()
        with self._open(of_hosts, _more_services(rack, trials)) as fleet:
            switches = _switches(rack)
            check_queues(fleet, switches)
            check_paths(rack, fleet, trials)
            check_programs(rack, fleet, trials)
            check_tables(rack, fleet, trials)
            check_sources(switches, tuners)
            own = {run.run for run in dead_runs(Ledger.of(rack.name, self._inventory))}
            check_free(fleet.ask("lease.show", {device: {} for device in fleet.agents}), own)
            if over_rdma:
                guard = self._guard(fleet, over_rdma[0])
                try_marking(rack, fleet, guard, switches, over_rdma)

    def offers(self, trials: Sequence[TrialSpec], testbed: Testbed) -> list[dict[str, Any]]:
        """Ask every switch what it offers these trials: sources of its numbers, and what it lacks.

        Raises NotReadyError as `check` does.
        """
        check_same_fabric(self._rack, testbed)
        check_platforms(self._rack, trials)
        period_ns = min(trial.sample_period_ns for trial in trials)
        with self._open(of_devices=services_of_switches(self._rack, trials)) as fleet:
            switches = _switches(self._rack)
            check_queues(fleet, switches)
            check_paths(self._rack, fleet, trials)
        return [
            {
                "switch": switch.device,
                "sources": dict(switch.sources()),
                "shortcomings": list(switch.shortcomings(period_ns)),
            }
            for switch in switches
        ]

    def run(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None = None,
    ) -> TrialRecord:
        """Run one trial; in any case restore every device that can be reached.

        If this machine slept during the trial, or devices were unreachable for a while, the trial
        is repeated from its start, and nothing of the first attempt is kept. Raises TrialError.
        """
        if trial.faults:
            raise TrialError(
                "the hardware backend cuts no links",
                "run campaigns with faults on the emulated backend",
            )
        notes: list[str] = []
        for _ in range(_ATTEMPTS):
            try:
                record = self._attempt(trial, testbed, schedule, folder, progress, tuner)
            except (DeviceGone, ControllerSlept) as error:
                notes.append(f"{error.message}; the trial was run again")
                self._await_devices(error)
            except DeviceError as error:
                raise TrialError(error.problems) from error
            else:
                events = tuple(Event(0, "warning", note) for note in notes)
                return _with_events(record, events)
        raise TrialError(
            f"{_ATTEMPTS} attempts came to nothing: {'; '.join(notes)}",
            "see what interrupts the connections; `closloop restore` puts back what is left",
        )

    def _attempt(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None,
    ) -> TrialRecord:
        rack = self._rack
        decides = tuner or create(trial.tuner)
        # what devices are told, in the clock's time
        told = stretched(trial)
        controls = Controls(rack, trial)
        settings = Settings(rack, told, controls.names)
        check_drivers(trial, testbed)
        check_platforms(rack, [trial])
        with (
            self._open(services_for(trial), _more_services(rack, [trial])) as fleet,
            self._guard(fleet, trial, settings.names()) as guard,
            LinkWatch(rack, fleet),
        ):
            controls.begin(fleet)
            absent = settings.write(fleet)
            clocks = fleet.clocks()
            nics = NicWatch(rack, fleet)
            nics.start()
            later = stretched_schedule(schedule, trial.scale)
            promptly = on_this_machine()
            traffic = RackTraffic(told, rack, later, fleet, controls.names, promptly=promptly)
            guard.tick()
            traffic.connect(clocks)
            guard.tick()
            switches = _switches(rack)
            limiter = ChangeLimiter(ECN, len(testbed.queues), rack.safety.min_change_interval_ns)
            corridor = CorridorWatch(rack.testbed, rack.safety.corridor)
            paths = Balancing(rack, fleet, told) if chooses(trial) else None
            watched = wants_flow_table(decides.observes)
            flows = RackFlowTables(rack, fleet, told) if watched else None
            rig = HardwareRig(
                rack, fleet, switches, clocks, traffic, guard, corridor, limiter, paths, flows
            )
            check_sources(switches, {trial.tuner.name: decides} if tuner is None else {})
            try:
                slow = dilated(rig, trial.scale)
                with watch_for(trial) as watch:
                    record = run_trial(slow, decides, trial, testbed, folder, progress)
                nics.finish()
                controls.finish(fleet)
            finally:
                traffic.stop()
            facts = {
                **record.facts,
                **_facts(rack, fleet, clocks, rig, switches),
                "changes_held_back": limiter.held_back,
                "changes_superseded": limiter.superseded,
                "settings_absent": absent,
                "read_back": rig.read_back.facts(),
                "expected": _expected(switches),
                "nics": nics.facts(),
                "peak_queue_bytes": rig.peaks(),
                **watch.facts(),
                **controls.facts(),
                **({SHAPERS_LATE: shapers_late_ns(rack.scale)} if rack.scale > 1 else {}),
                **(paths.facts() if paths else {}),
                **(flows.facts() if flows else {}),
            }
        findings = [*settings.findings(absent), *_source_findings(switches, told)]
        findings += rig.read_back.findings()
        findings += controls.findings()
        findings += paths.findings() if paths else []
        findings += [*watch.findings(), *unscalable(trial), *guard.findings()]
        findings += [{"code": "nics", "severity": "warning", "text": t} for t in nics.problems]
        findings += [
            {"code": "programs", "severity": "warning", "text": text} for text in traffic.remarks
        ]
        return replace(record, facts={**facts, **guard.facts(), "findings": findings})

    def _open(
        self,
        of_hosts: Sequence[str] = (),
        of_devices: Mapping[str, Sequence[str]] | None = None,
    ) -> Fleet:
        """Start agents on all devices, with the services `of_hosts` added on hosts.

        `of_devices` are those added on some devices, by their names.
        Raises NotReadyError naming each device that cannot be used.
        """
        rack = self._rack
        services = {device: services_of(rack, device) for device in rack.access}
        for host in rack.testbed.hosts:
            services[host] = tuple(dict.fromkeys((*services[host], *of_hosts)))
        for device, more in (of_devices or {}).items():
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
            raise_unreachable(problems)
        return fleet

    def _guard(
        self, fleet: Fleet, trial: TrialSpec, sysctls: Mapping[str, Sequence[str]] | None = None
    ) -> Guard:
        return Guard(
            self._rack,
            fleet.agents,
            Ledger.of(self._rack.name, self._inventory),
            holder_of(trial),
            sysctls=sysctls,
            note=trial.id,
            reopen=self._reopen,
        )

    def _reopen(self, device: str) -> AgentClient:
        rack = self._rack
        services = services_of(rack, device)
        return AgentClient(rack.access[device], rack.known_hosts_file, services, self._secrets)

    def _await_devices(self, error: DeviceGone | ControllerSlept) -> None:
        """Wait until the lost devices answer again. Raises TrialError when patience ends."""
        until_s = time.monotonic() + _PATIENCE_S
        lost = [error.device] if isinstance(error, DeviceGone) else list(self._rack.access)
        while lost:
            try:
                self._reopen(lost[0]).close()
                lost.pop(0)
                continue
            except DeviceError as again:
                if isinstance(again, LoginRefused) or time.monotonic() > until_s:
                    raise TrialError(
                        f"{error.message}; later: {again.message}",
                        "the dead-man's timers put back what was changed: `closloop restore` tells",
                    ) from again
            time.sleep(_RETRY_EVERY_S)


def _more_services(rack: Rack, trials: Sequence[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return the agent's services that trials need besides a device's own, by device."""
    found: dict[str, tuple[str, ...]] = {}
    for services in (services_of_switches, services_of_controls, services_of_tables):
        for device, more in services(rack, trials).items():
            found[device] = (*found.get(device, ()), *more)
    return found


def holder_of(trial: TrialSpec) -> str:
    """Return the name of a rack's holder during a trial, the same for all trials of a run."""
    return holder_name(f"campaign {trial.campaign} pid {os.getppid()}")


def services_of(rack: Rack, device: str) -> tuple[str, ...]:
    """Return the agent's services that a device needs."""
    access: Access = rack.access[device]
    if rack.testbed.device[device].kind == "host":
        return (*_HOST_SERVICES, NIC_SERVICE) if access.nic == "roce" else _HOST_SERVICES
    return (*make_switch(rack, device).services, *_ALWAYS)


def make_switch(rack: Rack, device: str) -> Switch:
    """Return a switch of the rack, of the class for its platform."""
    access = rack.access[device]
    if access.platform == "sonic":
        return SonicSwitch(rack, device)
    return (MarkedSwitch if "red" in access.lacks else LinuxSwitch)(rack, device)


def _switches(rack: Rack) -> list[Switch]:
    return [make_switch(rack, device) for device in rack.testbed.switches]


def _expected(switches: Sequence[Switch]) -> dict[str, Any]:
    found = {switch.device: switch.expected() for switch in switches}
    return {device: dict(said) for device, said in found.items() if said is not None}


def _facts(
    rack: Rack,
    fleet: Fleet,
    clocks: Mapping[str, Clock],
    rig: HardwareRig,
    switches: Sequence[Switch],
) -> dict[str, Any]:
    interfaces = {
        device: list(access.interfaces)
        for device, access in rack.access.items()
        if access.platform == "linux"
    }
    asked = {device: {"interfaces": names} for device, names in interfaces.items()}
    offloads = fleet.ask("offloads.read", asked)
    return {
        "clock": "real",
        "rack": rack.name,
        "kernel": {device: agent.about.get("kernel") for device, agent in fleet.agents.items()},
        "offloads_on": [f"{device} {what}" for device, found in offloads.items() for what in found],
        "offloads_checked": sum(len(names) for names in interfaces.values()),
        "end_ns": rig.now_ns() // rack.scale,
        **({"scale": rack.scale} if rack.scale > 1 else {}),
        "clock_error_ns": {device: clock.error_ns for device, clock in clocks.items()},
        "read_latency_us": distribution_us(rig.read_latency_ns),
        "set_latency_us": distribution_us(rig.set_latency_ns),
        "sources": {switch.device: dict(switch.sources()) for switch in switches},
    }


def distribution_us(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Return the distribution of latencies: the count, and quantiles in microseconds."""
    if not latencies_ns:
        return {"count": 0}
    us = np.array(latencies_ns) / 1e3
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    found = {name: round(float(np.quantile(us, q)), 1) for name, q in quantiles.items()}
    return {"count": len(us), **found}


def _source_findings(switches: Sequence[Switch], trial: TrialSpec) -> list[dict[str, str]]:
    """Return findings on numbers that a switch lacks, or updates less often than sampled."""
    devices: dict[str, list[str]] = {}
    for switch in switches:
        for text in switch.shortcomings(trial.sample_period_ns):
            devices.setdefault(text, []).append(switch.device)
    return [
        {"code": "sources", "severity": "warning", "text": f"{', '.join(names)}: {text}"}
        for text, names in devices.items()
    ]


def _with_events(record: TrialRecord, events: tuple[Event, ...]) -> TrialRecord:
    return replace(record, events=(*events, *record.events)) if events else record
