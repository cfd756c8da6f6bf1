"""SONiC's adaptive routing and switching (ARS): the rows that turn it on, and what the ASIC has.

No release has it. It is the design `doc/ARS/Local_ARS_HLD.md` of sonic-net/SONiC (revision 1.4) and
the open pull requests sonic-buildimage 22264 (sonic-ars.yang), sonic-swss 3597 (ArsOrch) and
sonic-swss-common 1002, as of August 2026, and those disagree on names. So a switch's own models say
which tables it has, and in what range a field is; what is not there is `Missing`.

An ARS object says how a flow's port is chosen, and after which gap anew. A group of next hops gets
the object that all of its interfaces name, when its route is installed, and never later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .resp import ASIC_DB, COUNTERS_DB, Redis, pairs
from .yang import Leaf, Table

NAME = "CLOSLOOP"
PREFIX = "ARS_"
PROFILE, OBJECT = "ARS_PROFILE", "ARS_OBJECT"
# The pull request's name, and the design's.
INTERFACES = ("ARS_INTERFACE", "ARS_INTERFACES")
IDLE, MODE, OBJECT_NAME = "flowlet_idle_time", "assign_mode", "ars_obj_name"
SELECTOR, ALGORITHM = "ars_nhg_path_selector_mode", "algorithm"

_STATE = "ASIC_STATE:SAI_OBJECT_TYPE_"
OBJECTS, PROFILES = _STATE + "ARS:oid:*", _STATE + "ARS_PROFILE:oid:*"
_BY_FLOWLET = "SAI_ARS_MODE_FLOWLET_QUALITY"
_NO_OBJECT = "oid:0x0"

Rows = dict[str, dict[str, str]]


class Missing(Exception):  # noqa: N818 (names what is so)
    """A switch's schema lacks something that flowlets need; the text says what, after «its»."""


def rows(schema: Mapping[str, Table], idle_us: int, ports: Sequence[str]) -> Rows:
    """Return the rows that choose among some ports by their load, anew after `idle_us`, by key.

    `schema` are the tables of the switch's own models. A row comes after those that it names.
    Raises Missing for what the schema lacks, and ValueError for a time out of its range.
    """
    interfaces = next((name for name in INTERFACES if name in schema), INTERFACES[0])
    _leaf(schema, PROFILE, SELECTOR, "interface")
    _leaf(schema, OBJECT, MODE, "per_flowlet_quality")
    _leaf(schema, interfaces, OBJECT_NAME)
    idle = _leaf(schema, OBJECT, IDLE)
    if idle.units not in ("", "us", "microseconds"):
        raise Missing(f"{IDLE} is in {idle.units}, not in microseconds")
    if not idle.ranges:
        raise Missing(f"{IDLE} has no range of whole numbers")
    if not idle.takes(idle_us):
        wanted = " or ".join(f"{least} to {most}" for least, most in idle.ranges)
        raise ValueError(f"{IDLE} takes {wanted} us, not {idle_us}")
    profile = {SELECTOR: "interface"}
    if ALGORITHM in schema[PROFILE].leaves:
        profile[ALGORITHM] = "ewma"
        _leaf(schema, PROFILE, ALGORITHM, "ewma")
    result = {
        f"{OBJECT}|{NAME}": {MODE: "per_flowlet_quality", IDLE: str(idle_us)},
        f"{PROFILE}|{NAME}": profile,
    }
    result.update({f"{interfaces}|{port}": {OBJECT_NAME: NAME} for port in ports})
    return result


def _leaf(schema: Mapping[str, Table], name: str, field: str, word: str = "") -> Leaf:
    """Return a field of a table, which must take a word. Raises Missing."""
    table = schema.get(name)
    if table is None:
        raise Missing(f"schema has no {name}")
    if len(table.keys) != 1:
        raise Missing(f"{name} has rows by {' and '.join(table.keys)}, not by one name")
    leaf = table.leaves.get(field)
    if leaf is None:
        raise Missing(f"{name} has no {field}")
    if word and word not in leaf.words:
        raise Missing(f"{field} of {name} has no {word}")
    return leaf


def is_row(key: str) -> bool:
    """Return whether a row of CONFIG_DB is one of adaptive routing's."""
    return key.startswith(PREFIX)


def idle_times(redis: Redis) -> dict[str, str]:
    """Return the idle time in us, as text, of each object that chooses by flowlets, by its id.

    Raises RedisError.
    """
    return {
        key[len(_STATE) + len("ARS:") :]: row.get("SAI_ARS_ATTR_IDLE_TIME", "")
        for key, row in _all(redis, OBJECTS).items()
        if row.get("SAI_ARS_ATTR_MODE", _BY_FLOWLET) == _BY_FLOWLET
    }


def enabled(redis: Redis, ports: Sequence[str]) -> list[str]:
    """Return those of `ports` that take part. Raises RedisError."""
    oids = redis.hash(COUNTERS_DB, "COUNTERS_PORT_NAME_MAP")
    keys = [f"{_STATE}PORT:{oids.get(port, '')}" for port in ports]
    replies = redis.run([(ASIC_DB, ("HGET", key, "SAI_PORT_ATTR_ARS_ENABLE")) for key in keys])
    return [port for port, said in zip(ports, replies) if said == "true"]


def state(redis: Redis, ports: Sequence[str]) -> dict[str, Any]:
    """Return what ASIC_DB has, JSON-ready: requests, as syncd reads nothing back of the ASIC.

    `idle_us` are the idle times of all objects that choose by flowlets, `enabled` those of `ports`
    that take part. `groups` counts the groups of next hops with several members that leave by
    `ports` only, and `bound` those among them that choose by flowlets, by their idle time in us
    as text. Raises RedisError.
    """
    times = idle_times(redis)
    oids = redis.hash(COUNTERS_DB, "COUNTERS_PORT_NAME_MAP")
    groups = _groups(redis, {oids[port] for port in ports if port in oids})
    bound: dict[str, int] = {}
    for oid in groups:
        if oid in times:
            bound[times[oid]] = bound.get(times[oid], 0) + 1
    return {
        "idle_us": sorted(int(text) for text in times.values() if text.isdigit()),
        "enabled": enabled(redis, ports),
        "groups": len(groups),
        "bound": bound,
    }


def _groups(redis: Redis, ports: set[str]) -> list[str]:
    """Return the ARS object, or oid:0x0, of each group whose members are several of `ports`."""
    members = _all(redis, _STATE + "NEXT_HOP_GROUP_MEMBER:oid:*")
    hops = _all(redis, _STATE + "NEXT_HOP:oid:*")
    interfaces = _all(redis, _STATE + "ROUTER_INTERFACE:oid:*")
    ways: dict[str, list[str]] = {}
    for row in members.values():
        hop = hops.get(f"{_STATE}NEXT_HOP:{row.get('SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP_ID')}")
        by = (hop or {}).get("SAI_NEXT_HOP_ATTR_ROUTER_INTERFACE_ID")
        port = interfaces.get(f"{_STATE}ROUTER_INTERFACE:{by}", {})
        group = row.get("SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP_GROUP_ID", "")
        ways.setdefault(group, []).append(port.get("SAI_ROUTER_INTERFACE_ATTR_PORT_ID", ""))
    ours = [group for group, found in ways.items() if len(found) > 1 and ports.issuperset(found)]
    asked = [f"{_STATE}NEXT_HOP_GROUP:{group}" for group in ours]
    attribute = "SAI_NEXT_HOP_GROUP_ATTR_ARS_OBJECT_ID"
    said = redis.run([(ASIC_DB, ("HGET", key, attribute)) for key in asked])
    return [oid or _NO_OBJECT for oid in said]


def _all(redis: Redis, pattern: str) -> dict[str, dict[str, str]]:
    keys = redis.call(ASIC_DB, "KEYS", pattern)
    replies = redis.run([(ASIC_DB, ("HGETALL", key)) for key in keys])
    return {key: pairs(flat) for key, flat in zip(keys, replies)}
