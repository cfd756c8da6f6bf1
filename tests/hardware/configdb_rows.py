"""Rows of CONFIG_DB for tests: read tables, and bring them into a state as an operator would."""

from collections.abc import Iterable, Mapping

from orchestration.agent.sonic.configdb import row_after_undo, write_position
from orchestration.agent.sonic.resp import CONFIG_DB, Redis, pairs

Rows = Mapping[str, Mapping[str, Mapping[str, str]]]


def dump(redis: Redis, tables: Iterable[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Return all rows of `tables`: table, key, field, value. Raises RedisError."""
    names = list(tables)
    found = redis.run([(CONFIG_DB, ("KEYS", f"{table}|*")) for table in names])
    keys = [key for reply in found for key in sorted(reply)]
    replies = redis.run([(CONFIG_DB, ("HGETALL", key)) for key in keys])
    result: dict[str, dict[str, dict[str, str]]] = {table: {} for table in names}
    for key, flat in zip(keys, replies, strict=True):
        table, _, name = key.partition("|")
        if flat:
            result[table][name] = pairs(flat)
    return result


def differences(now: Rows, wanted: Rows, *, exact: bool) -> list[str]:
    """Return the changes that would be made, one line per row: `+ QUEUE|Ethernet0|3`, `-` or `~`.

    With `exact`, rows and fields that are not wanted count as changes, apart from `DEFAULTS`;
    without it, they are left as they are.
    """
    lines = []
    for table in sorted(wanted, key=write_position):
        rows = now.get(table, {})
        for key, row in wanted[table].items():
            old = rows.get(key)
            if old is None:
                lines.append(f"+ {table}|{key}")
            elif (
                (dict(old) != row_after_undo(f"{table}|{key}", row))
                if exact
                else any(old.get(f) != row[f] for f in row)
            ):
                lines.append(f"~ {table}|{key}")
    if exact:
        for table in sorted(wanted, key=write_position, reverse=True):
            for key in now.get(table, {}):
                name = f"{table}|{key}"
                left = row_after_undo(name, None)
                if key not in wanted[table] and left is None:
                    lines.append(f"- {name}")
                elif key not in wanted[table] and left != now[table][key]:
                    lines.append(f"~ {name}")
    return lines


def bring(redis: Redis, wanted: Rows, *, exact: bool) -> list[str]:
    """Write the wanted rows to CONFIG_DB; return the changes made, in the form of `differences`.

    Raises RedisError.
    """
    now = dump(redis, wanted)
    lines = differences(now, wanted, exact=exact)
    for line in lines:
        sign, _, row = line.partition(" ")
        if sign == "-":
            redis.call(CONFIG_DB, "DEL", row)
            continue
        table, _, key = row.partition("|")
        fields = wanted[table].get(key) or {}
        if exact:
            fields = row_after_undo(row, fields) or {}
        flat = [part for pair in fields.items() for part in pair]
        words = [("HSET", row, *flat)]
        if exact and (extra := now[table].get(key, {}).keys() - fields):
            words.append(("HDEL", row, *extra))
        redis.run([(CONFIG_DB, word) for word in (("MULTI",), *words, ("EXEC",))])
    return lines
