"""One attempt at a trial on a rack: prepare the devices, run the loop, restore everything."""

from __future__ import annotations

from dataclasses import replace

from inventory.rack import shapers_late_ns
from orchestration.backends.common.dilation import (
    dilated_rig,
    dilated_schedule,
    dilated_trial,
    dilation_findings,
)
from orchestration.backends.common.linux import absent_setting_findings
from orchestration.backends.common.machine_monitor import monitor_for, on_this_machine
from orchestration.backends.hardware.agents import RackAgents, services_for, switches_of
from orchestration.backends.hardware.facts import expected_settings, rack_facts, source_findings
from orchestration.backends.hardware.monitors import LinkMonitor, NicMonitor
from orchestration.backends.hardware.readiness import check_sources
from orchestration.backends.hardware.rig import HardwareRig
from orchestration.backends.hardware.safety.limits import ChangeLimiter, GuardrailMonitor
from orchestration.backends.hardware.settings import Controls, Settings
from orchestration.backends.hardware.switch_programs import (
    PathChoice,
    RackFlowTables,
    check_platforms,
    chooses_paths,
)
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import SHAPERS_LATE, TrialRecord
from orchestration.core.signals import wants_flow_table
from orchestration.session import run_trial
from traffic.drivers import rack_programs
from traffic.drivers.rack import RackTraffic
from tuners.registry import create


def attempt(agents: RackAgents, run: TrialRun) -> TrialRecord:
    """Run a trial once; whatever happens, restore every device that can be reached.

    Raises TrialError, DeviceError, and ControllerSlept if this machine slept meanwhile.
    """
    rack, trial = agents.rack, run.trial
    tuner = run.tuner or create(trial.tuner)
    # what devices are set to, in the time of the clock
    clock_trial = dilated_trial(trial)
    controls = Controls(rack, trial)
    settings = Settings(rack, clock_trial, controls.names)
    rack_programs.check_drivers(trial, run.testbed)
    check_platforms(rack, [trial])
    with (
        agents.open(rack_programs.services_for(trial), services_for(rack, [trial])) as fleet,
        agents.guard(fleet, trial, settings.names()) as guard,
        LinkMonitor(rack, fleet),
    ):
        controls.begin(fleet)
        absent = settings.write(fleet)
        clocks = fleet.clocks()
        nics = NicMonitor(rack, fleet)
        nics.start()
        schedule = dilated_schedule(run.schedule, trial.scale)
        promptly = on_this_machine()
        traffic = RackTraffic(clock_trial, rack, schedule, fleet, controls.names, promptly=promptly)
        guard.tick()
        traffic.connect(clocks)
        guard.tick()
        switches = switches_of(rack)
        interval_ns = rack.safety.min_change_interval_ns
        limiter = ChangeLimiter(ECN, len(run.testbed.queues), interval_ns)
        guardrails = GuardrailMonitor(rack.testbed, rack.safety.guardrails)
        paths = PathChoice(rack, fleet, clock_trial) if chooses_paths(trial) else None
        observes_flows = wants_flow_table(tuner.observes)
        flows = RackFlowTables(rack, fleet, clock_trial) if observes_flows else None
        rig = HardwareRig(
            rack, fleet, switches, clocks, traffic, guard, guardrails, limiter, paths, flows
        )
        check_sources(switches, {trial.tuner.name: tuner} if run.tuner is None else {})
        try:
            with monitor_for(trial) as monitor:
                record = run_trial(dilated_rig(rig, trial.scale), tuner, run)
            nics.finish()
            untested = nics.untested_findings() if rack_programs.uses_rdma(trial) else []
            controls.finish(fleet)
        finally:
            traffic.stop()
        balancing = paths.facts() if paths else {}
        findings = [
            *absent_setting_findings(absent),
            *source_findings(switches, clock_trial.sample_period_ns),
            *rig.read_back.findings(),
            *controls.findings(),
            *balancing.get("findings", ()),
            *monitor.findings(),
            *dilation_findings(trial),
            *untested,
        ]
        facts = {
            **record.facts,
            **rack_facts(rack, fleet, clocks, rig, switches),
            "changes_held_back": limiter.held_back,
            "changes_superseded": limiter.superseded,
            "settings_absent": absent,
            "read_back": rig.read_back.facts(),
            "expected": expected_settings(switches),
            "nics": nics.facts(),
            "nic_congestion": nics.congestion_facts(),
            "peak_queue_bytes": rig.peaks(),
            **monitor.facts(),
            **controls.facts(),
            **(nics.recovery_facts() if rack_programs.uses_rdma(trial) else {}),
            **({SHAPERS_LATE: shapers_late_ns(rack.scale)} if rack.scale > 1 else {}),
            **balancing,
            **(flows.facts() if flows else {}),
        }
    findings += guard.findings()
    findings += [{"code": "nics", "severity": "warning", "text": t} for t in nics.problems]
    findings += [
        {"code": "programs", "severity": "warning", "text": text} for text in traffic.remarks
    ]
    return replace(record, facts={**facts, **guard.facts(), "findings": findings})
