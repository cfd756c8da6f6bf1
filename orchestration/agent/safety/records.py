"""Records of runs on a device: the snapshot to restore, kept until the device is restored.

A record is written to the disk before a run changes anything, and removed by the run after it has
restored the device. If the dead-man's timer restores the device, the record stays for the run's
controller, without the snapshot. It is *unresolved* while something may still have to be restored.

    {"holder", "nonce", "note", "armed_at", "boot", "snapshot",
     "why", "fired_at", "changed", "differences", "error", "restarted", "resolved"}

`why` to `error` are empty until the device is restored.

Any account can write a record with any content. A malformed one is ignored. A device is *refused*
because of the unresolved records of any account: on SONiC, an account need not be root to change
CONFIG_DB (its group `redis`, build_debian.sh), and may have done so. The error names the account
and the remedy. But a snapshot is restored only from a record that is `trusted`, root's or this
account's own, or whose hash the run's controller has in its ledger.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..main import OperationError
from .shared_folder import (
    account_name,
    accounts,
    own_folder,
    read_record,
    record_paths,
    remove_record,
    write_record,
)

_NONCE = re.compile(r"[0-9a-f]{8,64}")
_REMEDY = "`closloop restore INVENTORY` deals with it"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("holder", "note", "armed_at", "why", "fired_at", "error"), _is_text),
    "nonce": lambda value: isinstance(value, str) and bool(_NONCE.fullmatch(value)),
    "boot": lambda value: value is None or isinstance(value, str),
    "changed": lambda value: _is_list_of(str, value),
    "differences": lambda value: (
        _is_list_of(dict, value) and all(isinstance(item.get("part"), str) for item in value)
    ),
    **dict.fromkeys(("restarted", "resolved"), lambda value: isinstance(value, bool)),
}


class StoredRecord(NamedTuple):
    """A record, its file, and the user id of the account that wrote it."""

    uid: int
    path: Path
    record: dict[str, Any]

    @property
    def trusted(self) -> bool:
        """Whether root or this account wrote the record."""
        return self.uid in (0, os.geteuid())

    def proved_by(self, snapshot_hash: str) -> bool:
        """Return whether `snapshot_hash` is the hash of the record's snapshot."""
        return snapshot_hash == hash_of(self.record["snapshot"])

    def public(self) -> dict[str, Any]:
        """Return the record without the snapshot, which may be long."""
        fields = {name: self.record[name] for name in _FIELDS}
        return {**fields, "account": account_name(self.uid), "trusted": self.trusted}

    def store(self) -> None:
        """Write the record to the disk, into its account's folder. Call it with the lock held."""
        record = self.record
        if record["resolved"]:
            record = {name: value for name, value in record.items() if name != "snapshot"}
        write_record(self.path, record, owner=self.uid)

    def remove(self) -> None:
        """Remove the record from the disk. Call it with the lock held."""
        remove_record(self.path)


def canonical(snapshot: Any) -> bytes:
    """Return a snapshot's canonical text: JSON, keys sorted, without white space, ASCII."""
    return json.dumps(snapshot, sort_keys=True, separators=(",", ":")).encode()


def hash_of(snapshot: Any) -> str:
    """Return the SHA-256 of a snapshot's canonical text, by which the ledger names it."""
    return hashlib.sha256(canonical(snapshot)).hexdigest()


def nonce_of(request: dict[str, Any]) -> str:
    """Return the request's nonce, which identifies a run on this device. Raises OperationError."""
    nonce = request.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise OperationError("a nonce of 8 to 64 hexadecimal digits is missing")
    return nonce


def new_record(
    holder: str, nonce: str, note: str, armed_at: str, snapshot: dict[str, Any]
) -> dict[str, Any]:
    """Return the record of a run that is about to change the device."""
    return {
        "holder": holder,
        "nonce": nonce,
        "note": note,
        "armed_at": armed_at,
        "boot": snapshot.get("boot"),
        "snapshot": snapshot,
        **dict.fromkeys(("why", "fired_at", "error"), ""),
        "changed": [],
        "differences": [],
        **dict.fromkeys(("restarted", "resolved"), False),
    }


def store(shared: Path, record: dict[str, Any]) -> None:
    """Write a record of this account to the disk. Call it with the lock held."""
    StoredRecord(os.geteuid(), own_folder(shared) / f"run-{record['nonce']}.json", record).store()


def all_records(shared: Path) -> list[StoredRecord]:
    """Return the well-formed records of all accounts."""
    records = []
    for uid, folder in accounts(shared).items():
        for path in record_paths(folder, "run-*.json"):
            record = read_record(path)
            if record is not None and _well_formed(record):
                records.append(StoredRecord(uid, path, record))
    return records


def _well_formed(record: dict[str, Any]) -> bool:
    return (
        record.keys() >= _FIELDS.keys()
        and all(is_valid(record[name]) for name, is_valid in _FIELDS.items())
        and (record["resolved"] or isinstance(record.get("snapshot"), dict))
    )


def unresolved(shared: Path, boot: str) -> list[StoredRecord]:
    """Return the records of runs that may have left changes on this device.

    `boot` is the id of the current boot: a run changes the running kernel, which a reboot resets,
    and a SONiC switch's CONFIG_DB, which a reboot may load again.
    """
    return [
        stored
        for stored in all_records(shared)
        if not stored.record["resolved"]
        and (stored.record["boot"] == boot or stored.record["snapshot"].get("rows") is not None)
    ]


def not_restored_error(stored: StoredRecord) -> OperationError:
    """Return the error for a device that was not restored after an earlier run."""
    record, account = stored.record, account_name(stored.uid)
    what, left = record["error"], record["differences"]
    if not what and left:
        what = f"{len(left)} settings still differ"
    tried = f"; restoring was tried at {record['fired_at']}: {what}" if what else ""
    return OperationError(
        f"{record['holder']} (account {account}) took it at {record['armed_at']} "
        f"and did not restore it{tried}",
        _REMEDY if stored.trusted else foreign_remedy(account),
    )


def untrusted_error(stored: StoredRecord) -> OperationError:
    """Return the error for a record from which this account must not, or cannot, restore."""
    account = account_name(stored.uid)
    reason = (
        f"only {account} and root can restore it"
        if os.geteuid()
        else "root does not restore from what another account wrote"
    )
    return OperationError(f"{not_restored_error(stored).what}; {reason}", foreign_remedy(account))


def foreign_remedy(account: str) -> str:
    """Return what to do about another account's record."""
    return (
        f"`closloop restore INVENTORY` as {account} (ansible_user), or where that run was started; "
        "if it left nothing, or is not known there, `closloop restore INVENTORY --forget DEVICE` "
        "as root removes the record unread"
    )
