"""The policy that is in force on a host or its NIC: put there, taken back, and reported.

    policy.check    {version}           -> refusals [[what, remedy]]; nothing is changed
    policy.deploy   {version, holder}   -> status
    policy.undo     {holder, name}      -> status; the version before is in force again
    policy.restore  {holder}            -> status; none is, as before the first
    policy.status                       -> {"stack": [known versions, the last one in force],
                                            "interrupted": null or {holder, at},
                                            "reports": what the kernel or the NIC says}

A version is a dict with `kind` ("pacing" or "pcc"), `name`, `model` (its hash), and what its kind
needs. `RECORD` has the stack of versions, on the disk, and before anything is changed the intent:
which stack there will be. So a deployment that was cut off is known as such, and `undo` and
`restore` put right what it left. Kernel and NIC forget a policy when the device restarts; the
record does not, and `undo` brings the version before into force.
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


# What runs policies, the kernel's BPF or a NIC: modules with `refusals`, `put` and `status`.
_KINDS: dict[str, Any] = {"pacing": pacing, "pcc": pcc}


class Policies:
    """This device's record, and what it is a record of."""

    def __init__(self, folder: Path = FOLDER, kinds: Mapping[str, Any] = _KINDS) -> None:
        self._folder = folder
        self._record = folder / "record.json"
        self._kinds = kinds

    def check(self, request: Mapping[str, Any]) -> list[list[str]]:
        """Return why a version cannot be deployed; nothing is changed."""
        version = request["version"]
        record = self._read()
        found = [list(pair) for pair in self._kind(version).refusals(version)]
        if record["intent"] is not None:
            found.append(list(_interrupted(record)))
        for item in [one for one in record["stack"] if one["kind"] != version["kind"]][-1:]:
            what = f"a policy of the other kind ({item['kind']}) is in force"
            undo = f"`closloop deploy --undo {item['name']} -i INVENTORY`"
            found.append([what, f"undo it first: {undo}"])
        return found

    def deploy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put a version in force. What was in force stays if this is refused."""
        record = self._read()
        if record["intent"] is not None:
            raise OperationError(*_interrupted(record))
        version = request["version"]
        about = {name: version[name] for name in ("kind", "name", "model")}
        about.update(holder=request["holder"], at=time_of_day(), version=self._keep(version))
        stack = record["stack"]
        self._write(stack, intent=[*stack, about], holder=request["holder"])
        try:
            self._kind(version).put(version)
        except OperationError:
            self._write(stack)
            self._forget(stack)
            raise
        self._write([*stack, about])
        return self.status()

    def undo(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the version in force that was so before the last deployment, or its attempt."""
        record = self._read()
        stack = record["stack"]
        # a deployment that was cut off is taken back, an undo is brought to its end
        intent = record["intent"]
        wanted = stack[:-1] if intent is None else min(stack, intent, key=len)
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
        return self._go_back(record, wanted, str(request["holder"]))

    def restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have no policy in force, as before the first deployment; forget all versions."""
        record = self._read()
        if not record["stack"] and record["intent"] is None:
            return self.status()
        return self._go_back(record, [], str(request["holder"]))

    def status(self, _: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what was deployed, and what kernel or NIC report."""
        record = self._read()
        kind = next((item["kind"] for item in (*record["stack"], *(record["intent"] or ()))), "")
        return {
            "stack": [{name: item[name] for name in _SHOWN} for item in record["stack"]],
            "interrupted": record["by"] if record["intent"] is not None else None,
            "restarted": bool(record["stack"]) and record["boot"] != this_boot(),
            "reports": self._kinds[kind].status() if kind else {"model": ""},
        }

    def _go_back(
        self, record: dict[str, Any], wanted: list[dict[str, Any]], holder: str
    ) -> dict[str, Any]:
        kinds = {item["kind"] for item in (*record["stack"], *(record["intent"] or ()))}
        self._write(record["stack"], intent=wanted, holder=holder)
        said: dict[str, Any] = {}
        for kind in sorted(kinds):
            top = wanted[-1] if wanted and wanted[-1]["kind"] == kind else None
            said = self._kinds[kind].put(self._load(top["version"]) if top else None)
        self._write(wanted)
        self._forget(wanted)
        return {**self.status(), "reports": said}

    def _kind(self, version: Mapping[str, Any]) -> Any:
        try:
            return self._kinds[version["kind"]]
        except KeyError:
            raise OperationError(f"no policy is of kind {version.get('kind')!r}") from None

    def _keep(self, version: Mapping[str, Any]) -> str:
        """Store a version, on the disk; return its file's name."""
        text = json.dumps(version, sort_keys=True)
        name = f"{version['model']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        self._make_folder()
        write_whole(self._folder / name, text, 0o600)
        sync_path(self._folder / name)
        return name

    def _load(self, name: str) -> dict[str, Any]:
        version: dict[str, Any] = json.loads((self._folder / name).read_text())
        return version

    def _forget(self, stack: list[dict[str, Any]]) -> None:
        """Remove the versions that the stack does not name; with none, everything."""
        if not stack:
            shutil.rmtree(self._folder)
            # provisioning's may be beside it
            with suppress(OSError):
                self._folder.parent.rmdir()
            return
        kept = {item["version"] for item in stack}
        for path in self._folder.glob("*-*.json"):
            if path.name not in kept:
                path.unlink()

    def _read(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self._record.read_text())
        except FileNotFoundError:
            return {"stack": [], "intent": None, "by": None, "boot": this_boot()}
        if record.get("format") != _FORMAT:
            raise OperationError(
                f"{self._record} is of format {record.get('format')!r}, not {_FORMAT}",
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
                f"{self._folder} cannot be made: {os.strerror(error.errno or 0)}",
                "make room or correct its rights: nothing is changed that is not noted first",
            ) from error


def _interrupted(record: Mapping[str, Any]) -> tuple[str, str]:
    by = record["by"]
    return (
        f"a deployment by {by['holder']} at {by['at']} was cut off",
        "run `closloop deploy --undo NAME -i INVENTORY` or `closloop restore INVENTORY` first",
    )


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    policies = Policies()
    names = ("check", "deploy", "undo", "restore", "status")
    return {f"policy.{name}": getattr(policies, name) for name in names}
