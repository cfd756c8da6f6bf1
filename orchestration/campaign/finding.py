"""Findings: faults of a campaign file beyond its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inventory.strictyaml import Loc

Fields = Mapping[str, Any]


class Finding(NamedTuple):
    """A fault: where in the document, what, and the remedy."""

    loc: Loc
    what: str
    remedy: str
