"""Checks the types of a snapshot's parts, since another account may have written it."""

from __future__ import annotations

from typing import Any

from ..linux.qdiscs import Red
from ..main import OperationError
from ..sonic.configdb import check_keys

_BYTES = ("wlog", "plog", "scell_log", "flags", "known")


def check_form(snapshot: dict[str, Any]) -> None:
    """Raise OperationError for a snapshot whose parts are not of their types."""
    interfaces, rows, saved = (snapshot.get(part) for part in ("interfaces", "rows", "saved"))
    is_valid = (
        isinstance(snapshot.get("boot"), str)
        and all(_has_texts(snapshot.get(part)) for part in ("sysctls", "fingerprints"))
        and isinstance(interfaces, dict)
        and all(
            found is None or (isinstance(found, list) and all(map(_is_qdisc, found)))
            for found in interfaces.values()
        )
        and (rows is None or isinstance(rows, dict))
        and all(row is None or _has_texts(row) for row in (rows or {}).values())
        and (saved is None or isinstance(saved, dict))
    )
    if not is_valid:
        raise OperationError(
            "the snapshot is damaged: it does not have the form that this program writes",
            "`closloop restore INVENTORY --forget DEVICE` discards it; then check the device",
        )
    check_keys(list(rows or ()))


def _has_texts(value: Any) -> bool:
    """Return whether this is a dict whose values are texts or None."""
    return isinstance(value, dict) and all(
        item is None or isinstance(item, str) for item in value.values()
    )


def _is_qdisc(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("kind", "options"))
        and all(type(value.get(name)) is int for name in ("handle", "parent"))
        and ("red" not in value or _is_red(value["red"]))
    )


def _is_red(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == set(Red._fields)
        and all(type(number) is int and 0 <= number < 2**32 for number in value.values())
        and all(value[name] < 2**8 for name in _BYTES)
    )
