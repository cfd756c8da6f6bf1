"""Data as JSON: dataclasses and arrays become objects and lists, NaN and infinities null."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from orchestration.render.table import Table


def plain(value: Any) -> Any:
    """Return nested data for JSON: dataclasses become objects, NaN and infinities become None."""
    if isinstance(value, Table):
        return plain(list(value.records()))
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # an array, or a number of one
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any, indent: int | None = 1, **options: Any) -> str:
    """Return data as JSON text; `options` are those of json.dumps."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, **options)
