"""What runs in a Ray worker: takes orders to the node's host process, and brings back what it says.

A Ray worker has threads, and lives as long as Ray likes; trials are forked from a process that does
not: see `host`. It is started with a worker's first trial, and ends with the worker.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from orchestration.cluster.host import Said
from orchestration.cluster.orders import Duty, Order, described, missing_in, node_cache, put
from orchestration.core.errors import NotReadyError
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.pool import STOP_GRACE_S
from orchestration.run.worker import Failed, Progressed

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

    def said(self, order: Order) -> Iterator[Said]:
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
    duty: Duty,
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
        yield from _host[0].said(Order(duty, testbed, trial, files, str(cache)))
    except BaseException:
        # also if it is cancelled: the next order gets a new process, which knows nothing of it
        while _host:
            with suppress(OSError):
                _host.pop().end()
        raise


def difference(duty: Duty) -> Failed | None:
    """Return what is wrong if this node would not compute the same as the machine that plans."""
    ours, theirs = described(), duty.versions
    for name in sorted({*ours, *theirs}):
        here, there = ours.get(name, "none"), theirs.get(name, "none")
        if here != there:
            return Failed.of(
                NotReadyError(
                    f"it has {name} {here}, and the machine that plans {there}",
                    "install the same there: pip install 'closloop[cluster]', of the same commit",
                )
            )
    return None
