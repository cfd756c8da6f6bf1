"""The emulated backend: each trial runs in a guest of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collectors.bpf.compile import DCTCP as DCTCP_SOURCE
from collectors.bpf.compile import compiled, flow_table_object
from collectors.bpf.policy import policy_object
from inventory.rack import scaled
from orchestration.agent.linux import qdiscs
from orchestration.backends.dctcp_program import by_name, new_name
from orchestration.backends.dilation import stretched
from orchestration.backends.emulated.fabric import check_supported, plan_fabric, plan_routes
from orchestration.backends.emulated.job import FabricPlan, Job, Step, read_result, write_job
from orchestration.backends.emulated.launcher import Listener, run_guest, run_here
from orchestration.backends.emulated.luggage import cached_luggage
from orchestration.backends.emulated.numbering import ifindex
from orchestration.backends.emulated.policies import check_policies
from orchestration.backends.emulated.real_time import (
    check_here,
    dctcp_of,
    facts_here,
    findings_here,
    mark_object,
)
from orchestration.backends.emulated.remote import AnsweringTuner
from orchestration.backends.faults import fault_plan
from orchestration.backends.realtime import bound_shapers_late_ns
from orchestration.core.brought import here
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import Luggage, Progress, Tuner
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.red_law import RedLaw
from orchestration.core.signals import (
    wants_flow_table,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL, FabricSpec, TrialSpec
from orchestration.kernel.boot import memory_dir
from orchestration.kernel.cache import require_kernel
from tuners.registry import create

_MEBIBYTE = 1 << 20
_GUEST_BYTES = 1024 * _MEBIBYTE
_HOST_BYTES = 8 * _MEBIBYTE
# Of a host whose NIC makes the packets: it has no sockets (`closloop bench run fabric-size`).
_NIC_HOST_BYTES = 2 * _MEBIBYTE
_FLOW_BYTES = 16 * 1024
# Memory per reading, in the loop, the table and the table's file: five numbers a queue, and four a
# host at each tenth reading. Likewise per decision.
_QUEUE_READING_BYTES = 128
_HOST_READING_BYTES = 16
_QUEUE_DECISION_BYTES = 152
# Python's objects around the arrays of one reading or decision.
_OBJECTS_BYTES = 2048
# Of a switch's flowlet table: struct cl_entry, and its number among those in use.
_ENTRY_BYTES = 36
# A learned tuner sets thousands of thresholds; the marking law is computed for the first few.
_LAWS = 20


def guest_memory_bytes(
    testbed: Testbed, flows: int = 0, readings: int = 0, decisions: int = 0, *, roce: bool = False
) -> int:
    """Return the memory that a guest is given. The guest takes only what it touches.

    `readings` and `decisions` are the most that a trial makes; `roce` says that no host speaks TCP.
    """
    queues, hosts = len(testbed.queues), len(testbed.hosts)
    host_bytes = _NIC_HOST_BYTES if roce else _HOST_BYTES
    fabric = _GUEST_BYTES + host_bytes * hosts + _FLOW_BYTES * flows
    reading = _OBJECTS_BYTES + _QUEUE_READING_BYTES * queues + _HOST_READING_BYTES * hosts
    decision = _OBJECTS_BYTES + _QUEUE_DECISION_BYTES * queues
    return fabric + reading * readings + decision * decisions


def _without_tcp(trial: TrialSpec, testbed: Testbed) -> bool:
    return trial.host.is_roce and not testbed.classes  # a class may have another control


def trial_memory_bytes(trial: TrialSpec, testbed: Testbed, flows: int) -> int:
    """Return the memory for a trial's guest. Flows may last until the end of the drain."""
    lasts_ns = trial.duration_ns + trial.drain_ns
    readings = lasts_ns // trial.sample_period_ns
    memory_bytes = guest_memory_bytes(
        testbed,
        flows,
        readings,
        lasts_ns // trial.action_period_ns,
        roce=_without_tcp(trial, testbed),
    )
    if trial.load_balancing.kind == "flowlets":
        memory_bytes += _ENTRY_BYTES * trial.load_balancing.entries * len(testbed.switches)
    return memory_bytes


def require_memory(trial: TrialSpec, testbed: Testbed, flows: int) -> int:
    """Return the memory for a trial's guest, in bytes.

    Raises:
        NotReadyError: the machine does not have that much.
    """
    memory_bytes = trial_memory_bytes(trial, testbed, flows)
    readings = (trial.duration_ns + trial.drain_ns) // trial.sample_period_ns
    try:
        memory_dir(memory_bytes)
    except NotReadyError as error:
        roce = _without_tcp(trial, testbed)
        records_bytes = memory_bytes - guest_memory_bytes(testbed, flows, roce=roce)
        end = (
            f"; of it {records_bytes // _MEBIBYTE} MiB for up to {readings:,} "
            f"readings of {len(testbed.queues):,} queues"
        )
        more = "; fewer readings need less: a longer sample_period, a shorter drain"
        raise NotReadyError(one.with_end(end, more) for one in error.problems) from error
    return memory_bytes


class EmulatedBackend:
    """Runs trials in virtual time, each in a guest of its own, or in real time on this kernel.

    `flow_table` keeps a flow table even for tuners that do not observe it.
    """

    name = "emulated"

    def __init__(self, *, flow_table: bool = False) -> None:
        self._flow_table = flow_table
        # What the machine's own kernel lacks, once that was tried.
        self._lacks: tuple[str, ...] | None = None

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError without a kernel, or without memory for `jobs` guests at once.

        On Linux' fabric, a tuner that observes flows also needs the compiled flow table. Policies
        of one's own are loaded once; raises InputError if the kernel refuses one.
        """
        check_supported(testbed)
        on_linux = [trial for trial in trials if trial.fabric.kind == "linux"]
        if any(wants_flow_table(create(trial.tuner).observes) for trial in on_linux):
            flow_table_object()
        if real := [trial for trial in trials if trial.clock == REAL]:
            self._lacks = check_here(testbed, jobs, real)
        if real and len(real) == len(trials):
            return
        require_kernel()
        check_policies(trials)
        roce = bool(trials) and all(_without_tcp(trial, testbed) for trial in trials)
        memory_dir(jobs * guest_memory_bytes(testbed, roce=roce))
        _prepare(testbed, trials)

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed, flows: int) -> int:
        """Return the memory of a trial's guest."""
        return trial_memory_bytes(trial, testbed, flows)

    def luggage(self) -> Luggage:
        """Return the kernel, and the programs that were compiled for it.

        A machine without the compiler can use these. Raises NotReadyError without a kernel.
        """
        return cached_luggage()

    def run(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None = None,
    ) -> TrialRecord:
        """Run one trial; raise TrialError with the end of the guest's console if it fails.

        Raises NotReadyError before the trial starts if the machine lacks the memory. If a `tuner`
        is given, virtual time stands still while it decides, and an exception in it ends the guest.
        """
        trial = _with_object(trial)
        ground = self._ground(trial, testbed, len(schedule), folder)
        lacks = ground.lacks
        program = _dctcp(trial, lacks)
        told, slow = stretched(trial), scaled(testbed, trial.scale)
        told = by_name(told, program[1]) if program else told
        plan = plan_fabric(slow, told.host, trial.seed, trial.fabric, lacks, ground.shapers_late_ns)
        steps = fault_steps(told, slow, plan)
        job = Job(
            trial,
            testbed,
            plan,
            steps,
            schedule,
            host_observes=None if tuner is None else tuple(tuner.observes),
            flow_object=_flow_object(trial.fabric),
            keep_flow_table=self._flow_table,
            mark_object=mark_object(lacks),
            dctcp=program,
        )
        write_job(folder, job)
        stages = StageClock()
        answering = (
            AnsweringTuner(folder, tuner, testbed, trial.seed) if tuner is not None else None
        )

        def listen(message: dict[str, Any]) -> None:
            stages.note(message)
            if answering is not None:
                answering.answer(message)
            if "t_ns" in message:
                progress(message["t_ns"], trial.duration_ns)

        ground.start(listen)
        try:
            record = read_result(folder)
        except (OSError, ValueError) as error:
            raise TrialError(f"the guest's result cannot be read: {error}") from error
        record = replace(record, facts=_facts(record, plan, ground, stages, trial.fabric))
        return record if answering is None else answering.complete(record)

    def _ground(self, trial: TrialSpec, testbed: Testbed, flows: int, folder: Path) -> _Ground:
        """Return where the job in `folder` runs. Raises NotReadyError as `run` does."""
        if trial.clock != REAL:
            kernel = require_kernel()
            memory_bytes = require_memory(trial, testbed, flows)
            start = partial(run_guest, kernel, folder, memory_bytes)
            return _Ground(start, {"clock": "virtual", "kernel_hash": kernel.hash})
        if self._lacks is None:
            self._lacks = check_here(testbed, 1, [trial])
        lacks = self._lacks
        late_ns = bound_shapers_late_ns(trial.scale)
        about, findings = facts_here(testbed, lacks, late_ns), findings_here(testbed, lacks)
        return _Ground(partial(run_here, folder), about, lacks, findings, late_ns)


def _prepare(testbed: Testbed, trials: Sequence[TrialSpec]) -> None:
    """Encode the requests that these trials share, for the workers that are forked next."""
    planned: list[tuple[bool, FabricSpec]] = []
    for trial in trials:
        kind = trial.host.is_roce, trial.fabric
        if kind not in planned and trial.clock != REAL:
            planned.append(kind)
            plan_fabric(testbed, trial.host, trial.seed, trial.fabric)


@dataclass(frozen=True)
class _Ground:
    """Where a trial runs, what is known of it, what its kernel lacks, and what the stamp says."""

    start: Callable[[Listener], None]
    about: dict[str, Any]
    lacks: tuple[str, ...] = ()
    findings: Sequence[dict[str, str]] = ()
    shapers_late_ns: int = 0


def _dctcp(trial: TrialSpec, lacks: Collection[str]) -> tuple[str, str] | None:
    """Return the program that is DCTCP for a trial on a kernel without it, and its name."""
    name = new_name()
    wants = by_name(trial, name) != trial
    return (str(compiled(DCTCP_SOURCE)), name) if wants and dctcp_of(lacks) else None


def _with_object(trial: TrialSpec) -> TrialSpec:
    """Let a trial name its policy's compiled object in place of its source."""
    roce = trial.host.roce
    if roce is None or not roce.program:
        return trial
    made = replace(roce, program=str(policy_object(Path(here(roce.program))).absolute()))
    return replace(trial, host=replace(trial.host, roce=made))


def _flow_object(fabric: FabricSpec) -> str:
    """Return the path of the compiled flow table; "" if it cannot be compiled, or is not needed.

    `check` refuses the first case for tuners that observe flows.
    """
    if fabric.kind != "linux":
        return ""
    try:
        return str(flow_table_object())
    except NotReadyError:
        return ""


def _facts(
    record: TrialRecord,
    plan: FabricPlan,
    ground: _Ground,
    stages: StageClock,
    fabric: FabricSpec,
) -> dict[str, Any]:
    findings = [*record.facts.get("findings", ()), *ground.findings]
    return {
        **record.facts,
        **plan.facts,
        **ground.about,
        **({"findings": findings} if findings else {}),
        "red": _marking_law(record, fabric, ground.lacks),
        "stages_s": stages.seconds(),
    }


def _marking_law(record: TrialRecord, fabric: FabricSpec, lacks: Collection[str]) -> dict[str, str]:
    """Describe how the ports marked, and how far that is from the requested straight line."""
    if "red" in lacks:
        return {"straight_line_on": "the instantaneous queue, arrivals, by a BPF program"}
    if fabric.kind != "linux":
        return {"straight_line_on": f"the instantaneous queue, {fabric.marks}"}
    thresholds = record.changes[ECN.name]
    columns = [thresholds["kmin_bytes"], thresholds["kmax_bytes"], np.round(thresholds["pmax"], 6)]
    settings = np.unique(np.column_stack(columns), axis=0)
    laws = [RedLaw(int(kmin), int(kmax), float(pmax)) for kmin, kmax, pmax in settings[:_LAWS]]
    worst = max((law.worst_departure() for law in laws), default=0.0)
    return {
        "Linux_RED_on": "the instantaneous queue",
        "farthest_from_the_straight_line": f"{worst:.1%} of pmax",
    }


class StageClock:
    """Measures the wall time of each stage of a guest, from its messages."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._stage = "start"
        self._seconds: dict[str, float] = {}

    def note(self, message: dict[str, Any]) -> None:
        """Record the start of a stage."""
        if "stage" in message:
            now = time.monotonic()
            self._seconds[self._stage] = round(now - self._begin, 3)
            self._begin, self._stage = now, message["stage"]

    def seconds(self) -> dict[str, float]:
        """Return seconds by stage: start (kernel), boot (imports), build, connect, run, write."""
        return dict(self._seconds)


def fault_steps(trial: TrialSpec, testbed: Testbed, plan: FabricPlan) -> tuple[Step, ...]:
    """Return the trial's faults as requests. A cut cable drops what arrives at both its ends."""
    number = {item.name: place for place, item in enumerate(plan.namespaces)}
    steps = []
    cut: frozenset[int] = frozenset()
    hooked: set[int] = set()
    for fault in fault_plan(trial, testbed):
        requests: dict[int, list[bytes]] = {}
        if fault.kind == "routes":
            for name, routes in plan_routes(testbed, fault.down).items():
                requests[number[name]] = list(routes)
        else:
            for index in sorted(cut ^ fault.down):
                link = testbed.links[index]
                for end in (link.a, link.b):
                    port = testbed.ports[end]
                    batch = requests.setdefault(number[port.device], [])
                    if end not in hooked:
                        hooked.add(end)
                        batch.append(qdiscs.clsact(ifindex(port)))
                    change = qdiscs.drop_arrivals if index in fault.down else qdiscs.accept_arrivals
                    batch.append(change(ifindex(port)))
            cut = fault.down
        steps.append(
            Step(
                fault.t_ns,
                fault.kind,
                fault.detail,
                tuple((place, tuple(batch)) for place, batch in requests.items() if batch),
                tuple(sorted(fault.down)) if fault.kind == "links" else None,
            )
        )
    return tuple(steps)
