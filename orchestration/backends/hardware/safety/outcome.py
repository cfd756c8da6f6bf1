"""What became of one device when it was to be restored, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestration.device.agent.state import RESTORABLE
from orchestration.device.errors import printable

# Parts of a snapshot that runs do not change.
_OTHERS = ("fingerprint", "other row")
_SHOWN = 5


@dataclass(frozen=True)
class Outcome:
    """One device, restored or not.

    `how` says by whom or why not, `changed` what was put back, `differences` what is still not as
    the snapshot says (`agent.state.Difference` as a dict). `settled` devices need nothing more.
    """

    device: str
    settled: bool
    how: str
    changed: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def text(self) -> str:
        """One or more lines for people."""
        lines = [f"{self.device}: {self.how}"]
        if self.changed:
            lines[0] += f"; {len(self.changed)} settings put back"
        shown = [f"{self.device}: {said(item)}" for item in self.differences[:_SHOWN]]
        more = len(self.differences) - _SHOWN
        return "\n".join([*lines, *shown, *([f"{self.device}: and {more} more"] * (more > 0))])


def outcome_of(device: str, answer: Mapping[str, Any], how: str) -> Outcome:
    """Return the outcome that an agent's answer, or a dead-man's record, tells of."""
    differences = tuple(_difference(item) for item in _items(answer.get("differences")))
    error = str(answer.get("error") or "")
    if answer.get("restarted"):
        how = "has restarted since, so nothing of the run is left on it"
    left = [item for item in differences if item["part"] in RESTORABLE]
    if error:
        how = f"could not be restored: {printable(error)}"
    elif left:
        how = f"{how}, but not entirely"
    changed = tuple(printable(str(item)) for item in _items(answer.get("changed")))
    return Outcome(device, not left and not error, how, changed, differences)


def is_foreign(difference: Mapping[str, Any]) -> bool:
    """Say whether a difference is in something that runs do not change."""
    return difference["part"] in _OTHERS


def said(difference: Mapping[str, Any]) -> str:
    """Return a difference in words."""
    where = difference["where"]
    if difference["part"] == "fingerprint":
        return f"its {where} were changed meanwhile, not by this run"
    if difference["part"] == "other row":
        return f"{where} was added meanwhile, not by this run"
    what = f"{where} {difference['what']}".strip()
    return f"{what} is {difference['found']}, not {difference['wanted']} as before the run"


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _difference(item: Any) -> dict[str, str]:
    names = ("part", "where", "what", "wanted", "found")
    found = item if isinstance(item, dict) else {}
    return {name: printable(str(found.get(name))) for name in names}
