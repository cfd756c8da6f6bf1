"""Something wrong with a campaign file beyond its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inventory.strictyaml import Loc

Fields = Mapping[str, Any]


class Finding(NamedTuple):
    """Something wrong: where in the document, what, and what to do."""

    loc: Loc
    what: str
    remedy: str
