"""What runs on a node: the host process, which runs trials, and the Ray task that gives it trials.

    python -m orchestration.cluster.host FD      FD is a socket to the Ray worker

The host process runs trials one at a time, each in a process that is forked from it. It has no
threads and does not import Ray, so that a trial is forked, watched and stopped by the same code as
on one machine. A Ray worker has threads, and Ray may end it at any time. It starts the host process
with its first trial. The host process ends, and leaves nothing behind, when the other end of the
socket is closed for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from orchestration.cluster.tasks import (
    Task,
    TaskKind,
    code_versions,
    missing_in,
    node_cache,
    read_files,
    write_executable,
)
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.files import COPIED_FILES_ROOT
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import STOP_GRACE_S, ProcessPool
from orchestration.run.worker import Failed, Finished, Job, Message, Progressed

# (message, the files that the job has written, if it is done)
Reply = tuple[Message, dict[str, bytes]]
READY = Finished(True, (), 0, 0.0)

_TICK_S = 0.1
_PROGRESS_EVERY_S = 1.0
_PREFIX = f"closloop-node-{os.getuid()}-"


def main() -> None:
    """Run tasks until the socket is closed."""
    os.set_inheritable(int(sys.argv[1]), False)  # only this process may hold it open
    connection = Connection(int(sys.argv[1]))
    with _scratch() as scratch:
        while True:
            try:
                task: Task = connection.recv()
                _serve(task, connection, scratch)
            except (EOFError, OSError):
                return


def _serve(task: Task, connection: Connection, scratch: Path) -> None:
    """Run a task. Raises EOFError or ConnectionError if the Ray worker has closed the socket."""
    folder = scratch / "trial"
    try:
        _set_up(task, folder / "brought")
        if task.trial is None:
            connection.send((_readiness(task), {}))
        else:
            _run(task, task.trial, connection, folder)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # such as a full disk, or a package that is not installed here
        connection.send((Failed.of(error), {}))
    finally:
        os.chdir(scratch)
        shutil.rmtree(folder, ignore_errors=True)


def _set_up(task: Task, root: Path) -> None:
    """Give this process the files, working folder and variables of the planning process."""
    kind = task.kind
    for name, content in task.files.items():
        path = Path(f"{root}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    working = Path(f"{root}{kind.folder}")
    working.mkdir(parents=True, exist_ok=True)
    os.chdir(working)
    os.environ.update(kind.variables)
    os.environ[COPIED_FILES_ROOT] = str(root)
    os.environ["XDG_CACHE_HOME"] = task.cache
    os.environ.update({name: f"{task.cache}/{file}" for name, file in kind.file_variables.items()})


def _readiness(task: Task) -> Message:
    backend, _ = pickle.loads(task.kind.pickled)
    try:
        backend.check(task.testbed, 1, ())
    except ClosloopError as error:
        return Failed.of(error)
    return READY


def _run(task: Task, trial: TrialSpec, connection: Connection, folder: Path) -> None:
    backend, do = pickle.loads(task.kind.pickled)
    job = Job(trial, task.testbed, folder / "kept" / trial.id, folder / "work")
    pool = ProcessPool(backend, do)
    sent_s = -_PROGRESS_EVERY_S
    try:
        pool.start(job)
        while len(pool):
            for _, message in pool.messages(_TICK_S):
                if isinstance(message, Progressed):
                    if message.wall_s - sent_s < _PROGRESS_EVERY_S:
                        continue
                    sent_s = message.wall_s
                done = isinstance(message, Finished)
                connection.send((message, read_files(job.folder) if done else {}))
            if len(pool) and connection.poll():
                raise EOFError  # the socket was closed: no task is sent before this one is done
    finally:
        pool.close()


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder of this process; remove those that killed processes have left."""
    base = Path(tempfile.gettempdir())
    for abandoned in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_unless_held(abandoned)
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=base))
    lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # a folder gets the name by which abandoned ones are found only once it is locked
    folder = hidden.rename(base / hidden.name.removeprefix("."))
    try:
        yield folder
    finally:
        os.chdir(base)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_unless_held(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)


_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.2


class Host:
    """The host process of this Ray worker."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        self._connection = Connection(os.dup(self._socket.fileno()))
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        python = [sys.executable, "-P", "-m", "orchestration.cluster.host", str(other.fileno())]
        # It is not a child of this process: Ray kills the children of a worker that ends at once.
        subprocess.run(
            ["setsid", "--fork", *python],
            pass_fds=[other.fileno()],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            check=True,
        )
        other.close()

    def replies(self, task: Task) -> Iterator[Reply]:
        """Send the process a task, and yield its replies until the task is done.

        Raises ChildProcessError if the process ends before that.
        """
        message: Any = None
        try:
            self._connection.send(task)
            while message is None or isinstance(message, Progressed):
                while not self._connection.poll(_POLL_S):
                    pass  # Ray interrupts a task that is cancelled between two polls
                message, files = self._connection.recv()
                yield message, files
        except (EOFError, OSError) as error:
            raise ChildProcessError("the node's host process ended") from error

    def end(self) -> None:
        """Stop the running task, and wait until the process has cleaned up."""
        self._socket.shutdown(socket.SHUT_WR)
        with suppress(EOFError, OSError):
            while self._connection.poll(2 * STOP_GRACE_S):
                self._connection.recv()
        self._connection.close()
        self._socket.close()


_host: list[Host] = []


def run_task(
    kind: TaskKind,
    testbed: Testbed,
    trial: TrialSpec | None,
    refs: Mapping[str, Any],
    cache_refs: Mapping[str, Any],
) -> Iterator[Reply]:
    """Run a trial on this node, or without a trial, check whether the node could run one.

    This is a generator task of Ray, which yields the host process's replies. `kind` and `testbed`
    are passed as references, which Ray replaces by the objects. `refs` are references to the
    contents of the trial's files, and `cache_refs` to those of the cache.
    """
    if problem := version_difference(kind):
        yield problem, {}
        return
    import ray

    try:
        cache = node_cache(kind)
        for name in missing_in(cache, cache_refs):
            write_executable(cache / name, ray.get(cache_refs[name]))
        files = dict(zip(refs, ray.get(list(refs.values())), strict=True))
        if not _host:
            _host.append(Host())
        yield from _host[0].replies(Task(kind, testbed, trial, files, str(cache)))
    except BaseException:
        # also if the task is cancelled: the next task gets a new host process
        while _host:
            with suppress(OSError):
                _host.pop().end()
        raise


def version_difference(kind: TaskKind) -> Failed | None:
    """Return the failure if this node's versions differ from those of the planning machine."""
    here_versions, their_versions = code_versions(), kind.versions
    for name in sorted({*here_versions, *their_versions}):
        here, there = here_versions.get(name, "none"), their_versions.get(name, "none")
        if here != there:
            problem = f"it has {name} {here}, and the machine that plans the trials has {there}"
            remedy = "install the same version: pip install 'closloop[cluster]', of the same commit"
            return Failed.of(NotReadyError(problem, remedy))
    return None


if __name__ == "__main__":
    main()
