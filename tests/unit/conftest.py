"""A small campaign with made-up but consistent physics, for the tests of artifacts and analysis."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inventory.routing import PathTable
from orchestration.analysis.stamp import stamp
from orchestration.analysis.summary import Summary, summarise
from orchestration.core.knobs import ECN
from orchestration.core.records import (
    DONE,
    FAILED,
    ChangeRecords,
    Event,
    FlowRecords,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.results.writer import write_trial
from traffic.patterns.poisson import PoissonSpec

STEP_NS, PERIOD_NS, DRAIN_NS = 10_000, 100_000, 20_000_000
HEADER_BYTES = 66
# tuner -> (queue it holds at a busy port, share of the rate it reaches, kmin, kmax, pmax)
TUNERS = {
    "secn1": (25_000, 0.93, 5_000, 200_000, 0.01),
    "secn2": (80_000, 0.985, 100_000, 400_000, 0.2),
}


@dataclass(frozen=True)
class Case:
    """What `write_trial` and `stamp` take."""

    trial: TrialSpec
    testbed: Testbed
    schedule: Schedule
    record: TrialRecord


def graphcc() -> Testbed:
    hosts = [f"h{i}" for i in range(24)]
    leaves, spines = [f"leaf{i}" for i in range(4)], ["spine0", "spine1"]
    devices = [Device(name, "host", 0) for name in hosts]
    devices += [Device(name, "switch", 1) for name in leaves]
    devices += [Device(name, "switch", 2) for name in spines]
    links = [LinkSpec(h, leaves[i // 6], 25 * 10**9, 2_000) for i, h in enumerate(hosts)]
    links += [LinkSpec(leaf, spine, 100 * 10**9, 2_000) for leaf in leaves for spine in spines]
    return Testbed.build("graphcc", devices, links, mtu_bytes=1500, buffer_bytes=9_000_000)


def make_schedule(rng: np.random.Generator, duration_ns: int, load: float) -> Schedule:
    """Draw heavy-tailed sizes at Poisson times."""
    sizes = np.clip(np.exp(rng.normal(10.6, 2.3, 5_000)), 300, 25_000_000).astype(np.int64)
    mean_gap_ns = sizes.mean() * 8e9 / (load * 24 * 25e9)
    start = np.cumsum(rng.exponential(mean_gap_ns, len(sizes))).astype(np.int64)
    count = max(1, int(np.searchsorted(start, duration_ns)))
    src = rng.integers(0, 24, count)
    dst = (src + rng.integers(1, 24, count)) % 24
    return Schedule(start[:count], src, dst, sizes[:count], np.zeros(count, np.int64), ("poisson",))


@lru_cache
def make_case(
    tuner: str = "secn1", seed: int = 1, duration_ns: int = 3_000_000, load: float = 0.6
) -> Case:
    testbed = graphcc()
    schedule = make_schedule(np.random.default_rng(seed), duration_ns, load)
    trial = TrialSpec(
        campaign="first-light",
        testbed="graphcc",
        backend="fluid",
        tuner=TunerSpec(tuner),
        traffic=(PoissonSpec("WebSearch", load, 0, duration_ns),),
        seed=seed,
        repeat=seed,
        duration_ns=duration_ns,
        drain_ns=DRAIN_NS,
        cell={"tuner": tuner, "load": load},
    )
    rng = np.random.default_rng([seed, len(tuner), ord(tuner[-1])])
    record = _share_links(testbed, schedule, tuner, rng)
    return Case(trial, testbed, schedule, record)


def _share_links(
    testbed: Testbed, schedule: Schedule, tuner: str, rng: np.random.Generator
) -> TrialRecord:
    """Share sources and destinations fairly, step by step, and keep the switches' counters."""
    held, efficiency, kmin, kmax, pmax = TUNERS[tuner]
    count, queues = len(schedule), testbed.queues
    left = schedule.size_bytes.astype(float)
    last_step = np.zeros(count)
    per_step = 25e9 / 8e9 * STEP_NS * efficiency * testbed.mss_bytes / 1538
    to_host = {testbed.peer_device(port).name: q for q, port in enumerate(queues)}
    last_hop = np.array([to_host[host] for host in testbed.hosts])
    leaf = np.arange(24) // 6
    crosses = leaf[schedule.src] != leaf[schedule.dst]
    name = {port.label: q for q, port in enumerate(queues)}
    up = np.array([[name[f"leaf{i}:eth{6 + s}"] for s in (0, 1)] for i in range(4)])
    down = np.array([[name[f"spine{s}:eth{i}"] for s in (0, 1)] for i in range(4)])
    payload, packets = np.zeros(len(queues)), np.zeros(len(queues))
    marked, queue = np.zeros(len(queues)), np.zeros(len(queues))
    rows: list[np.ndarray] = []
    flow_wait = np.zeros(count)
    step = 0
    while np.any(left > 0) or step % (PERIOD_NS // STEP_NS):
        live = (left > 0) & (schedule.start_ns < (step + 1) * STEP_NS)
        n_src = np.bincount(schedule.src[live], minlength=24)
        n_dst = np.bincount(schedule.dst[live], minlength=24)
        share = per_step / np.maximum(np.maximum(n_src[schedule.src], n_dst[schedule.dst]), 1)
        sent = np.where(live, np.minimum(left, share), 0)
        left -= sent
        last_step[live] = step
        segments = sent / testbed.mss_bytes
        for end, acks in ((schedule.dst, 0.0), (schedule.src, 0.5)):
            np.add.at(packets, last_hop[end], segments if not acks else segments * acks)
        np.add.at(payload, last_hop[schedule.dst], sent)
        for spine in (0, 1):
            for port in (up[leaf[schedule.src], spine], down[leaf[schedule.dst], spine]):
                np.add.at(payload, port[crosses], sent[crosses] / 2)
                np.add.at(packets, port[crosses], segments[crosses] / 2)
        busy = np.zeros(len(queues))
        busy[last_hop] = np.log2(np.clip(n_dst, 1, 8))
        queue += (busy * held - queue) * 0.3
        queue = np.clip(queue + busy * held * rng.normal(0, 0.08, len(queues)), 0, 300_000)
        flow_wait = np.where(live, np.maximum(flow_wait, queue[last_hop[schedule.dst]]), flow_wait)
        probability = np.clip((queue - kmin) / (kmax - kmin), 0, 1) * pmax
        marked += probability * np.bincount(last_hop[schedule.dst], segments, len(queues))
        step += 1
        if step % (PERIOD_NS // STEP_NS) == 0:
            counted = np.floor(packets)
            rows.append(
                np.stack(
                    [queue, payload + HEADER_BYTES * counted, counted, marked, np.zeros(len(queue))]
                )
            )
    paths = PathTable(testbed)
    ideal = np.array(
        [
            paths.ideal_fct_ns(f"h{s}", f"h{d}", int(size))
            for s, d, size in zip(schedule.src, schedule.dst, schedule.size_bytes, strict=True)
        ]
    )
    served = (last_step + 1) * STEP_NS - schedule.start_ns - STEP_NS
    wait = flow_wait * 8 / 25 * rng.lognormal(0, 0.25, count)
    end = schedule.start_ns + np.maximum(ideal, served).astype(np.int64) + wait.astype(np.int64)
    samples = len(rows)
    matrix = np.stack(rows, axis=1).astype(np.int64)
    t_ns = (np.arange(samples) + 1) * PERIOD_NS
    short = int(max(0, -(-int(end.max()) // PERIOD_NS) - samples))
    if short:  # the last flows' waiting time: readings that change nothing
        matrix = np.concatenate([matrix, np.repeat(matrix[:, -1:], short, axis=1)], axis=1)
        t_ns = (np.arange(samples + short) + 1) * PERIOD_NS
    every = np.arange(len(queues))
    zeros = np.zeros(len(queues), np.int64)
    return TrialRecord(
        flows=FlowRecords(
            sent_ns=schedule.start_ns + rng.integers(0, 900, count),
            end_ns=end,
            retransmits=np.zeros(count, np.int64),
            status=np.full(count, DONE),
        ),
        samples={
            "queue": Samples.of("queue", t_ns, *matrix),
            "host": Samples.of(
                "host", t_ns, *(np.zeros((len(t_ns), 24), np.int64) for _ in range(4))
            ),
        },
        changes={
            "ecn": ChangeRecords(
                zeros,
                zeros,
                zeros,
                every,
                ECN.named(zeros + kmin, zeros + kmax, np.full(len(queues), pmax)),
            )
        },
        events=(Event(0, "start", "traffic starts"),),
        facts={"clock": "virtual", "kernel": "7.3.0", "offloads_on": []},
    )


@pytest.fixture
def case() -> Case:
    """Return a small trial whose record the test may change."""
    return fresh()


@pytest.fixture(scope="session")
def cases() -> Callable[..., Case]:
    """Return a function that makes trials as `make_case` does."""
    return fresh


def fresh(*arguments: object) -> Case:
    made = make_case(*arguments)
    return dataclasses.replace(made, record=copy.deepcopy(made.record))


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two tuners with five seeds each; one trial of secn2 has a failed flow."""
    return write_campaign(tmp_path_factory.mktemp("runs") / "first-light")


@pytest.fixture(scope="session")
def summary(campaign: Path) -> Summary:
    """Return what the campaign shows."""
    return summarise(campaign)


def write_campaign(folder: Path, duration_ns: int = 3_000_000, load: float = 0.6) -> Path:
    for tuner in TUNERS:
        for seed in range(1, 6):
            case = fresh(tuner, seed, duration_ns, load)
            if (tuner, seed) == ("secn2", 5):
                case.record.flows.status[3] = FAILED
                case.record.flows.end_ns[3] = -1
            verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
            write_trial(
                folder / case.trial.id,
                case.trial,
                case.testbed,
                case.schedule,
                case.record,
                verdict,
                {"wall_s": 1.5},
            )
    return folder


@pytest.fixture
def run_report(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `closloop report` with arguments, 80 columns wide; return typer's result."""
    import typer
    from typer.testing import CliRunner

    from orchestration.cli.report import report

    monkeypatch.setenv("COLUMNS", "80")
    app = typer.Typer()
    app.command()(report)

    def invoke(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke
