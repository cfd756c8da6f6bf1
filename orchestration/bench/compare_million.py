"""What a comparison of two big runs costs: wall time and memory."""

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
    PortRecords,
    Schedule,
    TrialRecord,
)
from orchestration.model.trial import PoissonSpec, TrialSpec, TunerSpec

_FLOWS = 1_000_000
_DURATION_NS, _PERIOD_NS = 1_000_000_000, 100_000
_PACKET_BYTES = 1_514
_WALL_S, _MEMORY_BYTES = 20, 2e9
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


def compare_million() -> Outcome:
    """Two runs of a million flows and 400,000 samples of ports each, made up, compared."""
    testbed = load_testbed("graphcc")
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as place:
        folder = Path(place)
        schedule = _schedule(testbed, np.random.default_rng(1))
        runs = [_write(folder / name, testbed, schedule, seed) for seed, name in enumerate("ab")]
        page = folder / "compare.html"
        argv = ["compare", *(str(run) for run in runs), "--out", str(page)]
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, *argv], capture_output=True, text=True, check=True
        )
        page_bytes = page.stat().st_size
    lines = done.stdout.splitlines()
    wall_s, memory_bytes = (float(text) for text in lines[-1].split())
    return Outcome(
        "Comparison of two runs of a million flows",
        (
            Figure("wall time", f"{wall_s:.1f} s", f"{_WALL_S} s", wall_s <= _WALL_S),
            Figure(
                "memory at most",
                f"{memory_bytes / 1e9:.2f} GB",
                f"{_MEMORY_BYTES / 1e9:g} GB",
                memory_bytes <= _MEMORY_BYTES,
            ),
            Figure("page", f"{page_bytes / 1e6:.1f} MB"),
        ),
        notes=(f"the answer: {lines[0]}",),
        data={"wall_s": wall_s, "memory_bytes": memory_bytes},
    )


def _schedule(testbed: Testbed, rng: np.random.Generator) -> Schedule:
    """Draw a million flows of heavy-tailed sizes between random hosts."""
    hosts = len(testbed.hosts)
    src = rng.integers(0, hosts, _FLOWS)
    return Schedule(
        start_ns=np.sort(rng.integers(0, _DURATION_NS, _FLOWS)),
        src=src,
        dst=(src + rng.integers(1, hosts, _FLOWS)) % hosts,
        size_bytes=np.clip(np.exp(rng.normal(9, 2.2, _FLOWS)), 300, 3e7).astype(np.int64),
        klass=np.zeros(_FLOWS, dtype=np.int64),
        classes=("poisson",),
    )


def _write(folder: Path, testbed: Testbed, schedule: Schedule, seed: int) -> Path:
    """Write a trial whose flows wait in queues, drawn by `seed`, and return its folder."""
    rng = np.random.default_rng([7, seed])
    line_ns = schedule.size_bytes * 8 / 25 + 20_000
    fct_ns = (line_ns * (1.1 + rng.gamma(0.7, 2.0, _FLOWS))).astype(np.int64)
    samples, queues = _DURATION_NS // _PERIOD_NS, len(testbed.queues)
    t_ns = np.arange(1, samples + 1) * _PERIOD_NS
    rows = (samples, queues)
    tx_packets = np.cumsum(rng.integers(0, 90, rows), axis=0)
    zeros = np.zeros(rows, dtype=np.int64)
    every, none = np.arange(queues), np.zeros(queues, dtype=np.int64)
    of_hosts = np.zeros((samples, len(testbed.hosts)), dtype=np.int64)
    trial = TrialSpec(
        campaign=folder.name,
        testbed="graphcc",
        backend="fake",
        tuner=TunerSpec("secn1"),
        traffic=(PoissonSpec("WebSearch", 0.6, 0, _DURATION_NS),),
        seed=1,
        repeat=1,
        duration_ns=_DURATION_NS,
        drain_ns=_DURATION_NS,
        cell={"tuner": "secn1"},
    )
    record = TrialRecord(
        flows=FlowRecords(
            sent_ns=schedule.start_ns,
            end_ns=schedule.start_ns + fct_ns,
            retransmits=np.zeros(_FLOWS, dtype=np.int64),
            status=np.full(_FLOWS, DONE),
        ),
        ports=PortRecords(
            t_ns,
            rng.gamma(0.3, 50_000, rows).astype(np.int64),
            tx_packets * _PACKET_BYTES,
            tx_packets,
            np.cumsum(rng.integers(0, 2, rows), axis=0),
            zeros,
        ),
        actions=ActionRecords(
            none, none, none, every, none + 5_000, none + 200_000, np.full(queues, 0.01)
        ),
        hosts=HostRecords(t_ns, of_hosts, of_hosts, of_hosts, of_hosts),
        events=(),
        facts={"clock": "virtual", "wall_s": 60.0},
    )
    place = folder / trial.id
    write_trial(place, trial, testbed, schedule, record, Stamp(True, (), ()), {})
    return folder
