"""Measures commands on large synthetic runs."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
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
from orchestration.model.trial import PoissonSpec, TrialSpec, TunerSpec
from orchestration.query import Runs
from orchestration.query.output import write_result
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
    websearch,
)

_PACKET_BYTES = 1_514
_PERIOD_NS = 100_000
_VALID = Stamp(True, (), ())
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


@dataclass(frozen=True)
class _Taken:
    """The time and memory that a command took, and the lines it printed."""

    wall_s: float
    memory_bytes: float
    lines: tuple[str, ...]

    def figures(self, most_s: float, most_bytes: float) -> tuple[Figure, Figure]:
        """Return wall time and memory, compared with their limits."""
        return (
            at_most("wall time", self.wall_s, most_s, 1, " s"),
            at_most("memory at most", self.memory_bytes / 1e9, most_bytes / 1e9, 2, " GB"),
        )


def _take(*arguments: str) -> _Taken:
    """Run `closloop ARGUMENTS` in its own process. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    wall_s, memory_bytes = (float(text) for text in last.split())
    return _Taken(wall_s, memory_bytes, tuple(lines))


def compare_million() -> Outcome:
    """Two runs of a million flows and 400,000 samples of ports each, made up, compared."""
    flows, duration_ns = 1_000_000, 1_000 * MILLISECOND
    testbed = load_testbed("graphcc")
    with bench_folder() as folder:
        schedule = _schedule(testbed, np.random.default_rng(1), flows, duration_ns, 9)
        for seed, name in enumerate("ab"):
            rng = np.random.default_rng([7, seed])
            waits = 1.1 + rng.gamma(0.7, 2.0, flows)
            trial = _spec(name, duration_ns, websearch(duration_ns), {"tuner": "secn1"})
            _write(folder / name, testbed, schedule, trial, rng, waits)
        page = folder / "compare.html"
        taken = _take("compare", str(folder / "a"), str(folder / "b"), "--out", str(page))
        page_bytes = page.stat().st_size
    return Outcome(
        "Comparison of two runs of a million flows",
        (*taken.figures(20, 2e9), Figure("page", f"{page_bytes / 1e6:.1f} MB")),
        notes=(f"the answer: {taken.lines[0]}",),
        data={"wall_s": taken.wall_s, "memory_bytes": taken.memory_bytes},
    )


def report_large() -> Outcome:
    """A report over 200 trials with 10 million samples of ports, made up."""
    with bench_folder() as place:
        folder = place / "report-large"
        trials, samples = _write_campaign(folder)
        taken = _take("report", str(folder))
        page_bytes = (folder / "report.html").stat().st_size
    return Outcome(
        f"Report over {trials} trials and {samples / 1e6:g} million samples of ports",
        (*taken.figures(30, 3e9), at_most("page", page_bytes / 1e6, 10, 1, " MB")),
        data={
            "wall_s": taken.wall_s,
            "memory_bytes": taken.memory_bytes,
            "page_bytes": page_bytes,
        },
    )


def _write_campaign(folder: Path) -> tuple[int, int]:
    """Write the campaign into `folder`; return its number of trials and of port samples."""
    loads, repeats, flows, samples = (0.3, 0.5, 0.6, 0.7, 0.9), 10, 2_000, 1_250
    # The last tuner acts at every tenth sample, so that its actions are drawn too.
    tuners = ("secn1", "secn2", "amt", "acc")
    duration_ns = samples * _PERIOD_NS
    testbed = load_testbed("graphcc")
    for load in loads:
        traffic = (PoissonSpec("WebSearch", load, 0, duration_ns),)
        for repeat in range(1, repeats + 1):
            rng = np.random.default_rng([repeat, int(100 * load)])
            schedule = _schedule(testbed, rng, flows, duration_ns, 10.5)
            for number, tuner in enumerate(tuners):
                cell: dict[str, str | float] = {"tuner": tuner, "load": load}
                trial = _spec("report-large", duration_ns, traffic, cell, repeat)
                rng = np.random.default_rng([repeat, number])
                waits = 1.1 + rng.gamma(0.7, 2.0 + 0.1 * number, flows)
                acts = tuner == tuners[-1]
                _write(folder, testbed, schedule, trial, rng, waits, acts=acts)
    trials = len(loads) * repeats * len(tuners)
    return trials, trials * samples * len(testbed.queues)


def _spec(
    campaign: str,
    duration_ns: int,
    traffic: tuple[PoissonSpec],
    cell: dict[str, str | float],
    repeat: int = 1,
) -> TrialSpec:
    return bench_trial(
        traffic,
        duration_ns,
        tuner=TunerSpec(str(cell["tuner"])),
        campaign=campaign,
        seed=repeat,
        repeat=repeat,
        drain_ns=duration_ns,
        cell=cell,
    )


def _write(
    folder: Path,
    testbed: Testbed,
    schedule: Schedule,
    trial: TrialSpec,
    rng: np.random.Generator,
    waits: Floats,
    *,
    acts: bool = False,
) -> None:
    """Write a trial whose slowdowns are `waits`; queues and actions are random."""
    t_ns = np.arange(1, trial.duration_ns // _PERIOD_NS + 1) * _PERIOD_NS
    actions = _actions(rng, t_ns[::10] if acts else t_ns[:0], len(testbed.queues))
    record = _record(testbed, schedule, rng, waits, t_ns, actions)
    write_trial(folder / trial.id, trial, testbed, schedule, record, _VALID, {})


def _schedule(
    testbed: Testbed, rng: np.random.Generator, flows: int, duration_ns: int, log_bytes: float
) -> Schedule:
    """Draw flows between random hosts; sizes are lognormal with median e^`log_bytes`."""
    hosts = len(testbed.hosts)
    src = rng.integers(0, hosts, flows)
    return Schedule(
        start_ns=np.sort(rng.integers(0, duration_ns, flows)),
        src=src,
        dst=(src + rng.integers(1, hosts, flows)) % hosts,
        size_bytes=np.clip(np.exp(rng.normal(log_bytes, 2.2, flows)), 300, 3e7).astype(np.int64),
        klass=np.zeros(flows, dtype=np.int64),
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


def sql_speed() -> Outcome:
    """Queries over 200 trials with 10 million samples of ports, from the folders to the answer."""
    figures = []
    with bench_folder() as folder:
        trials, samples = _write_campaign(folder / "runs" / "report-large")
        for what, query in _QUERIES.items():
            begin_s = time.monotonic()
            Runs(folder).sql(query).fetchall()
            took_s = time.monotonic() - begin_s
            wanted = f"at most {_WANTED_S:.0f} s"
            figures.append(Figure(what, f"{took_s:.1f} s", wanted, took_s <= _WANTED_S))
        whole = Runs(folder).table("ports")
        begin_s = time.monotonic()
        write_result(whole, folder / "rows.parquet", "parquet")
        took_s = time.monotonic() - begin_s
        figures.append(Figure("all rows into one Parquet file", f"{took_s:.1f} s"))
    return Outcome(f"Queries over {trials} trials, {samples:,} samples of ports", tuple(figures))
