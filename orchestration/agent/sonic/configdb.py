"""Rows of SONiC's CONFIG_DB: in which order they are written, and what undoes them.

A row is written before the rows that refer to it, and removed after them.
"""

from __future__ import annotations

from collections.abc import Mapping

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

# Orchagent ignores that one of these rows, or its interval, is removed: polling goes on as it was
# (flexcounterorch.cpp). It ends by SIGSEGV when PFC_WD|GLOBAL is removed (pfcwdorch.cpp up to
# 202605, swss PR 4760). So what undoes them writes the value that holds without them.
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


def undone(key: str, former: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the row that an undo leaves, given the former row; None for none."""
    return {**DEFAULTS.get(key, {}), **(former or {})} or None


def place(key: str) -> int:
    """Return the position of a table (or of a row's table) in the order of writing."""
    table = key.partition("|")[0]
    return ORDER.index(table) if table in ORDER else len(ORDER)
