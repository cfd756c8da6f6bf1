"""The dead-man's timer: a device restores itself when its controller has been silent too long.

    deadman.arm       {holder, after_s, snapshot, note}  the record of an earlier restore, or null;
                                      refused while a timer is armed
    deadman.feed      {holder}        seconds left
    deadman.register  {holder, pgid}  add a process group to kill when the timer fires
    deadman.fire      {why}           restore now; the record, as below
    deadman.disarm    {holder}        end the timer without restoring; whether it was armed
    deadman.status                    {"armed": null or the timer, "fired": null or the record}
    deadman.clear                     remove the record

The timer is a process of its own that outlives the agent and the SSH session. It counts
CLOCK_BOOTTIME, which includes time suspended. It takes orders at an abstract Unix socket, from the
same user and from root. When it fires, it first ends the agents that armed or fed it, so that they
apply no further requests. It then kills the registered groups, restores the snapshot, ends the
holder's lease and writes a record to deadman.json in `lease.runtime_folder()`:
{"holder", "note", "why", "fired_at", "changed", "differences", "error"}.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestration.device.agent import deadman_process as process
from orchestration.device.agent.lease import (
    read_record,
    runtime_folder,
    time_of_day,
)
from orchestration.device.agent.main import (
    Agent,
    Decoder,
    FrameError,
    Operation,
    OperationError,
    encode,
)
from orchestration.device.agent.state import restore

Restore = Callable[[dict[str, Any]], dict[str, Any]]

# Long, because an order to fire is answered only after the device is restored.
_ANSWER_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 16


class DeadMan:
    """The agent's side of the timer. The timer calls `restore` with the snapshot when it fires."""

    def __init__(self, folder: Path, restore: Restore) -> None:
        self._folder = folder
        self._restore = restore
        self._address = address(folder)
        self._socket: socket.socket | None = None
        self._decoder = Decoder()

    def arm(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Start the timer. Return and remove the record of one that fired earlier."""
        after_s = float(request["after_s"])
        if not 0 < after_s < float("inf"):
            raise OperationError(
                f"a dead-man's time of {after_s} s makes no sense", "give a positive number"
            )
        armed = process.Armed(
            holder=str(request["holder"]),
            note=str(request.get("note", "")),
            after_s=after_s,
            armed_at=time_of_day(),
            snapshot=request["snapshot"],
        )
        with self._listener() as listener:
            earlier = self._record()
            process.clear(self._folder)
            process.start(armed, listener, self._folder, self._restore)
        self._forget()
        self._ask("status")
        return earlier

    def feed(self, request: dict[str, Any]) -> float:
        """Restart the countdown; return the seconds left."""
        return float(self._ask("feed", holder=request["holder"])["left_s"])

    def register(self, request: dict[str, Any]) -> None:
        """Register a process group to kill when the timer fires."""
        self._ask("register", holder=request["holder"], pgid=int(request["pgid"]))

    def fire(self, request: dict[str, Any]) -> dict[str, Any]:
        """Restore the device now; return the record, also if the timer has just fired by itself."""
        record = self._try("fire", why=str(request.get("why", "told to"))) or self._record()
        self._forget()
        if record is None:
            raise _not_there()
        return record

    def disarm(self, request: dict[str, Any]) -> bool:
        """End the timer. No error if none is armed: it may have fired, and then has a record."""
        answer = self._try("disarm", holder=request["holder"])
        self._forget()
        return answer is not None

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the armed timer and the record of the last one that fired."""
        armed = self._try("status")
        return {"armed": armed, "fired": self._record()}

    def clear(self, _: dict[str, Any]) -> None:
        """Remove the record of the timer that fired."""
        process.clear(self._folder)

    def _record(self) -> dict[str, Any] | None:
        return read_record(self._folder / process.RECORD)

    def _listener(self) -> socket.socket:
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(self._address)
                listener.listen(16)
                return listener
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            armed = self._try("status")
            if armed is not None:
                raise OperationError(
                    f"its dead-man's timer is armed by {armed['holder']} since "
                    f"{armed['armed_at']}; it restores the device in {armed['left_s']:.0f} s "
                    "unless that run goes on",
                    "wait for that run to end; if it is dead, wait for the timer, or run "
                    "`closloop restore`",
                )

    def _connect(self) -> socket.socket | None:
        if self._socket is not None:
            return self._socket
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(_ANSWER_TIMEOUT_S)
        try:
            link.connect(self._address)
        except ConnectionRefusedError:
            link.close()
            return None
        owner = process.peer(link)
        if owner.uid not in (0, os.geteuid()):
            link.close()
            raise OperationError(
                f"a process of user {owner.uid} sits where the dead-man's timer would",
                f"find out what process {owner.pid} is, and end it",
            )
        self._socket, self._decoder = link, Decoder()
        return link

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _ask(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and return the answer. Raises OperationError."""
        answer = self._try(order, **arguments)
        if answer is not None:
            return answer
        record = self._record()
        if record is None:
            raise _not_there()
        raise OperationError(
            f"has restored itself at {record['fired_at']}: {record['why']}", "run the trial again"
        )

    def _try(self, order: str, **arguments: Any) -> dict[str, Any] | None:
        """Give an order and return the answer; None if no timer runs. Raises OperationError."""
        for _ in range(2):
            link = self._connect()
            if link is None:
                return None
            # a connection to an earlier timer is stale: connect once more
            with suppress(OSError, FrameError, EOFError):
                link.sendall(encode({"order": order, **arguments}))
                answer = self._answer(link)
                if "error" in answer and "remedy" in answer:
                    raise OperationError(answer["error"], answer["remedy"])
                return answer
            self._forget()
        return None

    def _answer(self, link: socket.socket) -> dict[str, Any]:
        while True:
            piece = link.recv(_READ_BYTES)
            if not piece:
                raise EOFError
            for message in self._decoder.feed(piece):
                return message


def address(folder: Path) -> str:
    """Return the abstract name of the timer's socket: one per user and folder."""
    # hashed, because a path may be longer than a socket's name
    place = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return f"\0closloop-deadman:{os.geteuid()}:{place}"


def _not_there() -> OperationError:
    return OperationError(
        "its dead-man's timer is not there: it was not armed, or its process was killed",
        "run `closloop restore`, then the trial again",
    )


def operations(
    _: Agent, folder: Path | None = None, restore: Restore = restore
) -> dict[str, Operation]:
    """Return the operations by name."""
    deadman = DeadMan(folder or runtime_folder(), restore)
    return {
        f"deadman.{name}": getattr(deadman, name)
        for name in ("arm", "feed", "register", "fire", "disarm", "status", "clear")
    }
