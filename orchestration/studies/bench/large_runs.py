"""Measures commands on large synthetic runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.artifacts.stamp import Stamp
from orchestration.artifacts.writer import write_trial
from orchestration.model.knobs import ECN
from orchestration.model.records import (
    DONE,
    ChangeRecords,
    Floats,
    FlowRecords,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.model.trial import TrialSpec, TunerSpec
from orchestration.query import Runs
from orchestration.query.output import write_result
from orchestration.studies.bench.outcome import (
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
    websearch,
)

_PACKET_BYTES = 1_514
_PERIOD_NS = 100_000
_LOADS, _REPEATS, _SAMPLES = (0.3, 0.5, 0.6, 0.7, 0.9), 10, 1_250
# The last tuner acts at every tenth sample, so that its actions are drawn too.
_TUNERS = ("secn1", "secn2", "amt", "acc")
# All trials together have a million.
_FLOWS = 5_000
_WANTED_S = 10.0
_QUERIES = {
    "the sum of a column": "select sum(marked_packets) from ports",
    "p99 of each trial's ports, 8,000 groups": (
        "select trial, device, port, quantile_cont(qlen_bytes, 0.99) from ports group by all"
    ),
    "means by tuner, of valid trials": (
        "select tuner, avg(qlen_bytes) from ports join trials using (run, trial) "
        "where valid group by all"
    ),
}
# Runs the command as a user does, and prints the time and memory it took.
_MEASURED = """
import resource, sys, time
from orchestration.cli.main import app
begin = time.monotonic()
try:
    app(sys.argv[1:])
except SystemExit as error:
    print(error.code)
print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def large_runs() -> Outcome:
    """`report`, `compare` and `sql` of 200 made-up trials, a million flows, ten million samples.

    The comparison is of the run with itself.
    """
    with bench_folder() as place:
        run = place / "large"
        trials, samples = _write_campaign(run)
        figures = _command(("report", str(run)), run / "report.html", 30, 3)
        page = place / "compare.html"
        figures += _command(("compare", str(run), str(run), "--out", str(page)), page, 40, 3)
        for what, query in _QUERIES.items():
            begin_s = time.monotonic()
            Runs(run).sql(query).fetchall()
            figures.append(at_most(what, time.monotonic() - begin_s, _WANTED_S, 1, " s"))
        whole = Runs(run).table("ports")
        begin_s = time.monotonic()
        write_result(whole, place / "rows.parquet", "parquet")
        took_s = time.monotonic() - begin_s
        figures.append(Figure("all rows into one Parquet file", f"{took_s:.1f} s"))
    return Outcome(
        f"{trials} trials, {trials * _FLOWS:,} flows and {samples:,} samples of ports, made up",
        tuple(figures),
    )


def _command(arguments: tuple[str, ...], page: Path, most_s: float, most_gb: float) -> list[Figure]:
    """Run `closloop ARGUMENTS` in its own process; return time, memory, and the page's size.

    Raises CalledProcessError if it fails.
    """
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_s, memory_bytes = (float(text) for text in done.stdout.splitlines()[-1].split())
    verb = arguments[0]
    return [
        at_most(f"{verb}: wall time", wall_s, most_s, 1, " s"),
        at_most(f"{verb}: memory at most", memory_bytes / 1e9, most_gb, 2, " GB"),
        at_most(f"{verb}: page", page.stat().st_size / 1e6, 10, 1, " MB"),
    ]


def _write_campaign(folder: Path) -> tuple[int, int]:
    """Write the campaign into `folder`; return its number of trials and of port samples."""
    duration_ns = _SAMPLES * _PERIOD_NS
    testbed = load_testbed("graphcc")
    for load in _LOADS:
        for repeat in range(1, _REPEATS + 1):
            schedule = _schedule(
                testbed, np.random.default_rng([repeat, int(100 * load)]), duration_ns
            )
            for number, tuner in enumerate(_TUNERS):
                trial = bench_trial(
                    websearch(duration_ns),
                    duration_ns,
                    tuner=TunerSpec(tuner),
                    campaign="large",
                    seed=repeat,
                    repeat=repeat,
                    drain_ns=duration_ns,
                    cell={"tuner": tuner, "load": load},
                )
                rng = np.random.default_rng([repeat, number])
                waits = 1.1 + rng.gamma(0.7, 2.0 + 0.1 * number, _FLOWS)
                acts = tuner == _TUNERS[-1]
                _write(folder, testbed, schedule, trial, rng, waits, acts=acts)
    trials = len(_LOADS) * _REPEATS * len(_TUNERS)
    return trials, trials * _SAMPLES * len(testbed.queues)


def _write(
    folder: Path,
    testbed: Testbed,
    schedule: Schedule,
    trial: TrialSpec,
    rng: np.random.Generator,
    waits: Floats,
    *,
    acts: bool,
) -> None:
    """Write a trial whose slowdowns are `waits`; queues and actions are random."""
    t_ns = np.arange(1, trial.duration_ns // _PERIOD_NS + 1) * _PERIOD_NS
    actions = _actions(rng, t_ns[::10] if acts else t_ns[:0], len(testbed.queues))
    record = _record(testbed, schedule, rng, waits, t_ns, actions)
    valid = Stamp(True, (), ())
    write_trial(folder / trial.id, trial, testbed, schedule, record, valid, {})


def _schedule(testbed: Testbed, rng: np.random.Generator, duration_ns: int) -> Schedule:
    """Draw flows between random hosts; sizes are lognormal with a median of 36 KB."""
    hosts = len(testbed.hosts)
    src = rng.integers(0, hosts, _FLOWS)
    return Schedule(
        start_ns=np.sort(rng.integers(0, duration_ns, _FLOWS)),
        src=src,
        dst=(src + rng.integers(1, hosts, _FLOWS)) % hosts,
        size_bytes=np.clip(np.exp(rng.normal(10.5, 2.2, _FLOWS)), 300, 3e7).astype(np.int64),
        klass=np.zeros(_FLOWS, dtype=np.int64),
        classes=("poisson",),
    )


def _record(
    testbed: Testbed,
    schedule: Schedule,
    rng: np.random.Generator,
    waits: Floats,
    t_ns: Ints,
    actions: ChangeRecords,
) -> TrialRecord:
    rows = (len(t_ns), len(testbed.queues))
    line_ns = schedule.size_bytes * 8 / 25 + 20_000
    tx_packets = np.cumsum(rng.integers(0, 90, rows), axis=0)
    of_hosts = np.zeros((len(t_ns), len(testbed.hosts)), dtype=np.int64)
    return TrialRecord(
        flows=FlowRecords(
            sent_ns=schedule.start_ns,
            end_ns=schedule.start_ns + (line_ns * waits).astype(np.int64),
            retransmits=np.zeros(len(schedule), dtype=np.int64),
            status=np.full(len(schedule), DONE),
        ),
        samples={
            "queue": Samples.of(
                "queue",
                t_ns,
                rng.gamma(0.3, 50_000, rows).astype(np.int64),
                tx_packets * _PACKET_BYTES,
                tx_packets,
                np.cumsum(rng.integers(0, 2, rows), axis=0),
                np.zeros(rows, dtype=np.int64),
            ),
            "host": Samples.of("host", t_ns, of_hosts, of_hosts, of_hosts, of_hosts),
        },
        changes={ECN.name: actions},
        events=(),
        facts={"clock": "virtual", "wall_s": 60.0},
    )


def _actions(rng: np.random.Generator, at_ns: Ints, queues: int) -> ChangeRecords:
    """Set every queue at the start, and again to random thresholds at each time of `at_ns`."""
    times = np.repeat(np.concatenate(([0], at_ns)), queues)
    kmax = 50_000 * rng.integers(1, 10, len(times))
    return ChangeRecords(
        times,
        times + 20_000,
        times + 30_000,
        np.tile(np.arange(queues), len(times) // queues),
        ECN.named(kmax // 4, kmax, np.full(len(times), 0.1)),
    )
