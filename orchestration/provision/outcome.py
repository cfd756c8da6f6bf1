"""The outcome of provisioning, per device, collected from Ansible's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from inventory.rack import Access
from orchestration.core.machine import ElapsedTime
from orchestration.core.problems import Code, Problem
from orchestration.device.errors import printable

CONNECTION_BROKEN = "Data could not be sent to remote host"
_NO_PYTHON = ("it has no /usr/bin/python3", "install Python 3.9 or later on it")
# Patterns of messages of ssh, sudo and Ansible; the first match counts.
_KNOWN_ERRORS = (
    (
        # what ssh calls the other end of a ProxyCommand, and ProxyJump is one
        "UNKNOWN port 65535",
        "a jump host to it refuses: its host key is not known, or it does not accept the login",
        "see what this says: ssh -p {port} {user}@{address}; a jump host's key belongs in "
        "~/.ssh/known_hosts, its user and key in ~/.ssh/config",
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the known one: somebody may intercept the connection",
        "find out why; if the device was reinstalled, take its old key out of known_hosts",
    ),
    (
        "Host key verification failed",
        "its host key is not known",
        "compare its key with one you trust, then: ssh-keyscan -p {port} {address} >> known_hosts",
    ),
    (
        "Permission denied",
        "it refuses the login of {user}",
        "check ansible_user and ansible_ssh_private_key_file, or give the password with --ask-pass",
    ),
    (
        "Missing sudo password",
        "sudo wants a password of {user}",
        "give it with --ask-become-pass",
    ),
    (
        "Incorrect sudo password",
        "sudo refuses the password of {user}",
        "give the right one with --ask-become-pass",
    ),
    (
        "is not in the sudoers file",
        "{user} may not use sudo",
        "log in as another user, or allow it in the device's sudoers",
    ),
    (
        "not allowed to",
        "{user} may not use sudo for this",
        "log in as another user, or allow it in the device's sudoers",
    ),
    (
        "No space left on device",
        "its disk is full",
        "make room on the device, then provision again",
    ),
    (
        "No usable temporary directory",
        "its disk is full, or nothing can be written to its /tmp",
        "make room on the device, then provision again",
    ),
    (
        "not responding",
        "it has stopped answering",
        "check whether it still runs; `closloop provision --undo` takes back what was changed",
    ),
    (
        "Connection refused",
        "nothing listens at {address} port {port}",
        "check that sshd runs, and that ansible_host and ansible_port are right",
    ),
    (
        "Connection timed out",
        "it does not answer at {address}",
        "check that it runs, and that its address in the inventory is right",
    ),
    (
        "No route to host",
        "there is no route to {address}",
        "check that it runs, and that its address in the inventory is right",
    ),
    (
        "Network is unreachable",
        "there is no route to {address}",
        "correct ansible_host in the inventory, or this machine's routes",
    ),
    (
        "Could not resolve hostname",
        "the name {address} is not known",
        "correct ansible_host in the inventory",
    ),
    (
        "closed by remote host",
        "it has closed the connection",
        "check whether it still runs; what was changed stays until `closloop provision --undo`",
    ),
    ("/usr/bin/python3: not found", *_NO_PYTHON),
    ("/usr/bin/python3: No such file", *_NO_PYTHON),
    (
        # Ansible wrote to ssh while ssh was ending, and does not report ssh's message
        CONNECTION_BROKEN,
        "the connection broke: it refuses the login of {user}, or cannot be reached",
        "check user, key and password (--ask-pass), and whether the device can be reached",
    ),
)
_DEFAULT_REMEDY = (
    "see the device's log; `closloop provision --limit {device}` tries only this device"
)

StepState = Literal["running", "unchanged", "changed", "failed"]


@dataclass(frozen=True)
class Step:
    """The begin or end of one task on one device."""

    device: str
    task: str
    state: StepState


@dataclass(frozen=True)
class Skipped:
    """A step that was skipped because the device does not offer it."""

    step: str
    reason: str


@dataclass
class DeviceOutcome:
    """The outcome of one device: tasks, changes, skipped steps, and the failure if it failed.

    `changed` counts tasks with changes, and `changes` has a line per change made, or per difference
    when only verifying or checking. A failure is `unexplained` if Ansible did not report ssh's
    message. `seconds` is the time of the device's tasks, on a virtual rack in its virtual time.
    `held` is whether the device's lease may still be held: while a task runs, and after a task that
    leaves the lease to the next one.
    """

    device: str
    tasks: int = 0
    changed: int = 0
    changes: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failure: str = ""
    remedy: str = ""
    unexplained: bool = False
    held: bool = False
    seconds: float = 0.0

    @property
    def problem(self) -> Problem:
        """The failure, and the remedy."""
        return Problem(self.device, self.failure, self.remedy, Code.DEVICE_REFUSED)


@dataclass(frozen=True)
class ProvisionResult:
    """The outcome of a run of the playbooks on all requested devices, and how long it took.

    `what` is `provision`, `verify` or `undo`.
    """

    what: str
    devices: Mapping[str, DeviceOutcome]
    took: ElapsedTime

    @property
    def failed(self) -> tuple[str, ...]:
        """The devices that are not in the requested state."""
        return tuple(name for name, outcome in self.devices.items() if outcome.failure)

    @property
    def changed(self) -> tuple[str, ...]:
        """The devices with changes."""
        return tuple(name for name, outcome in self.devices.items() if outcome.changed)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        devices = {name: asdict(outcome) for name, outcome in self.devices.items()}
        for outcome in devices.values():
            del outcome["device"], outcome["unexplained"], outcome["held"]
            outcome["seconds"] = round(outcome["seconds"], 3)
        return {
            "what": self.what,
            "seconds": round(self.took.own_s, 3),
            "wall_s": round(self.took.wall_s, 3),
            "virtual_time": self.took.virtual,
            "devices": devices,
        }


class OutcomeCollector:
    """Collects the devices' outcomes from Ansible's events; calls `listener` for each step."""

    def __init__(self, accesses: Iterable[Access], listener: Callable[[Step], None]) -> None:
        self._access = {access.device: access for access in accesses}
        self._listener = listener
        self.outcomes = {device: DeviceOutcome(device) for device in self._access}

    def handle(self, event: Mapping[str, Any]) -> None:
        """Process one event of ansible-runner."""
        kind, data = event.get("event"), event.get("event_data") or {}
        outcome = self.outcomes.get(data.get("host", ""))
        if outcome is None or str(data.get("task_action", "")).endswith("include_tasks"):
            return
        task = printable(str(data.get("task", "")))
        result = data.get("res") or {}
        if kind == "runner_on_start":
            outcome.held = True
            self._listener(Step(outcome.device, task, "running"))
        elif kind == "runner_on_ok":
            self._finish_task(outcome, data, result)
            changed = bool(result.get("changed"))
            outcome.changed += changed
            self._listener(Step(outcome.device, task, "changed" if changed else "unchanged"))
        elif kind == "runner_on_unreachable" or (
            kind == "runner_on_failed" and not data.get("ignore_errors")
        ):
            self._finish_task(outcome, data, result)
            keys = ("msg", "module_stderr", "stderr")
            message = " ".join(str(result.get(key, "")) for key in keys)
            access = self._access[outcome.device]
            explained = explain(access, message, str(result.get("remedy", "")))
            outcome.failure, outcome.remedy = explained
            outcome.unexplained = explained == explain(access, CONNECTION_BROKEN)
            self._listener(Step(outcome.device, task, "failed"))

    def _finish_task(
        self, outcome: DeviceOutcome, data: Mapping[str, Any], result: Mapping[str, Any]
    ) -> None:
        # a device that has stopped answering is still held by an earlier task
        stuck = bool(result.get("unreachable")) and outcome.tasks > 0
        outcome.held = bool(result.get("lease")) or stuck
        outcome.tasks += 1
        outcome.seconds += float(data.get("duration") or 0.0)
        for line in _list(result.get("differences")):
            outcome.changes.append(printable(str(line)))
        for entry in _list(result.get("skipped_steps")):
            if isinstance(entry, Mapping):
                step, reason = (printable(str(entry.get(key, ""))) for key in ("step", "reason"))
                outcome.skipped.append(Skipped(step, reason))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def explain(access: Access, message_text: str, remedy: str = "") -> tuple[str, str]:
    """Return message and remedy for an error text of ssh, sudo or Ansible about a device.

    `remedy` is that of a module's own error, whose text is then the message. Texts are not trusted,
    so they become one printable line.
    """
    values = asdict(access)
    if remedy:
        return printable(message_text), printable(remedy)
    for words, message, known_remedy in _KNOWN_ERRORS:
        if words in message_text:
            return message.format(**values), known_remedy.format(**values)
    return printable(message_text) or "it failed without a message", _DEFAULT_REMEDY.format(
        **values
    )
