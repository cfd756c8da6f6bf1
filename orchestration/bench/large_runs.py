"""Measures commands on large synthetic runs."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
    websearch,
)
from orchestration.core.condition import TUNER
from orchestration.core.ports import TrialRun
from orchestration.core.trial import TunerSpec
from orchestration.results.sql import Runs
from orchestration.results.sql.output import write_result
from orchestration.results.writer import write_trial
from traffic.schedule import make_schedule

_LOADS, _REPEATS, _TUNERS = (0.3, 0.5, 0.6, 0.7, 0.9), 10, ("secn1", "secn2", "amt", "acc")
_LASTS_NS = 125 * MILLISECOND
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
    """`report`, `compare` and `sql` of 200 trials of the fluid model, ten million samples.

    The comparison is of the run with itself.
    """
    with bench_folder() as place:
        run = place / "large"
        trials, flows, samples = _write_campaign(run)
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
        f"{trials} trials, {flows:,} flows and {samples:,} samples of ports",
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


def _write_campaign(folder: Path) -> tuple[int, int, int]:
    """Write the campaign into `folder`; return its numbers of trials, flows and port samples.

    Each trial of the fluid model stands under every load.
    """
    testbed = load_testbed("graphcc")
    trials = flows = samples = 0
    for repeat in range(1, _REPEATS + 1):
        for tuner in _TUNERS:
            trial = bench_trial(
                websearch(_LASTS_NS),
                _LASTS_NS,
                tuner=TunerSpec(tuner),
                campaign="large",
                seed=repeat,
                repeat=repeat,
            )
            schedule = make_schedule(trial, testbed)
            with bench_folder() as work:
                record = FluidBackend().run(TrialRun(trial, testbed, schedule, work))
            verdict = stamp(trial, testbed, schedule, record)
            for load in _LOADS:
                one = replace(trial, cell={TUNER: tuner, "load": load})
                write_trial(folder / one.id, one, testbed, schedule, record, verdict, {})
                trials += 1
                flows += len(schedule)
                samples += record.ports.qlen_bytes.size
    return trials, flows, samples
