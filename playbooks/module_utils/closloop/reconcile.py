"""The steps that all modules share: read, compare, save the former values, change, read again.

A device's settings are a dict of JSON-ready values; None means that the setting does not exist.
Saved values of settings that are no longer desired are restored. So an undo is a change to a state
in which nothing is desired.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from abc import ABC, abstractmethod
from typing import NamedTuple
from uuid import uuid4

from ansible.module_utils.agent.main import OperationError as Refused
from ansible.module_utils.agent.safety.lease import Leases, drop_lease
from ansible.module_utils.agent.safety.shared_folder import SHARED, own_folder, this_boot
from ansible.module_utils.core.files import partial_of, sync_path, whole_file

FOLDER = "/var/lib/closloop/provision"
# The second format also has what an interrupted change must set again, which older versions of
# closloop would ignore.
_FORMAT, _SUSPENDED_FORMAT = 1, 2
# A module takes seconds; if it is killed, its lease is valid for this long.
_LEASE_S = 300.0
# How long a release waits for a module that still runs without its controller.
_MODULE_TIMEOUT_S, _POLL_S = 60.0, 0.05
ARGUMENTS = {
    "state": {"choices": ["present", "verified", "absent"], "default": "present"},
    "desired": {"type": "dict", "default": {}},
    "holder": {"type": "str", "default": "an Ansible playbook"},
    "lease": {"type": "str", "default": ""},
    "last": {"type": "bool", "default": True},
}


class Change(NamedTuple):
    """A setting that must change. `restores` is True if its target is the saved value."""

    key: str
    before: object
    after: object
    restores: bool


class Device(ABC):
    """The settings that one module manages on this device. `skipped` collects the skipped steps."""

    name = ""

    def __init__(self) -> None:
        self.skipped: list = []

    def skip(self, key: str, reason: str) -> None:
        """Record that a step is skipped, and why."""
        entry = {"step": key, "reason": reason}
        if entry not in self.skipped:
            self.skipped.append(entry)

    @abstractmethod
    def desired_values(self, desired: dict) -> dict:
        """Return the desired values by key, of the settings that this device offers."""

    @abstractmethod
    def read(self, keys: list) -> dict:
        """Return the present values of `keys`."""

    def is_same(self, key: str, present: object, target: object) -> bool:
        """Return True if nothing has to change; `target` is a desired or a saved value."""
        return present == target

    def value_to_save(self, change: Change, saved: dict) -> object:
        """Return what to save before a change; `saved` has all saved values by key."""
        return saved.get(change.key, change.before)

    def undo_target(self, key: str, saved: object, present: object) -> object:
        """Return the value that an undo should set, given the saved and the present value."""
        return saved

    def unreadable(self, key: str) -> str:
        """Return why a saved setting cannot be read now, and so may not be restored, or ""."""
        return ""

    def suspended(self, changes: list) -> dict:
        """Return the present values, by key, of settings that `apply` removes and sets again.

        They are saved before `apply`, so that none is lost if it is interrupted.
        """
        return {}

    def put_back(self, values: dict) -> None:  # noqa: B027 (most suspend nothing)
        """Set again what an interrupted `apply` has removed; `values` are from `suspended`."""

    def check(self, changes: list) -> None:  # noqa: B027 (most have nothing to refuse)
        """Raise Refused if the changes could not be undone later, or are dangerous.

        `changes` are only those of settings that this module has not changed before.
        """

    @abstractmethod
    def apply(self, changes: list) -> None:
        """Make the changes in the right order."""

    def describe(self, key: str, value: object) -> str:
        """Return a value as text for people."""
        return "nothing" if value is None else str(value)


class Saved:
    """The values before the first change, by key, in a file that only root can read.

    The file is written before anything is changed, and removed by the undo. A saved value is never
    overwritten, because an undo restores the first state. `suspended` has the values that the
    current change removes and sets again: if one is missing later, the change was interrupted, and
    nobody else removed it.
    """

    def __init__(self, name: str, folder: str = FOLDER) -> None:
        self.path = os.path.join(folder, name + ".json")
        self.exists = False
        self.values: dict = {}
        self.suspended: dict = {}

    def load(self) -> None:
        """Read the file, if it exists. Raises ValueError if it has another format."""
        try:
            with open(self.path, encoding="utf-8") as file:
                data = json.load(file)
        except FileNotFoundError:
            return
        if not isinstance(data, dict) or data.get("format") not in (_FORMAT, _SUSPENDED_FORMAT):
            raise ValueError(self.path + " was written by another version of closloop")
        values, suspended = data.get("values"), data.get("suspended", {})
        if not isinstance(values, dict) or not isinstance(suspended, dict):
            raise ValueError(self.path + " is damaged")
        self.exists, self.values, self.suspended = True, values, suspended

    def store(self) -> None:
        """Write the file atomically. Raises OSError."""
        folder = os.path.dirname(self.path)
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        data: dict = {"format": _FORMAT, "values": self.values}
        if self.suspended:
            data = {**data, "format": _SUSPENDED_FORMAT, "suspended": self.suspended}
        with whole_file(self.path) as new:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(data, file)
            sync_path(new)
        self.exists = True

    def remove(self) -> None:
        """Remove the file, a killed writer's partial file, and the folders if they are empty."""
        for path in (self.path, partial_of(self.path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        folder = os.path.dirname(self.path)
        for path in (folder, os.path.dirname(folder)):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        self.exists, self.values, self.suspended = False, {}, {}


def plan(device: Device, wanted: dict, saved: dict, reinstated: dict | None = None) -> list:
    """Return the changes that bring the device to `wanted`, and all other settings to `saved`.

    `reinstated` has the values, by key, that are set again before that.
    """
    former = [key for key in saved if key not in wanted]
    present = {**device.read([*former, *wanted]), **(reinstated or {})}
    targets = {key: device.undo_target(key, saved[key], present.get(key)) for key in former}
    return [
        Change(key, present.get(key), target, key in targets)
        for key, target in {**targets, **wanted}.items()
        if not device.is_same(key, present.get(key), target)
    ]


def reconcile(device: Device, desired: dict, saved: Saved, state: str, check_mode: bool) -> dict:
    """Bring the device into a state and return the module's result. Raises Refused, OSError."""
    saved.load()
    if state == "absent" and not saved.exists:
        if not check_mode:
            saved.remove()
        return {"changed": False, "skipped_steps": [], "differences": []}
    reinstated = {} if state == "verified" else _lost_in_interruption(device, saved)
    if not check_mode and state != "verified":
        _put_back(device, saved, reinstated)
    wanted = {} if state == "absent" else device.desired_values(desired)
    changes = plan(device, wanted, saved.values, reinstated)
    found = [*(Change(key, None, value, True) for key, value in reinstated.items()), *changes]
    result = {
        "changed": bool(found) or state == "absent",
        "differences": lines(device, found),
        "diff": _diff(device, found),
    }
    if state == "verified":
        return {**result, "changed": False, "skipped_steps": device.skipped}
    device.check([change for change in changes if change.key not in saved.values])
    if check_mode:
        _skip_unreadable(device, wanted, saved.values)
    else:
        _apply_changes(device, wanted, saved, changes)
        if state == "absent":
            _finish_undo(device, saved)
    return {**result, "skipped_steps": device.skipped}


def _lost_in_interruption(device: Device, saved: Saved) -> dict:
    """Return the values, by key, that an interrupted change has removed and not set again."""
    present = device.read(list(saved.suspended)) if saved.suspended else {}
    return {key: value for key, value in saved.suspended.items() if present[key] is None}


def _put_back(device: Device, saved: Saved, missing: dict) -> None:
    """Set again what an interrupted change has removed, and remember that this is done."""
    if missing:
        device.put_back(missing)
    if saved.suspended:
        saved.suspended = {}
        saved.store()


def _skip_unreadable(device: Device, wanted: dict, saved: dict) -> dict:
    """Return the reason, by key, for each saved setting whose present value cannot be read.

    They are skipped steps, and their saved values stay.
    """
    reasons = {key: device.unreadable(key) for key in saved if key not in wanted}
    found = {key: reason for key, reason in reasons.items() if reason}
    for key, reason in found.items():
        device.skip(f"undo of {key}", f"it cannot be read: {reason}; its former value stays saved")
    return found


def _apply_changes(device: Device, wanted: dict, saved: Saved, changes: list) -> None:
    new_values = {c.key: device.value_to_save(c, saved.values) for c in changes if not c.restores}
    merged = {**saved.values, **new_values}
    suspended = device.suspended(changes)
    if suspended or merged != saved.values:
        saved.values, saved.suspended = merged, suspended
        saved.store()
    if not changes:
        return
    try:
        device.apply(changes)
    except Exception:
        # what cannot be set again now is set by the next undo or provisioning
        with contextlib.suppress(Exception):
            _put_back(device, saved, _lost_in_interruption(device, saved))
        raise
    unfinished = plan(device, wanted, saved.values)
    remaining = saved.values
    if wanted and not unfinished:
        unreadable = _skip_unreadable(device, wanted, remaining)
        remaining = {
            key: value for key, value in remaining.items() if key in wanted or key in unreadable
        }
    if suspended or remaining != saved.values:
        saved.values, saved.suspended = remaining, {}
        saved.store()
    if unfinished:
        raise Refused(
            "not every setting has its value: " + "; ".join(lines(device, unfinished)),
            "check whether something else on the device changes it, then provision again",
        )


def _finish_undo(device: Device, saved: Saved) -> None:
    """Remove what was saved, after an undo. Raises Refused, and keeps values not restored."""
    unreadable = _skip_unreadable(device, {}, saved.values)
    if not unreadable:
        saved.remove()
        return
    saved.values = {key: saved.values[key] for key in unreadable}
    saved.store()
    raise Refused(
        "what cannot be read is not restored: "
        + "; ".join(f"{key} ({reason})" for key, reason in unreadable.items()),
        f"make it readable, then undo again; to give it up, remove {saved.path}",
    )


def lines(device: Device, changes: list) -> list:
    """Return a line for each change, for people: setting, present value, target."""

    def line(change: Change) -> str:
        before, after = (device.describe(change.key, v) for v in (change.before, change.after))
        return f"{change.key}: is {before}, should be {after}"

    return [line(change) for change in changes]


def _diff(device: Device, changes: list) -> dict:
    def text(index: int) -> str:
        return "".join(f"{c.key}: {device.describe(c.key, c[index])}\n" for c in changes)

    return {"before": text(1), "after": text(2)}


def run(module, device: Device) -> None:
    """Run the module: read its parameters, reconcile the device, and report to Ansible."""
    state = module.params["state"]
    try:
        with _leased(module) as lease_kept:
            result = reconcile(
                device, module.params["desired"], Saved(device.name), state, module.check_mode
            )
    except Refused as error:
        module.fail_json(msg=error.what, remedy=error.remedy, skipped_steps=device.skipped)
    except ValueError as error:
        module.fail_json(msg=str(error), remedy="undo with the version that provisioned the device")
    except OSError as error:
        module.fail_json(msg=str(error), remedy=_remedy(error))
    if state == "verified" and result["differences"]:
        module.fail_json(
            msg="not as provisioned: " + "; ".join(result["differences"]),
            remedy="closloop provision brings it into its state again",
            **result,
        )
    module.exit_json(**result, lease=lease_kept)


@contextlib.contextmanager
def _leased(module):
    """Hold the device while it is changed, so that neither a run nor another module changes it.

    The saved values are also read, written and removed under the lease. Unless this is the device's
    last module, it keeps the lease for the next one, which extends it, and yields the lease's
    nonce; otherwise it yields "" and drops the lease. It also drops it after a failure.
    """
    if module.check_mode or module.params["state"] == "verified":
        yield ""
        return
    last, nonce = module.params["last"], module.params["lease"] or uuid4().hex
    leases = Leases(SHARED, this_boot())
    lease_request = {"holder": module.params["holder"], "nonce": nonce, "ttl_s": _LEASE_S}
    leases.take(lease_request)
    try:
        with _only_module_running():
            yield "" if last else nonce
    except BaseException:
        last = True
        raise
    finally:
        if last:
            leases.drop(lease_request)


def release(nonce: str) -> None:
    """Drop the lease that modules kept for a next one.

    A module may still run for a while after its controller was stopped; this waits for it. Raises
    Refused if it runs for too long.
    """
    with contextlib.suppress(FileNotFoundError), _only_module_running():
        drop_lease(SHARED, nonce)


@contextlib.contextmanager
def _only_module_running():
    """Hold a lock, so that this is the only running module of this account.

    The lock ends with the process. Raises Refused if another module runs for too long.
    """
    handle = os.open(own_folder(SHARED), os.O_RDONLY | os.O_CLOEXEC)
    deadline = time.monotonic() + _MODULE_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"another module has been running for more than {_MODULE_TIMEOUT_S:.0f} s",
                        "check what Ansible's processes on the device do",
                    ) from None
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _remedy(error: OSError) -> str:
    if error.errno in (1, 13):  # EPERM, EACCES
        return "the user must become root: set ansible_become in the inventory"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return "the device's disk is full: make room below /var/lib"
    return "see the device's log"
