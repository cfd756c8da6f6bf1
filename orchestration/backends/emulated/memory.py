"""The memory of a trial's guest, and whether the machine has it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.core.errors import NotReadyError
from orchestration.core.machine import available_memory_bytes
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.kernel.boot import memory_dir

_MEBIBYTE = 1 << 20
_GUEST_BYTES = 1024 * _MEBIBYTE
_HOST_BYTES = 8 * _MEBIBYTE
# For a host whose NIC makes the packets: it has no sockets (`closloop bench run fabric-size`).
_NIC_HOST_BYTES = 2 * _MEBIBYTE
_FLOW_BYTES = 16 * 1024
# Memory per reading, in the loop, the table and the table's file: five numbers per queue, and four
# per host at each tenth reading. Likewise per decision.
_QUEUE_READING_BYTES = 128
_HOST_READING_BYTES = 16
_QUEUE_DECISION_BYTES = 152
# Python's objects around the arrays of one reading or decision.
_OBJECTS_BYTES = 2048
# In the process: Python with its libraries, and what the packet engine has of a port and of a flow.
_PYTHON_BYTES = 128 * _MEBIBYTE
_ENGINE_PORT_BYTES = 400
_ENGINE_FLOW_BYTES = 1024
# Per entry of a switch's flowlet table: struct cl_entry, and its number among those in use.
_ENTRY_BYTES = 36


def guest_memory_bytes(
    testbed: Testbed, flows: int = 0, readings: int = 0, decisions: int = 0, *, roce: bool = False
) -> int:
    """Return the memory that a guest is given, in bytes. The guest takes only what it touches.

    `readings` and `decisions` are the largest numbers that a trial can make; `roce` says that no
    host uses TCP.
    """
    host_bytes = _NIC_HOST_BYTES if roce else _HOST_BYTES
    fabric = _GUEST_BYTES + host_bytes * len(testbed.hosts) + _FLOW_BYTES * flows
    return fabric + _records_bytes(testbed, readings, decisions)


def _records_bytes(testbed: Testbed, readings: int, decisions: int) -> int:
    queues, hosts = len(testbed.queues), len(testbed.hosts)
    reading = _OBJECTS_BYTES + _QUEUE_READING_BYTES * queues + _HOST_READING_BYTES * hosts
    decision = _OBJECTS_BYTES + _QUEUE_DECISION_BYTES * queues
    return reading * readings + decision * decisions


def _without_tcp(trial: TrialSpec, testbed: Testbed) -> bool:
    return trial.host.is_roce and not testbed.classes  # a class may have another control


def trial_memory_bytes(trial: TrialSpec, testbed: Testbed, flows: int) -> int:
    """Return the memory for a trial's guest, in bytes. Flows may last until the drain ends."""
    end_ns = trial.duration_ns + trial.drain_ns
    readings = end_ns // trial.sample_period_ns
    decisions, roce = end_ns // trial.action_period_ns, _without_tcp(trial, testbed)
    memory_bytes = guest_memory_bytes(testbed, flows, readings, decisions, roce=roce)
    if trial.load_balancing.kind == "flowlets":
        memory_bytes += _ENTRY_BYTES * trial.load_balancing.entries * len(testbed.switches)
    return memory_bytes


def process_memory_bytes(testbed: Testbed, flows: int = 0, trial: TrialSpec | None = None) -> int:
    """Return an upper bound of the memory of a trial in the process; without `trial`, of no trial.

    It counts Python, the packet engine's ports and flows, and the trial's readings and decisions.
    """
    fixed = _PYTHON_BYTES + _ENGINE_PORT_BYTES * len(testbed.ports) + _ENGINE_FLOW_BYTES * flows
    if trial is None:
        return fixed
    end_ns = trial.duration_ns + trial.drain_ns
    readings, decisions = end_ns // trial.sample_period_ns, end_ns // trial.action_period_ns
    return fixed + _records_bytes(testbed, readings, decisions)


def require_processes(testbed: Testbed, jobs: int) -> None:
    """Raise NotReadyError without memory for `jobs` trials in the process, not counting flows."""
    needed, available = jobs * process_memory_bytes(testbed), available_memory_bytes()
    if needed > available:
        raise NotReadyError(
            f"{jobs} trials of {testbed.name} need {needed // _MEBIBYTE} MiB of memory, and "
            f"{available // _MEBIBYTE} MiB are available",
            "run fewer trials side by side, or end other programs",
        )


def require_memory(trial: TrialSpec, testbed: Testbed, flows: int) -> int:
    """Return the memory for a trial's guest, in bytes.

    Raises NotReadyError if the machine does not have that much.
    """
    memory_bytes = trial_memory_bytes(trial, testbed, flows)
    readings = (trial.duration_ns + trial.drain_ns) // trial.sample_period_ns
    try:
        memory_dir(memory_bytes)
    except NotReadyError as error:
        roce = _without_tcp(trial, testbed)
        records_bytes = memory_bytes - guest_memory_bytes(testbed, flows, roce=roce)
        end = (
            f"; {records_bytes // _MEBIBYTE} MiB of it are for up to {readings:,} "
            f"readings of {len(testbed.queues):,} queues"
        )
        more = "; fewer readings need less: a longer sample_period, a shorter drain"
        raise NotReadyError(problem.with_end(end, more) for problem in error.problems) from error
    return memory_bytes


def require_guests(testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError without memory for `jobs` guests at once, not counting their flows."""
    roce = bool(trials) and all(_without_tcp(trial, testbed) for trial in trials)
    memory_dir(jobs * guest_memory_bytes(testbed, roce=roce))
