"""Rows of SONiC's CONFIG_DB: in which order they are written, undone, and restored after a run.

A row is written before the rows that refer to it, and removed after them.

A run changes closloop's own WRED profiles, and adds and removes no rows. So a restore writes
profiles, only compares queues, and neither reads nor writes other rows. Of a profile, it writes
only the fields that runs change, with values of the type in SONiC's schema
(sonic-wred-profile.yang); everything else in a snapshot is only compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..main import OperationError
from .resp import CONFIG_DB, Command, Redis, RedisError

# A table comes before the tables that refer to it. Tables not listed come last.
ORDER = (
    "DSCP_TO_TC_MAP",
    "DOT1P_TO_TC_MAP",
    "TC_TO_DSCP_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_PRIORITY_GROUP_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE",
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
    "BUFFER_POOL",
    "BUFFER_PROFILE",
    "SCHEDULER",
    "WRED_PROFILE",
    "BUFFER_PG",
    "BUFFER_QUEUE",
    "QUEUE",
    "PORT_QOS_MAP",
    "PFC_WD",
    "HIGH_FREQUENCY_TELEMETRY_PROFILE",
    "HIGH_FREQUENCY_TELEMETRY_GROUP",
)

# Orchagent ignores the removal of one of these rows, or of its interval: polling goes on as before
# (flexcounterorch.cpp). It crashes when PFC_WD|GLOBAL is removed (pfcwdorch.cpp up to 202605, swss
# PR 4760). So an undo does not remove them, but writes the values that are in force without them.
DEFAULTS = {
    "FLEX_COUNTER_TABLE|PORT": {"FLEX_COUNTER_STATUS": "enable", "POLL_INTERVAL": "1000"},
    "FLEX_COUNTER_TABLE|QUEUE": {"FLEX_COUNTER_STATUS": "enable", "POLL_INTERVAL": "10000"},
    "FLEX_COUNTER_TABLE|QUEUE_WATERMARK": {
        "FLEX_COUNTER_STATUS": "enable",
        "POLL_INTERVAL": "60000",
    },
    "FLEX_COUNTER_TABLE|WRED_ECN_QUEUE": {
        "FLEX_COUNTER_STATUS": "disable",
        "POLL_INTERVAL": "10000",
    },
    "FLEX_COUNTER_TABLE|PFCWD": {"FLEX_COUNTER_STATUS": "enable"},
    "PFC_WD|GLOBAL": {"POLL_INTERVAL": "100"},
}


def row_after_undo(key: str, previous: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the row that an undo leaves, given the row before provisioning; None for no row."""
    return {**DEFAULTS.get(key, {}), **(previous or {})} or None


def write_position(key: str) -> int:
    """Return the position of a table, or of a row's table, in the order of writing."""
    table = key.partition("|")[0]
    return ORDER.index(table) if table in ORDER else len(ORDER)


# The name of closloop's own rows, or its beginning.
OWN_NAME = "CLOSLOOP"
_PROFILE, _QUEUE = f"WRED_PROFILE|{OWN_NAME}_", "QUEUE|"
_COLOURS = ("green", "yellow", "red")
_NUMBER, _SWITCH = re.compile(r"[0-9]{1,10}"), re.compile(r"true|false")
_FIELDS = {
    "ecn": re.compile(r"ecn_[a-z_]{1,30}"),
    **{f"wred_{colour}_enable": _SWITCH for colour in _COLOURS},
    **{
        f"{colour}_{field}": _NUMBER
        for colour in _COLOURS
        for field in ("min_threshold", "max_threshold", "drop_probability")
    },
}
# The file that `config save` writes CONFIG_DB to, and that a cold reboot loads.
SAVED_CONFIG = "/etc/sonic/config_db.json"

# Gives a row exactly these fields, new values first, unless the row was removed meanwhile.
_REPLACE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
local wanted = {}
for i = 1, #ARGV, 2 do wanted[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not wanted[field] then redis.call('HDEL', KEYS[1], field) end
end
return 1
"""


class Difference(NamedTuple):
    """One value that differs from the snapshot: `wanted` there, and `found` on the device.

    `part` is the kind of state, `where` the object, and `what` the attribute.
    """

    part: str
    where: str
    what: str
    wanted: Any
    found: Any


def rows_to_write(now: dict[str, Any], wanted: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the rows to write so that the state `now` has the profiles of `wanted`. Pure.

    A row that no longer exists was not removed by the run (the configuration was reloaded), so it
    is not created again.
    """
    current = now["rows"] or {}
    writes = {}
    for key, row in (wanted["rows"] or {}).items():
        present = current.get(key)
        if not key.startswith(_PROFILE) or row is None or present is None:
            continue
        merged = {
            field: value if _may_be_from_run(key, field, value) else present.get(field)
            for field, value in row.items()
        }
        write = {field: value for field, value in merged.items() if value is not None}
        if write and write != present:
            writes[key] = write
    return writes


def _may_be_from_run(key: str, field: str, value: object) -> bool:
    """Return whether runs may write this field, and this value into it."""
    pattern = _FIELDS.get(field)
    return (
        key.startswith(_PROFILE)
        and pattern is not None
        and isinstance(value, str)
        and bool(pattern.fullmatch(value))
    )


def check_keys(keys: Sequence[str]) -> None:
    """Raise OperationError for rows that are neither a queue nor a profile of closloop's own."""
    for key in keys:
        if not key.startswith((_PROFILE, _QUEUE)):
            raise OperationError(
                f"{key!r} is not a row that runs may read",
                f"they may read rows {_PROFILE}… and {_QUEUE}…",
            )


def row_differences(wanted: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Return how the rows of the state `now` differ from the snapshot `wanted`. Pure."""
    result: list[Difference] = []
    rows = now["rows"] or {}
    for key, want in sorted((wanted["rows"] or {}).items()):
        found = rows.get(key)
        if want is None or found is None:
            if want is not found:
                part = "new row" if want is None else "lost row"
                result.append(Difference(part, key, "row", want, found))
            continue
        for field in sorted({*want, *found}):
            if want.get(field) != found.get(field):
                is_own = key.startswith(_PROFILE) and (
                    field not in want or _may_be_from_run(key, field, want[field])
                )
                part = "row" if is_own else "other row"
                result.append(Difference(part, key, field, want.get(field), found.get(field)))
    before, after = wanted.get("saved") or {}, now.get("saved") or {}
    for key, row in sorted(after.items()):
        if key.startswith(_PROFILE) and row not in (None, before.get(key), wanted["rows"][key]):
            result.append(Difference("saved row", SAVED_CONFIG, key, before.get(key), row))
    return result


@contextmanager
def _redis() -> Iterator[Redis]:
    redis = Redis()
    try:
        yield redis
    except RedisError as error:
        raise OperationError(error.what, error.remedy) from error
    finally:
        redis.close()


def read_rows(keys: Sequence[str]) -> dict[str, dict[str, str] | None]:
    """Return rows of CONFIG_DB by key; None for those that do not exist."""
    with _redis() as redis:
        return {key: row or None for key, row in redis.hashes(CONFIG_DB, keys).items()}


def saved_rows(keys: Sequence[str]) -> dict[str, Any]:
    """Return rows of the saved configuration; {} if there is no file or it cannot be read."""
    try:
        with open(SAVED_CONFIG) as file:
            tables = json.load(file)
        return {
            key: tables.get(table, {}).get(name)
            for key in keys
            for table, _, name in [key.partition("|")]
        }
    except (OSError, ValueError, AttributeError):
        return {}


def write_rows(rows: dict[str, dict[str, str]]) -> None:
    """Give rows exactly these fields, each row in one step; rows that do not exist are left out."""
    # all fields of a row at once, so that orchagent never sees kmin above kmax
    commands: list[Command] = [
        (CONFIG_DB, ("EVAL", _REPLACE, 1, key, *(word for pair in row.items() for word in pair)))
        for key, row in rows.items()
    ]
    if commands:
        with _redis() as redis:
            redis.run(commands)
