"""Measures commands on large synthetic runs, and how much time observing a trial takes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from collectors.sinks.influx import Server
from collectors.sinks.spool_observer import SpoolNote, write_spool_note
from collectors.snapshot import LiveObserver
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
    environment,
    websearch,
)
from orchestration.core.condition import TUNER
from orchestration.core.ports import TrialRun
from orchestration.core.records import Observation
from orchestration.core.trial import TunerSpec
from orchestration.results.sql import Runs
from orchestration.results.sql.output import write_result
from orchestration.results.writer import write_trial
from orchestration.telemetry.process import SenderProcess
from orchestration.telemetry.settings import Settings
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule

_LOADS, _REPEATS, _TUNERS = (0.3, 0.5, 0.6, 0.7, 0.9), 10, ("secn1", "secn2", "amt", "acc")
_LASTS_NS = 125 * MILLISECOND
_MAX_QUERY_S = 10.0
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
# Runs a command as a user does, and prints the time and memory that it took.
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
    """`report`, `compare` and `sql` on 200 trials of the fluid model with ten million samples.

    The run is compared with itself.
    """
    with bench_folder() as folder:
        run = folder / "large"
        trials, flows, samples = _write_campaign(run)
        figures = _command(("report", str(run)), run / "report.html", 6, 3)
        page = folder / "compare.html"
        figures += _command(("compare", str(run), str(run), "--out", str(page)), page, 40, 3)
        for name, query in _QUERIES.items():
            begin_s = time.monotonic()
            Runs(run).sql(query).fetchall()
            figures.append(at_most(name, time.monotonic() - begin_s, _MAX_QUERY_S, 1, " s"))
        whole = Runs(run).table("ports")
        begin_s = time.monotonic()
        write_result(whole, folder / "rows.parquet", "parquet")
        took_s = time.monotonic() - begin_s
        figures.append(Figure("all rows into one Parquet file", f"{took_s:.1f} s"))
    return Outcome(
        f"{trials} trials, {flows:,} flows and {samples:,} samples of ports",
        tuple(figures),
    )


def _command(arguments: tuple[str, ...], page: Path, max_s: float, max_gb: float) -> list[Figure]:
    """Run `closloop ARGUMENTS` in its own process; return time, memory, and the page's size.

    Raises CalledProcessError if it fails.
    """
    command = [sys.executable, "-c", _MEASURED, *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_s, memory_bytes = (float(text) for text in completed.stdout.splitlines()[-1].split())
    verb = arguments[0]
    return [
        at_most(f"{verb}: wall time", wall_s, max_s, 1, " s"),
        at_most(f"{verb}: memory at most", memory_bytes / 1e9, max_gb, 2, " GB"),
        at_most(f"{verb}: page", page.stat().st_size / 1e6, 10, 1, " MB"),
    ]


def _write_campaign(folder: Path) -> tuple[int, int, int]:
    """Write a campaign into `folder`; return its numbers of trials, flows and port samples.

    To save time, each trial that is run is written once for every load.
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
                trial_at_load = replace(trial, cell={TUNER: tuner, "load": load})
                write_trial(
                    folder / trial_at_load.id, trial_at_load, testbed, schedule, record, verdict, {}
                )
                trials += 1
                flows += len(schedule)
                samples += record.ports.qlen_bytes.size
    return trials, flows, samples


_MAX_SHARE, _MAX_GROWTH = 0.01, 0.03
_SPOOL_BYTES = 1 << 30
_ROUNDS = 60
_SETTLE_S = 4.0
_TRIAL = bench_trial(
    (
        *websearch(10 * MILLISECOND),
        IncastSpec(16, 512_000, 5 * MILLISECOND, 0, 10 * MILLISECOND),
    ),
    10 * MILLISECOND,
    drain_ns=200 * MILLISECOND,
)


def observing() -> Outcome:
    """Time that a trial spends on snapshots for viewers, and on InfluxDB with no server."""
    testbed = load_testbed(_TRIAL.testbed)
    with bench_folder() as folder, _timed_snapshots() as snapshots_s:
        begin_s = time.process_time()
        without_s, with_s, sender = _trials(folder)
        share = sum(snapshots_s) / (time.process_time() - begin_s)
    plain, sinking = min(without_s), min(with_s)
    growth = sinking / plain - 1
    figures = (
        Figure(
            "snapshots for viewers: share of a trial's CPU time",
            f"{share:.2%}",
            f"at most {_MAX_SHARE:.0%}",
            share <= _MAX_SHARE,
        ),
        Figure(
            "a trial's wall time with the InfluxDB sink, its server down",
            f"{growth:+.1%} ({1e3 * plain:.0f} ms without the sink, {1e3 * sinking:.0f} ms with)",
            f"at most {_MAX_GROWTH:+.0%}",
            growth <= _MAX_GROWTH,
        ),
        Figure("the sink's sender meanwhile", f"{sender:.1%} of a core, at a low priority"),
    )
    notes = (
        f"the trial: {len(testbed.queues)} queues each 100 us on the fluid model, the backend that "
        "takes the least time for a reading, some 0.5 ms; on the emulated fabric it is 20 ms, and "
        f"nothing is taken from the loop; the least of {len(with_s)} runs each way, in turns",
    )
    data = {"without_s": without_s, "with_s": with_s, "sender": sender, "snapshots": share}
    return Outcome("Observing a trial: snapshots for viewers, and InfluxDB", figures, notes, data)


@contextmanager
def _timed_snapshots() -> Iterator[list[float]]:
    """Yield a list, to which the CPU seconds of each snapshot that is written are added."""
    taken_s: list[float] = []
    write = LiveObserver._write

    def timed(self: LiveObserver, observation: Observation) -> None:
        begin_s = time.process_time()
        write(self, observation)
        taken_s.append(time.process_time() - begin_s)

    with patch.object(LiveObserver, "_write", timed):
        yield taken_s


def _trials(folder: Path) -> tuple[list[float], list[float], float]:
    """Return wall times of a trial without the sink, and with it while its server is down.

    The third value is the share of a core that the sender uses meanwhile, without its start.
    """
    testbed = load_testbed(_TRIAL.testbed)
    schedule = make_schedule(_TRIAL, testbed)
    campaign = folder / "sink"
    campaign.mkdir()
    times: tuple[list[float], list[float]] = ([], [])
    with _server_down() as server:
        home = Settings(server, _SPOOL_BYTES).home(campaign)
        sender = SenderProcess(campaign)
        try:
            for number in range(_ROUNDS + 1):
                for sink, times_s in enumerate(times):
                    work = folder / f"{number}-{sink}"
                    work.mkdir()
                    if sink:
                        name = f"{_TRIAL.id}-{number}"
                        write_spool_note(work, SpoolNote(str(home), _SPOOL_BYTES, "sink", name))
                    begin_s = time.perf_counter()
                    FluidBackend().run(TrialRun(_TRIAL, testbed, schedule, work))
                    if number:  # the first round loads modules and fills caches
                        times_s.append(time.perf_counter() - begin_s)
                if not number:
                    time.sleep(_SETTLE_S)
                    begun = (time.perf_counter(), _cpu_s(sender.pid))
            share = (_cpu_s(sender.pid) - begun[1]) / (time.perf_counter() - begun[0])
        finally:
            sender.close()
    return *times, share


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server_down() -> Iterator[Server]:
    """Point the environment at a port where nothing listens, and yield that server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        values = {"URL": url, "ORG": "bench", "BUCKET": "bench", "TOKEN": "none"}
        with environment({f"CLOSLOOP_INFLUX_{name}": text for name, text in values.items()}):
            yield Server(url, "bench", "bench", "none")
