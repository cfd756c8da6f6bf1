"""The result of restoring a device, for messages and for the trial's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestration.agent.safety.state import RESTORABLE
from orchestration.device.errors import printable

# Kinds of differences in parts of a device that runs do not change.
_FOREIGN = ("fingerprint", "new row", "saved row")
_SHOWN = 5


@dataclass(frozen=True)
class RestoreResult:
    """The result for one device, restored or not.

    `settled` says that nothing is left to do. `how` says who restored the device, or why it was not
    restored. `changed` are the settings that were put back, `differences` those that still differ
    from the snapshot (`sonic.configdb.Difference` as a dict).
    """

    device: str
    settled: bool
    how: str
    changed: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def text(self) -> str:
        """The result in words, in one or more lines."""
        lines = [f"{self.device}: {self.how}"]
        if self.changed:
            lines[0] += f"; {len(self.changed)} settings put back"
        shown = [
            f"{self.device}: {describe_difference(item)}" for item in self.differences[:_SHOWN]
        ]
        more = len(self.differences) - _SHOWN
        return "\n".join([*lines, *shown, *([f"{self.device}: and {more} more"] * (more > 0))])


def restore_result(device: str, answer: Mapping[str, Any], how: str) -> RestoreResult:
    """Return the result that an agent's answer, or a dead-man's record, reports."""
    differences = tuple(_difference(item) for item in _items(answer.get("differences")))
    error = str(answer.get("error") or "")
    if answer.get("restarted"):
        how = "has restarted since"
        how += "" if answer.get("changed") else ", so nothing of the run is left on it"
    unrestored = [item for item in differences if item["part"] in RESTORABLE]
    if error:
        how = f"could not be restored: {printable(error)}"
    elif unrestored:
        how = f"{how}, but not completely"
    changed = tuple(printable(str(item)) for item in _items(answer.get("changed")))
    return RestoreResult(device, not unrestored and not error, how, changed, differences)


def is_foreign(difference: Mapping[str, Any]) -> bool:
    """Return whether a difference is in a part that runs do not change."""
    return difference["part"] in _FOREIGN


def describe_difference(difference: Mapping[str, Any]) -> str:
    """Return a sentence on a difference between a device and its snapshot."""
    where, what = difference["where"], difference["what"]
    sentences = {
        "fingerprint": f"its {where} were changed meanwhile, not by this run",
        "new row": f"{where} was added meanwhile, not by this run",
        "lost row": f"{where} is gone: the switch's configuration was loaded anew, or somebody "
        "removed it",
        "saved row": f"{where} has this run's thresholds in {what}, because somebody saved the "
        "configuration meanwhile: save it again now (config save)",
    }
    is_not = f"is {difference['found']}, not {difference['wanted']} as before the run"
    return sentences.get(difference["part"], f"{where} {what}".strip() + f" {is_not}")


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _difference(item: Any) -> dict[str, str]:
    names = ("part", "where", "what", "wanted", "found")
    fields = item if isinstance(item, dict) else {}
    return {name: printable(str(fields.get(name))) for name in names}
