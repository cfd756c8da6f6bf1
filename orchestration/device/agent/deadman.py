"""The dead-man's timer: a device restores itself when its controller has been silent too long.

    deadman.arm       {holder, nonce, after_s, snapshot, note}   refused while a timer is armed or
                                      an earlier run has left the device unrestored
    deadman.feed      {nonce}         seconds left
    deadman.fire      {why}           restore now; the record
    deadman.disarm    {nonce}         the device is restored: end the timer, remove the record;
                                      whether the timer was armed
    deadman.settle    {why}           restore what runs without a timer left; their records
    deadman.status                    {"boot", "armed": null or the timer, "records": the others}
    deadman.clear     {nonce}         remove a record; refused while it is unresolved

The timer is a process of its own that outlives the agent and the SSH session. It counts
CLOCK_BOOTTIME, which includes time suspended. It takes orders at an abstract Unix socket, one for
all accounts, from the same user and from root; others may ask for its status. When it fires, it
first ends the agents that armed or fed it, so that they apply no further requests. It then restores
the snapshot, and ends the lease only if that succeeded. Records are those of `records`.
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
from orchestration.device.agent.main import (
    Agent,
    Decoder,
    FrameError,
    Operation,
    OperationError,
    encode,
)
from orchestration.device.agent.place import (
    SHARED,
    account_name,
    locked,
    this_boot,
    time_of_day,
)
from orchestration.device.agent.records import (
    all_records,
    new_record,
    nonce_of,
    refusal,
    store,
    unresolved,
)
from orchestration.device.agent.state import restore

Restore = Callable[[dict[str, Any]], dict[str, Any]]

# Long, because an order to fire is answered only after the device is restored.
_ANSWER_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 16


class DeadMan:
    """The agent's side of the timer. The timer calls `restore` with the snapshot when it fires."""

    def __init__(self, shared: Path, restore: Restore) -> None:
        self._shared = shared
        self._restore = restore
        self._address = address(shared)
        self._socket: socket.socket | None = None
        self._decoder = Decoder()

    def arm(self, request: dict[str, Any]) -> None:
        """Store the snapshot on the disk and start the timer."""
        after_s = float(request["after_s"])
        if not 0 < after_s < float("inf"):
            raise OperationError(
                f"a dead-man's time of {after_s} s makes no sense", "give a positive number"
            )
        record = new_record(
            str(request["holder"]),
            nonce_of(request),
            str(request.get("note", "")),
            time_of_day(),
            request["snapshot"],
        )
        with self._listener() as listener:
            with locked(self._shared):
                for kept in unresolved(self._shared, this_boot()):
                    raise refusal(kept)
                store(self._shared, record)
            process.start(record, after_s, listener, self._shared, self._restore)
        self._forget()
        self._ask("status")

    def feed(self, request: dict[str, Any]) -> float:
        """Restart the countdown; return the seconds left."""
        return float(self._ask("feed", nonce=nonce_of(request))["left_s"])

    def fire(self, request: dict[str, Any]) -> dict[str, Any]:
        """Restore the device now; return the record."""
        # it may have fired by itself just now
        record = self._try("fire", why=str(request.get("why", "told to"))) or self._fired()
        self._forget()
        if record is None:
            raise _not_there()
        return record

    def disarm(self, request: dict[str, Any]) -> bool:
        """End the timer, if it is still there, and remove the record: the device is restored."""
        nonce = nonce_of(request)
        answer = self._try("disarm", nonce=nonce)
        self._forget()
        self._remove(nonce)
        return answer is not None

    def settle(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Restore what runs without a living timer left here; return their records.

        The latest run comes first, since the state that the earliest one found is the wanted one.
        """
        armed = self._try("status")
        left = [
            kept
            for kept in unresolved(self._shared, this_boot())
            if armed is None or armed["nonce"] != kept.record["nonce"]
        ]
        for kept in sorted(left, key=lambda item: str(item.record["armed_at"]), reverse=True):
            account = account_name(kept.uid)
            if os.geteuid() not in (0, kept.uid):
                raise OperationError(
                    f"{refusal(kept).what}; only {account} and root can restore it",
                    f"log in as {account} or root (ansible_user, ansible_become)",
                )
            process.attempt_restore(kept.record, str(request.get("why", "")), self._restore)
            with locked(self._shared):
                kept.store()
        return [kept.public() for kept in left]

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the armed timer and all accounts' records of runs that it does not guard."""
        armed = self._try("status")
        nonce = None if armed is None else armed["nonce"]
        left = {kept.path for kept in unresolved(self._shared, this_boot())}
        records = [
            {**kept.public(), "unresolved": kept.path in left}
            for kept in all_records(self._shared)
            if kept.record["nonce"] != nonce
        ]
        return {"boot": this_boot(), "armed": armed, "records": records}

    def clear(self, request: dict[str, Any]) -> None:
        """Remove a record, whose device was restored."""
        nonce = nonce_of(request)
        for kept in unresolved(self._shared, this_boot()):
            if kept.record["nonce"] == nonce:
                raise refusal(kept)
        self._remove(nonce)

    def _remove(self, nonce: str) -> None:
        with locked(self._shared):
            for kept in all_records(self._shared):
                if kept.record["nonce"] == nonce and os.geteuid() in (0, kept.uid):
                    kept.path.unlink()

    def _fired(self, nonce: str = "") -> dict[str, Any] | None:
        """Return the latest record of a restore, or that of one taking."""
        records = [kept.public() for kept in all_records(self._shared)]
        fired = [r for r in records if r["fired_at"] and nonce in ("", r["nonce"])]
        return max(fired, key=lambda record: str(record["fired_at"]), default=None)

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
                    f"its dead-man's timer is armed by {armed['holder']} (account "
                    f"{armed['account']}) since {armed['armed_at']}; it restores the device in "
                    f"{armed['left_s']:.0f} s unless that run goes on",
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
        record = self._fired(str(arguments.get("nonce", "")))
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


def address(shared: Path) -> str:
    """Return the abstract name of the timer's socket: one per folder, for all accounts."""
    # hashed, because a path may be longer than a socket's name
    return f"\0closloop-deadman:{hashlib.sha256(str(shared).encode()).hexdigest()[:16]}"


def _not_there() -> OperationError:
    return OperationError(
        "its dead-man's timer is not there: it was not armed, or its process was killed",
        "run `closloop restore`, then the trial again",
    )


def operations(_: Agent, shared: Path = SHARED, restore: Restore = restore) -> dict[str, Operation]:
    """Return the operations by name."""
    deadman = DeadMan(shared, restore)
    names = ("arm", "feed", "fire", "disarm", "settle", "status", "clear")
    return {f"deadman.{name}": getattr(deadman, name) for name in names}
