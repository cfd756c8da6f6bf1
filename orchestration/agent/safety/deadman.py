"""The dead-man's timer: a device restores itself when its controller has been silent too long.

    deadman.arm       {holder, nonce, after_s, snapshot, note}   refused while a timer is armed or
                                      an earlier run has left the device unrestored
    deadman.feed      {nonce}         seconds left
    deadman.fire      {why}           restore now; the record
    deadman.disarm    {nonce}         the device is restored: end the timer, remove the record;
                                      whether the timer was armed
    deadman.settle    {why, nonce, snapshot}   restore what runs without a timer left, or one of
                                      them, whose snapshot has that hash; their records
    deadman.status                    {"boot", "armed": null or the timer, "records": the others}
    deadman.clear     {nonce}         remove a record; refused while it is unresolved
    deadman.forget                    remove all unresolved records, unread, and restore nothing

The timer is a process of its own that outlives the agent and the SSH session. It counts
CLOCK_BOOTTIME, which includes time suspended. It takes orders at an abstract Unix socket, one for
all accounts, from the same user and from root; others may ask for its status. When it fires, it
first ends the agents that armed or fed it, so that they apply no further requests. It then restores
the snapshot, and ends the lease only if that succeeded. Records are those of `records`.

Any process can take the socket's name: which one is believed, `timer_link` says.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..main import Agent, Operation, OperationError
from . import deadman_process as process
from .deadman_client import TimerLink, armed_error, name_taken_error
from .records import (
    StoredRecord,
    all_records,
    new_record,
    nonce_of,
    not_restored_error,
    store,
    unresolved,
    untrusted_error,
)
from .shared_folder import SHARED, locked, this_boot, time_of_day
from .state import restore

Restore = Callable[[dict[str, Any]], dict[str, Any]]

# A timer that ends frees its name at once.
_NAME_TIMEOUT_S, _NAME_EVERY_S = 10.0, 0.05


class DeadMan:
    """The agent's side of the timer. The timer calls `restore` with the snapshot when it fires."""

    def __init__(self, shared: Path, restore: Restore) -> None:
        self._shared = shared
        self._restore = restore
        self._address = address(shared)
        self._timer = TimerLink(self._address)

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
                    raise not_restored_error(kept)
                store(self._shared, record)
            process.start(record, after_s, listener, self._shared, self._restore)
        self._timer.forget()
        self._ask("status")

    def feed(self, request: dict[str, Any]) -> float:
        """Restart the countdown; return the seconds left."""
        return float(self._ask("feed", nonce=nonce_of(request))["left_s"])

    def fire(self, request: dict[str, Any]) -> dict[str, Any]:
        """Restore the device now; return the record."""
        # it may have fired by itself just now
        record = self._timer.order("fire", why=str(request.get("why", "told to"))) or self._fired()
        self._timer.forget()
        if record is None:
            raise _not_there()
        return record

    def disarm(self, request: dict[str, Any]) -> bool:
        """End the timer, if it is still there, and remove the record: the device is restored."""
        nonce = nonce_of(request)
        armed = self._timer.armed()
        # another account's is not this run's
        ours = armed is not None and armed["trusted"]
        answer = self._timer.order("disarm", nonce=nonce) if ours else None
        self._timer.forget()
        self._remove(nonce)
        return answer is not None

    def settle(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Restore what runs without a living timer left here; return their records.

        The latest run comes first, since the state that the earliest one found is the wanted one.
        With `nonce`, only that run's is restored, and also if it is another account's, if its
        snapshot is that of the hash `snapshot`. Raises OperationError, once all others are
        restored, for a record that is not obeyed.
        """
        wanted = nonce_of(request) if request.get("nonce") else ""
        proof = str(request.get("snapshot", ""))
        left = [kept for kept in self._unguarded() if wanted in ("", kept.record["nonce"])]
        mine = [kept for kept in left if _is_obeyed(kept, proof)]
        for kept in sorted(mine, key=lambda item: str(item.record["armed_at"]), reverse=True):
            process.attempt_restore(kept.record, str(request.get("why", "")), self._restore)
            with locked(self._shared):
                kept.store()
        for kept in left:
            # with a nonce, another account's record may only copy it
            if kept not in mine and not (wanted and mine):
                raise untrusted_error(kept)
        return [kept.public() for kept in mine]

    def _unguarded(self) -> list[StoredRecord]:
        """Return the unresolved records of runs that no living timer guards."""
        armed = self._timer.armed()
        return [kept for kept in unresolved(self._shared, this_boot()) if not _guards(armed, kept)]

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the armed timer and all accounts' records of runs that it does not guard."""
        armed = self._timer.armed()
        left = {kept.path for kept in unresolved(self._shared, this_boot())}
        records = [
            {**kept.public(), "unresolved": kept.path in left}
            for kept in all_records(self._shared)
            if not _guards(armed, kept)
        ]
        return {"boot": this_boot(), "armed": armed, "records": records}

    def clear(self, request: dict[str, Any]) -> None:
        """Remove a record, whose device was restored."""
        nonce = nonce_of(request)
        for kept in unresolved(self._shared, this_boot()):
            if kept.record["nonce"] == nonce and kept.trusted:
                raise not_restored_error(kept)
        self._remove(nonce)

    def forget(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Remove the unresolved records that this account may remove; return them.

        Raises OperationError for one of another account, unless this is root.
        """
        left = self._unguarded()
        mine = [kept for kept in left if os.geteuid() in (0, kept.uid)]
        with locked(self._shared):
            for kept in mine:
                kept.remove()
        for kept in left:
            if kept not in mine:
                raise untrusted_error(kept)
        return [kept.public() for kept in mine]

    def _remove(self, nonce: str) -> None:
        with locked(self._shared):
            for kept in all_records(self._shared):
                # root removes another account's record of its own run, but none that is unresolved
                if kept.record["nonce"] == nonce and (
                    kept.uid == os.geteuid() or (os.geteuid() == 0 and kept.record["resolved"])
                ):
                    kept.remove()

    def _fired(self, nonce: str = "") -> dict[str, Any] | None:
        """Return the latest record of a restore, or that of one taking."""
        records = [kept.public() for kept in all_records(self._shared) if kept.trusted]
        fired = [r for r in records if r["fired_at"] and nonce in ("", r["nonce"])]
        return max(fired, key=lambda record: str(record["fired_at"]), default=None)

    def _listener(self) -> socket.socket:
        until = time.monotonic() + _NAME_TIMEOUT_S
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(self._address)
                listener.listen(process.BACKLOG)
                return listener
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            armed = self._timer.armed()
            if armed is not None:
                raise armed_error(armed)
            if time.monotonic() > until:
                raise name_taken_error("does not answer")
            time.sleep(_NAME_EVERY_S)

    def _ask(self, order: str, **arguments: Any) -> dict[str, Any]:
        answer = self._timer.order(order, **arguments)
        if answer is not None:
            return answer
        record = self._fired(str(arguments.get("nonce", "")))
        if record is None:
            raise _not_there()
        raise OperationError(
            f"has restored itself at {record['fired_at']}: {record['why']}", "run the trial again"
        )


def address(shared: Path) -> str:
    """Return the abstract name of the timer's socket: one per folder, for all accounts."""
    # hashed, because a path may be longer than a socket's name
    return f"\0closloop-deadman:{hashlib.sha256(str(shared).encode()).hexdigest()[:16]}"


def _is_obeyed(kept: StoredRecord, proof: str) -> bool:
    return os.geteuid() in (0, kept.uid) and (kept.trusted or kept.proved_by(proof))


def _guards(armed: dict[str, Any] | None, kept: StoredRecord) -> bool:
    """Return whether this timer is of this record's run; another account's guards only its own."""
    return (
        armed is not None
        and armed["nonce"] == kept.record["nonce"]
        and (armed["trusted"] or armed["uid"] == kept.uid)
    )


def _not_there() -> OperationError:
    return OperationError(
        "its dead-man's timer is not there: it was not armed, or its process was killed",
        "run `closloop restore`, then the trial again",
    )


def operations(_: Agent, shared: Path = SHARED, restore: Restore = restore) -> dict[str, Operation]:
    """Return the operations by name."""
    deadman = DeadMan(shared, restore)
    names = ("arm", "feed", "fire", "disarm", "settle", "status", "clear", "forget")
    return {f"deadman.{name}": getattr(deadman, name) for name in names}
