"""Lossless queues' buffers on a SONiC switch: PFC without headroom drops what it should not.

A lossless priority group has a row in BUFFER_PG whose profile has `xoff`, its headroom. In the
traditional model buffermgrd makes both from the port's speed, its cable's length and `pfc_enable`
(sonic-swss, cfgmgr/buffermgr.cpp); in the dynamic model the row names the profile NULL and
buffermgrd computes it.
"""

from __future__ import annotations

import re

from ansible.module_utils.agent.sonic.resp import CONFIG_DB, Redis
from ansible.module_utils.closloop.reconcile import Refused

_KEY = re.compile(r"BUFFER_PG\|(?P<port>[^|]+)\|(?P<first>\d+)(?:-(?P<last>\d+))?\Z")


def lossless_rows(redis: Redis, wanted: dict) -> dict:
    """Return the rows of BUFFER_PG to add for lossless queues, by key: {"profile": "NULL"}.

    `wanted` has the lossless priorities of each port. Raises Refused where the buffers are missing
    and cannot be computed by the switch.
    """
    dynamic = redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost").get("buffer_model") == "dynamic"
    there = _profiles(redis)
    rows, missing = {}, []
    for port, priorities in wanted.items():
        for priority in priorities:
            key = f"BUFFER_PG|{port}|{priority}"
            found, profile = there.get((port, priority), ("", ""))
            if dynamic and (not found or (found == key and profile == "NULL")):
                rows[key] = {"profile": "NULL"}
            elif not (profile == "NULL" and dynamic) and not _headroom(redis, profile):
                missing.append(f"{port} priority group {priority}")
    if missing:
        shown = ", ".join(missing[:4]) + (" and others" if len(missing) > 4 else "")
        raise Refused(
            f"a lossless queue needs a buffer with headroom, and there is none at {shown}",
            "load SONiC's stock buffers (`config qos reload`), or name lossy queues in "
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
