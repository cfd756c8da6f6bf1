"""A Ray cluster as an executor of trials, and the connection to it."""

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
from orchestration.cluster.authentication import authenticated, no_cluster
from orchestration.cluster.launcher import joined_cluster, started_cluster
from orchestration.cluster.workers import ClusterWorkers, ObjectCache, TaskFactory, check_nodes
from orchestration.core.capabilities import mode_of
from orchestration.core.errors import InputError, NotReadyError, not_installed
from orchestration.core.machine import deferred_signals
from orchestration.core.ports import Backend
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.ssh import Secrets
from orchestration.run.executors import Executor, Work

# A node that must start its first Ray worker answers within some seconds. A busy node is slow,
# because Ray's workers have a niceness of 15.
_ANSWER_S = 300.0
# How many trials are handed out per CPU. When a trial ends, the next one is already waiting on the
# node and need not wait for this machine, which handles results one at a time.
_TRIALS_PER_CPU = 2

_ADDRESS = re.compile(r"(?!-)[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")

# The objects of the cluster that this process is connected to: none or one.
_object_cache: list[ObjectCache] = []


@dataclass(frozen=True)
class Cluster:
    """A running cluster as a `run.executors.Executor`, by its address: HOST:PORT or `auto`.

    A process that gets this object connects to the cluster when it uses it.
    """

    address: str
    forks = False

    def slots(self) -> int:
        """Return how many trials are handed out at a time: two per CPU, of which one waits."""
        cpus = sum(int(node["Resources"].get("CPU", 0)) for node in self._nodes())
        return _TRIALS_PER_CPU * cpus

    def description(self) -> str:
        """Return a line that describes the cluster."""
        nodes = self._nodes()
        cpus = sum(int(node["Resources"]["CPU"]) for node in nodes)
        return f"cluster {self.address}: {len(nodes)} nodes with {cpus} CPUs for trials"

    def check(
        self, backend: Backend, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec]
    ) -> None:
        """Check that all nodes can run these trials.

        Raises NotReadyError with the names of nodes that cannot, InputError for trials that can run
        on this machine only, and what the backend's own check raises.
        """
        if any(mode_of(trial).real_time for trial in trials):
            raise InputError.single(
                "--cluster",
                "trials on a rack or in real time run on one machine, one at a time",
                "leave out --cluster",
            )
        backend.check(testbed, 0, trials)
        nodes = {node["NodeID"]: _name(node) for node in self._nodes()}
        for name, problem in check_nodes(self._task_factory(backend), testbed, nodes, _ANSWER_S):
            if problem is not None:
                raise NotReadyError(p.at(f"node {name}") for p in problem.problems)

    def workers(self, backend: Backend, do: Work) -> ClusterWorkers:
        """Return workers on all nodes, including those that join later."""
        largest = max(int(node["Resources"].get("memory", 0)) for node in self._nodes())
        return ClusterWorkers(self._task_factory(backend, do), largest)

    def _task_factory(self, backend: Backend, do: Work | None = None) -> TaskFactory:
        put = _connected(self.address).put
        if not _object_cache:
            _object_cache.append(ObjectCache(put))
        return TaskFactory(backend, do or _no_work, _object_cache[0])

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have CPUs for trials. Raises NotReadyError if there are none."""
        ray = _connected(self.address)
        found = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        if not found:
            raise NotReadyError(
                f"no node of the cluster {self.address} has a CPU",
                "add one: ray start --address=HOST:PORT",
            )
        return found


def disconnect() -> None:
    """Disconnect from the cluster, if this process is connected to one."""
    import ray

    ray.shutdown()
    _object_cache.clear()


def _connected(address: str) -> Any:
    """Return the module `ray`, connected. Raises NotReadyError if the cluster does not answer."""
    import ray as ray_module

    ray: Any = ray_module
    if ray.is_initialized():
        return ray
    # Ray replaces the handler of SIGTERM, which stops a run in order; and it may turn Ctrl-C into
    # any exception while it connects
    try:
        with deferred_signals(lambda: None) as signals:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise no_cluster(address, str(error).strip().splitlines()[0]) from error
    if signals:
        raise KeyboardInterrupt
    # Ray would print the nodes' logs to standard output, where results are printed. There is no
    # option.
    ray._private.worker._worker_logs_enabled = False
    return ray


def _name(node: dict[str, Any]) -> str:
    return str(node["NodeName"] or node["NodeManagerAddress"])


def _no_work(job: Any, backend: Backend, pipe: Any, parent: int) -> None:
    """Do nothing: a task that checks whether a node is ready has no job."""


@contextmanager
def executor(cluster: str) -> Iterator[Executor]:
    """Yield the cluster that the option --cluster names; disconnect from it or stop it at the end.

    Raises InputError if it does not name a cluster, NotReadyError if the cluster is not ready.
    """
    if find_spec("ray") is None:
        raise not_installed("a cluster", "Ray", "cluster")
    with ExitStack() as ends:
        address = cluster
        if cluster.endswith((".yml", ".yaml")):
            machines = load_machines(Path(cluster))
            address = ends.enter_context(
                started_cluster(machines, Secrets.of_environment(), _report)
            )
        elif _ADDRESS.fullmatch(cluster):
            ends.enter_context(joined_cluster(cluster, _report))
        elif cluster == "auto":
            ends.enter_context(authenticated(cluster, _report))
        else:
            remedy = (
                "use HOST:PORT of a Ray cluster, auto for this machine's, or an inventory's .yml"
            )
            raise InputError.single("--cluster", f"{cluster!r} is not a cluster", remedy)
        ends.callback(disconnect)
        ray_cluster = Cluster(address)
        _report(ray_cluster.description())
        yield ray_cluster


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
