"""Trials as tasks of Ray: handed out, listened to, run again when a node is lost, cancelled.

The driver keeps the journal and writes the run folders; a task has one CPU and the memory that its
trial is planned to take. Ray does not retry tasks: a lost one is handed out again here, so that the
journal says so, and a trial that takes every node down does not run for ever.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestration.backends.emulated.launcher import OTHER_CPU
from orchestration.cluster.host import carry_out
from orchestration.cluster.tasks import (
    TaskKind,
    cache_name,
    described,
    own_files,
    unpack,
)
from orchestration.core.errors import TrialError
from orchestration.core.files import sha256_of
from orchestration.core.ports import Backend, Bundled, TrialBundle
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import STOP_GRACE_S, Work
from orchestration.run.worker import Failed, Finished, Job, Lost, Message
from traffic.schedule import make_schedule

# A trial that was lost so often fails: it may be what kills the nodes.
MAX_LOSSES = 3
# What a trial takes whose backend does not say it: a Python process with its tables.
_PLAIN_BYTES = 512 << 20
# A training makes a new network after each round.
_MAX_OBJECTS = 512
# Ray hands tasks of one size to one worker after the other, and looks anew for another size.
_STEP_BYTES = 256 << 20
# A node has so long to learn that a trial is cancelled, and to clean up.
_STOP_S = 2 * STOP_GRACE_S + 5.0
_TICK_S = 0.2
# What a trial said is some megabytes at most; one that does not come in this time is lost.
_ARRIVES_S = 60.0


@dataclass(eq=False)
class _Task:
    job: Job
    begin_s: float
    stream: Any = None
    losses: int = 0


class Objects:
    """What is in Ray's object store, by its hash: each content is put there once.

    Those that were not used for longest are forgotten; Ray keeps what a task still needs.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._refs: OrderedDict[str, Any] = OrderedDict()

    def of_bytes(self, content: bytes) -> Any:
        """Return the object of a content."""
        return self._object(hashlib.sha256(content).hexdigest(), content)

    def of_value(self, value: Any) -> Any:
        """Return the object of a value, which is pickled to tell whether it is known."""
        return self._object(f"value {hashlib.sha256(pickle.dumps(value)).hexdigest()}", value)

    def _object(self, key: str, value: Any) -> Any:
        if key not in self._refs:
            self._refs[key] = self._put(value)
        self._refs.move_to_end(key)
        while len(self._refs) > _MAX_OBJECTS:
            self._refs.popitem(last=False)
        return self._refs[key]


class Offers:
    """Makes the tasks of one kind of job: what goes to the nodes with every one of them."""

    def __init__(self, backend: Backend, do: Work, objects: Objects) -> None:
        self._backend = backend
        self._objects = objects
        travels = backend if isinstance(backend, Bundled) else None
        luggage = travels.bundle() if travels else TrialBundle()
        cache = cache_name({name: sha256_of(str(p)) for name, p in luggage.files.items()})
        variables = {name: os.environ[name] for name in OTHER_CPU if name in os.environ}
        pickled = pickle.dumps((backend, do))
        named = dict(luggage.variables)
        self._duty = TaskKind(pickled, os.getcwd(), described(), variables, named, cache)
        self._luggage = {
            name: objects.of_bytes(path.read_bytes()) for name, path in luggage.files.items()
        }
        self._travels = travels
        self._flows: dict[object, int] = {}
        self._testbeds: dict[int, tuple[Testbed, Any]] = {}

    def arguments(self, trial: TrialSpec | None, testbed: Testbed) -> tuple[Any, ...]:
        """Return the arguments of the task that runs a trial, or asks a node whether it could."""
        paths = own_files(trial) if trial else []
        refs = {os.path.abspath(path): self._objects.of_bytes(path.read_bytes()) for path in paths}
        if id(testbed) not in self._testbeds:  # it is kept, so that nothing else gets its id
            self._testbeds[id(testbed)] = (testbed, self._objects.of_value(testbed))
        _, bed = self._testbeds[id(testbed)]
        return self._objects.of_value(self._duty), bed, trial, refs, self._luggage

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed) -> int:
        """Return the memory that a trial is planned to take."""
        needed = _PLAIN_BYTES
        if self._travels is not None:
            key = (testbed.name, trial.traffic, trial.seed, trial.duration_ns, trial.warm_up_ns)
            if key not in self._flows:
                self._flows[key] = len(make_schedule(trial, testbed))
            needed = self._travels.memory_bytes(trial, testbed, self._flows[key])
        return -(-needed // _STEP_BYTES) * _STEP_BYTES


class ClusterWorkers:
    """Trials under way on a cluster: as `run.executors.Workers`."""

    def __init__(self, offers: Offers, largest_bytes: int) -> None:
        import ray

        self._ray = ray
        self._offers = offers
        self._largest_bytes = largest_bytes
        # no retries by Ray: see above
        self._task = ray.remote(num_cpus=1, max_retries=0)(carry_out)
        self._tasks: list[_Task] = []
        self._at_once: list[tuple[Job, Message]] = []
        self._impatient = False

    def __len__(self) -> int:
        return len(self._tasks) + len(self._at_once)

    def start(self, job: Job) -> None:
        """Hand a job out; Ray queues it if no node is free."""
        memory_bytes = self._offers.memory_bytes(job.trial, job.testbed)
        if memory_bytes > self._largest_bytes:
            needed, maximum = memory_bytes >> 20, self._largest_bytes >> 20
            what = f"it is planned to take {needed} MiB, and no node has more than {maximum} MiB"
            remedy = "add a larger node; or a longer sample_period, which needs less"
            self._at_once.append((job, Failed.of(TrialError(what, remedy))))
            return
        task = _Task(job, time.monotonic())
        self._hand_out(task)
        self._tasks.append(task)

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield what trials say within `timeout_s`."""
        while self._at_once:
            yield self._at_once.pop()
        for task in self._heard(timeout_s):
            message = self._said(task)
            if isinstance(message, Finished | Failed):
                self._tasks.remove(task)
            yield task.job, message

    def close(self) -> None:
        """Cancel all trials, and wait until nodes have cleaned up."""
        self._at_once.clear()
        for task in self._tasks:
            self._ray.cancel(task.stream, force=False)
        until_s = time.monotonic() + _STOP_S
        while self._tasks and not self._impatient and time.monotonic() < until_s:
            for task in self._heard(_TICK_S):
                if self._has_ended(task):
                    self._tasks.remove(task)
        for task in self._tasks:
            self._ray.cancel(task.stream, force=True)
        self._tasks.clear()

    def kill(self) -> None:
        """Have `close` end Ray's workers at once; their hosts clean up without them."""
        self._impatient = True

    def _heard(self, timeout_s: float) -> Sequence[_Task]:
        """Return the tasks that have something to say, or have ended, within `timeout_s`."""
        if not self._tasks:
            return ()
        tasks = {id(task.stream): task for task in self._tasks}
        streams = [task.stream for task in self._tasks]
        wait = self._ray.wait
        ready, _ = wait(streams, num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:
            ready, _ = wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        return [tasks[id(stream)] for stream in ready]

    def _hand_out(self, task: _Task) -> None:
        trial, testbed = task.job.trial, task.job.testbed
        made = self._task.options(memory=self._offers.memory_bytes(trial, testbed))
        task.stream = made.remote(*self._offers.arguments(trial, testbed))

    def _said(self, task: _Task) -> Message:
        """Return the next message of a task that has one, or has ended.

        Of a stream that has ended Ray's `next`, `is_finished` and `next_ready` wait for the task's
        own result without a limit, and for one that was cancelled it may never come.
        """
        try:
            if task.stream._stream_exhausted():
                self._ray.get(task.stream.completed(), timeout=_ARRIVES_S)
                return self._failed(task, "its task ended without a result", "")
            message, files = self._ray.get(next(task.stream), timeout=_ARRIVES_S)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(task.stream, force=True)
            return self._lost(task, f"what it said did not arrive in {_ARRIVES_S:.0f} s")
        except StopIteration:
            return self._failed(task, "its task ended without a result", "")
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ChildProcessError):
                return self._lost(task, str(error.cause))
            return self._failed(task, f"unexpected {error.cause!r}", str(error))
        except self._ray.exceptions.RayError as error:
            return self._lost(task, str(error).partition("\n")[0])
        if isinstance(message, Finished):
            try:
                unpack(task.job.folder, files)
            except OSError as error:
                what = f"its results cannot be written to {task.job.folder.parent}: {error}"
                return self._failed(task, what, "")
        assert isinstance(message, Message)
        return message

    def _lost(self, task: _Task, reason: str) -> Message:
        task.losses += 1
        if task.losses >= MAX_LOSSES:
            return self._failed(task, f"it was lost {task.losses} times, last so: {reason}", "")
        self._hand_out(task)
        return Lost(reason)

    def _failed(self, task: _Task, message: str, console: str) -> Failed:
        remedy = "see Ray's logs of the node; if memory was short there, give Ray less of it"
        error = TrialError(message, remedy, console)
        return Failed.of(error, time.monotonic() - task.begin_s)

    def _has_ended(self, task: _Task) -> bool:
        """Return whether a cancelled task has ended, or else said something before that."""
        if task.stream._stream_exhausted():  # `next` could wait for ever: see `_said`
            return True
        try:
            self._ray.get(next(task.stream), timeout=_TICK_S)
        except self._ray.exceptions.GetTimeoutError:  # what it said is on a node that is lost
            return False
        except (StopIteration, self._ray.exceptions.RayError):
            return True
        return False


def ask_nodes(
    offers: Offers, testbed: Testbed, nodes: Mapping[str, str], timeout_s: float
) -> Iterator[tuple[str, Failed | None]]:
    """Yield each node's name, and what is wrong there if it cannot run trials.

    `nodes` are names by Ray's ids. One that is lost meanwhile is left out. Raises TrialError if a
    node does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(carry_out)
    asked: dict[str, Any] = {
        node: task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(*offers.arguments(None, testbed))
        for node in nodes
    }
    until_s = time.monotonic() + timeout_s
    for node, stream in asked.items():
        left_s = max(0.0, until_s - time.monotonic())
        ready, _ = ray.wait([stream], timeout=left_s, fetch_local=False)
        if not ready:
            raise TrialError(f"node {nodes[node]} does not answer", "see `ray status` there")
        try:
            message, _ = ray.get(next(stream))
        except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
            continue
        except ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[-1]
            install = "install it there: pip install 'closloop[cluster]'"
            message = Failed.of(TrialError(said, install if "No module named" in said else ""))
        yield nodes[node], message if isinstance(message, Failed) else None
