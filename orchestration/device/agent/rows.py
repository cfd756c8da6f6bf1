"""The rows of CONFIG_DB that a run looks after: its own WRED profiles, and its queues.

A run changes profiles, and adds and removes no rows. So profiles are restored, queues only
compared, and no other row of a table is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from orchestration.device.agent.main import OperationError
from orchestration.device.agent.resp import CONFIG_DB, Command, Redis, RedisError, pairs

_PROFILE = "WRED_PROFILE|"
# Where `config save` puts CONFIG_DB, and a cold reboot takes it from.
SAVED_CONFIG = "/etc/sonic/config_db.json"

# Gives a row exactly these fields, new values first, unless it has gone meanwhile.
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
    """One value that differs from the snapshot. `part` is the kind of state."""

    part: str
    where: str
    what: str
    wanted: Any
    found: Any


def rows_to_write(now: dict[str, Any], wanted: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the rows to write so that the state `now` has the profiles of `wanted`. Pure.

    A row that is gone is none of the run's doing (the configuration was loaded anew), so it is not
    made again.
    """
    found = now["rows"] or {}
    return {
        key: row
        for key, row in (wanted["rows"] or {}).items()
        if key.startswith(_PROFILE) and None not in (row, found.get(key)) and row != found[key]
    }


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
        part = "row" if key.startswith(_PROFILE) else "other row"
        for field in sorted({*want, *found}):
            if want.get(field) != found.get(field):
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
        replies = redis.run([(CONFIG_DB, ("HGETALL", key)) for key in keys])
    return {key: pairs(flat) if flat else None for key, flat in zip(keys, replies)}


def saved_rows(keys: Sequence[str]) -> dict[str, Any]:
    """Return rows of the saved configuration; none where there is no file or it is not readable."""
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
    """Give rows exactly these fields, each in one step; rows that are gone stay so."""
    # all fields of a row at once: orchagent never sees kmin above kmax
    commands: list[Command] = [
        (CONFIG_DB, ("EVAL", _REPLACE, 1, key, *(word for pair in row.items() for word in pair)))
        for key, row in rows.items()
    ]
    if commands:
        with _redis() as redis:
            redis.run(commands)
