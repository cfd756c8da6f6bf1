"""The lease on a device: only its holder may change the device, whatever the account and machine.

    lease.take   {holder, nonce, ttl_s, heir_of, restoring}   take or extend it -> the lease;
                                   refused while the lease of another run is valid, and, unless
                                   `restoring`, while a run has left the device unrestored
    lease.renew  {nonce, ttl_s}    extend it -> the lease; refused if another run has taken it
    lease.drop   {nonce}           give it back -> whether it was held; refused if another run
                                   holds it
    lease.show   -> {"lease": the valid lease or null, "unresolved": records}

Every run has its own nonce, so that holders of equal name do not share a lease. `heir_of` has the
nonces of runs that have ended: their leases and records are not a reason to refuse. A lease is
{"holder", "account", "since" (time of day, UTC), "left_s"}. It expires when it is not renewed for
`ttl_s` seconds of CLOCK_BOOTTIME, which includes time suspended, and at a reboot. It is stored in
the account's folder (`shared_folder`) and removed when it is dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from ..main import Agent, Operation, OperationError
from .records import nonce_of, not_restored_error, unresolved
from .shared_folder import (
    SHARED,
    account_name,
    accounts,
    boottime_ns,
    locked,
    own_folder,
    read_record,
    remove_record,
    this_boot,
    time_of_day,
    write_record,
)

_FILE = "lease.json"
_HOLDER_CHARACTERS = 500
# A lease is renewed while its holder runs, so a longer one is not valid.
_MAX_TTL_NS = 86_400 * 10**9


class _ValidLease(NamedTuple):
    uid: int
    path: Path
    record: dict[str, Any]

    def public(self) -> dict[str, Any]:
        left_s = max(0.0, (self.record["ends_boot_ns"] - boottime_ns()) / 1e9)
        return {
            "holder": self.record["holder"],
            "account": account_name(self.uid),
            "since": self.record["since"],
            "left_s": round(left_s, 3),
        }

    def refused_error(self) -> OperationError:
        lease = self.public()
        return OperationError(
            f"is held by {lease['holder']} (account {lease['account']}) since {lease['since']}; "
            f"the lease ends in {lease['left_s']:.0f} s unless it is renewed",
            "wait until that run has ended; if it is dead, wait for the lease to end, or run "
            "`closloop restore` where it was started; if no run holds it, root may remove "
            f"{self.path}",
        )

    def remove_others(self) -> None:
        """Remove another account's lease. Raises OperationError without the right to."""
        try:
            remove_record(self.path)
        except PermissionError:
            raise self.refused_error() from None


def drop_lease(shared: Path, nonce: str) -> None:
    """Remove this account's lease, expired or not, if it has this nonce."""
    with locked(shared):
        path = own_folder(shared) / _FILE
        record = read_record(path)
        if record is not None and record.get("nonce") == nonce:
            remove_record(path)


class Leases:
    """The lease of one device. `boot_id` identifies the current boot."""

    def __init__(self, shared: Path, boot_id: str) -> None:
        self._shared = shared
        self._path = own_folder(shared) / _FILE
        self._boot_id = boot_id

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the lease and return it. Doing so again with the same nonce extends it."""
        holder, nonce = _holder(request), nonce_of(request)
        ended = {nonce, *map(str, request.get("heir_of", ()))}
        with locked(self._shared):
            valid = self._valid()
            if valid is not None and valid.record["nonce"] not in ended:
                raise valid.refused_error()
            if not request.get("restoring"):
                self._refuse_unresolved(ended)
            if valid is not None and valid.path != self._path:
                valid.remove_others()
            again = valid is not None and valid.record["nonce"] == nonce
            since = valid.record["since"] if valid is not None and again else time_of_day()
            return self._write(holder, nonce, since, request).public()

    def renew(self, request: dict[str, Any]) -> dict[str, Any]:
        """Extend the lease and return it. An expired one is renewed if nobody has taken it."""
        nonce = nonce_of(request)
        with locked(self._shared):
            record = self._own_lease(nonce)
            if record is None or record.get("boot_id") != self._boot_id:
                raise OperationError(
                    "its lease is gone: the device was restored meanwhile, or has restarted",
                    "run the trial again",
                )
            return self._write(record["holder"], nonce, record["since"], request).public()

    def drop(self, request: dict[str, Any]) -> bool:
        """Give the lease back; return whether it was held."""
        nonce = nonce_of(request)
        with locked(self._shared):
            own_lease = self._own_lease(nonce) is not None
            if own_lease:
                remove_record(self._path)
            return own_lease

    def show(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return the valid lease, and the records of runs that left the device unrestored."""
        valid = self._valid()
        left = [
            {
                **stored.public(),
                "text": not_restored_error(stored).what,
                "remedy": not_restored_error(stored).remedy,
            }
            for stored in unresolved(self._shared, self._boot_id)
            # the record of the run that holds the lease is not unresolved
            if valid is None or valid.record["nonce"] != stored.record["nonce"]
        ]
        return {"lease": None if valid is None else valid.public(), "unresolved": left}

    def _refuse_unresolved(self, ended: Collection[str]) -> None:
        for stored in unresolved(self._shared, self._boot_id):
            if stored.record["nonce"] not in ended:
                raise not_restored_error(stored)

    def _own_lease(self, nonce: str) -> dict[str, Any] | None:
        """Return this account's lease with this nonce, expired or not, None if there is none.

        Raises OperationError if another lease is valid.
        """
        valid = self._valid()
        if valid is not None and valid.record["nonce"] != nonce:
            raise valid.refused_error()
        record = read_record(self._path)
        return record if record is not None and record.get("nonce") == nonce else None

    def _valid(self) -> _ValidLease | None:
        """Return the valid lease, of any account, None if there is none."""
        now_ns = boottime_ns()
        for uid, folder in accounts(self._shared).items():
            record = read_record(folder / _FILE)
            if (
                record is not None
                # another account may have written anything
                and all(isinstance(record.get(name), str) for name in ("holder", "nonce", "since"))
                and type(record.get("ends_boot_ns")) is int
                and record.get("boot_id") == self._boot_id
                and now_ns < record["ends_boot_ns"] < now_ns + _MAX_TTL_NS
            ):
                return _ValidLease(uid, folder / _FILE, record)
        return None

    def _write(self, holder: str, nonce: str, since: str, request: dict[str, Any]) -> _ValidLease:
        ttl_s = float(request["ttl_s"])
        if not 0 < ttl_s < _MAX_TTL_NS / 1e9:
            raise OperationError(
                f"a lease of {ttl_s} s makes no sense", "give a positive number, below a day"
            )
        record = {
            "holder": holder,
            "nonce": nonce,
            "since": since,
            "ends_boot_ns": boottime_ns() + int(ttl_s * 1e9),
            "boot_id": self._boot_id,
        }
        write_record(self._path, record)
        return _ValidLease(int(self._path.parent.name), self._path, record)


def _holder(request: dict[str, Any]) -> str:
    holder = request["holder"]
    if not isinstance(holder, str) or not 0 < len(holder) <= _HOLDER_CHARACTERS:
        raise OperationError("a lease needs a holder's name of 1 to 500 characters")
    return holder


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    leases = Leases(SHARED, this_boot())
    names = ("take", "renew", "drop", "show")
    return {f"lease.{name}": getattr(leases, name) for name in names}
