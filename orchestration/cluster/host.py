"""A node's part: the process that runs its trials, and what gives it orders in a Ray worker.

    python -m orchestration.cluster.host FD      FD is a socket to the process that gives orders

The host process runs trials one at a time, each in a process forked from it. It has no threads and
does not import Ray, so that a trial is forked, watched and stopped by the same code as on one
machine. A Ray worker has threads, and lives as long as Ray likes: it starts the host process with
its first trial. That ends when the other end of the socket is closed, for whatever reason, and then
leaves nothing behind.
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
    described,
    missing_in,
    node_cache,
    packed,
    put,
)
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.files import BROUGHT
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.executors import STOP_GRACE_S, ProcessPool
from orchestration.run.worker import Failed, Finished, Job, Message, Progressed

# (message, the files that the job leaves, if it is done)
Said = tuple[Message, dict[str, bytes]]
DONE = Finished(True, (), 0, 0.0)

_TICK_S = 0.1
_PROGRESS_EVERY_S = 1.0
_PREFIX = f"closloop-node-{os.getuid()}-"


def main() -> None:
    """Serve orders until the socket closes."""
    os.set_inheritable(int(sys.argv[1]), False)  # nothing but this process shall hold it open
    connection = Connection(int(sys.argv[1]))
    with _scratch() as scratch:
        while True:
            try:
                order: Task = connection.recv()
                _serve(order, connection, scratch)
            except (EOFError, OSError):
                return


def _serve(order: Task, connection: Connection, scratch: Path) -> None:
    """Carry an order out. Raises EOFError or ConnectionError if nobody wants it any longer."""
    folder = scratch / "trial"
    try:
        _enter(order, folder / "brought")
        if order.trial is None:
            connection.send((_readiness(order), {}))
        else:
            _run(order, order.trial, connection, folder)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # such as a full disk, or a backend of a package that is not here
        connection.send((Failed.of(error), {}))
    finally:
        os.chdir(scratch)
        shutil.rmtree(folder, ignore_errors=True)


def _enter(order: Task, root: Path) -> None:
    """Make this process like the one that planned the trial: its files, folder and variables."""
    duty = order.duty
    for name, content in order.files.items():
        path = Path(f"{root}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    working = Path(f"{root}{duty.folder}")
    working.mkdir(parents=True, exist_ok=True)
    os.chdir(working)
    os.environ.update(duty.variables)
    os.environ[BROUGHT] = str(root)
    os.environ["XDG_CACHE_HOME"] = order.cache
    os.environ.update({name: f"{order.cache}/{file}" for name, file in duty.named.items()})


def _readiness(order: Task) -> Message:
    backend, _ = pickle.loads(order.duty.pickled)
    try:
        backend.check(order.testbed, 1, ())
    except ClosloopError as error:
        return Failed.of(error)
    return DONE


def _run(order: Task, trial: TrialSpec, connection: Connection, folder: Path) -> None:
    backend, do = pickle.loads(order.duty.pickled)
    job = Job(trial, order.testbed, folder / "kept" / trial.id, folder / "work")
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
                connection.send((message, packed(job.folder) if done else {}))
            if len(pool) and connection.poll():
                raise EOFError  # no order comes before this one is carried out
    finally:
        pool.close()


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder of this process alone. Those that killed processes left are removed."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_unless_held(left)
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=base))
    lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # only a folder that is held has the name by which left ones are found
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
        # It is no child of this process: Ray kills those of a worker that ends, at once.
        subprocess.run(
            ["setsid", "--fork", *python],
            pass_fds=[other.fileno()],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            check=True,
        )
        other.close()

    def said(self, order: Task) -> Iterator[Said]:
        """Give an order, and yield what the process says until it is carried out.

        Raises ChildProcessError if the process ends before.
        """
        message: Any = None
        try:
            self._connection.send(order)
            while message is None or isinstance(message, Progressed):
                while not self._connection.poll(_POLL_S):
                    pass  # Ray interrupts a task that is cancelled between two polls
                message, files = self._connection.recv()
                yield message, files
        except (EOFError, OSError) as error:
            raise ChildProcessError("the node's host process ended") from error

    def end(self) -> None:
        """Have it stop what it does, and wait until it has cleaned up."""
        self._socket.shutdown(socket.SHUT_WR)
        with suppress(EOFError, OSError):
            while self._connection.poll(2 * STOP_GRACE_S):
                self._connection.recv()
        self._connection.close()
        self._socket.close()


_host: list[Host] = []


def carry_out(
    duty: TaskKind,
    testbed: Testbed,
    trial: TrialSpec | None,
    refs: Mapping[str, Any],
    luggage: Mapping[str, Any],
) -> Iterator[Said]:
    """Run a trial on this node, as a generator task of Ray, or without one ask whether it could.

    Ray puts objects in place of the first two. `refs` are the objects with the contents of the
    trial's files, `luggage` those of the cache.
    """
    if problem := difference(duty):
        yield problem, {}
        return
    import ray

    try:
        cache = node_cache(duty)
        for name in missing_in(cache, luggage):
            put(cache / name, ray.get(luggage[name]))
        files = dict(zip(refs, ray.get(list(refs.values())), strict=True))
        if not _host:
            _host.append(Host())
        yield from _host[0].said(Task(duty, testbed, trial, files, str(cache)))
    except BaseException:
        # also if it is cancelled: the next order gets a new process, which knows nothing of it
        while _host:
            with suppress(OSError):
                _host.pop().end()
        raise


def difference(duty: TaskKind) -> Failed | None:
    """Return what is wrong if this node would not compute the same as the machine that plans."""
    ours, theirs = described(), duty.versions
    for name in sorted({*ours, *theirs}):
        here, there = ours.get(name, "none"), theirs.get(name, "none")
        if here != there:
            what = f"it has {name} {here}, and the machine that plans {there}"
            remedy = "install the same there: pip install 'closloop[cluster]', of the same commit"
            return Failed.of(NotReadyError(what, remedy))
    return None


if __name__ == "__main__":
    main()
