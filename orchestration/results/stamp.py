"""The stamp of a trial: its validity verdict with the reasons, as `trial.json` keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
