"""What a device remembers of a run: its snapshot, from arming the timer until it is restored.

A record is written to the disk before a run changes anything, and removed by the run that has
restored the device. If the dead-man's timer restores it, the record stays for that run's
controller, without the snapshot. It is *unresolved* while something may still have to be restored.

    {"holder", "nonce", "note", "armed_at", "boot", "snapshot",
     "why", "fired_at", "changed", "differences", "error", "restarted", "resolved"}

`why` to `error` are empty until the device is restored. Standard library only, also for Ansible
modules.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from .main import OperationError
from .place import account_name, accounts, own_folder, read_record, write_record

_NONCE = re.compile(r"[0-9a-f]{8,64}")
_FIELDS = {
    "holder", "nonce", "note", "armed_at", "boot",
    "why", "fired_at", "changed", "differences", "error", "restarted", "resolved",
}  # fmt: skip
_REMEDY = "`closloop restore INVENTORY` deals with it"


class Kept(NamedTuple):
    """A record, with the user id of the account that wrote it."""

    uid: int
    path: Path
    record: dict[str, Any]

    def public(self) -> dict[str, Any]:
        """Return the record without the snapshot, which may be long."""
        said = {name: value for name, value in self.record.items() if name != "snapshot"}
        return {**said, "account": account_name(self.uid)}

    def store(self) -> None:
        """Write the record to the disk, into its account's folder. Call it with the lock held."""
        record = self.record
        if record["resolved"]:
            record = {name: value for name, value in record.items() if name != "snapshot"}
        write_record(self.path, record, owner=self.uid)


def nonce_of(request: dict[str, Any]) -> str:
    """Return the request's nonce, which tells one taking of a device from every other."""
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
        "why": "",
        "fired_at": "",
        "changed": [],
        "differences": [],
        "error": "",
        "restarted": False,
        "resolved": False,
    }


def store(shared: Path, record: dict[str, Any]) -> None:
    """Write a record of this account to the disk. Call it with the lock held."""
    Kept(os.geteuid(), own_folder(shared) / f"run-{record['nonce']}.json", record).store()


def all_records(shared: Path) -> list[Kept]:
    """Return the records of all accounts."""
    found = []
    for uid, folder in accounts(shared).items():
        for path in sorted(folder.glob("run-*.json")):
            record = read_record(path)
            if record is not None and record.keys() >= _FIELDS:
                found.append(Kept(uid, path, record))
    return found


def unresolved(shared: Path, boot: str) -> list[Kept]:
    """Return the records whose runs may have left something on this device, `boot` being this one.

    A run changes the running kernel, which a reboot resets, and a SONiC switch's CONFIG_DB, which
    a reboot may load again.
    """
    return [
        kept
        for kept in all_records(shared)
        if not kept.record.get("resolved")
        and (kept.record.get("boot") == boot or _rows(kept.record) is not None)
    ]


def _rows(record: dict[str, Any]) -> Any:
    snapshot = record.get("snapshot")
    return snapshot.get("rows") if isinstance(snapshot, dict) else None


def refusal(kept: Kept) -> OperationError:
    """Return the error for a device that was not restored after an earlier run."""
    record = kept.record
    what = str(record.get("error") or "")
    left = record.get("differences") or []
    if not what and left:
        what = f"{len(left)} settings still differ"
    tried = f"; restoring was tried at {record['fired_at']}: {what}" if what else ""
    return OperationError(
        f"{record['holder']} (account {account_name(kept.uid)}) took it at {record['armed_at']} "
        f"and did not restore it{tried}",
        _REMEDY,
    )
