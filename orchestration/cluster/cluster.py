"""A Ray cluster as a place where trials run, and the connection to it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inventory.ansible import load_machines
from orchestration.cluster.authentication import admitted, no_cluster
from orchestration.cluster.launcher import joined, started
from orchestration.cluster.workers import ClusterWorkers, Objects, Offers, ask_nodes
from orchestration.core.capabilities import mode_of
from orchestration.core.errors import InputError, NotReadyError, not_installed
from orchestration.core.machine import noted_signals
from orchestration.core.ports import Backend
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.ssh import Secrets
from orchestration.run.executors import Executor, Work

# A node that has its first Ray worker to start answers in some seconds; a busy one is slow, since
# Ray's workers have a niceness of 15.
_ANSWER_S = 300.0
# Handed out, as a multiple of the CPUs: each that is done finds the next trial waiting, and need
# not wait for this machine, which takes results in one at a time.
_HANDED_OUT = 2

_ADDRESS = re.compile(r"(?!-)[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")

# Of the cluster that this process is connected to.
_objects: list[Objects] = []


@dataclass(frozen=True)
class Cluster:
    """A running cluster by its address, HOST:PORT or `auto`. Processes that are given it connect.

    As `run.executors.Executor`.
    """

    address: str
    forks = False

    def slots(self) -> int:
        """Return how many trials are handed out at once: one a CPU, and as many that wait."""
        cpus = sum(int(node["Resources"].get("CPU", 0)) for node in self._nodes())
        return _HANDED_OUT * cpus

    def in_words(self) -> str:
        """Return what the cluster is, in a line."""
        nodes = self._nodes()
        cpus = sum(int(node["Resources"]["CPU"]) for node in nodes)
        return f"cluster {self.address}: {len(nodes)} nodes with {cpus} CPUs for trials"

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Raise NotReadyError if some node cannot run these trials, by its name.

        Raises InputError for trials that need this machine, and what the backend raises of itself.
        """
        if any(mode_of(trial).real_time for trial in trials):
            raise InputError.single(
                "--cluster",
                "trials on a rack and in real time run on one machine, one at a time",
                "leave it out",
            )
        backend.check(testbed, 0, trials)
        nodes = {node["NodeID"]: _name(node) for node in self._nodes()}
        for name, problem in ask_nodes(self._offers(backend), testbed, nodes, _ANSWER_S):
            if problem is not None:
                raise NotReadyError(one.at(f"node {name}") for one in problem.problems)

    def workers(self, backend: Backend, do: Work) -> ClusterWorkers:
        """Return workers on all nodes, those included that join later."""
        largest = max(int(node["Resources"].get("memory", 0)) for node in self._nodes())
        return ClusterWorkers(self._offers(backend, do), largest)

    def _offers(self, backend: Backend, do: Work | None = None) -> Offers:
        put = _connected(self.address).put
        if not _objects:
            _objects.append(Objects(put))
        return Offers(backend, do or _nothing, _objects[0])

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have CPUs for trials."""
        ray = _connected(self.address)
        found = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        if not found:
            raise NotReadyError(
                f"no node of the cluster {self.address} has a CPU",
                "add one: ray start --address=HOST:PORT",
            )
        return found


def disconnect() -> None:
    """Leave the cluster, if this process is connected to one."""
    import ray

    ray.shutdown()
    _objects.clear()


def _connected(address: str) -> Any:
    """Return Ray, connected. Raises NotReadyError if the cluster does not answer."""
    import ray as imported

    ray: Any = imported
    if ray.is_initialized():
        return ray
    # Ray takes over SIGTERM, by which a run is stopped in order, and a Ctrl-C while it connects
    # comes out of it as any error
    try:
        with noted_signals(lambda: None) as seen:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise no_cluster(address, str(error).strip().splitlines()[0]) from error
    if seen:
        raise KeyboardInterrupt
    # It would print what nodes log on standard output, where results go. There is no option.
    ray._private.worker._worker_logs_enabled = False
    return ray


def _name(node: dict[str, Any]) -> str:
    return str(node["NodeName"] or node["NodeManagerAddress"])


def _nothing(job: Any, backend: Backend, pipe: Any, parent: int) -> None:
    """Do nothing: the question whether a node is ready has no job."""


@contextmanager
def executor(cluster: str) -> Iterator[Executor]:
    """Yield the cluster that an option names; leave or stop it at the end.

    Raises InputError for what names none, NotReadyError for one that is not ready.
    """
    if find_spec("ray") is None:
        raise not_installed("a cluster", "Ray", "cluster")
    with ExitStack() as ends:
        address = cluster
        if cluster.endswith((".yml", ".yaml")):
            machines = load_machines(Path(cluster))
            address = ends.enter_context(started(machines, Secrets.of_environment(), _say))
        elif _ADDRESS.fullmatch(cluster):
            ends.enter_context(joined(cluster, _say))
        elif cluster == "auto":
            ends.enter_context(admitted(cluster, _say))
        else:
            remedy = (
                "use HOST:PORT of a Ray cluster, auto for this machine's, or an inventory's .yml"
            )
            raise InputError.single("--cluster", f"{cluster!r} is no cluster", remedy)
        ends.callback(disconnect)
        place = Cluster(address)
        _say(place.in_words())
        yield place


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
