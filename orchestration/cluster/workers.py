"""Trials as tasks of Ray: submits them, reads their messages, runs lost ones again, cancels them.

The driver, which is the process that runs the campaign, writes the journal and the run folders. A
task gets one CPU and the memory that its trial is planned to take. Ray does not retry tasks: a lost
task is submitted again by this module, so that the journal records it, and so that a trial that
takes every node down does not run for ever.
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
from orchestration.cluster.host import run_task
from orchestration.cluster.tasks import (
    TaskKind,
    cache_name,
    code_versions,
    input_files,
    write_files,
)
from orchestration.core.errors import TrialError
from orchestration.core.files import sha256_of
from orchestration.core.ports import Backend, Bundled, TrialBundle
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import STOP_GRACE_S, Work
from orchestration.run.worker import Failed, Finished, Job, Lost, Message
from traffic.schedule import make_schedule

# A trial that was lost this often fails, because it may be what kills the nodes.
MAX_LOSSES = 3
# The memory of a trial whose backend does not plan it: a Python process with its tables.
_PLAIN_BYTES = 512 << 20
# Objects are forgotten beyond this number: a training makes a new network after each round.
_MAX_OBJECTS = 512
# Memory sizes are rounded up to this step: Ray runs tasks of one size on the same workers, and
# starts others for another size.
_STEP_BYTES = 256 << 20
# How long a node may take to notice that a trial is cancelled, and to clean up.
_STOP_S = 2 * STOP_GRACE_S + 5.0
_TICK_S = 0.2
# A message has some megabytes at most. A trial whose message does not arrive in this time is lost.
_ARRIVAL_S = 60.0


@dataclass(eq=False)
class _Task:
    job: Job
    begin_s: float
    stream: Any = None
    losses: int = 0


class ObjectCache:
    """References to objects in Ray's object store, by hash: each content is stored there once.

    Those that were not used for the longest time are forgotten. Ray keeps objects that a task
    needs.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._refs: OrderedDict[str, Any] = OrderedDict()

    def of_bytes(self, content: bytes) -> Any:
        """Return a reference to an object with this content."""
        return self._object(hashlib.sha256(content).hexdigest(), content)

    def of_value(self, value: Any) -> Any:
        """Return a reference to this value, which is pickled to recognise it."""
        return self._object(f"value {hashlib.sha256(pickle.dumps(value)).hexdigest()}", value)

    def _object(self, key: str, value: Any) -> Any:
        if key not in self._refs:
            self._refs[key] = self._put(value)
        self._refs.move_to_end(key)
        while len(self._refs) > _MAX_OBJECTS:
            self._refs.popitem(last=False)
        return self._refs[key]


class TaskFactory:
    """Makes the arguments of Ray's tasks, for all tasks of one kind."""

    def __init__(self, backend: Backend, do: Work, objects: ObjectCache) -> None:
        self._backend = backend
        self._objects = objects
        bundled = backend if isinstance(backend, Bundled) else None
        bundle = bundled.bundle() if bundled else TrialBundle()
        cache = cache_name({name: sha256_of(str(p)) for name, p in bundle.files.items()})
        variables = {name: os.environ[name] for name in OTHER_CPU if name in os.environ}
        pickled = pickle.dumps((backend, do))
        file_variables = dict(bundle.variables)
        self._kind = TaskKind(
            pickled, os.getcwd(), code_versions(), variables, file_variables, cache
        )
        self._cache_refs = {
            name: objects.of_bytes(path.read_bytes()) for name, path in bundle.files.items()
        }
        self._bundled = bundled
        self._flows: dict[object, int] = {}
        self._testbed_refs: dict[int, tuple[Testbed, Any]] = {}

    def arguments(self, trial: TrialSpec | None, testbed: Testbed) -> tuple[Any, ...]:
        """Return the arguments of `host.run_task` for a trial, or without one for a check."""
        paths = input_files(trial) if trial else []
        refs = {os.path.abspath(path): self._objects.of_bytes(path.read_bytes()) for path in paths}
        if id(testbed) not in self._testbed_refs:  # it is kept, so that no other object gets its id
            self._testbed_refs[id(testbed)] = (testbed, self._objects.of_value(testbed))
        _, testbed_ref = self._testbed_refs[id(testbed)]
        return self._objects.of_value(self._kind), testbed_ref, trial, refs, self._cache_refs

    def memory_bytes(self, trial: TrialSpec, testbed: Testbed) -> int:
        """Return the memory that a trial is planned to take, rounded up."""
        needed = _PLAIN_BYTES
        if self._bundled is not None:
            key = (testbed.name, trial.traffic, trial.seed, trial.duration_ns, trial.warm_up_ns)
            if key not in self._flows:
                self._flows[key] = len(make_schedule(trial, testbed))
            needed = self._bundled.memory_bytes(trial, testbed, self._flows[key])
        return -(-needed // _STEP_BYTES) * _STEP_BYTES


class ClusterWorkers:
    """The trials that run on a cluster, as `run.executors.Workers`."""

    def __init__(self, factory: TaskFactory, largest_bytes: int) -> None:
        import ray

        self._ray = ray
        self._factory = factory
        self._largest_bytes = largest_bytes
        # no retries by Ray: see the module's docstring
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_task)
        self._tasks: list[_Task] = []
        self._immediate: list[tuple[Job, Message]] = []
        self._force_close = False

    def __len__(self) -> int:
        return len(self._tasks) + len(self._immediate)

    def start(self, job: Job) -> None:
        """Submit a job. Ray queues it if no node is free."""
        memory_bytes = self._factory.memory_bytes(job.trial, job.testbed)
        if memory_bytes > self._largest_bytes:
            needed, maximum = memory_bytes >> 20, self._largest_bytes >> 20
            problem = f"it is planned to take {needed} MiB, and no node has more than {maximum} MiB"
            remedy = "add a larger node; or a longer sample_period, which needs less"
            self._immediate.append((job, Failed.of(TrialError(problem, remedy))))
            return
        task = _Task(job, time.monotonic())
        self._submit(task)
        self._tasks.append(task)

    def messages(self, timeout_s: float) -> Iterator[tuple[Job, Message]]:
        """Yield the messages of trials that arrive within `timeout_s` seconds, with their jobs."""
        while self._immediate:
            yield self._immediate.pop()
        for task in self._ready_tasks(timeout_s):
            message = self._next_message(task)
            if isinstance(message, Finished | Failed):
                self._tasks.remove(task)
            yield task.job, message

    def close(self) -> None:
        """Cancel all trials, and wait until the nodes have cleaned up."""
        self._immediate.clear()
        for task in self._tasks:
            self._ray.cancel(task.stream, force=False)
        until_s = time.monotonic() + _STOP_S
        while self._tasks and not self._force_close and time.monotonic() < until_s:
            for task in self._ready_tasks(_TICK_S):
                if self._has_ended(task):
                    self._tasks.remove(task)
        for task in self._tasks:
            self._ray.cancel(task.stream, force=True)
        self._tasks.clear()

    def kill(self) -> None:
        """Make `close` end Ray's workers at once. Their host processes clean up by themselves."""
        self._force_close = True

    def _ready_tasks(self, timeout_s: float) -> Sequence[_Task]:
        """Return the tasks that have a message, or have ended, within `timeout_s` seconds."""
        if not self._tasks:
            return ()
        tasks = {id(task.stream): task for task in self._tasks}
        streams = [task.stream for task in self._tasks]
        wait = self._ray.wait
        ready, _ = wait(streams, num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:
            ready, _ = wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        return [tasks[id(stream)] for stream in ready]

    def _submit(self, task: _Task) -> None:
        trial, testbed = task.job.trial, task.job.testbed
        options = self._task.options(memory=self._factory.memory_bytes(trial, testbed))
        task.stream = options.remote(*self._factory.arguments(trial, testbed))

    def _next_message(self, task: _Task) -> Message:
        """Return the next message of a task that has one, or has ended.

        If a stream has ended, Ray's `next`, `is_finished` and `next_ready` wait for the task's own
        result without a time limit, and the result of a cancelled task may never come. So such a
        stream is recognised by `_stream_exhausted`.
        """
        try:
            if task.stream._stream_exhausted():
                self._ray.get(task.stream.completed(), timeout=_ARRIVAL_S)
                return self._failed(task, "its task ended without a result", "")
            message, files = self._ray.get(next(task.stream), timeout=_ARRIVAL_S)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(task.stream, force=True)
            return self._lost(task, f"its message did not arrive in {_ARRIVAL_S:.0f} s")
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
                write_files(task.job.folder, files)
            except OSError as error:
                problem = f"its results cannot be written to {task.job.folder.parent}: {error}"
                return self._failed(task, problem, "")
        assert isinstance(message, Message)
        return message

    def _lost(self, task: _Task, reason: str) -> Message:
        task.losses += 1
        if task.losses >= MAX_LOSSES:
            return self._failed(
                task, f"it was lost {task.losses} times, at last because: {reason}", ""
            )
        self._submit(task)
        return Lost(reason)

    def _failed(self, task: _Task, message: str, console: str) -> Failed:
        remedy = "see Ray's logs of the node; if memory was short there, give Ray less of it"
        error = TrialError(message, remedy, console)
        return Failed.of(error, time.monotonic() - task.begin_s)

    def _has_ended(self, task: _Task) -> bool:
        """Return whether a cancelled task has ended. A message that it sent before is dropped."""
        if task.stream._stream_exhausted():  # `next` could wait for ever: see `_next_message`
            return True
        try:
            self._ray.get(next(task.stream), timeout=_TICK_S)
        except self._ray.exceptions.GetTimeoutError:  # its message is on a node that is lost
            return False
        except (StopIteration, self._ray.exceptions.RayError):
            return True
        return False


def check_nodes(
    factory: TaskFactory, testbed: Testbed, nodes: Mapping[str, str], timeout_s: float
) -> Iterator[tuple[str, Failed | None]]:
    """Yield each node's name, and why it cannot run trials, or None if it can.

    `nodes` are names by Ray's ids of nodes. A node that is lost meanwhile is left out. Raises
    TrialError if a node does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(run_task)
    streams: dict[str, Any] = {
        node: task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(*factory.arguments(None, testbed))
        for node in nodes
    }
    until_s = time.monotonic() + timeout_s
    for node, stream in streams.items():
        left_s = max(0.0, until_s - time.monotonic())
        ready, _ = ray.wait([stream], timeout=left_s, fetch_local=False)
        if not ready:
            raise TrialError(f"node {nodes[node]} does not answer", "see `ray status` there")
        try:
            message, _ = ray.get(next(stream))
        except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
            continue
        except ray.exceptions.RayError as error:
            last_line = str(error).strip().splitlines()[-1]
            install = "install it there: pip install 'closloop[cluster]'"
            message = Failed.of(
                TrialError(last_line, install if "No module named" in last_line else "")
            )
        yield nodes[node], message if isinstance(message, Failed) else None
