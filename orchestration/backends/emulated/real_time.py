"""Trials in real time: what they need of the machine's own kernel, how they run, their facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.bpf.compile import RED_LAW, compiled
from collectors.readers.tc import RED_SIGNALS
from inventory.rack import scaled
from orchestration.agent.bpf.btf import VMLINUX
from orchestration.agent.bpf.congestion import OLDEST, Control, read_control
from orchestration.agent.bpf.load import kernel_release
from orchestration.backends.common.dilation import (
    dilated_rig,
    dilated_schedule,
    dilated_trial,
    dilation_findings,
)
from orchestration.backends.common.linux import (
    DCTCP,
    dctcp_facts,
    dctcp_findings,
    has_link_delays,
    with_dctcp_program,
)
from orchestration.backends.common.machine_monitor import MachineMonitor
from orchestration.backends.emulated.host_kernel import missing_parts
from orchestration.backends.emulated.job import Job
from orchestration.core.errors import NotReadyError
from orchestration.core.ports import Rig, TrialRun, Tuner
from orchestration.core.records import SHAPERS_LATE, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.session import run_trial

_USE_VIRTUAL_TIME = "run it in virtual time: leave the clock out"
# What is needed to cut a cable: filters that drop what arrives at its ends.
_NEEDED_BY_FAULTS = ("clsact", "matchall")
_WHEN_READ = "at the moment of reading"


def check_host_kernel(testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]) -> tuple[str, ...]:
    """Return the parts that this machine's kernel lacks.

    Nothing is left behind on the machine. Raises NotReadyError if the trials need one of the
    missing parts.
    """
    if jobs > 1:
        raise NotReadyError(
            "trials in real time run one at a time: side by side, each would find the CPU busy",
            "use --jobs 1, or leave it out",
        )
    lacks = missing_parts("a trial")
    _check_controls(testbed, trials, lacks)
    if testbed.classes and (without := sorted({"red", "ets"} & {*lacks})):
        raise NotReadyError(
            f"traffic classes need {', '.join(without)}, and this machine's kernel lacks it",
            f"use a testbed without classes; or {_USE_VIRTUAL_TIME}",
        )
    faulty = any(trial.faults for trial in trials)
    if faulty and (without := [name for name in _NEEDED_BY_FAULTS if name in lacks]):
        raise NotReadyError(
            f"faults need {', '.join(without)}, and this machine's kernel lacks it",
            f"modprobe {' '.join(f'cls_{name}' for name in without)}; or leave the faults out; "
            f"or {_USE_VIRTUAL_TIME}",
        )
    if "red" in lacks:
        compiled(RED_LAW)
    return lacks


def _check_controls(testbed: Testbed, trials: Sequence[TrialSpec], lacks: Collection[str]) -> None:
    """Raise NotReadyError if flows need a congestion control that the kernel lacks."""
    controls = {
        trial.host.control_of(own)
        for trial in trials
        for own in (
            *([klass.congestion_control for klass in testbed.classes] or [""]),
            *(pattern.congestion_control for pattern in trial.traffic),
        )
    }
    if not testbed.classes:
        controls -= replaceable_dctcp(lacks)
    if without := sorted(controls & {*lacks}):
        raise NotReadyError(
            f"this machine's kernel has no {', '.join(without)}, or does not allow it to "
            "namespaces (net.ipv4.tcp_allowed_congestion_control)",
            "host: {congestion_control: reno} in the campaign, with ECN where there is no DCTCP; "
            f"or modprobe {' '.join(f'tcp_{name}' for name in without)} and allow it there; "
            f"or {_USE_VIRTUAL_TIME}",
        )


def replaceable_dctcp(lacks: Collection[str]) -> set[str]:
    """Return DCTCP's name if the kernel lacks it and accepts a program for it, else nothing."""
    accepts = kernel_release() >= OLDEST and VMLINUX.exists()
    return {DCTCP} & {*lacks} if accepts else set()


def real_time_facts(testbed: Testbed, lacks: Collection[str], late_ns: int) -> dict[str, Any]:
    """Return the facts of a trial in real time: its clock, and the sources of its signals.

    Shapers catch up when they wake up to `late_ns` late.
    """
    if "red" in lacks:
        marks = "a BPF program with RED's straight line, on the instantaneous queue"
        sources = dict.fromkeys((*RED_SIGNALS, "thresholds"), f"the plain queue, {_WHEN_READ}")
        sources |= {"marked_packets": marks, "thresholds": marks}
    else:
        sources = dict.fromkeys((*RED_SIGNALS, "thresholds"), f"Linux RED, {_WHEN_READ}")
    return {
        "clock": "real",
        SHAPERS_LATE: late_ns,
        "kernel_lacks": sorted(lacks),
        "sources": dict.fromkeys(testbed.switches, sources),
    }


def real_time_findings(testbed: Testbed, lacks: Collection[str]) -> list[dict[str, str]]:
    """Return findings for the stamp on differences from the testbed because of missing parts."""
    texts = []
    if not has_link_delays(lacks) and any(link.delay_ns for link in testbed.links):
        without = ", ".join(name for name in ("netem", "red") if name in lacks)
        texts.append(
            f"links have no propagation delay, because the kernel lacks {without}: round-trip "
            "times are those of queues and CPU"
        )
    if "fq" in lacks:
        texts.append("the flows of a NIC share one queue, because the kernel lacks fq")
    return [{"code": "kernel-lacks", "severity": "warning", "text": text} for text in texts]


class RealTimeJob:
    """A job in the time of the machine's clock.

    `job` is the original job with all durations multiplied by the trial's scale. Where the kernel
    has no DCTCP, a program in its place is registered until this process ends.
    """

    def __init__(self, original: Job) -> None:
        trial, factor = original.trial, original.trial.scale
        self._name, self._control = "", None
        if original.dctcp is not None:
            path, self._name = original.dctcp
            trial = with_dctcp_program(trial, self._name)
            self._control = Control(read_control(Path(path).read_bytes()), self._name)
        self.job = replace(
            original,
            trial=dilated_trial(trial),
            testbed=scaled(original.testbed, factor),
            schedule=dilated_schedule(original.schedule, factor),
        )

    def run(self, rig: Rig, tuner: Tuner, run: TrialRun) -> TrialRecord:
        """Run the trial; add to its record how busy and late the machine was."""
        scale = run.trial.scale
        with MachineMonitor(run.trial) as monitor:
            record = run_trial(dilated_rig(rig, scale), tuner, run)
        findings = [*record.facts["findings"], *monitor.findings(), *dilation_findings(run.trial)]
        facts = {**record.facts, **monitor.facts(), "findings": findings}
        if self._control is not None:
            totals = self._control.totals()
            facts |= dctcp_facts(self._name, totals._asdict())
            findings += dctcp_findings(totals.astray)
        if scale > 1:
            facts["scale"] = scale
        return replace(record, facts=facts)
