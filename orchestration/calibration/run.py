"""Runs the probes on a backend, keeps their run folders, and puts a calibration together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from inventory.topology import Testbed
from orchestration.analysis.stamp import stamp
from orchestration.artifacts.writer import write_trial
from orchestration.calibration.measure import (
    Calibration,
    base_rtts,
    goodput,
    loop_delay,
    marking,
)
from orchestration.calibration.probes import loop_trial, marking_trial, path_trial
from orchestration.model.ports import Backend
from orchestration.model.records import Schedule, TrialRecord
from orchestration.model.trial import BackendName, TrialSpec
from traffic.schedule import ideal_times_ns, make_schedule

# What is being done, and its part of the whole, 0 to 1.
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
    """Measure `backend` on a testbed, idle but for the probes; keep the trials below `folder`.

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
    ideal_ns = ideal_times_ns(testbed, schedule)
    verdict = stamp(trial, testbed, schedule, record, ideal_ns)
    write_trial(place, trial, testbed, schedule, record, verdict, {}, ideal_ns)
    return schedule, record
