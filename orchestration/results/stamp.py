"""The stamp of a trial: whether it is valid, with every reason, as it is kept in `trial.json`.

Reasons and failures that several trials share are grouped, so that they are reported once.
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
    """A problem that a check found. Trials with a reason of severity `invalid` are never counted.

    `code` is for programs and never changes (`sampler-behind`); `text` is a sentence with figures.
    """

    code: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class Stamp:
    """A trial's verdict. `checked` names the checks that could be made for this trial."""

    valid: bool
    reasons: tuple[Reason, ...]
    checked: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the stamp as JSON-ready data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stamp:
        """Return the stamp of `to_json`'s data. Raises KeyError or TypeError for other data."""
        return cls(
            valid=bool(data["valid"]),
            reasons=tuple(Reason(**reason) for reason in data["reasons"]),
            checked=tuple(data["checked"]),
        )


# How many trials a text names before it counts the rest.
_MAX_NAMED = 4
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class GroupedText:
    """A text, the `trials` that have it, and the `similar` ones that have it with other figures."""

    text: str
    trials: tuple[str, ...]
    similar: tuple[str, ...] = ()


def grouped_texts(texts_by_trial: Mapping[str, Iterable[str]]) -> list[GroupedText]:
    """Return the texts of all trials (by trial id), each once, in order of first appearance.

    Texts that differ in figures only are one group, with the text that most trials have.
    """
    by_kind: dict[str, dict[str, dict[str, None]]] = {}
    for trial, texts in texts_by_trial.items():
        for text in texts:
            kind = by_kind.setdefault(_FIGURE.sub("0", text), {})
            kind.setdefault(text, {})[trial] = None
    groups = []
    for texts_of_kind in by_kind.values():
        text, trials = max(texts_of_kind.items(), key=lambda item: len(item[1]))
        everywhere = {trial: None for trials in texts_of_kind.values() for trial in trials}
        similar = tuple(trial for trial in everywhere if trial not in trials)
        groups.append(GroupedText(text, tuple(trials), similar))
    return groups


def in_words(group: GroupedText, total: int) -> str:
    """Return `in all 12 trials: text`, or which of the `total` trials have the text."""
    sentence = f"{where(group.trials, total)}: {group.text}"
    if group.similar:
        sentence += f"; likewise with other figures {where(group.similar, total)}"
    return sentence


def where(trials: Sequence[str], total: int) -> str:
    """Return `in all 12 trials`, or `in 5 of 12 trials` with the names of the first ones."""
    if len(trials) == 1 and total != 1:
        return f"in {trials[0]}"
    if len(trials) == total:
        return f"in all {total} trials" if total > 1 else "in the one trial"
    names = ", ".join(trials[:_MAX_NAMED])
    more = f" and {len(trials) - _MAX_NAMED} more" if len(trials) > _MAX_NAMED else ""
    return f"in {len(trials)} of {total} trials ({names}{more})"
