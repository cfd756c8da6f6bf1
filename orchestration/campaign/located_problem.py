"""Findings: faults of a campaign file beyond its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inventory.strictyaml import Loc
from orchestration.core.problems import Code, Problem

Fields = Mapping[str, Any]


class LocatedProblem(NamedTuple):
    """A problem at a place in the document, which gives it its file and line."""

    loc: Loc
    what: str
    remedy: str
    code: Code = Code.BAD_INPUT

    @classmethod
    def of(cls, loc: Loc, problem: Problem) -> LocatedProblem:
        """Return the finding that a problem is at `loc`."""
        return cls(loc, *problem.parts)
