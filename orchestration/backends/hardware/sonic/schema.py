"""Checks rows against SONiC's schema before they go to a switch: every problem, by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestration.backends.hardware.sonic.tables import (
    COLOURS,
    CPU_PORT,
    POLLS_MS,
    POLLS_TABLE,
    SCHEMA,
    Reference,
    Rule,
    Table,
    group_fields,
    number,
    queue_range,
)
from orchestration.model.errors import Problem

# Table -> key -> field -> value.
Tables = dict[str, dict[str, dict[str, str]]]
Row = Mapping[str, str]

# Unicast queues, and priority groups, per port.
QUEUES = GROUPS = 8
_REFUSED = {
    "priority": "the YANG model has it, but orchagent knows it not and refuses the whole row",
}


def check(
    tables: Tables, ports: Mapping[str, int], where: str = "", known: Tables | None = None
) -> list[Problem]:
    """Return all problems of rows of CONFIG_DB, ordered by place.

    `ports` has each port's number of queues. `known` are rows already on the switch that the new
    rows may refer to. `where` is prefixed to each place.
    """
    rows = {**(known or {})}
    for table, more in tables.items():
        rows[table] = {**rows.get(table, {}), **more}
    checker = _Checker(ports, rows, f"{where} " if where else "")
    return sorted(
        problem for table, content in tables.items() for problem in checker.table(table, content)
    )


def check_classes(where: str, queues: Sequence[int], classes: int) -> list[Problem]:
    """Return the problems of a switch's queue numbers, which should be one per traffic class."""
    shown = ", ".join(map(str, queues))
    remedy = f"give closloop_queues {classes} different numbers from 0 to {QUEUES - 1}"
    if len(queues) != classes:
        return [Problem(where, f"has queues {shown} for {classes} traffic classes", remedy)]
    if len(set(queues)) != len(queues) or not all(0 <= queue < QUEUES for queue in queues):
        return [Problem(where, f"cannot have queues {shown}", remedy)]
    return []


class _Checker:
    def __init__(self, ports: Mapping[str, int], rows: Tables, where: str) -> None:
        self._ports = ports
        self._rows = rows
        self._where = where

    def table(self, name: str, content: Mapping[str, Row]) -> Iterator[Problem]:
        if name == POLLS_TABLE:
            yield from self._polls(content)
            return
        if name not in SCHEMA:
            known = ", ".join(sorted([*SCHEMA, POLLS_TABLE]))
            yield self._problem(name, "", "no such table is known", f"known are {known}")
            return
        table = SCHEMA[name]
        for key, row in content.items():
            if not row:
                yield self._problem(name, key, "has no field", "leave the row out")
            yield from self._key(name, table, key)
            yield from self._fields(name, table, key, row)
            for what in _RELATIONS.get(name, _nothing)(row):
                yield self._problem(name, key, what)
        if name == "PORT_QOS_MAP":
            yield from self._queues_of_maps(content)
        if name == "PFC_WD":
            yield from self._watchdog_times(content)
        if table.at in ("queue", "group"):
            yield from self._twice(name, content)

    def _problem(self, table: str, key: str, what: str, remedy: str = "") -> Problem:
        return Problem(f"{self._where}{table}{f'|{key}' if key else ''}", what, remedy)

    def _key(self, name: str, table: Table, key: str) -> Iterator[Problem]:
        if key in table.alone:
            return
        if table.names is not None:
            if not table.names.match(key):
                yield self._problem(name, key, f"is no name: it must be {table.names_are}")
            return
        port, bar, place = key.partition("|")
        if not table.at:
            yield self._problem(name, key, f"is no key: it must be {', '.join(table.alone)}")
            return
        if (table.at == "port") == bool(bar):
            wanted = (
                "an interface" if table.at == "port" else "interface|number, or a range of them"
            )
            yield self._problem(name, key, f"is no key: it must be {wanted}")
            return
        if port not in self._ports and not (port == CPU_PORT and table.at == "queue"):
            yield self._problem(name, key, f"there is no port {port}", self._have_ports())
            return
        if bar:
            yield from self._place(name, table, key, port, place)

    def _place(self, name: str, table: Table, key: str, port: str, place: str) -> Iterator[Problem]:
        found = queue_range(place)
        word = "queue" if table.at == "queue" else "priority group"
        if found is None:
            yield self._problem(name, key, f"{place!r} is no {word}: write 3, or 3-4 for several")
            return
        count = self._ports.get(port, QUEUES) if table.at == "queue" else GROUPS
        if found[-1] >= count:
            what = f"there is no {word} {found[-1]}: {port} has 0 to {count - 1}"
            yield self._problem(name, key, what)

    def _fields(self, name: str, table: Table, key: str, row: Row) -> Iterator[Problem]:
        if table.pairs is not None:
            for left, right in row.items():
                for rule, value in zip(table.pairs, (left, right), strict=True):
                    if wrong := rule(value):
                        yield self._problem(name, key, f"{left}: {right}: {value!r} {wrong}")
            return
        allowed = table.alone.get(key)
        if allowed is None:
            allowed = tuple(item for item in table.fields if item not in table.only_alone)
            for field in table.needed:
                if field not in row:
                    yield self._problem(name, key, f"has no {field}")
        for field, value in row.items():
            if field not in allowed:
                what = f"may not have a field {field}"
                why = _REFUSED.get(field, f"its fields are {', '.join(allowed)}")
                yield self._problem(name, key, what, why)
                continue
            if wrong := self._value(table.fields[field], value):
                yield self._problem(name, key, f"{field} {wrong}, not {value!r}")

    def _value(self, rule: Rule | Reference, value: str) -> str:
        if not isinstance(rule, Reference):
            return rule(value)
        if value in self._rows.get(rule.table, {}) or (rule.null and value == "NULL"):
            return ""
        return f"must name a row of {rule.table}"

    def _polls(self, content: Mapping[str, Row]) -> Iterator[Problem]:
        for group, row in content.items():
            if group not in POLLS_MS:
                known = f"known are {', '.join(POLLS_MS)}"
                yield self._problem(POLLS_TABLE, group, "no such group of counters is known", known)
                continue
            yield from self._fields(POLLS_TABLE, Table(fields=group_fields(group)), group, row)

    def _queues_of_maps(self, content: Mapping[str, Row]) -> Iterator[Problem]:
        """Yield maps that lead to queues which the port using them does not have."""
        for port, row in content.items():
            count = self._ports.get(port, QUEUES)
            for field, table in (
                ("tc_to_queue_map", "TC_TO_QUEUE_MAP"),
                ("pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE"),
            ):
                chosen = self._rows.get(table, {}).get(row.get(field, ""), {})
                queues = [number(value) for value in chosen.values()]
                for queue in sorted({item for item in queues if item is not None}):
                    if queue >= count:
                        what = f"{field} {row[field]} leads to queue {queue}, which does not exist"
                        remedy = f"{port} has 0 to {count - 1}"
                        yield self._problem("PORT_QOS_MAP", port, what, remedy)

    def _watchdog_times(self, content: Mapping[str, Row]) -> Iterator[Problem]:
        poll = number(self._rows["PFC_WD"].get("GLOBAL", {}).get("POLL_INTERVAL", ""))
        for key, row in content.items():
            for field in ("detection_time", "restoration_time"):
                time = number(row.get(field, ""))
                if poll is not None and time is not None and time < poll:
                    what = f"{field} is {time} ms, shorter than the watchdog's poll of {poll} ms"
                    yield self._problem("PFC_WD", key, what)

    def _twice(self, name: str, content: Mapping[str, Row]) -> Iterator[Problem]:
        """Yield keys that set the same field as another key: the last one read would win."""
        seen: dict[tuple[str, int, str], str] = {}
        known = {key: row for key, row in self._rows[name].items() if key not in content}
        for key, row in (*known.items(), *content.items()):
            port, _, place = key.partition("|")
            for queue in queue_range(place) or ():
                for field in row:
                    other = seen.setdefault((port, queue, field), key)
                    if other != key:
                        what = f"sets {field} of {queue}, which {other} sets, too"
                        yield self._problem(name, key, what, "have one row a queue")

    def _have_ports(self) -> str:
        return f"the ports are {', '.join(self._ports)}"


def _nothing(_: Row) -> Iterator[str]:
    yield from ()


def _profile(row: Row) -> Iterator[str]:
    ecn = row.get("ecn", "ecn_none")
    for colour in COLOURS:
        low, high = f"{colour}_min_threshold", f"{colour}_max_threshold"
        least, most = number(row.get(low, "")), number(row.get(high, ""))
        if least is not None and most is not None and least > most:
            yield f"{low} {least} is above {high} {most}"
        used = row.get(f"wred_{colour}_enable") == "true" or colour in ecn or ecn == "ecn_all"
        for field in (low, high):
            if used and field not in row:
                yield f"has no {field}: the ASIC would take the whole buffer"


def _scheduler(row: Row) -> Iterator[str]:
    cir, pir, cbs, pbs = (number(row.get(name, "")) or 0 for name in ("cir", "pir", "cbs", "pbs"))
    if "pir" in row and not (cir > 0 and pir >= cir):
        yield "pir needs a cir above 0, and to be no less than it"
    if "cbs" in row and not cir:
        yield "cbs needs a cir"
    if "pbs" in row and not (pir and pbs >= cbs):
        yield "pbs needs a pir, and to be no less than cbs"


def _buffer_profile(row: Row) -> Iterator[str]:
    if ("dynamic_th" in row) == ("static_th" in row):
        yield "needs either dynamic_th or static_th"


_RELATIONS = {
    "WRED_PROFILE": _profile,
    "SCHEDULER": _scheduler,
    "BUFFER_PROFILE": _buffer_profile,
}
