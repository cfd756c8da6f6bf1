"""Tests what a cluster loses: how busy many nodes are kept, and what a second node saves.

Its nodes are processes of this machine. Many nodes get trials that wait and compute nothing, since
this machine could not compute for them; one and two nodes of one CPU get real ones.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.files import load_testbed
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import Campaign
from orchestration.model.condition import TUNER
from orchestration.model.ports import Backend
from orchestration.model.trial import TrialSpec
from orchestration.runner.run import run_campaign
from orchestration.runner.worker import Failed, Finished, Job, Lost, enter_worker
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    SECN1,
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
    websearch,
)

if TYPE_CHECKING:
    from orchestration.cluster.cluster import Cluster

NODES, RAYLETS, TRIALS = 64, 4, 1_000
# As a real trial, which takes some seconds and leaves about so much.
REST_S, LEFT_BYTES = 10.0, 100_000
BUSY, SHARE_OF_TWO = 0.95, 0.55
REAL_TRIALS, ROUNDS = 10, 2
_STORE_BYTES = 200 << 20
_MEMORY_BYTES = 64 << 30
_TIMES, _LEFT = "times.json", "left"


@dataclass(frozen=True)
class _Rest:
    """Waits instead of running a trial, and leaves its times and some bytes. Picklable."""

    rest_s: float

    def __call__(self, job: Job, backend: Backend, pipe: Connection, parent: int) -> None:
        begin_s = time.time()
        enter_worker(job, parent)
        time.sleep(self.rest_s)
        job.folder.mkdir(parents=True)
        (job.folder / _LEFT).write_bytes(os.urandom(LEFT_BYTES))
        (job.folder / _TIMES).write_text(json.dumps([begin_s, time.time()]))
        pipe.send(Finished(True, (), 0, self.rest_s))


class _Nodes:
    """Nodes on this machine, beside a head that runs no trials."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Simulated

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # its workers would leave this machine to whatever else it does, and nodes are what is meant
        os.environ.setdefault("RAY_worker_niceness", "0")
        root = str(Path(__file__).resolve().parents[3])
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before)))
        about = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        self._simulated: Any = Simulated(initialize_head=True, head_node_args=about)

    def add(self, cpus: int) -> Any:
        """Add a node with so many CPUs, and return it."""
        return self._simulated.add_node(
            num_cpus=cpus, object_store_memory=_STORE_BYTES, memory=_MEMORY_BYTES
        )

    def remove(self, node: Any) -> None:
        """Remove a node."""
        self._simulated.remove_node(node)

    def place(self) -> Cluster:
        """Return the cluster, to run trials on."""
        from orchestration.cluster.cluster import Cluster

        return Cluster(self._simulated.address)

    def end(self) -> None:
        """Leave the cluster and end it."""
        from orchestration.cluster.cluster import disconnect

        disconnect()
        self._simulated.shutdown()


@contextmanager
def _nodes() -> Iterator[_Nodes]:
    from orchestration.cluster.authentication import own_token

    with own_token():
        nodes = _Nodes()
        try:
            yield nodes
        finally:
            nodes.end()


def cluster() -> Outcome:
    """How busy 64 nodes are kept by trials of no work, and what a second node saves."""
    from orchestration.cluster.cluster import require_ray

    require_ray()
    busy, of_the_rest, resting = _busy()
    ratios, real = _two_of_one()
    load = os.getloadavg()[0]
    most = TRIALS / (-(-TRIALS // NODES) * NODES)
    two = at_most("two nodes' time, of one node's", min(ratios), SHARE_OF_TWO, 2)
    return Outcome(
        "Trials on a Ray cluster whose nodes are processes of this machine",
        (
            Figure(
                f"{NODES} nodes, {TRIALS:,} trials of no work: busy",
                f"{busy:.1%}",
                f"{BUSY:.0%} or more",
                busy >= BUSY,
            ),
            Figure("the same, until the last trial is handed out", f"{of_the_rest:.1%}"),
            two,
        ),
        (
            f"no work: {REST_S:g} s of waiting, and {LEFT_BYTES // 1000} kB to bring back; "
            f"{NODES} CPUs of {RAYLETS} raylets; busy: the time in trials, of the nodes' from the "
            f"first trial's begin to the last one's end, in which {most:.1%} would be the most",
            f"real: {REAL_TRIALS} emulated trials on one node of one CPU, then on two, "
            f"{ROUNDS} times in turns; the best is shown, all are "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}",
            f"the machine's load at the end: {load:.1f} on {os.cpu_count()} cores",
        ),
        {"resting": resting, "real": real},
    )


def _busy() -> tuple[float, float, dict[str, Any]]:
    """Return the share of the nodes' time in trials: in all, and until the last one's begin."""
    with _nodes() as nodes, bench_folder() as folder:
        for _ in range(RAYLETS):
            nodes.add(NODES // RAYLETS)
        seeds = count(1)
        # so that all nodes have their processes: shorter ones would all be done by the first nodes
        _rest(nodes.place(), 2 * NODES, REST_S, folder / "warm", seeds)
        times, lost = _rest(nodes.place(), TRIALS, REST_S, folder / "measured", seeds)
    begin, end = min(one for one, _ in times), max(one for _, one in times)
    last = max(one for one, _ in times)
    in_trials = sum(to - since for since, to in times)
    until_last = sum(min(to, last) - since for since, to in times)
    return (
        in_trials / (NODES * (end - begin)),
        until_last / (NODES * (last - begin)),
        {"wall_s": end - begin, "in_trials_s": in_trials, "lost": lost},
    )


def _rest(
    place: Cluster, trials: int, rest_s: float, folder: Path, seeds: Iterator[int]
) -> tuple[list[tuple[float, float]], int]:
    """Run trials that wait; return their begins and ends, and how many were lost meanwhile."""
    testbed, lost = load_testbed("graphcc"), 0
    waiting = deque(bench_trial((), MILLISECOND, seed=next(seeds)) for _ in range(trials))
    places: list[Path] = []
    workers, slots = place.workers(FluidBackend(), _Rest(rest_s)), place.slots()
    try:
        while waiting or len(workers):
            while waiting and len(workers) < slots:
                trial = waiting.popleft()
                workers.start(Job(trial, testbed, folder / trial.id, folder / f".{trial.id}"))
            for job, message in workers.messages(0.2):
                if isinstance(message, Failed):
                    raise RuntimeError(message.message)
                lost += isinstance(message, Lost)
                if isinstance(message, Finished):
                    places.append(job.folder)
    finally:
        workers.close()
    found = [json.loads((one / _TIMES).read_text()) for one in places]
    return [(since, to) for since, to in found], lost


class _Silent:
    """A listener that shows nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _two_of_one() -> tuple[list[float], list[dict[str, float]]]:
    """Return the times of real trials on two nodes of one CPU, as shares of those on one."""
    trials = [
        bench_trial(
            websearch(4 * MILLISECOND),
            4 * MILLISECOND,
            backend="emulated",
            seed=seed,
            repeat=seed,
            drain_ns=100 * MILLISECOND,
            cell={TUNER: SECN1.name},
        )
        for seed in range(1, REAL_TRIALS + 1)
    ]
    found = []
    with _nodes() as nodes, bench_folder() as folder:
        nodes.add(1)
        for number in range(ROUNDS):
            one_s = _wall_s(nodes.place(), trials, folder / f"one-{number}")
            second = nodes.add(1)
            two_s = _wall_s(nodes.place(), trials, folder / f"two-{number}")
            nodes.remove(second)
            found.append({"one_s": one_s, "two_s": two_s})
    return [row["two_s"] / row["one_s"] for row in found], found


def _wall_s(place: Cluster, trials: Sequence[TrialSpec], out: Path) -> float:
    cells = tuple({str(trial.cell): trial.cell for trial in trials}.values())
    campaign = Campaign("bench", out / "bench.yml", "", cells, tuple(trials))
    listener: Any = _Silent()
    summary = run_campaign(campaign, EmulatedBackend(), out, place.slots(), listener, place=place)
    if summary.failed:
        raise RuntimeError(next(iter(summary.failed.values())).message)
    return summary.wall_s
