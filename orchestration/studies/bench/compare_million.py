"""What a comparison of two big runs costs: wall time and memory."""

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

_FLOWS, _LOG_BYTES = 1_000_000, 9
_DURATION_NS, _PERIOD_NS = 1_000_000_000, 100_000
_WALL_S, _MEMORY_BYTES = 20, 2e9


def compare_million() -> Outcome:
    """Two runs of a million flows and 400,000 samples of ports each, made up, compared."""
    testbed = load_testbed("graphcc")
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as place:
        folder = Path(place)
        rng = np.random.default_rng(1)
        schedule = drawn_schedule(testbed, rng, _FLOWS, _DURATION_NS, _LOG_BYTES)
        runs = [_write(folder / name, testbed, schedule, seed) for seed, name in enumerate("ab")]
        page = folder / "compare.html"
        taken = take("compare", *(str(run) for run in runs), "--out", str(page))
        page_bytes = page.stat().st_size
    return Outcome(
        "Comparison of two runs of a million flows",
        (
            *taken.figures(_WALL_S, _MEMORY_BYTES),
            Figure("page", f"{page_bytes / 1e6:.1f} MB"),
        ),
        notes=(f"the answer: {taken.lines[0]}",),
        data={"wall_s": taken.wall_s, "memory_bytes": taken.memory_bytes},
    )


def _write(folder: Path, testbed: Testbed, schedule: Schedule, seed: int) -> Path:
    """Write a trial whose flows wait in queues, drawn by `seed`, and return its run's folder."""
    rng = np.random.default_rng([7, seed])
    waits = 1.1 + rng.gamma(0.7, 2.0, _FLOWS)
    t_ns = np.arange(1, _DURATION_NS // _PERIOD_NS + 1) * _PERIOD_NS
    trial = TrialSpec(
        campaign=folder.name,
        testbed="graphcc",
        backend="fluid",
        tuner=TunerSpec("secn1"),
        traffic=(PoissonSpec("WebSearch", 0.6, 0, _DURATION_NS),),
        seed=1,
        repeat=1,
        duration_ns=_DURATION_NS,
        drain_ns=_DURATION_NS,
        cell={"tuner": "secn1"},
    )
    actions = drawn_actions(rng, t_ns[:0], len(testbed.queues))
    record = drawn_record(testbed, schedule, rng, waits, t_ns, actions)
    write_trial(folder / trial.id, trial, testbed, schedule, record, Stamp(True, (), ()), {})
    return folder
