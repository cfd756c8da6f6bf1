"""Whether the disk and the memory of this machine have room for a run, asked before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestration.campaign.limits import FLOW_BYTES, READING_BYTES
from orchestration.core.errors import NotReadyError
from orchestration.core.machine import available_memory_bytes
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_size
from traffic.expected import expected
from traffic.schedule import within

# A queue's sample in the tables takes at most about 9 bytes, and the rest of a trial little.
_BYTES_PER_SAMPLE = 16
_SPARE_BYTES = 64 * 2**20


def check_disk(out: Path, trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]) -> None:
    """Raise NotReadyError if the disk lacks the space that the trials could need at most."""
    needed = _SPARE_BYTES
    for trial in trials:
        samples = (trial.duration_ns + trial.drain_ns) // trial.sample_period_ns
        needed += samples * len(testbeds[trial.testbed].queues) * _BYTES_PER_SAMPLE
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise NotReadyError(
            f"{place} has {format_size(free)} free; the results may take {format_size(needed)}",
            "make room there, or choose another place with --out",
        )


def check_memory(testbed: Testbed, jobs: int, trials: Iterable[TrialSpec]) -> None:
    """Raise NotReadyError if memory lacks what `jobs` of the trials need at least, side by side."""
    available = available_memory_bytes()
    known: dict[object, int] = {}
    for trial in trials:
        key = (trial.traffic, trial.duration_ns, trial.drain_ns, trial.sample_period_ns)
        if key not in known:
            known[key] = needed_bytes(trial, testbed)
            _refuse(known[key], jobs, trial, available)


def needed_bytes(trial: TrialSpec, testbed: Testbed) -> int:
    """Return what a trial's flows and readings take in memory at least, until its duration ends."""
    try:
        flows = sum(expected(within(spec, trial, testbed), testbed).flows for spec in trial.traffic)
    except (ValueError, KeyError, OSError):
        return 0  # the trial itself says what is wrong
    readings = trial.duration_ns // trial.sample_period_ns * len(testbed.queues)
    return int(flows * FLOW_BYTES) + readings * READING_BYTES


def _refuse(each: int, jobs: int, trial: TrialSpec, available: int) -> None:
    if each * jobs <= available:
        return
    fit = available // each
    who = f"trial {trial.id} needs" if jobs == 1 else f"{jobs} trials side by side, such as "
    who += "" if jobs == 1 else f"{trial.id}, need"
    raise NotReadyError(
        f"{who} {format_size(each * jobs, 1)} of memory or more, and {format_size(available, 1)} "
        "are available",
        f"use --jobs {fit}, or make room"
        if fit
        else "make trials shorter, send fewer flows, or use a longer sample_period",
    )
