"""A SONiC switch's capabilities, and the objects of its queues in Redis."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..main import OperationError
from ..small_files import fields, text
from .asics import unsupported_reason
from .resp import ASIC_DB, CONFIG_DB, COUNTERS_DB, STATE_DB, Redis
from .stream import CONSTANTS_FILE, telemetry

VERSION_FILE = "/etc/sonic/sonic_version.yml"
COLOURS = ("green", "yellow", "red")

DEPTH = "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"
MARKS = "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS"
_MARKS_CAPABILITY = "QUEUE_COUNTER_CAPABILITIES|WRED_ECN_QUEUE_ECN_MARKED_PKT_COUNTER"
_MARKS_GROUP = "WRED_ECN_QUEUE"

# Groups of counters: the name in COUNTERS:TIME_STAMP, and the defaults if FLEX_COUNTER_TABLE has no
# entry: whether the group is polled, and the interval in ms (flexcounterorch.cpp, portsorch.cpp).
GROUPS = {
    "PORT": ("PORT_STAT_COUNTER", True, 1000),
    "QUEUE": ("QUEUE_STAT_COUNTER", True, 10_000),
    "QUEUE_WATERMARK": ("QUEUE_WATERMARK_STAT_COUNTER", True, 60_000),
    _MARKS_GROUP: ("WRED_ECN_QUEUE_STAT_COUNTER", False, 10_000),
    "PFCWD": ("PFC_WD", True, 100),
}

_NUMBER = re.compile(r"[0-9]{1,20}\Z")
_PRIORITIES = frozenset("01234567")
_REMEDY = "run `closloop provision`"


@dataclass
class QueueObjects:
    """One queue's objects in Redis, and which readings the switch offers of it.

    `oid`, `port_oid` and `wred` are the ids of the queue, its port and its WRED object. `marks` and
    `depth` say whether marked packets and the queue's depth are polled. `colours` are those whose
    thresholds mark.
    """

    port: str
    queue: int
    profile: str
    oid: str
    port_oid: str
    wred: str
    marks: bool
    depth: bool
    colours: list[str] = field(default_factory=list)


def parse_number(text: str | None) -> int | None:
    """Return the number in a field's text; None if the field is missing or not a number."""
    return int(text) if text is not None and _NUMBER.match(text) else None


def capabilities(
    redis: Redis, version_file: str, constants: str = CONSTANTS_FILE
) -> dict[str, Any]:
    """Return what the switch offers, JSON-ready. Raises OperationError if it does not run SONiC."""
    metadata = redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost")
    if not metadata:
        raise OperationError(
            "its CONFIG_DB has no DEVICE_METADATA: it is not a SONiC switch, or was just started",
            "wait until the switch is up, or correct closloop_platform in the inventory",
        )
    what, remedy = unsupported_reason(metadata)
    if what:
        raise OperationError(what, remedy)
    marks = redis.hash(STATE_DB, _MARKS_CAPABILITY)
    pools = redis.rows(CONFIG_DB, "BUFFER_POOL|*")
    sizes = [
        parse_number(row.get("size"))
        for row in pools.values()
        if row.get("type") in ("egress", "both")
    ]
    version = fields(text(version_file), ":")  # a flat YAML file
    return {
        "release": version.get("release") or _release(version.get("build_version", "")),
        "version": version.get("build_version", ""),
        "asic": version.get("asic_type", ""),
        "hwsku": metadata.get("hwsku", ""),
        "platform": metadata.get("platform", ""),
        "only_configured_queues": metadata.get("create_only_config_db_buffers") == "true",
        "marks_supported": marks.get("isSupported") == "true",
        "polls_ms": polls_ms(redis),
        "cell_bytes": _cell_bytes(redis),
        "telemetry": telemetry(redis, constants),
        "wred_objects": len(redis.call(ASIC_DB, "KEYS", "ASIC_STATE:SAI_OBJECT_TYPE_WRED:*")),
        "pool_bytes": max((size for size in sizes if size is not None), default=None),
    }


def _cell_bytes(redis: Redis) -> int | None:
    """Return the size of the ASIC's cells, None if buffermgrd has not published it."""
    for row in redis.rows(STATE_DB, "ASIC_TABLE|*").values():
        return parse_number(row.get("cell_size"))
    return None


def polls_ms(redis: Redis) -> dict[str, int]:
    """Return the poll interval in ms of each group of counters that is polled.

    The PFC watchdog's group is polled if a port is watched.
    """
    result = {}
    for group, (_, on, interval) in GROUPS.items():
        row = redis.hash(CONFIG_DB, f"FLEX_COUNTER_TABLE|{group}")
        status = row.get("FLEX_COUNTER_STATUS")
        if status == "enable" or (status is None and on):
            result[group] = parse_number(row.get("POLL_INTERVAL")) or interval
    if "PFCWD" in result:
        watched = redis.call(CONFIG_DB, "KEYS", "PFC_WD|*")
        poll = parse_number(redis.hash(CONFIG_DB, "PFC_WD|GLOBAL").get("POLL_INTERVAL"))
        if not [key for key in watched if key != "PFC_WD|GLOBAL"]:
            del result["PFCWD"]
        elif poll:
            result["PFCWD"] = poll
    return result


def find_queues(redis: Redis, queues: list[Any]) -> list[QueueObjects]:
    """Return the objects of queues, given as [port, number, WRED profile].

    Raises OperationError if a queue does not exist or is not set up as provisioning does it.
    """
    oids = _queue_oids(redis)
    port_oids = redis.hash(COUNTERS_DB, "COUNTERS_PORT_NAME_MAP")
    bindings = _bindings(redis)
    marks = redis.hash(STATE_DB, _MARKS_CAPABILITY).get("isSupported") == "true"
    polled = polls_ms(redis)
    if "QUEUE" not in polled:
        raise OperationError("the queues' counters are switched off", _REMEDY)
    watched = _watched(redis) if "PFCWD" in polled else set()
    objects = []
    for port, queue, profile in queues:
        name = f"queue {queue} of {port}"
        if port not in port_oids:
            raise OperationError(f"there is no port {port}", "correct closloop_links")
        oid = oids.get((port_oids[port], int(queue)))
        if oid is None:
            raise OperationError(
                f"there are no counters for {name}",
                "the queue does not exist, or create_only_config_db_buffers leaves it out: add its "
                "row to BUFFER_QUEUE",
            )
        if bindings.get((port, int(queue))) != profile:
            raise OperationError(f"{name} is not bound to WRED profile {profile}", _REMEDY)
        users = list(bindings.values()).count(profile)
        if users > 1:
            raise OperationError(
                f"WRED profile {profile} is shared by {users} queues, so that one of them cannot "
                "be tuned alone",
                _REMEDY,
            )
        objects.append(
            QueueObjects(
                port=port,
                queue=int(queue),
                profile=profile,
                oid=oid,
                port_oid=port_oids[port],
                wred=_wred_of(redis, oid, name),
                marks=marks and _MARKS_GROUP in polled,
                depth=(port, int(queue)) in watched,
                colours=_colours(redis, profile),
            )
        )
    return objects


def _queue_oids(redis: Redis) -> dict[tuple[str, int], str]:
    """Return the object ids of unicast queues by port object and queue number.

    The number in COUNTERS_QUEUE_NAME_MAP is not used, because it also counts multicast queues.
    """
    names, ports, indices, types = (
        redis.hash(COUNTERS_DB, f"COUNTERS_QUEUE_{part}_MAP")
        for part in ("NAME", "PORT", "INDEX", "TYPE")
    )
    oids = {}
    for oid in names.values():
        kind, index = types.get(oid, ""), parse_number(indices.get(oid))
        if kind in ("SAI_QUEUE_TYPE_UNICAST", "SAI_QUEUE_TYPE_ALL") and index is not None:
            oids[ports.get(oid, ""), index] = oid
    return oids


def _bindings(redis: Redis) -> dict[tuple[str, int], str]:
    """Return the WRED profile of each queue that CONFIG_DB binds to one, by port and number."""
    profiles = {}
    for key, row in redis.rows(CONFIG_DB, "QUEUE|*").items():
        parts = key.split("|")
        numbers = re.match(r"([0-9]{1,3})(?:-([0-9]{1,3}))?\Z", parts[-1])
        if len(parts) == 3 and numbers and row.get("wred_profile"):
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            for queue in range(first, min(last, 63) + 1):
                profiles[parts[1], queue] = row["wred_profile"]
    return profiles


def _watched(redis: Redis) -> set[tuple[str, int]]:
    """Return the queues that the PFC watchdog reads: those of the ports that it watches."""
    queues = set()
    for key in redis.rows(CONFIG_DB, "PFC_WD|*"):
        port = key.partition("|")[2]
        row = redis.hash(CONFIG_DB, f"PORT_QOS_MAP|{port}")
        # since release 202205, orchagent uses only this list
        listed = row.get("pfcwd_sw_enable", "")
        queues |= {(port, int(part)) for part in listed.split(",") if part in _PRIORITIES}
    return queues


def _wred_of(redis: Redis, oid: str, name: str) -> str:
    row = redis.hash(ASIC_DB, f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{oid}")
    wred = row.get("SAI_QUEUE_ATTR_WRED_PROFILE_ID", "")
    if not wred or wred == "oid:0x0":
        raise OperationError(
            f"the ASIC has no WRED profile at {name}, though CONFIG_DB binds one",
            "look for what orchagent refused in the switch's /var/log/syslog",
        )
    return wred


def _colours(redis: Redis, profile: str) -> list[str]:
    """Return the colours whose thresholds mark.

    All their fields must be set, since missing ones could not be restored.
    """
    row = redis.hash(CONFIG_DB, f"WRED_PROFILE|{profile}")
    ecn = row.get("ecn", "")
    marking = [c for c in COLOURS if ecn == "ecn_all" or c in ecn.split("_")[1:]]
    if not marking:
        raise OperationError(f"WRED profile {profile} does not mark (ecn is {ecn!r})", _REMEDY)
    for colour in marking:
        for part in ("min_threshold", "max_threshold", "drop_probability"):
            if f"{colour}_{part}" not in row:
                raise OperationError(f"WRED profile {profile} has no {colour}_{part}", _REMEDY)
        if f"ecn_{colour}_min_threshold" in row:
            raise OperationError(
                f"WRED profile {profile} marks by ecn_{colour}_min_threshold, not by the "
                "thresholds that are tuned",
                _REMEDY,
            )
    return marking


def _release(build_version: str) -> str:
    found = re.search(r"20\d{4}|master", build_version)
    return found[0] if found else ""
