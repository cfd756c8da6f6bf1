"""Programs on this host: starts them at given times, watches them, and collects their output.

    program.start      start `argv` under the name `program`, with base64 `stdin`: at once, or
                       `after_ns` after the time given by program.go; it may run for `limit_s`
    program.go         start all waiting programs, at times counted from `t0_ns`
    program.listening  return those of `ports`, [protocol, port]s, on which this host listens
    program.missing    return those of the programs `names` that are not installed on this host
    program.stop       end `program`, or all programs if none is named
    program.collect    return the output and times of an ended `program`, then forget it

The event `program.ended` names a `program` that has ended. Times are on CLOCK_MONOTONIC. A program
has its own process group, and is killed if this process ends. Processes of its group that still run
when it ends are killed. The first `MAX_OUTPUT_BYTES` of each of its outputs are kept.
"""

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ..main import Agent, Operation, OperationError

MAX_OUTPUT_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
# A process is created this long before its start, and sleeps until then.
_FORK_AHEAD_NS = 50_000_000
# Time between SIGTERM and SIGKILL.
_GRACE_NS = 1_000_000_000
_READ_BYTES = 1 << 16
_ERROR_BYTES = 500
_FIRST_FREE_FD, _LAST_FD = 3, 4096
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LISTENING = {"tcp": "0A", "udp": "07"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_REPORTED = (
    *("exit_code", "error", "started_ns", "ended_ns"),
    *("stopped", "timed_out", "cut_bytes"),
)

# What a child does. It gets a function, which it calls once when it is ready: the function waits
# for the child's start time and returns it.
Work = Callable[[Callable[[], int]], None]


class Child:
    """One program. `started_ns` and `ended_ns` are -1 until then; `exit_code` is None until its
    end.

    `error` is why it could not be started. `buffer` has its output, of which `cut_bytes` were
    dropped; `open` are the descriptors from which output is still read.
    """

    def __init__(self, name: str, work: Work, stdin: bytes, limit_ns: int) -> None:
        self.name = name
        self.work = work
        self.stdin = stdin
        self.limit_ns = limit_ns
        self.pid = 0
        self.exit_code: int | None = None
        self.error = ""
        self.started_ns = self.ended_ns = -1
        self.stopped = self.timed_out = self.reported = False
        self.buffer = {"stdout": bytearray(), "stderr": bytearray()}
        self.cut_bytes = 0
        self.open: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether the program has ended and all its output has been read."""
        return self.exit_code is not None and not self.open

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group, if it still has one."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def report(self) -> dict[str, Any]:
        """Return the answer of `program.collect`."""
        texts = {name: data.decode(errors="replace") for name, data in self.buffer.items()}
        return {**{name: getattr(self, name) for name in _REPORTED}, **texts}


class Programs:
    """All programs of this agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._children: dict[str, Child] = {}
        self._waiting: list[tuple[Child, int]] = []
        self._wakeup_fd, write_fd = os.pipe()
        for fd in (self._wakeup_fd, write_fd):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, self._reap)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        agent.watch(self._wakeup_fd, self._finish_children)
        agent.at_end(self.kill_all)

    def add(self, request: dict[str, Any], work: Work) -> None:
        """Create a child that does `work`; `request` is as for `program.start`.

        Raises OperationError if there is a program of this name.
        """
        name, after_ns = str(request["program"]), request.get("after_ns")
        if name in self._children:
            raise OperationError(f"there is a program {name!r} already", "collect it first")
        stdin = base64.b64decode(request.get("stdin", ""))
        child = Child(name, work, stdin, int(float(request.get("limit_s", 3600)) * 1e9))
        self._children[name] = child
        if after_ns is None:
            self._fork(child, 0)
        else:
            self._waiting.append((child, int(after_ns)))

    def go(self, t0_ns: int) -> None:
        """Start the waiting programs, each at its time after `t0_ns`."""
        waiting, self._waiting = self._waiting, []
        for child, after_ns in waiting:
            at_ns = t0_ns + after_ns
            self._agent.at(at_ns - _FORK_AHEAD_NS, partial(self._fork, child, at_ns))

    def _fork(self, child: Child, at_ns: int) -> None:
        if child.stopped:
            return
        stdin = os.memfd_create("stdin")
        os.write(stdin, child.stdin)
        os.lseek(stdin, 0, os.SEEK_SET)
        pipes = [os.pipe() for _ in range(3)]
        parent = os.getpid()
        # block signals, so that the child does not run this process's handlers
        buffer = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        child.pid = os.fork()
        if child.pid == 0:
            _run_child(child.work, parent, at_ns, stdin, [write for _, write in pipes], buffer)
        signal.pthread_sigmask(signal.SIG_SETMASK, buffer)
        # this fails if the child was faster, and runs another program by now or has ended
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(child.pid, child.pid)
        os.close(stdin)
        for _, write in pipes:
            os.close(write)
        for index, pipe in enumerate(("stdout", "stderr", "start")):
            read = pipes[index][0]
            child.open.add(read)
            self._agent.watch(read, partial(self._read, child, pipe, read))
        latest_ns = max(at_ns, time.monotonic_ns()) + child.limit_ns
        self._agent.at(latest_ns, lambda: self._expire(child))
        self._reap()
        self._finish_children()

    def _read(self, child: Child, pipe: str, fd: int) -> None:
        piece = os.read(fd, _READ_BYTES)
        if not piece:
            self._agent.forget(fd)
            os.close(fd)
            child.open.discard(fd)
            self._finish_children()
        elif pipe == "start":
            # the child's start time, an error, or both
            if piece[:1] == b"@":
                (child.started_ns,) = struct.unpack_from("=q", piece, 1)
                piece = piece[9:]
            child.error += piece[1:].decode(errors="replace")
        else:
            buffer = child.buffer[pipe]
            room = MAX_OUTPUT_BYTES - len(buffer)
            buffer += piece[:room]
            child.cut_bytes += max(0, len(piece) - room)

    def _reap(self, *_: Any) -> None:
        """Record which children have ended. This is also the signal handler for SIGCHLD."""
        now_ns = time.monotonic_ns()
        for child in list(self._children.values()):
            if child.pid and child.exit_code is None:
                try:
                    pid, status = os.waitpid(child.pid, os.WNOHANG)
                except ChildProcessError:
                    # the signal handler ran in between and has recorded it
                    continue
                if pid:
                    child.ended_ns = now_ns
                    child.exit_code = os.waitstatus_to_exitcode(status)

    def _finish_children(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup_fd, _READ_BYTES)
        for child in list(self._children.values()):
            if child.exit_code is not None and child.pid:
                child.signal(signal.SIGKILL)
                child.pid = 0
            if child.finished and not child.reported:
                child.reported = True
                self._agent.send({"event": "program.ended", "program": child.name})

    def _expire(self, child: Child) -> None:
        if child.pid:
            child.timed_out = True
            child.signal(signal.SIGKILL)

    def stop(self, name: str) -> None:
        """End a program by SIGTERM, and by SIGKILL 1 s later. Does nothing if it has ended."""
        child = self._child(name)
        if child.exit_code is not None or child.stopped:
            return
        child.stopped = True
        if not child.pid:  # it has not started yet
            child.exit_code = -signal.SIGTERM
            self._finish_children()
            return
        child.signal(signal.SIGTERM)
        self._agent.at(time.monotonic_ns() + _GRACE_NS, lambda: child.signal(signal.SIGKILL))

    def names(self) -> list[str]:
        """Return the names of all programs."""
        return list(self._children)

    def collect(self, name: str) -> dict[str, Any]:
        """Return the report of a program that has ended, and forget it."""
        child = self._child(name)
        if not child.finished:
            raise OperationError(f"the program {name!r} still runs", "stop it first")
        del self._children[name]
        return child.report()

    def kill_all(self) -> None:
        """Kill all programs that still run."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    def _child(self, name: str) -> Child:
        if name not in self._children:
            raise OperationError(f"there is no program {name!r}", "start it first")
        return self._children[name]


def _run_child(
    work: Work, parent: int, at_ns: int, stdin: int, pipes: list[int], mask: set[Any]
) -> NoReturn:
    """Run the work in the new process, in its own group; the kernel kills it with its parent."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_HANDLED, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        stdout, stderr, start = pipes
        for fd, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, standard)
        os.closerange(_FIRST_FREE_FD, start)
        os.closerange(start + 1, _LAST_FD)

        def wait() -> int:
            sleep_until(at_ns)
            began_ns = time.monotonic_ns()
            os.write(start, b"@" + struct.pack("=q", began_ns))
            return began_ns

        try:
            work(wait)
        except BaseException as error:
            os.write(start, f"!{type(error).__name__}: {error}".encode()[:_ERROR_BYTES])
    finally:
        os._exit(127)


def sleep_until(monotonic_ns: int) -> None:
    """Sleep until a time of CLOCK_MONOTONIC; return at once if it is past."""
    while (left_ns := monotonic_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def execute(argv: list[str]) -> Work:
    """Return work that executes the program `argv`. Raises OperationError if it is missing."""
    path = shutil.which(argv[0], path=_PATH)
    if path is None:
        raise OperationError(f"has no {argv[0]}", f"install it: {argv[0]} is not in {_PATH}")
    environment = {"PATH": _PATH, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}

    def work(wait: Callable[[], int]) -> None:
        wait()
        os.execve(path, argv, environment)

    return work


def listening(ports: list[list[Any]]) -> list[list[Any]]:
    """Return those of the [protocol, port]s on which something listens."""
    listening_ports = []
    for protocol, state in _LISTENING.items():
        for suffix in ("", "6"):
            with suppress(FileNotFoundError), open(f"/proc/net/{protocol}{suffix}") as table:
                next(table)
                lines = [line.split() for line in table]
            listening_ports += [
                [protocol, int(words[1].rpartition(":")[2], 16)]
                for words in lines
                if words[3] == state
            ]
    return [pair for pair in ports if pair in listening_ports]


_shared: dict[int, Programs] = {}


def programs_of(agent: Agent) -> Programs:
    """Return the agent's `Programs`, which all services share."""
    if id(agent) not in _shared:
        _shared[id(agent)] = Programs(agent)
    return _shared[id(agent)]


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    programs = programs_of(agent)

    def start(request: dict[str, Any]) -> None:
        programs.add(request, execute([str(word) for word in request["argv"]]))

    def stop(request: dict[str, Any]) -> None:
        for name in [str(request["program"])] if "program" in request else programs.names():
            programs.stop(name)

    def missing(request: dict[str, Any]) -> list[str]:
        return [name for name in map(str, request["names"]) if not shutil.which(name, path=_PATH)]

    return {
        "program.start": start,
        "program.go": lambda request: programs.go(int(request["t0_ns"])),
        "program.listening": lambda request: listening(request["ports"]),
        "program.missing": missing,
        "program.stop": stop,
        "program.collect": lambda request: programs.collect(str(request["program"])),
    }
