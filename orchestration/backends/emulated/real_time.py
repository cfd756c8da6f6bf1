"""Trials in real time: what they need of the machine's own kernel, how they run, what they say."""

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

_VIRTUAL = "run it in virtual time: leave the clock out"
# Cutting a cable takes these: what arrives at its ends is dropped.
_CUTS = ("clsact", "matchall")
_QUEUE = "at the moment of reading"


def check_host_kernel(testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]) -> tuple[str, ...]:
    """Return what this machine's kernel lacks, with which the trials can do.

    Nothing is left of the attempt. Raises NotReadyError if they cannot.
    """
    if jobs > 1:
        raise NotReadyError(
            "trials in real time take turns: side by side each would find the processor busy",
            "use --jobs 1, or leave it out",
        )
    lacks = missing_parts("a trial")
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
            f"or {_VIRTUAL}",
        )
    if testbed.classes and (without := sorted({"red", "ets"} & {*lacks})):
        raise NotReadyError(
            f"traffic classes take {', '.join(without)}, and this machine's kernel lacks it",
            f"use a testbed without classes; or {_VIRTUAL}",
        )
    faulty = any(trial.faults for trial in trials)
    if faulty and (without := [name for name in _CUTS if name in lacks]):
        raise NotReadyError(
            f"faults take {', '.join(without)}, and this machine's kernel lacks it",
            f"modprobe {' '.join(f'cls_{name}' for name in without)}; or leave the faults out; "
            f"or {_VIRTUAL}",
        )
    if "red" in lacks:
        compiled(RED_LAW)
    return lacks


def replaceable_dctcp(lacks: Collection[str]) -> set[str]:
    """Return DCTCP's name if a program can be it here: the kernel has none, and takes one."""
    takes = kernel_release() >= OLDEST and VMLINUX.exists()
    return {DCTCP} & {*lacks} if takes else set()


def real_time_facts(testbed: Testbed, lacks: Collection[str], late_ns: int) -> dict[str, Any]:
    """Return the facts of a trial in real time: its clock, who counts and who marks.

    Its shapers make up for waking up to `late_ns` late.
    """
    if "red" in lacks:
        marks = "a BPF program with RED's straight line, on the instantaneous queue"
        sources = dict.fromkeys((*RED_SIGNALS, "thresholds"), f"the plain queue, {_QUEUE}")
        sources |= {"marked_packets": marks, "thresholds": marks}
    else:
        sources = dict.fromkeys((*RED_SIGNALS, "thresholds"), f"Linux RED, {_QUEUE}")
    return {
        "clock": "real",
        SHAPERS_LATE: late_ns,
        "kernel_lacks": sorted(lacks),
        "sources": dict.fromkeys(testbed.switches, sources),
    }


def real_time_findings(testbed: Testbed, lacks: Collection[str]) -> list[dict[str, str]]:
    """Return findings on what differs from the testbed because the kernel lacks it."""
    said = []
    if not has_link_delays(lacks) and any(link.delay_ns for link in testbed.links):
        without = ", ".join(name for name in ("netem", "red") if name in lacks)
        said.append(
            f"no propagation delay, without {without}: round trips are those of queues and CPU"
        )
    if "fq" in lacks:
        said.append("a NIC's flows share one queue, without fq")
    return [{"code": "kernel-lacks", "severity": "warning", "text": text} for text in said]


class RealTimeJob:
    """A job by the machine's clock, whose DCTCP is a program where the kernel has none.

    `job` is in the clock's time, which passes faster than a scaled trial's. The program is
    registered until this process ends.
    """

    def __init__(self, written: Job) -> None:
        trial, factor = written.trial, written.trial.scale
        self._name, self._control = "", None
        if written.dctcp is not None:
            path, self._name = written.dctcp
            trial = with_dctcp_program(trial, self._name)
            self._control = Control(read_control(Path(path).read_bytes()), self._name)
        self.job = replace(
            written,
            trial=dilated_trial(trial),
            testbed=scaled(written.testbed, factor),
            schedule=dilated_schedule(written.schedule, factor),
        )

    def run(self, rig: Rig, tuner: Tuner, run: TrialRun) -> TrialRecord:
        """Run the trial, and say what of the machine disturbed it."""
        scale = run.trial.scale
        with MachineMonitor(run.trial) as watch:
            record = run_trial(dilated_rig(rig, scale), tuner, run)
        findings = [*record.facts["findings"], *watch.findings(), *dilation_findings(run.trial)]
        facts = {**record.facts, **watch.facts(), "findings": findings}
        if self._control is not None:
            totals = self._control.totals()
            facts |= dctcp_facts(self._name, totals._asdict())
            findings += dctcp_findings(totals.astray)
        if scale > 1:
            facts["scale"] = scale
        return replace(record, facts=facts)
