"""How provisioning went, device by device, put together from Ansible's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inventory.rack import Access
from orchestration.device.errors import printable
from orchestration.provision.explain import BROKEN, explain

StepState = Literal["running", "unchanged", "changed", "failed"]


@dataclass(frozen=True)
class Step:
    """One task on one device has begun or ended."""

    device: str
    task: str
    state: StepState


@dataclass(frozen=True)
class Skipped:
    """A step that was left out because the device does not offer it."""

    step: str
    reason: str


@dataclass
class DeviceOutcome:
    """One device: its tasks, what differed, what was left out, and the failure if it failed.

    `changes` are lines of what was changed (of what differs, when only verified or checked).
    A failure is `unexplained` if Ansible kept to itself what ssh said.
    `seconds` is wall time of its tasks.
    """

    device: str
    tasks: int = 0
    changed: int = 0
    changes: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failure: str = ""
    remedy: str = ""
    unexplained: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class ProvisionResult:
    """How a run went. `devices` holds each device that was asked for."""

    what: str
    devices: Mapping[str, DeviceOutcome]
    seconds: float

    @property
    def failed(self) -> tuple[str, ...]:
        """Devices that are not in the state asked for."""
        return tuple(name for name, outcome in self.devices.items() if outcome.failure)

    @property
    def changed(self) -> tuple[str, ...]:
        """Devices on which something was changed."""
        return tuple(name for name, outcome in self.devices.items() if outcome.changed)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        devices = {
            name: {
                "tasks": outcome.tasks,
                "changed": outcome.changed,
                "changes": outcome.changes,
                "skipped": [{"step": s.step, "reason": s.reason} for s in outcome.skipped],
                "failure": outcome.failure,
                "remedy": outcome.remedy,
                "seconds": round(outcome.seconds, 3),
            }
            for name, outcome in self.devices.items()
        }
        return {"what": self.what, "seconds": round(self.seconds, 3), "devices": devices}


class Tally:
    """Takes Ansible's events and keeps the outcomes; tells `listener` of each step."""

    def __init__(self, accesses: Iterable[Access], listener: Callable[[Step], None]) -> None:
        self._access = {access.device: access for access in accesses}
        self._listener = listener
        self.outcomes = {device: DeviceOutcome(device) for device in self._access}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner's."""
        kind, data = event.get("event"), event.get("event_data") or {}
        outcome = self.outcomes.get(data.get("host", ""))
        if outcome is None or str(data.get("task_action", "")).endswith("include_tasks"):
            return
        task = printable(str(data.get("task", "")))
        result = data.get("res") or {}
        if kind == "runner_on_start":
            self._listener(Step(outcome.device, task, "running"))
        elif kind == "runner_on_ok":
            self._ended(outcome, data, result)
            changed = bool(result.get("changed"))
            outcome.changed += changed
            self._listener(Step(outcome.device, task, "changed" if changed else "unchanged"))
        elif kind == "runner_on_unreachable" or (
            kind == "runner_on_failed" and not data.get("ignore_errors")
        ):
            self._ended(outcome, data, result)
            said = " ".join(str(result.get(key, "")) for key in ("msg", "module_stderr", "stderr"))
            found = explain(self._access[outcome.device], said, str(result.get("remedy", "")))
            outcome.failure, outcome.remedy = found
            outcome.unexplained = found == explain(self._access[outcome.device], BROKEN)
            self._listener(Step(outcome.device, task, "failed"))

    def _ended(
        self, outcome: DeviceOutcome, data: Mapping[str, Any], result: Mapping[str, Any]
    ) -> None:
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
