"""Problems of a campaign file that its schema cannot see, with their location in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inventory.strictyaml import Loc
from orchestration.core.problems import Code, Problem

# Fields of a campaign file by name: those that are valid on their own, and defaults of others.
Fields = Mapping[str, Any]


class LocatedProblem(NamedTuple):
    """A problem at a location in the campaign, from which the document tells file and line.

    `loc` is a path of keys and indices, such as ("traffic", 0, "load").
    """

    loc: Loc
    what: str
    remedy: str
    code: Code = Code.BAD_INPUT

    @classmethod
    def of(cls, loc: Loc, problem: Problem) -> LocatedProblem:
        """Return a problem with `loc` as its location."""
        return cls(loc, *problem.parts)
