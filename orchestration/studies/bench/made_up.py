"""Trials that were never run, as large as they have to be, and what a command takes over them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np

from inventory.topology import Testbed
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
from orchestration.studies.bench.outcome import Figure

_PACKET_BYTES = 1_514
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


@dataclass(frozen=True)
class Taken:
    """What a command took, and the lines that it printed."""

    wall_s: float
    memory_bytes: float
    lines: tuple[str, ...]

    def figures(self, most_s: float, most_bytes: float) -> tuple[Figure, Figure]:
        """Return wall time and memory against what is wanted."""
        return (
            Figure("wall time", f"{self.wall_s:.1f} s", f"{most_s:g} s", self.wall_s <= most_s),
            Figure(
                "memory at most",
                f"{self.memory_bytes / 1e9:.2f} GB",
                f"{most_bytes / 1e9:g} GB",
                self.memory_bytes <= most_bytes,
            ),
        )


def take(*arguments: str) -> Taken:
    """Run `closloop ARGUMENTS` in a process of its own. Raises CalledProcessError if it crashes."""
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    wall_s, memory_bytes = (float(text) for text in last.split())
    return Taken(wall_s, memory_bytes, tuple(lines))


def drawn_schedule(
    testbed: Testbed, rng: np.random.Generator, flows: int, duration_ns: int, log_bytes: float
) -> Schedule:
    """Draw flows between random hosts; their sizes are lognormal around e^`log_bytes`."""
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


def drawn_record(
    testbed: Testbed,
    schedule: Schedule,
    rng: np.random.Generator,
    waits: Floats,
    t_ns: Ints,
    actions: ChangeRecords,
) -> TrialRecord:
    """Draw what such a trial leaves: flows `waits` times as slow as alone, queues at `t_ns`."""
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


def drawn_actions(rng: np.random.Generator, at_ns: Ints, queues: int) -> ChangeRecords:
    """Set every queue at the start, and to a threshold of ten at each time of `at_ns`."""
    times = np.repeat(np.concatenate(([0], at_ns)), queues)
    kmax = 50_000 * rng.integers(1, 10, len(times))
    return ChangeRecords(
        times,
        times + 20_000,
        times + 30_000,
        np.tile(np.arange(queues), len(times) // queues),
        ECN.named(kmax // 4, kmax, np.full(len(times), 0.1)),
    )
