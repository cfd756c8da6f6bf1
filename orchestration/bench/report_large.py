"""What a report over many trials costs: wall time, memory, and the size of its page."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.artifacts.stamp import Stamp
from orchestration.artifacts.writer import write_trial
from orchestration.bench.outcome import Figure, Outcome
from orchestration.model.records import (
    DONE,
    ActionRecords,
    FlowRecords,
    HostRecords,
    Ints,
    PortRecords,
    Schedule,
    TrialRecord,
)
from orchestration.model.trial import PoissonSpec, TrialSpec, TunerSpec

_LOADS = (0.3, 0.5, 0.6, 0.7, 0.9)
# The last one acts at every tenth sample, so that its actions are drawn as well.
_TUNERS = ("secn1", "secn2", "amt", "acc")
_REPEATS = 10
_FLOWS = 2_000
_SAMPLES, _PERIOD_NS = 1_250, 100_000
_DURATION_NS = _SAMPLES * _PERIOD_NS
_PACKET_BYTES = 1_514
_WALL_S, _MEMORY_BYTES, _PAGE_BYTES = 30, 3e9, 10e6
# Runs the command as a user does, and says in the end what it took.
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


def report_large() -> Outcome:
    """A report over 200 trials with 10 million samples of ports, made up."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as place:
        folder = Path(place) / "report-large"
        trials, samples = write_campaign(folder)
        argv = ["report", str(folder)]
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, *argv], capture_output=True, text=True, check=True
        )
        page_bytes = (folder / "report.html").stat().st_size
    wall_s, memory_bytes = (float(text) for text in done.stdout.splitlines()[-1].split())
    return Outcome(
        f"Report over {trials} trials and {samples / 1e6:g} million samples of ports",
        (
            Figure("wall time", f"{wall_s:.1f} s", f"{_WALL_S} s", wall_s <= _WALL_S),
            Figure(
                "memory at most",
                f"{memory_bytes / 1e9:.2f} GB",
                f"{_MEMORY_BYTES / 1e9:g} GB",
                memory_bytes <= _MEMORY_BYTES,
            ),
            Figure(
                "page",
                f"{page_bytes / 1e6:.1f} MB",
                f"{_PAGE_BYTES / 1e6:g} MB",
                page_bytes <= _PAGE_BYTES,
            ),
        ),
        data={"wall_s": wall_s, "memory_bytes": memory_bytes, "page_bytes": page_bytes},
    )


def write_campaign(folder: Path) -> tuple[int, int]:
    """Write the campaign into `folder`; return how many trials and samples of ports it has."""
    testbed = load_testbed("graphcc")
    for load in _LOADS:
        for repeat in range(1, _REPEATS + 1):
            schedule = _schedule(testbed, np.random.default_rng([repeat, int(100 * load)]))
            for number, tuner in enumerate(_TUNERS):
                _write(folder, testbed, schedule, _spec(load, tuner, repeat), number)
    trials = len(_LOADS) * _REPEATS * len(_TUNERS)
    return trials, trials * _SAMPLES * len(testbed.queues)


def _spec(load: float, tuner: str, repeat: int) -> TrialSpec:
    return TrialSpec(
        campaign="report-large",
        testbed="graphcc",
        backend="fake",
        tuner=TunerSpec(tuner),
        traffic=(PoissonSpec("WebSearch", load, 0, _DURATION_NS),),
        seed=repeat,
        repeat=repeat,
        duration_ns=_DURATION_NS,
        drain_ns=_DURATION_NS,
        cell={"tuner": tuner, "load": load},
    )


def _schedule(testbed: Testbed, rng: np.random.Generator) -> Schedule:
    """Draw flows of heavy-tailed sizes between random hosts."""
    hosts = len(testbed.hosts)
    src = rng.integers(0, hosts, _FLOWS)
    return Schedule(
        start_ns=np.sort(rng.integers(0, _DURATION_NS, _FLOWS)),
        src=src,
        dst=(src + rng.integers(1, hosts, _FLOWS)) % hosts,
        size_bytes=np.clip(np.exp(rng.normal(10.5, 2.2, _FLOWS)), 300, 3e7).astype(np.int64),
        klass=np.zeros(_FLOWS, dtype=np.int64),
        classes=("poisson",),
    )


def _write(
    folder: Path, testbed: Testbed, schedule: Schedule, trial: TrialSpec, number: int
) -> None:
    """Write a trial whose flows wait in queues, the longer the later its tuner stands."""
    rng = np.random.default_rng([trial.seed, number])
    line_ns = schedule.size_bytes * 8 / 25 + 20_000
    wait = 1.1 + rng.gamma(0.7, 2.0 + 0.1 * number, _FLOWS)
    queues = len(testbed.queues)
    rows = (_SAMPLES, queues)
    t_ns = np.arange(1, _SAMPLES + 1) * _PERIOD_NS
    tx_packets = np.cumsum(rng.integers(0, 90, rows), axis=0)
    of_hosts = np.zeros((_SAMPLES, len(testbed.hosts)), dtype=np.int64)
    record = TrialRecord(
        flows=FlowRecords(
            sent_ns=schedule.start_ns,
            end_ns=schedule.start_ns + (line_ns * wait).astype(np.int64),
            retransmits=np.zeros(_FLOWS, dtype=np.int64),
            status=np.full(_FLOWS, DONE),
        ),
        ports=PortRecords(
            t_ns,
            rng.gamma(0.3, 50_000, rows).astype(np.int64),
            tx_packets * _PACKET_BYTES,
            tx_packets,
            np.cumsum(rng.integers(0, 2, rows), axis=0),
            np.zeros(rows, dtype=np.int64),
        ),
        actions=_actions(rng, t_ns[::10] if number == len(_TUNERS) - 1 else t_ns[:0], queues),
        hosts=HostRecords(t_ns, of_hosts, of_hosts, of_hosts, of_hosts),
        events=(),
        facts={"clock": "virtual", "wall_s": 60.0},
    )
    verdict = Stamp(True, (), ())
    write_trial(folder / trial.id, trial, testbed, schedule, record, verdict, {})


def _actions(rng: np.random.Generator, at_ns: Ints, queues: int) -> ActionRecords:
    """Set every queue at the start, and to a threshold of ten at each time of `at_ns`."""
    times = np.repeat(np.concatenate(([0], at_ns)), queues)
    kmax = 50_000 * rng.integers(1, 10, len(times))
    return ActionRecords(
        times,
        times + 20_000,
        times + 30_000,
        np.tile(np.arange(queues), len(times) // queues),
        kmax // 4,
        kmax,
        np.full(len(times), 0.1),
    )
