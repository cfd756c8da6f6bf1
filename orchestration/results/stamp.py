"""The stamp of a trial: its validity verdict with the reasons, as `trial.json` keeps it.

What several trials have in common, findings of stamps and failures, is said once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["invalid", "warning"]


@dataclass(frozen=True)
class Reason:
    """A problem that a check found. A trial with a reason of severity `invalid` is never averaged.

    `code` is stable, for programs (`sampler-behind`); `text` is a sentence with the figures.
    """

    code: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class Stamp:
    """The verdict. `checked` names the checks that could be made; the others prove nothing."""

    valid: bool
    reasons: tuple[Reason, ...]
    checked: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the stamp as JSON-ready data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stamp:
        """Rebuild a stamp from `to_json`'s data. Raises KeyError or TypeError on foreign data."""
        return cls(
            valid=bool(data["valid"]),
            reasons=tuple(Reason(**reason) for reason in data["reasons"]),
            checked=tuple(data["checked"]),
        )


# Trials to name before the rest is counted.
_NAMED = 4
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class GroupedText:
    """A text and the trials that it is of: `alike` ones have it too, but for figures."""

    text: str
    trials: tuple[str, ...]
    alike: tuple[str, ...] = ()


def grouped_texts(found: Mapping[str, Iterable[str]]) -> list[GroupedText]:
    """Return the texts of all trials (id -> texts), each once, in the order of their coming."""
    by_kind: dict[str, dict[str, dict[str, None]]] = {}
    for trial, texts in found.items():
        for text in texts:
            kind = by_kind.setdefault(_FIGURE.sub("0", text), {})
            kind.setdefault(text, {})[trial] = None
    told = []
    for texts_of_kind in by_kind.values():
        text, trials = max(texts_of_kind.items(), key=lambda item: len(item[1]))
        others = {trial: None for other in texts_of_kind.values() for trial in other}
        alike = tuple(trial for trial in others if trial not in trials)
        told.append(GroupedText(text, tuple(trials), alike))
    return told


def in_words(told: GroupedText, total: int) -> str:
    """Return `in all 12 trials: text`, or else which trials it is of; `total` counts them all."""
    said = f"{where(told.trials, total)}: {told.text}"
    if told.alike:
        said += f"; likewise with other figures {where(told.alike, total)}"
    return said


def where(trials: Sequence[str], total: int) -> str:
    """Return `in all 12 trials`, or `in 5 of 12 trials` with the names of the first ones."""
    if len(trials) == 1 and total != 1:
        return f"in {trials[0]}"
    if len(trials) == total:
        return f"in all {total} trials" if total > 1 else "in the one trial"
    names = ", ".join(trials[:_NAMED])
    more = f" and {len(trials) - _NAMED} more" if len(trials) > _NAMED else ""
    return f"in {len(trials)} of {total} trials ({names}{more})"
