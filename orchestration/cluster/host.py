"""The host process: runs a node's trials, one at a time, each in a process forked from it.

    python -m orchestration.cluster.host FD      FD is a socket to the process that gives orders

It has no threads and does not import Ray, so that a trial is forked, watched and stopped by the
same code as on one machine. It ends when the other end of the socket is closed, for whatever
reason, and then leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from orchestration.cluster.orders import Order, packed
from orchestration.core.brought import BROUGHT
from orchestration.core.errors import ClosloopError
from orchestration.core.trial import TrialSpec
from orchestration.run.pool import Pool
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
                order: Order = connection.recv()
                _serve(order, connection, scratch)
            except (EOFError, OSError):
                return


def _serve(order: Order, connection: Connection, scratch: Path) -> None:
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


def _enter(order: Order, root: Path) -> None:
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


def _readiness(order: Order) -> Message:
    backend, _ = pickle.loads(order.duty.pickled)
    try:
        backend.check(order.testbed, 1, ())
    except ClosloopError as error:
        return Failed.of(error)
    return DONE


def _run(order: Order, trial: TrialSpec, connection: Connection, folder: Path) -> None:
    backend, do = pickle.loads(order.duty.pickled)
    job = Job(trial, order.testbed, folder / "kept" / trial.id, folder / "work")
    pool = Pool(backend, do)
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


if __name__ == "__main__":
    main()
