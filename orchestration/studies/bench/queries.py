"""How long queries over many trials take."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from orchestration.artifacts.stamp import Stamp
from orchestration.artifacts.writer import write_trial
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.model.records import Samples, TrialRecord
from orchestration.model.trial import IncastSpec, TrialSpec, TunerSpec
from orchestration.query import Runs
from orchestration.query.output import write_result
from orchestration.studies.bench.outcome import Figure, Outcome
from traffic.schedule import make_schedule

_MILLISECOND = 1_000_000
_TRIALS, _SAMPLES = 200, 1250
_WANTED_S = 10.0


def sql_speed() -> Outcome:
    """Queries over 200 trials with 10 million samples of ports, from the folders to the answer."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as place:
        folder = Path(place)
        rows = _write_trials(folder / "runs")
        asked = {
            "the sum of a column": lambda: (
                Runs(folder).sql("select sum(marked_packets) from ports").fetchall()
            ),
            "p99 of each trial's ports, 8,000 groups": lambda: (
                Runs(folder)
                .sql(
                    "select trial, device, port, quantile_cont(qlen_bytes, 0.99) "
                    "from ports group by all"
                )
                .fetchall()
            ),
            "means by tuner, of valid trials": lambda: (
                Runs(folder)
                .sql(
                    "select tuner, avg(qlen_bytes) from ports join trials using (run, trial) "
                    "where valid group by all"
                )
                .fetchall()
            ),
        }
        figures = []
        for what, ask in asked.items():
            took_s = _seconds(ask)
            wanted = f"at most {_WANTED_S:.0f} s"
            figures.append(Figure(what, f"{took_s:.1f} s", wanted, took_s <= _WANTED_S))
        whole = Runs(folder).table("ports")
        took_s = _seconds(lambda: write_result(whole, folder / "rows.parquet", "parquet"))
        figures.append(Figure("all rows into one Parquet file", f"{took_s:.1f} s"))
    return Outcome(f"Queries over {_TRIALS} trials, {rows:,} samples of ports", tuple(figures))


def _seconds(ask: Callable[[], object]) -> float:
    begin_s = time.monotonic()
    ask()
    return time.monotonic() - begin_s


def _write_trials(home: Path) -> int:
    """Write trials whose ports' samples are drawn, and return how many samples they have."""
    testbed = load_testbed("graphcc")
    trial = TrialSpec(
        "bench",
        "graphcc",
        "fluid",
        TunerSpec("secn1"),
        (IncastSpec(8, 100_000, _MILLISECOND, 0, _MILLISECOND),),
        1,
        1,
        _MILLISECOND,
        100 * _MILLISECOND,
    )
    schedule = make_schedule(trial, testbed)
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as work:
        record = FluidBackend().run(trial, testbed, schedule, Path(work), lambda *_: None)
    rng = np.random.default_rng(1)
    for number in range(_TRIALS):
        tuner = TunerSpec(f"secn{1 + number % 2}")
        one = dataclasses.replace(trial, tuner=tuner, repeat=1 + number // 2)
        drawn = _with_samples(record, len(testbed.queues), rng)
        stamp = Stamp(number % 20 != 0, (), ())
        write_trial(home / one.id, one, testbed, schedule, drawn, stamp, {})
    return _TRIALS * _SAMPLES * len(testbed.queues)


def _with_samples(record: TrialRecord, queues: int, rng: np.random.Generator) -> TrialRecord:
    shape = (_SAMPLES, queues)
    packets = np.cumsum(rng.integers(0, 200, shape), axis=0)
    ports = Samples.of(
        "queue",
        np.arange(1, _SAMPLES + 1) * 100_000,
        np.maximum(0, rng.normal(20_000, 40_000, shape)).astype(np.int64),
        packets * 1500,
        packets,
        packets // 10,
        np.zeros(shape, dtype=np.int64),
    )
    return dataclasses.replace(record, samples={**record.samples, "queue": ports})
