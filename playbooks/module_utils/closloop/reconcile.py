"""The steps that all modules share: read, compare, save the old state, change, read again.

A device's settings are a dict of JSON-ready values; None means that the setting does not exist.
Undo means that nothing is wanted: saved values that are no longer wanted are restored.
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
# The second has what an interrupted change must put back, which older versions would leave out.
_FORMAT, _SUSPENDED_FORMAT = 1, 2
# A module takes seconds; one that is killed holds the device for this long.
_LEASE_S = 300.0
# How long a release waits for a module that goes on without its controller.
_MODULE_S, _LOOK_EVERY_S = 60.0, 0.05
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
    """The settings of one module on this device. `skipped` collects what the device lacks."""

    name = ""

    def __init__(self) -> None:
        self.skipped: list = []

    def skip(self, key: str, reason: str) -> None:
        """Record that a step is skipped, and why."""
        entry = {"step": key, "reason": reason}
        if entry not in self.skipped:
            self.skipped.append(entry)

    @abstractmethod
    def wanted(self, desired: dict) -> dict:
        """Return the wanted values by key, as far as this device offers the settings."""

    @abstractmethod
    def read(self, keys: list) -> dict:
        """Return the present values of `keys`."""

    def same(self, key: str, present: object, target: object) -> bool:
        """Return True if nothing has to change. `target` is a wanted value, or one read earlier."""
        return present == target

    def noted(self, change: Change, saved: dict) -> object:
        """Return what to save of a setting before a change, given all that is saved already."""
        return saved.get(change.key, change.before)

    def restored(self, key: str, saved: object, present: object) -> object:
        """Return the value that an undo aims at, given what was saved and what is there."""
        return saved

    def unreadable(self, key: str) -> str:
        """Return why a saved setting cannot be read now, so that it may not be restored, or ""."""
        return ""

    def suspended(self, changes: list) -> dict:
        """Return what `apply` removes on its way and sets again: present values by key.

        They are saved before it, so that none is lost if it is interrupted.
        """
        return {}

    def put_back(self, values: dict) -> None:  # noqa: B027 (most suspend nothing)
        """Set what an interrupted `apply` has removed on its way, as `suspended` returned it."""

    def check(self, changes: list) -> None:  # noqa: B027 (most have nothing to refuse)
        """Raise Refused if the changes could not be undone later, or are dangerous.

        They are the changes of settings that this module has not changed before.
        """

    @abstractmethod
    def apply(self, changes: list) -> None:
        """Make the changes in the right order."""

    def shown(self, key: str, value: object) -> str:
        """Return a value in a form for people."""
        return "nothing" if value is None else str(value)


class Saved:
    """The values before the first change, by key, in a file that only root can read.

    It is written before anything is changed and removed by the undo. A former value is never
    overwritten, because an undo restores the first state. `suspended` is what the change at work
    removes and sets again: where it is missing later, that change was interrupted, and nobody else
    has removed it.
    """

    def __init__(self, name: str, folder: str = FOLDER) -> None:
        self.path = os.path.join(folder, name + ".json")
        self.there = False
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
        self.there, self.values, self.suspended = True, values, suspended

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
        self.there = True

    def remove(self) -> None:
        """Remove the file, what a killed writer left of it, and its folders if they are empty."""
        for path in (self.path, partial_of(self.path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        folder = os.path.dirname(self.path)
        for path in (folder, os.path.dirname(folder)):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        self.there, self.values, self.suspended = False, {}, {}


def plan(device: Device, wanted: dict, saved: dict, returning: dict | None = None) -> list:
    """Return the changes that bring the device to `wanted`, and all other settings to `saved`.

    `returning` are settings that are put back before, by key.
    """
    former = [key for key in saved if key not in wanted]
    present = {**device.read([*former, *wanted]), **(returning or {})}
    targets = {key: device.restored(key, saved[key], present.get(key)) for key in former}
    return [
        Change(key, present.get(key), target, key in targets)
        for key, target in {**targets, **wanted}.items()
        if not device.same(key, present.get(key), target)
    ]


def reconcile(device: Device, desired: dict, saved: Saved, state: str, check_mode: bool) -> dict:
    """Bring the device into a state and return the module's result. Raises Refused, OSError."""
    saved.load()
    if state == "absent" and not saved.there:
        if not check_mode:
            saved.remove()
        return {"changed": False, "skipped_steps": [], "differences": []}
    returning = {} if state == "verified" else _missing(device, saved)
    if not check_mode and state != "verified":
        _put_back(device, saved, returning)
    wanted = {} if state == "absent" else device.wanted(desired)
    changes = plan(device, wanted, saved.values, returning)
    found = [*(Change(key, None, value, True) for key, value in returning.items()), *changes]
    result = {
        "changed": bool(found) or state == "absent",
        "differences": lines(device, found),
        "diff": _diff(device, found),
    }
    if state == "verified":
        return {**result, "changed": False, "skipped_steps": device.skipped}
    device.check([change for change in changes if change.key not in saved.values])
    if check_mode:
        _unreadable(device, wanted, saved.values)
    else:
        _make(device, wanted, saved, changes)
        if state == "absent":
            _end(device, saved)
    return {**result, "skipped_steps": device.skipped}


def _missing(device: Device, saved: Saved) -> dict:
    """Return what an interrupted change has removed on its way, and not set again, by key."""
    present = device.read(list(saved.suspended)) if saved.suspended else {}
    return {key: value for key, value in saved.suspended.items() if present[key] is None}


def _put_back(device: Device, saved: Saved, missing: dict) -> None:
    """Put back what an interrupted change has removed; from then on a removal is somebody's."""
    if missing:
        device.put_back(missing)
    if saved.suspended:
        saved.suspended = {}
        saved.store()


def _unreadable(device: Device, wanted: dict, saved: dict) -> dict:
    """Return the reason by key for former settings of which nobody knows what they are now."""
    reasons = {key: device.unreadable(key) for key in saved if key not in wanted}
    found = {key: reason for key, reason in reasons.items() if reason}
    for key, reason in found.items():
        device.skip(f"undo of {key}", f"it cannot be read: {reason}; what it was stays saved")
    return found


def _make(device: Device, wanted: dict, saved: Saved, changes: list) -> None:
    notes = {c.key: device.noted(c, saved.values) for c in changes if not c.restores}
    both = {**saved.values, **notes}
    suspended = device.suspended(changes)
    if suspended or both != saved.values:
        saved.values, saved.suspended = both, suspended
        saved.store()
    if not changes:
        return
    try:
        device.apply(changes)
    except Exception:
        # what cannot be put back now is by the next undo or provisioning
        with contextlib.suppress(Exception):
            _put_back(device, saved, _missing(device, saved))
        raise
    left = plan(device, wanted, saved.values)
    kept = saved.values
    if wanted and not left:
        unreadable = _unreadable(device, wanted, kept)
        kept = {key: value for key, value in kept.items() if key in wanted or key in unreadable}
    if suspended or kept != saved.values:
        saved.values, saved.suspended = kept, {}
        saved.store()
    if left:
        raise Refused(
            "not everything is as it was set: " + "; ".join(lines(device, left)),
            "see whether something else on the device changes it, then provision again",
        )


def _end(device: Device, saved: Saved) -> None:
    """End an undo: remove what was saved. Raises Refused, and keeps what may not be restored."""
    unreadable = _unreadable(device, {}, saved.values)
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
    """Return the changes as lines for people: setting, present value, target."""

    def line(change: Change) -> str:
        before, after = (device.shown(change.key, v) for v in (change.before, change.after))
        return f"{change.key}: is {before}, should be {after}"

    return [line(change) for change in changes]


def _diff(device: Device, changes: list) -> dict:
    def text(place: int) -> str:
        return "".join(f"{c.key}: {device.shown(c.key, c[place])}\n" for c in changes)

    return {"before": text(1), "after": text(2)}


def run(module, device: Device) -> None:
    """Run the module: read its parameters, answer Ansible."""
    state = module.params["state"]
    try:
        with _leased(module) as kept:
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
    module.exit_json(**result, lease=kept)


@contextlib.contextmanager
def _leased(module):
    """Hold the device while it is changed, so that neither a run nor another module changes it.

    The saved values are read, written and removed under the lease too. Unless this module is the
    device's last one, it leaves the lease to the next, and yields its nonce; else "". The next one
    extends it. A module that fails is the last one.
    """
    if module.check_mode or module.params["state"] == "verified":
        yield ""
        return
    last, nonce = module.params["last"], module.params["lease"] or uuid4().hex
    leases = Leases(SHARED, this_boot())
    taking = {"holder": module.params["holder"], "nonce": nonce, "ttl_s": _LEASE_S}
    leases.take(taking)
    try:
        with _at_work():
            yield "" if last else nonce
    except BaseException:
        last = True
        raise
    finally:
        if last:
            leases.drop(taking)


def release(nonce: str) -> None:
    """Give the device back after modules that left it to a next one.

    A module may go on for a while after its controller was stopped; this waits for it. Raises
    Refused if it goes on for too long.
    """
    with contextlib.suppress(FileNotFoundError), _at_work():
        drop_lease(SHARED, nonce)


@contextlib.contextmanager
def _at_work():
    """Be the only module of this account that is at work, by a lock that ends with the process."""
    handle = os.open(own_folder(SHARED), os.O_RDONLY | os.O_CLOEXEC)
    end = time.monotonic() + _MODULE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Refused(
                        f"another module has been at work for more than {_MODULE_S:.0f} s",
                        "see what the processes of Ansible on the device do",
                    ) from None
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(handle)


def _remedy(error: OSError) -> str:
    if error.errno in (1, 13):  # EPERM, EACCES
        return "the user must become root: set ansible_become in the inventory"
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return "the device's disk is full: make room below /var/lib"
    return "see the device's log"
