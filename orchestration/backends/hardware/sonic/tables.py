"""SONiC's QoS tables as data: keys, fields and ranges.

They follow SONiC's YANG models (sonic-buildimage, src/sonic-yang-models) and, where it accepts
less, the daemon that reads them (sonic-swss, orchagent): nobody validates raw writes to CONFIG_DB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# A field's rule returns the fault of a value, "" if there is none.
Rule = Callable[[str], str]

_DIGITS = re.compile(r"-?(0|[1-9][0-9]{0,19})\Z")


def number(text: str) -> int | None:
    """Return `text` as a whole number in the notation of SONiC's daemons, None if it is not one."""
    return int(text) if _DIGITS.match(text) and text != "-0" else None


def whole(least: int, most: int, unit: str = "", why: str = "") -> Rule:
    """Accept whole numbers from `least` to `most`; `why` says where the bound comes from."""
    wanted = f"a whole number from {least} to {most}{f' {unit}' if unit else ''}"
    because = f" ({why})" if why else ""

    def rule(value: str) -> str:
        found = number(value)
        return "" if found is not None and least <= found <= most else f"must be {wanted}{because}"

    return rule


def one_of(*words: str) -> Rule:
    """Accept any of `words`."""

    def rule(value: str) -> str:
        return "" if value in words else f"must be {', '.join(words[:-1])} or {words[-1]}"

    return rule


def listed(value: str) -> str:
    """Check priorities 0 to 7, separated by commas, each once; empty for none."""
    if not value:
        return ""
    parts = value.split(",")
    if any(part not in set("01234567") for part in parts):
        return "must be priorities from 0 to 7 with commas between, like 3,4"
    return "" if len(set(parts)) == len(parts) else "names a priority twice"


def some_text(value: str) -> str:
    """Accept any text but none."""
    return "" if value else "must be some text"


truth = one_of("true", "false")


@dataclass(frozen=True)
class Reference:
    """The name of a row in another table. With `null`, `NULL` stands for none."""

    table: str
    null: bool = False


def queue_range(text: str) -> range | None:
    """Return the queues that `3` or `3-4` names, None for anything else."""
    first, dash, last = text.partition("-")
    low, high = number(first), number(last) if dash else number(first)
    if low is None or high is None or low < 0 or high < low:
        return None
    # 3-3 must be written as 3
    return range(low, high + 1) if not dash or high > low else None


# orchagent parses thresholds as signed 32-bit numbers.
MOST_BYTES = 2**31 - 1
COLOURS = ("green", "yellow", "red")
CPU_PORT, GLOBAL_MAP, GLOBAL_WATCHDOG, TELEMETRY = "CPU", "global", "GLOBAL", "TELEMETRY_INTERVAL"

_U32, _U64 = 2**32 - 1, 2**64 - 1
_NAME = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}\Z")
_ANY_NAME = re.compile(r"[^|\s]{1,255}\Z")
_NAMES_ARE = {
    _NAME: "up to 32 letters, digits, - and _, the first a letter or digit",
    _ANY_NAME: "up to 255 characters without | and spaces",
}
_BYTES = whole(0, _U64, "bytes")
_THRESHOLD = whole(1, MOST_BYTES, "bytes", "0 stands for the whole buffer")
_PRIORITY, _TC, _DSCP = whole(0, 7), whole(0, 15), whole(0, 63)
# the YANG model has one digit
_QUEUE = whole(0, 9)
_WRED_FIELDS: dict[str, Rule | Reference] = {
    "ecn": one_of(
        "ecn_none",
        "ecn_green",
        "ecn_yellow",
        "ecn_red",
        "ecn_green_yellow",
        "ecn_green_red",
        "ecn_yellow_red",
        "ecn_all",
    )
}
for _colour in COLOURS:
    _WRED_FIELDS[f"wred_{_colour}_enable"] = truth
    _WRED_FIELDS[f"{_colour}_min_threshold"] = _THRESHOLD
    _WRED_FIELDS[f"{_colour}_max_threshold"] = _THRESHOLD
    _WRED_FIELDS[f"{_colour}_drop_probability"] = whole(0, 100, "percent")


@dataclass(frozen=True)
class Table:
    """One table. Keys match `names`, or name a port, or a port's queue or priority group (`at`).

    `fields` are all its fields; a map from number to number has `pairs` instead, the rules of both.
    `alone` are additional keys, each with the only fields that it may have; no other key has the
    fields in `only_alone`.
    """

    names: re.Pattern[str] | None = None
    at: Literal["", "port", "queue", "group"] = ""
    fields: Mapping[str, Rule | Reference] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    pairs: tuple[Rule, Rule] | None = None
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_alone: tuple[str, ...] = ()

    @property
    def names_are(self) -> str:
        """The names that `names` matches, in words."""
        return _NAMES_ARE[self.names] if self.names else ""


SCHEMA: dict[str, Table] = {
    "WRED_PROFILE": Table(names=_NAME, fields=_WRED_FIELDS),
    "SCHEDULER": Table(
        names=_ANY_NAME,
        fields={
            "type": one_of("DWRR", "WRR", "STRICT"),
            "weight": whole(1, 100),
            "meter_type": one_of("packets", "bytes"),
            "cir": whole(0, _U64),
            "pir": whole(0, _U64),
            "cbs": whole(0, _U32),
            "pbs": whole(0, _U32),
        },
    ),
    "QUEUE": Table(
        at="queue",
        fields={"scheduler": Reference("SCHEDULER"), "wred_profile": Reference("WRED_PROFILE")},
    ),
    "PORT_QOS_MAP": Table(
        at="port",
        fields={
            "dscp_to_tc_map": Reference("DSCP_TO_TC_MAP"),
            "dot1p_to_tc_map": Reference("DOT1P_TO_TC_MAP"),
            "tc_to_queue_map": Reference("TC_TO_QUEUE_MAP"),
            "tc_to_pg_map": Reference("TC_TO_PRIORITY_GROUP_MAP"),
            "tc_to_dscp_map": Reference("TC_TO_DSCP_MAP"),
            "pfc_to_queue_map": Reference("MAP_PFC_PRIORITY_TO_QUEUE"),
            "pfc_to_pg_map": Reference("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
            "scheduler": Reference("SCHEDULER"),
            "pfc_enable": listed,
            "pfcwd_sw_enable": listed,
        },
        alone={GLOBAL_MAP: ("dscp_to_tc_map",)},
    ),
    "DSCP_TO_TC_MAP": Table(names=_NAME, pairs=(_DSCP, _TC)),
    "DOT1P_TO_TC_MAP": Table(names=_NAME, pairs=(_PRIORITY, _TC)),
    "TC_TO_DSCP_MAP": Table(names=_NAME, pairs=(_TC, _DSCP)),
    "TC_TO_QUEUE_MAP": Table(names=_NAME, pairs=(_TC, _QUEUE)),
    "TC_TO_PRIORITY_GROUP_MAP": Table(names=_NAME, pairs=(_TC, _PRIORITY)),
    "MAP_PFC_PRIORITY_TO_QUEUE": Table(names=_NAME, pairs=(_PRIORITY, _PRIORITY)),
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": Table(names=_NAME, pairs=(_PRIORITY, _PRIORITY)),
    "BUFFER_POOL": Table(
        names=_ANY_NAME,
        fields={
            "type": one_of("ingress", "egress", "both"),
            "mode": one_of("static", "dynamic"),
            "size": _BYTES,
            "xoff": _BYTES,
            "percentage": whole(1, 100),
        },
        needed=("type", "mode"),
    ),
    "BUFFER_PROFILE": Table(
        names=_ANY_NAME,
        fields={
            "pool": Reference("BUFFER_POOL"),
            "size": _BYTES,
            "dynamic_th": whole(-8, 7),
            "static_th": _BYTES,
            "xon": _BYTES,
            "xoff": _BYTES,
            "xon_offset": _BYTES,
            "headroom_type": one_of("static", "dynamic"),
            "packet_discard_action": one_of("drop", "trim"),
        },
        needed=("pool", "size"),
    ),
    "BUFFER_PG": Table(at="group", fields={"profile": Reference("BUFFER_PROFILE", null=True)}),
    "BUFFER_QUEUE": Table(
        at="queue", fields={"profile": Reference("BUFFER_PROFILE")}, needed=("profile",)
    ),
    "PFC_WD": Table(
        at="port",
        fields={
            "action": one_of("drop", "forward", "alert"),
            "detection_time": whole(100, 5_000, "ms"),
            "restoration_time": whole(100, 60_000, "ms"),
            "pfc_stat_history": one_of("enable", "disable"),
            "POLL_INTERVAL": whole(100, 1_000, "ms"),
        },
        needed=("detection_time",),
        alone={GLOBAL_WATCHDOG: ("POLL_INTERVAL",)},
        only_alone=("POLL_INTERVAL",),
    ),
    "WATERMARK_TABLE": Table(
        fields={"interval": whole(1, _U32, "s")}, alone={TELEMETRY: ("interval",)}
    ),
}

# Groups of counters by their key in FLEX_COUNTER_TABLE: the polls that they accept, in ms, within
# the bounds of the command `counterpoll`. None where the group has no interval of its own there.
POLLS_MS: dict[str, tuple[int, int] | None] = {
    "PORT": (100, 30_000),
    "QUEUE": (100, 30_000),
    "QUEUE_WATERMARK": (1_000, 60_000),
    "PG_WATERMARK": (1_000, 60_000),
    "BUFFER_POOL_WATERMARK": (1_000, 60_000),
    "PG_DROP": (1_000, 30_000),
    "PORT_BUFFER_DROP": (30_000, 300_000),
    "WRED_ECN_QUEUE": (100, 30_000),
    "WRED_ECN_PORT": (100, 30_000),
    "PFCWD": None,
}
POLLS_TABLE = "FLEX_COUNTER_TABLE"
_BULK = ("PORT", "QUEUE", "QUEUE_WATERMARK", "PG_WATERMARK", "PG_DROP", "PORT_BUFFER_DROP")


def group_fields(group: str) -> dict[str, Rule]:
    """Return the fields of one group's row in FLEX_COUNTER_TABLE."""
    fields: dict[str, Rule] = {
        "FLEX_COUNTER_STATUS": one_of("enable", "disable"),
        "FLEX_COUNTER_DELAY_STATUS": truth,
    }
    bounds = POLLS_MS[group]
    if bounds is not None:
        fields["POLL_INTERVAL"] = whole(*bounds, "ms", "faster polls are not to be had")
    if group in _BULK:
        fields["BULK_CHUNK_SIZE"] = whole(1, _U32)
        fields["BULK_CHUNK_SIZE_PER_PREFIX"] = some_text
    return fields
