"""Rows of CONFIG_DB: which ones buffers and streams need, and what an undo does with rows.

An undo restores only fields that provisioning wrote. Many rows are shared: if an operator changes
another field of a row, or the same field, that change must stay. So former and written values are
saved by field: `{"was": {field: text or None}, "wrote": {field: [text, ...]}}`.
"""

from __future__ import annotations

import re

from ansible.module_utils.agent.sonic import configdb
from ansible.module_utils.agent.sonic.resp import CONFIG_DB, Redis
from ansible.module_utils.agent.sonic.stream import GROUPS, PROFILES
from ansible.module_utils.closloop.reconcile import Refused

# Fields that are lists of priorities: provisioning adds to them.
LISTS = ("pfc_enable", "pfcwd_sw_enable")
# Orchagent treats each row of these tables as one setting, and ignores an incomplete row.
_ONE_SETTING = (
    "BUFFER_PG",
    "HIGH_FREQUENCY_TELEMETRY_GROUP",
    "HIGH_FREQUENCY_TELEMETRY_PROFILE",
    "PFC_WD",
    "SCHEDULER",
)


def priorities_in(text: str) -> set:
    """Return the priorities in a list."""
    return {*text.split(",")} - {""}


def fields_to_save(saved: dict | None, before: dict, after: dict, desired: dict) -> dict:
    """Return what to save before the row `before` becomes `after`, with the fields `desired`.

    `saved` is what is already saved about the row, if anything. An interval may first be written
    with the value in `after`, and then with the desired one, so either value counts as written.
    """
    was, wrote = ({**saved[part]} if saved else {} for part in ("was", "wrote"))
    for name in desired:
        values = {after[name], after[name] if name in LISTS else desired[name]}
        if values != {before.get(name)}:
            was.setdefault(name, before.get(name))
            wrote[name] = sorted({*wrote.get(name, ()), *values})
    return {"was": was, "wrote": wrote}


def row_after_undo(key: str, saved: dict, present: dict | None) -> tuple:
    """Return the row that an undo leaves, or None, and which fields it leaves to others, in words.

    A row is removed with its last field.
    """
    row, others = dict(present or {}), []
    was, wrote = saved["was"], saved["wrote"]
    defaults = configdb.DEFAULTS.get(key, {})
    for name, values in wrote.items():
        found = row.get(name)
        former = defaults.get(name) if was[name] is None else was[name]
        if found == former:
            continue
        if found not in values and name in LISTS and found is not None:
            own_priorities = priorities_in(",".join(values)) - priorities_in(former or "")
            if not own_priorities & priorities_in(found):
                continue
            former = ",".join(sorted(priorities_in(found) - own_priorities)) or None
        elif found not in values:
            now = "has been removed" if found is None else f"has been set to {found}"
            others.append(f"{name} {now}")
            continue
        if former is None:
            del row[name]
        else:
            row[name] = former
    if key.partition("|")[0] in _ONE_SETTING and present is not None:
        if not any(was.values()):
            others += [f"{name} has been added" for name in sorted(present) if name not in wrote]
        if others:
            row = present
    return row or None, others


_KEY = re.compile(r"BUFFER_PG\|(?P<port>[^|]+)\|(?P<first>\d+)(?:-(?P<last>\d+))?\Z")


def lossless_rows(redis: Redis, wanted: dict) -> dict:
    """Return the rows of BUFFER_PG to add for lossless queues, by key: {"profile": "NULL"}.

    Without headroom, PFC drops packets of lossless classes. So a lossless priority group needs a
    row whose profile has `xoff`, its headroom. In the traditional buffer model, buffermgrd creates
    both from the port's speed, its cable length and `pfc_enable` (sonic-swss,
    cfgmgr/buffermgr.cpp); in the dynamic model the row names the profile NULL, and buffermgrd
    computes it. `wanted` has the lossless priorities of each port. Raises Refused if buffers are
    missing and the switch cannot compute them.
    """
    dynamic = redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost").get("buffer_model") == "dynamic"
    profiles_by_priority = _profiles(redis)
    rows, missing = {}, []
    for port, priorities in wanted.items():
        for priority in priorities:
            key = f"BUFFER_PG|{port}|{priority}"
            found, profile = profiles_by_priority.get((port, priority), ("", ""))
            if dynamic and (not found or (found == key and profile == "NULL")):
                rows[key] = {"profile": "NULL"}
            elif not (profile == "NULL" and dynamic) and not _headroom(redis, profile):
                missing.append(f"{port} priority group {priority}")
    if missing:
        shown = ", ".join(missing[:4]) + (" and others" if len(missing) > 4 else "")
        raise Refused(
            f"a lossless queue needs a buffer with headroom, and there is none at {shown}",
            "load SONiC's stock buffers (`config qos reload`), or list lossy queues in "
            "closloop_queues, such as 1",
        )
    return rows


def _profiles(redis: Redis) -> dict:
    found = {}
    for key, row in redis.rows(CONFIG_DB, "BUFFER_PG|*").items():
        match = _KEY.match(key)
        if match:
            first = int(match["first"])
            for priority in range(first, min(int(match["last"] or first), 7) + 1):
                found[match["port"], priority] = key, row.get("profile", "")
    return found


def _headroom(redis: Redis, profile: str) -> bool:
    row = redis.hash(CONFIG_DB, "BUFFER_PROFILE|" + profile) if profile else {}
    return row.get("xoff", "0") not in ("", "0")


OWN_NAME = "CLOSLOOP"
COUNTERS = {"mellanox": "CURR_OCCUPANCY_CELLS"}


def stream_rows(redis: Redis, queues: list, interval_us: int, asic: str, streams: bool) -> dict:
    """Return the rows that stream the depths of queues, [(port, number)].

    If SAI refuses a counter, orchagent becomes unhealthy (saihelper.cpp, handleSaiFailure). So only
    counters that an ASIC is known to stream are requested: for queues, Nvidia's have the depth in
    cells (sonic-mgmt, tests/high_frequency_telemetry). The YANG model requires buffers for each
    queue's port, and without them a session never begins (buildimage issue 24479). SONiC's own
    command allows only one profile. `asic` is the ASIC's kind, and `streams` is whether the netlink
    family exists. Raises Refused, with the reason, if the switch cannot stream.
    """
    remedy = "remove closloop_telemetry: depths are then the PFC watchdog's"
    if not streams:
        raise Refused("it has no High Frequency Telemetry", remedy)
    if asic not in COUNTERS:
        raise Refused(f"it is not known what an ASIC of kind {asic!r} can stream", remedy)
    others = {key.split("|")[1] for key in redis.call(CONFIG_DB, "KEYS", f"{PROFILES}|*")} - {
        OWN_NAME
    }
    if others:
        raise Refused(
            f"it has the profile {', '.join(sorted(others))} already, and SONiC allows only one",
            "let that one stream the queues' depths, or remove it; then provision again",
        )
    buffered = {key.split("|")[1] for key in redis.call(CONFIG_DB, "KEYS", "BUFFER_QUEUE|*")}
    for port, _ in queues:
        if not any(port in ports.split(",") for ports in buffered):
            raise Refused(f"{port} has no row in BUFFER_QUEUE", "run `config qos reload`")
    return {
        f"{PROFILES}|{OWN_NAME}": {"stream_state": "enabled", "poll_interval": str(interval_us)},
        f"{GROUPS}|{OWN_NAME}|QUEUE": {
            "object_names@": ",".join(f"{port}|{queue}" for port, queue in queues),
            "object_counters@": COUNTERS[asic],
        },
    }
