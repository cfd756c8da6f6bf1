"""What a report over many trials costs: wall time, memory, and the size of its page."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.artifacts.stamp import Stamp
from orchestration.artifacts.writer import write_trial
from orchestration.model.records import Schedule
from orchestration.model.trial import PoissonSpec, TrialSpec, TunerSpec
from orchestration.studies.bench.made_up import drawn_actions, drawn_record, drawn_schedule, take
from orchestration.studies.bench.outcome import Figure, Outcome

_LOADS = (0.3, 0.5, 0.6, 0.7, 0.9)
# The last one acts at every tenth sample, so that its actions are drawn as well.
_TUNERS = ("secn1", "secn2", "amt", "acc")
_REPEATS = 10
_FLOWS, _LOG_BYTES = 2_000, 10.5
_SAMPLES, _PERIOD_NS = 1_250, 100_000
_DURATION_NS = _SAMPLES * _PERIOD_NS
_WALL_S, _MEMORY_BYTES, _PAGE_BYTES = 30, 3e9, 10e6


def report_large() -> Outcome:
    """A report over 200 trials with 10 million samples of ports, made up."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as place:
        folder = Path(place) / "report-large"
        trials, samples = write_campaign(folder)
        taken = take("report", str(folder))
        page_bytes = (folder / "report.html").stat().st_size
    return Outcome(
        f"Report over {trials} trials and {samples / 1e6:g} million samples of ports",
        (
            *taken.figures(_WALL_S, _MEMORY_BYTES),
            Figure(
                "page",
                f"{page_bytes / 1e6:.1f} MB",
                f"{_PAGE_BYTES / 1e6:g} MB",
                page_bytes <= _PAGE_BYTES,
            ),
        ),
        data={
            "wall_s": taken.wall_s,
            "memory_bytes": taken.memory_bytes,
            "page_bytes": page_bytes,
        },
    )


def write_campaign(folder: Path) -> tuple[int, int]:
    """Write the campaign into `folder`; return how many trials and samples of ports it has."""
    testbed = load_testbed("graphcc")
    for load in _LOADS:
        for repeat in range(1, _REPEATS + 1):
            rng = np.random.default_rng([repeat, int(100 * load)])
            schedule = drawn_schedule(testbed, rng, _FLOWS, _DURATION_NS, _LOG_BYTES)
            for number, tuner in enumerate(_TUNERS):
                _write(folder, testbed, schedule, _spec(load, tuner, repeat), number)
    trials = len(_LOADS) * _REPEATS * len(_TUNERS)
    return trials, trials * _SAMPLES * len(testbed.queues)


def _spec(load: float, tuner: str, repeat: int) -> TrialSpec:
    return TrialSpec(
        campaign="report-large",
        testbed="graphcc",
        backend="fluid",
        tuner=TunerSpec(tuner),
        traffic=(PoissonSpec("WebSearch", load, 0, _DURATION_NS),),
        seed=repeat,
        repeat=repeat,
        duration_ns=_DURATION_NS,
        drain_ns=_DURATION_NS,
        cell={"tuner": tuner, "load": load},
    )


def _write(
    folder: Path, testbed: Testbed, schedule: Schedule, trial: TrialSpec, number: int
) -> None:
    """Write a trial whose flows wait in queues, the longer the later its tuner stands."""
    rng = np.random.default_rng([trial.seed, number])
    waits = 1.1 + rng.gamma(0.7, 2.0 + 0.1 * number, _FLOWS)
    t_ns = np.arange(1, _SAMPLES + 1) * _PERIOD_NS
    acts_at_ns = t_ns[::10] if number == len(_TUNERS) - 1 else t_ns[:0]
    actions = drawn_actions(rng, acts_at_ns, len(testbed.queues))
    record = drawn_record(testbed, schedule, rng, waits, t_ns, actions)
    verdict = Stamp(True, (), ())
    write_trial(folder / trial.id, trial, testbed, schedule, record, verdict, {})
