"""The process of the dead-man's timer: it restores the device if its controller is silent.

It is forked twice, so that it outlives the agent, and takes orders at a Unix socket (`deadman`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..main import Decoder, FrameError, encode
from .lease import drop_lease
from .records import store
from .shared_folder import account_name, boottime_ns, locked, time_of_day
from .state import RESTORABLE

_NAME = b"clos-deadman"
_PR_SET_NAME = 15
_MIN_OOM_SCORE = b"-1000"  # the kernel's out-of-memory killer spares this process

# The longest sleep: select uses CLOCK_MONOTONIC, which stops while the device is suspended.
_MAX_SLEEP_S = 1.0
# Restoring is retried: a link may flap, or Redis may be restarting.
_TRIES, _RETRY_S = 15, 1.0
_AGENT_END_S = 2.0
_READ_BYTES = 1 << 16
BACKLOG = 16
# Other accounts may request the status, but must not use up the connections for feeding the timer.
_MAX_FOREIGN_LINKS, _MAX_FOREIGN_BYTES = 32, 1000


class Peer(NamedTuple):
    """The process at the other end of a Unix socket (SO_PEERCRED)."""

    pid: int
    uid: int


class Process(NamedTuple):
    """A process, identified by its id and start time, since a later process may get the same id."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process with this id; `started` is empty if there is none."""
        try:
            # the program's name may contain anything, so fields are counted after it; field 22 is
            # the start time
            fields = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
            return cls(pid, "" if fields[0] in "ZX" else fields[19])
        except (OSError, IndexError):
            return cls(pid, "")

    @property
    def lives(self) -> bool:
        """Whether this process is still running."""
        return bool(self.started) and Process.of(self.pid) == self


def peer(link: socket.socket) -> Peer:
    """Return the process at the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("=iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def start(
    record: dict[str, Any],
    after_s: float,
    listener: socket.socket,
    shared: Path,
    restore: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Start the timer's process, detached from this one. It takes orders at `listener`."""
    agent = Process.of(os.getpid())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _detach(listener)
            _Timer(record, after_s, listener, shared, restore, agent).run()
    finally:
        os._exit(0)


def _detach(listener: socket.socket) -> None:
    """Leave the agent's working folder, and close its files; ignore signals of its terminal."""
    # collecting the agent's file objects would close descriptors that are in use again by then
    gc.disable()
    os.chdir("/")
    os.umask(0o022)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    keep = listener.fileno()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            with suppress(OSError):
                os.close(int(name))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_MIN_OOM_SCORE)


class _Link(NamedTuple):
    socket: socket.socket
    decoder: Decoder
    process: Process
    trusted: bool


class _Timer:
    def __init__(
        self,
        record: dict[str, Any],
        after_s: float,
        listener: socket.socket,
        shared: Path,
        restore: Callable[[dict[str, Any]], dict[str, Any]],
        agent: Process,
    ) -> None:
        self._record = record
        self._after_s = after_s
        self._listener = listener
        self._shared = shared
        self._restore = restore
        self._agents = {agent}
        self._links: dict[int, _Link] = {}
        self._end_requested = False
        self._running = True
        self._restart_countdown()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._request_end)
        # once more: clients see the process that called it last (net/unix/af_unix.c, unix_listen),
        # which was the agent
        self._listener.listen(BACKLOG)
        try:
            self._wait()
        except Exception as error:
            self._fire(f"its dead-man's timer failed: {type(error).__name__}: {error}")

    def _wait(self) -> None:
        while self._running:
            left_s = self._left_s()
            if self._end_requested:
                self._fire("its process received SIGTERM")
            elif left_s <= 0:
                reason = f"its controller was silent for {self._after_s:g} s"
                self._fire(reason)
            else:
                waiting = [self._listener, *(link.socket for link in self._links.values())]
                ready, _, _ = select.select(waiting, [], [], min(left_s, _MAX_SLEEP_S))
                for item in ready:
                    if item is self._listener:
                        self._accept()
                    else:
                        self._read_orders(self._links[item.fileno()])

    def _request_end(self, *_: object) -> None:
        self._end_requested = True

    def _restart_countdown(self) -> None:
        self._deadline_ns = boottime_ns() + int(self._after_s * 1e9)

    def _left_s(self) -> float:
        return (self._deadline_ns - boottime_ns()) / 1e9

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # the client has closed already
            return
        sender = peer(link)
        link.settimeout(1.0)
        trusted = sender.uid in (0, os.geteuid())
        if not trusted:
            if sum(not other.trusted for other in self._links.values()) >= _MAX_FOREIGN_LINKS:
                link.close()
                return
            # the timer does not wait for a client that does not read its answers
            link.setblocking(False)
        decoder = Decoder() if trusted else Decoder(_MAX_FOREIGN_BYTES)
        self._links[link.fileno()] = _Link(link, decoder, Process.of(sender.pid), trusted)

    def _read_orders(self, link: _Link) -> None:
        try:
            piece = link.socket.recv(_READ_BYTES)
            if piece:
                for order in link.decoder.feed(piece):
                    link.socket.sendall(encode(self._execute(order, link)))
                return
        except (OSError, FrameError, KeyError, TypeError, ValueError):
            pass
        self._hang_up(link)

    def _hang_up(self, link: _Link) -> None:
        self._links.pop(link.socket.fileno(), None)
        link.socket.close()

    def _execute(self, order: dict[str, Any], link: _Link) -> dict[str, Any]:
        what = order.get("order")
        if what == "status":
            return self._status()
        is_permitted = what == "fire" or order.get("nonce") == self._record["nonce"]
        if not (link.trusted and is_permitted):
            account = account_name(os.geteuid())
            return {
                "error": f"its dead-man's timer is armed by {self._record['holder']} "
                f"(account {account})",
                "remedy": "wait for that run to end; if it is dead, wait for the timer",
            }
        if what == "fire":
            self._agents.discard(link.process)
            return self._fire(str(order.get("why")))
        if what == "feed":
            self._agents.add(link.process)
            self._restart_countdown()
        elif what == "disarm":
            # the socket's name is freed before the answer, so that a timer can be armed at once
            self._stop()
        return self._status()

    def _status(self) -> dict[str, Any]:
        return {
            **{name: self._record[name] for name in ("holder", "nonce", "note", "armed_at")},
            "account": account_name(os.geteuid()),
            "after_s": self._after_s,
            "left_s": max(0.0, self._left_s()),
            "pid": os.getpid(),
        }

    def _stop(self) -> None:
        self._running = False
        self._listener.close()

    def _fire(self, why: str) -> dict[str, Any]:
        """Restore the device, and end the timer; return the record.

        If restoring fails, lease and record stay, so that nobody takes the device for restored.
        """
        with suppress(OSError):
            end_processes(self._agents)
        record = self._record
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_RETRY_S)
            attempt_restore(record, why, self._restore)
            with suppress(Exception), locked(self._shared):
                store(self._shared, record)
            if record["resolved"]:
                with suppress(Exception):
                    drop_lease(self._shared, record["nonce"])
                break
        self._stop()
        return {name: value for name, value in record.items() if name != "snapshot"}


def attempt_restore(
    record: dict[str, Any], why: str, restore: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Restore a record's snapshot once, and write the outcome into the record."""
    if not record["fired_at"]:
        record.update(why=why, fired_at=time_of_day())
    try:
        outcome = restore(record["snapshot"])
        record["changed"] += outcome["changed"]
        record["differences"], record["error"] = outcome["differences"], ""
        record["restarted"] = bool(outcome.get("restarted"))
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
    unrestored = [item for item in record["differences"] if item["part"] in RESTORABLE]
    record["resolved"] = not unrestored and not record["error"]


def end_processes(agents: set[Process]) -> None:
    """End agents by SIGTERM, and by SIGKILL those that still run after 2 s."""
    for agent in agents:
        if agent.lives:
            _signal(agent.pid, signal.SIGTERM)
    deadline = time.monotonic() + _AGENT_END_S
    while any(agent.lives for agent in agents) and time.monotonic() < deadline:
        time.sleep(0.02)
    for agent in agents:
        if agent.lives:
            _signal(agent.pid, signal.SIGKILL)


def _signal(pid: int, what: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, what)
