"""What a trial pays for being shown while it runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from collectors import snapshot
from collectors.snapshot import LiveObserver
from inventory.files import load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.model.knobs import ECN
from orchestration.model.records import Ints, Observation
from orchestration.model.signals import names
from orchestration.model.trial import PoissonSpec, TrialSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome
from traffic.schedule import make_schedule

_MILLISECOND = 1_000_000
_READINGS = 20_000
_WANTED = 0.01


def watching_cost() -> Outcome:
    """What readings and pictures of 40 and 1,000 queues cost, and their share of a fluid trial."""
    figures = []
    for queues in (40, 1000):
        readings = _cpu_s(queues, lambda: 0.0)
        pictures = _cpu_s(queues, _Hurried())
        figures += [
            Figure(f"a reading of {queues} queues", f"{readings * 1e6:.1f} us"),
            Figure(f"a picture of {queues} queues", f"{pictures * 1e6:.0f} us"),
        ]
    share = _share_of_a_trial()
    return Outcome(
        "Watching: graphcc, WebSearch at 60 %, 200 ms on the fluid backend",
        (
            *figures,
            Figure(
                "share of the trial's CPU time",
                f"{share:.2%}",
                f"at most {_WANTED:.0%}",
                share <= _WANTED,
            ),
        ),
    )


class _Hurried:
    """A clock by which every reading is due to be shown."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 2 * snapshot.EVERY_S
        return self._now_s


def _cpu_s(queues: int, clock: Callable[[], float]) -> float:
    zero = np.zeros(queues, dtype=np.int64)
    made = [_reading(tick, zero) for tick in range(1, _READINGS + 1)]
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        observer = LiveObserver(Path(folder), _trial(), lambda: 0, clock=clock)
        begin_s = time.process_time()
        for observation in made:
            observer.observed(observation)
        return (time.process_time() - begin_s) / _READINGS


def _reading(tick: int, zero: Ints) -> Observation:
    settings = {ECN.name: ECN.named(zero, zero, np.zeros(len(zero)))}
    return Observation(tick * 100_000, zero, dict.fromkeys(names("queue"), zero), settings)


def _share_of_a_trial() -> float:
    """Return the pictures' part of a trial's CPU time, and that of its readings without one."""
    pictures_s, write = 0.0, LiveObserver._write

    def timed(self: LiveObserver, observation: Observation) -> None:
        nonlocal pictures_s
        begin_s = time.process_time()
        write(self, observation)
        pictures_s += time.process_time() - begin_s

    trial, testbed = _trial(), load_testbed("graphcc")
    schedule = make_schedule(trial, testbed)
    with (
        tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder,
        patch.object(LiveObserver, "_write", timed),
    ):
        begin_s = time.process_time()
        record = FluidBackend().run(trial, testbed, schedule, Path(folder), _nothing)
        all_s = time.process_time() - begin_s
    readings_s = len(record.ports.t_ns) * _cpu_s(len(testbed.queues), lambda: 0.0)
    return (pictures_s + readings_s) / all_s


def _trial() -> TrialSpec:
    traffic = (PoissonSpec("WebSearch", 0.6, 0, 200 * _MILLISECOND),)
    return TrialSpec(
        "bench",
        "graphcc",
        "fluid",
        TunerSpec("secn1"),
        traffic,
        1,
        1,
        200 * _MILLISECOND,
        1000 * _MILLISECOND,
    )


def _nothing(*_: Any) -> None:
    """Take no note of progress."""
