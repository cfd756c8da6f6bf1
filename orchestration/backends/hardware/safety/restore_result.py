"""What became of a device that was to be restored, for people and for the trial's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestration.agent.safety.state import RESTORABLE
from orchestration.device.errors import printable

# Parts of a snapshot that runs do not change.
_OTHERS = ("fingerprint", "new row", "saved row")
_SHOWN = 5


@dataclass(frozen=True)
class RestoreResult:
    """One device, restored or not.

    `how` says who restored it, or why nobody did. `changed` are the settings that were put back,
    `differences` those that still differ from the snapshot (`sonic.configdb.Difference` as a dict).
    `settled` devices need nothing more.
    """

    device: str
    settled: bool
    how: str
    changed: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def text(self) -> str:
        """The outcome for people, in one or more lines."""
        lines = [f"{self.device}: {self.how}"]
        if self.changed:
            lines[0] += f"; {len(self.changed)} settings put back"
        shown = [
            f"{self.device}: {describe_difference(item)}" for item in self.differences[:_SHOWN]
        ]
        more = len(self.differences) - _SHOWN
        return "\n".join([*lines, *shown, *([f"{self.device}: and {more} more"] * (more > 0))])


def restore_result(device: str, answer: Mapping[str, Any], how: str) -> RestoreResult:
    """Return the outcome in an agent's answer, or in a dead-man's record."""
    differences = tuple(_difference(item) for item in _items(answer.get("differences")))
    error = str(answer.get("error") or "")
    if answer.get("restarted"):
        how = "has restarted since"
        how += "" if answer.get("changed") else ", so nothing of the run is left on it"
    left = [item for item in differences if item["part"] in RESTORABLE]
    if error:
        how = f"could not be restored: {printable(error)}"
    elif left:
        how = f"{how}, but not entirely"
    changed = tuple(printable(str(item)) for item in _items(answer.get("changed")))
    return RestoreResult(device, not left and not error, how, changed, differences)


def is_foreign(difference: Mapping[str, Any]) -> bool:
    """Return whether a difference is in something that runs do not change."""
    return difference["part"] in _OTHERS


def describe_difference(difference: Mapping[str, Any]) -> str:
    """Return a difference in words."""
    where, what = difference["where"], difference["what"]
    told = {
        "fingerprint": f"its {where} were changed meanwhile, not by this run",
        "new row": f"{where} was added meanwhile, not by this run",
        "lost row": f"{where} is gone: the switch's configuration was loaded anew, or somebody "
        "removed it",
        "saved row": f"{where} has this run's thresholds in {what}, since somebody saved the "
        "configuration meanwhile: do it again now (config save)",
    }
    is_not = f"is {difference['found']}, not {difference['wanted']} as before the run"
    return told.get(difference["part"], f"{where} {what}".strip() + f" {is_not}")


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _difference(item: Any) -> dict[str, str]:
    names = ("part", "where", "what", "wanted", "found")
    found = item if isinstance(item, dict) else {}
    return {name: printable(str(found.get(name))) for name in names}
