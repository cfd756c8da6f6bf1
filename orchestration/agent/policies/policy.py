"""Deploys a learned policy on a host or its NIC, takes it back, and reports what is in force.

    policy.check    {version}           -> refusals [[what, remedy]]; nothing is changed
    policy.deploy   {version, holder}   -> status
    policy.undo     {holder, name}      -> status; the previous version is in force again
    policy.restore  {holder}            -> status; no version is in force, as before the first
    policy.status                       -> {"stack": [known versions, the last one in force],
                                            "interrupted": null or {holder, at},
                                            "reports": what the kernel or the NIC says}

A version is a dict with `kind` ("pacing" or "pcc"), `name`, `model` (its hash), and what its kind
needs. A record on the disk (record.json) has the stack of versions. Before anything is changed, the
record gets the intent: the stack as it will be. So a deployment that was interrupted is known as
such, and `undo` and `restore` correct what it left. Kernel and NIC lose a policy when the device
restarts; the record stays, and `undo` puts the previous version in force.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.files import sync_path, write_whole
from ..main import Agent, Operation, OperationError
from ..safety.shared_folder import this_boot, time_of_day
from . import pacing, pcc

FOLDER = Path("/var/lib/closloop/policy")
_FORMAT = 1
_SHOWN = ("kind", "name", "model", "holder", "at")


# The modules that put policies in force, in the kernel (BPF) or in a NIC; each has functions
# `refusals`, `put` and `status`.
_KINDS: dict[str, Any] = {"pacing": pacing, "pcc": pcc}


class Policies:
    """Puts policies in force on this device, and keeps the record of them in `folder`."""

    def __init__(self, folder: Path = FOLDER, kinds: Mapping[str, Any] = _KINDS) -> None:
        self._folder = folder
        self._record = folder / "record.json"
        self._kinds = kinds

    def check(self, request: Mapping[str, Any]) -> list[list[str]]:
        """Return [what is wrong, remedy] for each reason not to deploy a version.

        Nothing is changed.
        """
        version = request["version"]
        record = self._read()
        problems = [list(pair) for pair in self._kind(version).refusals(version)]
        if record["intent"] is not None:
            problems.append(list(_interrupted(record)))
        others = [item for item in record["stack"] if item["kind"] != version["kind"]]
        for item in others[-1:]:
            what = f"a policy of the other kind ({item['kind']}) is in force"
            undo = f"`closloop deploy --undo {item['name']} -i INVENTORY`"
            problems.append([what, f"undo it first: {undo}"])
        return problems

    def deploy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put a version in force; return `status`.

        Raises OperationError if it is refused; the previous version then stays in force.
        """
        record = self._read()
        if record["intent"] is not None:
            raise OperationError(*_interrupted(record))
        version = request["version"]
        entry = {name: version[name] for name in ("kind", "name", "model")}
        entry.update(
            holder=request["holder"], at=time_of_day(), version=self._store_version(version)
        )
        stack = record["stack"]
        self._write(stack, intent=[*stack, entry], holder=request["holder"])
        try:
            self._kind(version).put(version)
        except OperationError:
            self._write(stack)
            self._remove_versions(stack)
            raise
        self._write([*stack, entry])
        return self.status()

    def undo(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the version before the last deployment, or attempted one, in force again."""
        record = self._read()
        stack = record["stack"]
        # an interrupted deployment is taken back, and an interrupted undo is completed
        intent = record["intent"]
        target = stack[:-1] if intent is None else min(stack, intent, key=len)
        attempted = max(stack, intent or [], key=len)
        if not attempted:
            raise OperationError(
                "no policy was deployed here", "see `closloop deploy --status -i INVENTORY`"
            )
        name = request.get("name")
        if name and attempted[-1]["name"] != name:
            raise OperationError(
                f"the policy in force is {attempted[-1]['name']!r}, not {name!r}",
                f"`closloop deploy --undo {attempted[-1]['name']} -i INVENTORY`",
            )
        return self._return_to(record, target, str(request["holder"]))

    def restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put no policy in force, as before the first deployment; remove all versions."""
        record = self._read()
        if not record["stack"] and record["intent"] is None:
            return self.status()
        return self._return_to(record, [], str(request["holder"]))

    def status(self, _: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what was deployed, and what the kernel or the NIC reports."""
        record = self._read()
        kind = next((item["kind"] for item in (*record["stack"], *(record["intent"] or ()))), "")
        return {
            "stack": [{name: item[name] for name in _SHOWN} for item in record["stack"]],
            "interrupted": record["by"] if record["intent"] is not None else None,
            "restarted": bool(record["stack"]) and record["boot"] != this_boot(),
            "reports": self._kinds[kind].status() if kind else {"model": ""},
        }

    def _return_to(
        self, record: dict[str, Any], target: list[dict[str, Any]], holder: str
    ) -> dict[str, Any]:
        kinds = {item["kind"] for item in (*record["stack"], *(record["intent"] or ()))}
        self._write(record["stack"], intent=target, holder=holder)
        reports: dict[str, Any] = {}
        for kind in sorted(kinds):
            target_version = target[-1] if target and target[-1]["kind"] == kind else None
            reports = self._kinds[kind].put(
                self._load_version(target_version["version"]) if target_version else None
            )
        self._write(target)
        self._remove_versions(target)
        return {**self.status(), "reports": reports}

    def _kind(self, version: Mapping[str, Any]) -> Any:
        try:
            return self._kinds[version["kind"]]
        except KeyError:
            raise OperationError(f"there is no kind of policy {version.get('kind')!r}") from None

    def _store_version(self, version: Mapping[str, Any]) -> str:
        """Store a version on the disk; return its file's name."""
        text = json.dumps(version, sort_keys=True)
        name = f"{version['model']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        self._make_folder()
        write_whole(self._folder / name, text, 0o600)
        sync_path(self._folder / name)
        return name

    def _load_version(self, name: str) -> dict[str, Any]:
        version: dict[str, Any] = json.loads((self._folder / name).read_text())
        return version

    def _remove_versions(self, stack: list[dict[str, Any]]) -> None:
        """Remove the versions that are not in the stack; with an empty stack, the whole folder."""
        if not stack:
            shutil.rmtree(self._folder)
            # the parent folder stays if provisioning's files are in it
            with suppress(OSError):
                self._folder.parent.rmdir()
            return
        in_use = {item["version"] for item in stack}
        for path in self._folder.glob("*-*.json"):
            if path.name not in in_use:
                path.unlink()

    def _read(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self._record.read_text())
        except FileNotFoundError:
            return {"stack": [], "intent": None, "by": None, "boot": this_boot()}
        if record.get("format") != _FORMAT:
            raise OperationError(
                f"{self._record} has format {record.get('format')!r}, not {_FORMAT}",
                "undo with the version of closloop that deployed",
            )
        return record

    def _write(
        self,
        stack: list[dict[str, Any]],
        intent: list[dict[str, Any]] | None = None,
        holder: str = "",
    ) -> None:
        record = {
            "format": _FORMAT,
            "boot": this_boot(),
            "stack": stack,
            "intent": intent,
            "by": {"holder": holder, "at": time_of_day()} if intent is not None else None,
        }
        self._make_folder()
        write_whole(self._record, json.dumps(record), 0o600)
        sync_path(self._record)
        sync_path(self._folder)

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OperationError(
                f"{self._folder} cannot be created: {os.strerror(error.errno or 0)}",
                "make room or correct its rights: nothing is changed before it is recorded",
            ) from error


def _interrupted(record: Mapping[str, Any]) -> tuple[str, str]:
    by = record["by"]
    return (
        f"a deployment by {by['holder']} at {by['at']} was interrupted",
        "run `closloop deploy --undo NAME -i INVENTORY` or `closloop restore INVENTORY` first",
    )


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    policies = Policies()
    names = ("check", "deploy", "undo", "restore", "status")
    return {f"policy.{name}": getattr(policies, name) for name in names}
