"""Runs the probes on a backend, and computes the correction of a testbed from them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.flows import ideal_times_ns
from orchestration.analysis.stamp import stamp
from orchestration.calibration.measure import (
    Calibration,
    base_rtts,
    goodput,
    loop_delay,
    marking,
)
from orchestration.calibration.probes import loop_trial, marking_trial, path_trial
from orchestration.core.errors import InputError
from orchestration.core.ports import Backend
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import BackendName, TrialSpec
from orchestration.results.writer import write_trial
from traffic.schedule import make_schedule

# (what is being done, the share that is done from 0 to 1)
Listener = Callable[[str, float], None]
_PROBES = {"paths": path_trial, "marking": marking_trial, "loop": loop_trial}


def calibrate(
    backend: Backend,
    backend_name: BackendName,
    testbed: Testbed,
    testbed_name: str,
    folder: Path,
    listener: Listener = lambda what, share: None,
) -> Calibration:
    """Measure `backend` on a testbed that is idle but for the probes; keep the trials in `folder`.

    Trials of an earlier calibration there are replaced. Raises what the backend raises, and
    TrialError if a probing flow does not end.
    """
    done: dict[str, tuple[Schedule, TrialRecord]] = {}
    for number, (what, make) in enumerate(_PROBES.items()):
        trial = make(testbed, testbed_name, backend_name)

        def progress(t_ns: int, end_ns: int, what: str = what, number: int = number) -> None:
            listener(what, (number + min(1.0, t_ns / max(1, end_ns))) / len(_PROBES))

        listener(what, number / len(_PROBES))
        done[what] = _run(backend, trial, testbed, folder, progress)
    listener("done", 1.0)
    return Calibration(
        backend=backend_name,
        testbed=testbed_name,
        rtts=base_rtts(testbed, *done["paths"]),
        goodput=goodput(testbed, *done["paths"]),
        marking=marking(testbed, done["marking"][1].ports),
        loop=loop_delay(done["loop"][1]),
    )


def _run(
    backend: Backend,
    trial: TrialSpec,
    testbed: Testbed,
    folder: Path,
    progress: Callable[[int, int], None],
) -> tuple[Schedule, TrialRecord]:
    schedule = make_schedule(trial, testbed)
    with tempfile.TemporaryDirectory(prefix="closloop-calibrate-") as work:
        record = backend.run(trial, testbed, schedule, Path(work), progress)
    place = folder / trial.id
    shutil.rmtree(place, ignore_errors=True)
    ideal_ns = ideal_times_ns(testbed, schedule, trial)
    verdict = stamp(trial, testbed, schedule, record, ideal_ns)
    write_trial(place, trial, testbed, schedule, record, verdict, {}, ideal_ns)
    return schedule, record


@dataclass(frozen=True)
class Correction:
    """Changes of a testbed file: its framing in bytes, and delays in ns by the links' tier."""

    framing_bytes: int
    delay_change_ns: dict[int, int]


def correction(testbed: Testbed, mine: Calibration, like: Calibration | None) -> Correction:
    """Return the change of `testbed` that makes the backend of `mine` behave like that of `like`.

    Both were measured on `testbed`. Without `like`, the change makes the testbed agree with `mine`.
    A framing that is right within a byte stays. All links of a tier get the same correction of
    their delay: kinds of paths differ only in how many links of each tier they have, so round trips
    cannot tell more apart. Raises InputError if the two were measured on different paths.
    """
    if like is not None and [r.path for r in like.rtts] != [r.path for r in mine.rtts]:
        raise InputError.single(
            f"testbed {testbed.name}",
            "the two backends were measured on different paths",
            "calibrate both on one testbed",
        )
    tiers = sorted({tier for rtt in mine.rtts for tier in rtt.path.links_of_tier})
    crossings = np.array(
        [[2 * rtt.path.links_of_tier.get(tier, 0) for tier in tiers] for rtt in mine.rtts],
        dtype=np.float64,
    )
    measured = np.array([rtt.median_ns for rtt in mine.rtts], dtype=np.float64)
    if like is None:
        gaps = measured - np.array([rtt.testbed_ns for rtt in mine.rtts])
        more_framing = mine.goodput.framing_bytes - testbed.framing_bytes
    else:
        gaps = np.array([rtt.median_ns for rtt in like.rtts]) - measured
        more_framing = like.goodput.framing_bytes - mine.goodput.framing_bytes
    changes = np.linalg.lstsq(crossings, gaps, rcond=None)[0]
    framing = testbed.framing_bytes + (more_framing if abs(more_framing) >= 1 else 0)
    return Correction(
        max(0, round(framing)),
        {tier: round(change) for tier, change in zip(tiers, changes.tolist(), strict=True)},
    )
