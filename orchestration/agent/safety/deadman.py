"""The dead-man's timer: a device restores itself when its controller has been silent too long.

    deadman.arm       {holder, nonce, after_s, snapshot, note}   start the timer; refused while one
                                      is armed or an earlier run has left the device unrestored
    deadman.feed      {nonce}         restart the countdown -> seconds left
    deadman.fire      {why}           restore now -> the record
    deadman.disarm    {nonce}         the device is restored: end the timer, remove the record
                                      -> whether the timer was armed
    deadman.settle    {why, nonce, snapshot}   restore what runs without a timer have changed, or
                                      only the run `nonce`, whose snapshot has that hash -> records
    deadman.status    -> {"boot", "armed": null or the timer, "records": the others}
    deadman.clear     {nonce}         remove a record; refused while it is unresolved
    deadman.forget                    remove all unresolved records, unread, and restore nothing

The timer is a separate process that outlives the agent and the SSH session. It counts
CLOCK_BOOTTIME, which includes time suspended. It takes orders at an abstract Unix socket, one for
all accounts, from the same user and from root; others may request its status. When it fires, it
first ends the agents that armed or fed it, so that they apply no further requests. It then restores
the snapshot, and ends the lease only if that succeeded. Records are those of `records`.

Any process can bind the socket's name; `deadman_client` describes which process is trusted.
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

# How long to wait for the socket's name: a timer that ends frees it at once.
_NAME_TIMEOUT_S, _NAME_RETRY_S = 10.0, 0.05


class DeadMan:
    """The agent's side of the timer, which calls `restore` with the snapshot when it fires.

    Methods take a request, and raise OperationError if it is refused.
    """

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
        with self._bind_listener() as listener:
            with locked(self._shared):
                for stored in unresolved(self._shared, this_boot()):
                    raise not_restored_error(stored)
                store(self._shared, record)
            process.start(record, after_s, listener, self._shared, self._restore)
        self._timer.forget()
        self._order_or_explain("status")

    def feed(self, request: dict[str, Any]) -> float:
        """Restart the countdown; return the seconds left."""
        return float(self._order_or_explain("feed", nonce=nonce_of(request))["left_s"])

    def fire(self, request: dict[str, Any]) -> dict[str, Any]:
        """Restore the device now; return the record."""
        # without a timer: it may just have fired by itself
        record = (
            self._timer.order("fire", why=str(request.get("why", "requested")))
            or self._latest_restored()
        )
        self._timer.forget()
        if record is None:
            raise _no_timer_error()
        return record

    def disarm(self, request: dict[str, Any]) -> bool:
        """End the timer, if it still runs, and remove the record, since the device is restored.

        Returns whether the timer was armed.
        """
        nonce = nonce_of(request)
        armed = self._timer.armed()
        # a timer of another account is not that of this run
        ours = armed is not None and armed["trusted"]
        answer = self._timer.order("disarm", nonce=nonce) if ours else None
        self._timer.forget()
        self._remove(nonce)
        return answer is not None

    def settle(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Restore the device after runs whose timers no longer run; return their records.

        The latest run is restored first, so that the device ends in the state that the earliest run
        found. With `nonce`, only that run is restored; its record may then belong to another
        account, if its snapshot has the hash `snapshot`. Raises OperationError, after all others
        are restored, for a record that cannot be trusted.
        """
        nonce = nonce_of(request) if request.get("nonce") else ""
        snapshot_hash = str(request.get("snapshot", ""))
        unguarded = [
            stored for stored in self._unguarded_records() if nonce in ("", stored.record["nonce"])
        ]
        own = [stored for stored in unguarded if _may_restore(stored, snapshot_hash)]
        for stored in sorted(own, key=lambda item: str(item.record["armed_at"]), reverse=True):
            process.attempt_restore(stored.record, str(request.get("why", "")), self._restore)
            with locked(self._shared):
                stored.store()
        for stored in unguarded:
            # with a nonce, a record of another account may be a mere copy of it
            if stored not in own and not (nonce and own):
                raise untrusted_error(stored)
        return [stored.public() for stored in own]

    def _unguarded_records(self) -> list[StoredRecord]:
        """Return the unresolved records of runs that no running timer guards."""
        armed = self._timer.armed()
        return [
            stored for stored in unresolved(self._shared, this_boot()) if not _guards(armed, stored)
        ]

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the armed timer, and all accounts' records of runs that it does not guard."""
        armed = self._timer.armed()
        unresolved_paths = {stored.path for stored in unresolved(self._shared, this_boot())}
        records = [
            {**stored.public(), "unresolved": stored.path in unresolved_paths}
            for stored in all_records(self._shared)
            if not _guards(armed, stored)
        ]
        return {"boot": this_boot(), "armed": armed, "records": records}

    def clear(self, request: dict[str, Any]) -> None:
        """Remove a record whose device was restored."""
        nonce = nonce_of(request)
        for stored in unresolved(self._shared, this_boot()):
            if stored.record["nonce"] == nonce and stored.trusted:
                raise not_restored_error(stored)
        self._remove(nonce)

    def forget(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Remove the unresolved records that this account may remove; return them.

        Raises OperationError for one of another account, unless this is root.
        """
        unguarded = self._unguarded_records()
        own = [stored for stored in unguarded if os.geteuid() in (0, stored.uid)]
        with locked(self._shared):
            for stored in own:
                stored.remove()
        for stored in unguarded:
            if stored not in own:
                raise untrusted_error(stored)
        return [stored.public() for stored in own]

    def _remove(self, nonce: str) -> None:
        with locked(self._shared):
            for stored in all_records(self._shared):
                # root also removes another account's record of this run, if it is resolved
                if stored.record["nonce"] == nonce and (
                    stored.uid == os.geteuid() or (os.geteuid() == 0 and stored.record["resolved"])
                ):
                    stored.remove()

    def _latest_restored(self, nonce: str = "") -> dict[str, Any] | None:
        """Return the record of the latest restore, or of the run with this nonce, else None."""
        records = [stored.public() for stored in all_records(self._shared) if stored.trusted]
        fired = [r for r in records if r["fired_at"] and nonce in ("", r["nonce"])]
        return max(fired, key=lambda record: str(record["fired_at"]), default=None)

    def _bind_listener(self) -> socket.socket:
        deadline = time.monotonic() + _NAME_TIMEOUT_S
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
            if time.monotonic() > deadline:
                raise name_taken_error("does not answer")
            time.sleep(_NAME_RETRY_S)

    def _order_or_explain(self, order: str, **arguments: Any) -> dict[str, Any]:
        answer = self._timer.order(order, **arguments)
        if answer is not None:
            return answer
        record = self._latest_restored(str(arguments.get("nonce", "")))
        if record is None:
            raise _no_timer_error()
        raise OperationError(
            f"has restored itself at {record['fired_at']}: {record['why']}", "run the trial again"
        )


def address(shared: Path) -> str:
    """Return the abstract name of the timer's socket: one per folder, for all accounts."""
    # hashed, because a path may be longer than a socket's name may be
    return f"\0closloop-deadman:{hashlib.sha256(str(shared).encode()).hexdigest()[:16]}"


def _may_restore(stored: StoredRecord, snapshot_hash: str) -> bool:
    return os.geteuid() in (0, stored.uid) and (stored.trusted or stored.proved_by(snapshot_hash))


def _guards(armed: dict[str, Any] | None, stored: StoredRecord) -> bool:
    """Return whether an armed timer guards this record's run.

    A timer of another account guards only runs of that account.
    """
    return (
        armed is not None
        and armed["nonce"] == stored.record["nonce"]
        and (armed["trusted"] or armed["uid"] == stored.uid)
    )


def _no_timer_error() -> OperationError:
    return OperationError(
        "its dead-man's timer does not run: it was not armed, or its process was killed",
        "run `closloop restore`, then the trial again",
    )


def operations(_: Agent, shared: Path = SHARED, restore: Restore = restore) -> dict[str, Operation]:
    """Return the operations by name."""
    deadman = DeadMan(shared, restore)
    names = ("arm", "feed", "fire", "disarm", "settle", "status", "clear", "forget")
    return {f"deadman.{name}": getattr(deadman, name) for name in names}
