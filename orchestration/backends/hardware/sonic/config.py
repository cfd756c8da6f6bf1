"""What provisioning sets on a SONiC switch: rows of CONFIG_DB, derived from the rack and checked.

Every tuned queue has its own WRED profile, so that it can be tuned alone. The queues' numbers are
the rack's (`Access.queues`, one per traffic class). Their traffic classes and, up to 7, their
priority groups have the same numbers. Queues 3 and 4 are lossless, as in SONiC's stock
configuration, whose buffers have headroom for these two; every other queue marks and drops. Whether
the switch really has that headroom is checked on the switch
(playbooks/module_utils/closloop/sonic_rows.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from math import gcd

from inventory.rack import Access, Rack
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.agent.sonic.configdb import OWN_NAME
from orchestration.core.errors import Problem, raise_any

# Table -> key -> field -> value.
Tables = dict[str, dict[str, dict[str, str]]]

# Unicast queues per port, as many as priority groups.
QUEUES = 8
LOSSLESS = (3, 4)
# orchagent parses thresholds as signed 32-bit numbers.
MAX_BYTES = 2**31 - 1
# Names of profiles that the YANG model allows; ours end with an interface and a queue.
_NAME = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}")

# The DSCP of routing protocols and CNPs (CS6), and its queue.
CONTROL_DSCP, CONTROL_QUEUE = 48, 6

# The shortest poll periods that SONiC accepts (lower bounds of counterpoll and of the YANG model),
# in ms. A switch with many ports may poll less often
# (playbooks/module_utils/closloop/sonic_polls.py).
POLL_MS, WATERMARK_POLL_MS = 100, 1000
# The PFC watchdog takes no action here; it is on because it reads the queue's depth.
_WATCHDOG = {"action": "alert", "detection_time": "200", "restoration_time": "200"}

# The tables that provisioning writes to, and that a snapshot of a switch therefore contains.
TABLES = (
    "BUFFER_PG",
    "DSCP_TO_TC_MAP",
    "FLEX_COUNTER_TABLE",
    "HIGH_FREQUENCY_TELEMETRY_GROUP",
    "HIGH_FREQUENCY_TELEMETRY_PROFILE",
    "MAP_PFC_PRIORITY_TO_QUEUE",
    "PFC_WD",
    "PORT_QOS_MAP",
    "QUEUE",
    "SCHEDULER",
    "TC_TO_PRIORITY_GROUP_MAP",
    "TC_TO_QUEUE_MAP",
    "WRED_PROFILE",
)


def profile_name(interface: str, queue: int) -> str:
    """Return the name of a queue's own WRED profile."""
    return f"{OWN_NAME}_{interface}_{queue}"


def desired_tables(rack: Rack, device: str, *, depth: bool = True) -> Tables:
    """Return the rows that provisioning sets, as strings by table, key and field.

    Thresholds start at the size of the queue's buffer, so that nothing is marked; a tuner's first
    action sets others. With `depth`, the PFC watchdog watches the queues in its mode that only
    reports, because otherwise no counter has their current depth. Lossy queues are watched too:
    from release 202205 on, `pfcwd_sw_enable` does not depend on `pfc_enable` (swss PR 2171).

    Raises InputError if SONiC cannot be configured for the rack.
    """
    access, testbed = rack.access[device], rack.testbed
    where = f"{rack.name}: {device}"
    ports = testbed.ports_of[device]
    raise_any(sorted(_problems(where, access, testbed.queues_per_port)))
    tables: Tables = {
        **_maps(access),
        "WRED_PROFILE": {},
        "SCHEDULER": _schedulers([klass.weight for klass in testbed.classes], access.queues),
        "QUEUE": {},
        "PORT_QOS_MAP": {},
        "FLEX_COUNTER_TABLE": _polling(),
    }
    lossless = _lossless(access)
    if depth:
        tables["PFC_WD"] = {"GLOBAL": {"POLL_INTERVAL": str(POLL_MS)}}
    for port, interface in zip(ports, access.interfaces, strict=True):
        watched = sorted(access.queues) if depth else []
        tables["PORT_QOS_MAP"][interface] = _port(lossless, watched)
        if depth:
            tables["PFC_WD"][interface] = dict(_WATCHDOG)
        for queue, number in zip(testbed.queues_at(port), access.queues, strict=True):
            name = profile_name(interface, number)
            tables["WRED_PROFILE"][name] = _profile(queue.buffer_bytes)
            row = {"wred_profile": name}
            if testbed.classes:
                row["scheduler"] = f"{OWN_NAME}_{number}"
            tables["QUEUE"][f"{interface}|{number}"] = row
    return {table: rows for table, rows in tables.items() if rows}


def _problems(where: str, access: Access, classes: int) -> Iterator[Problem]:
    """Yield the problems of a rack for which SONiC accepts no rows."""
    queues = access.queues
    shown = ", ".join(map(str, queues))
    remedy = f"give closloop_queues {classes} different numbers from 0 to {QUEUES - 1}"
    if len(queues) != classes:
        yield Problem(where, f"has queues {shown} for {classes} traffic classes", remedy)
    elif len(set(queues)) != len(queues) or not all(0 <= queue < QUEUES for queue in queues):
        yield Problem(where, f"cannot have queues {shown}", remedy)
    for interface in access.interfaces:
        if not _NAME.fullmatch(profile_name(interface, QUEUES - 1)):
            yield Problem(
                where,
                f"{profile_name(interface, QUEUES - 1)} is not a valid name of a WRED profile: it "
                "may have up to 32 letters, digits, - and _, and must begin with a letter or digit",
                "use SONiC's names of interfaces in closloop_links, such as Ethernet0",
            )


def queue_locations(rack: Rack, device: str) -> list[tuple[str, int, str]]:
    """Return (interface, queue number, WRED profile) of each queue of a switch.

    They are in the order of `Testbed.queues`.
    """
    access = rack.access[device]
    return [
        (interface, number, profile_name(interface, number))
        for interface in access.interfaces
        for number in access.queues
    ]


def _lossless(access: Access) -> list[int]:
    return [number for number in sorted(access.queues) if number in LOSSLESS]


def _profile(buffer_bytes: int) -> dict[str, str]:
    """Return a profile with marking enabled, whose initial thresholds mark nothing.

    It has thresholds for green only, the colour of every packet that no policer has coloured. More
    colours would cost something: each write of a profile sets all its fields in SAI, and on
    Spectrum each threshold takes the profile off its queues for a moment (mlnx_sai_wred.c), and
    each colour takes an entry of a limited table.
    """
    never = str(min(buffer_bytes, MAX_BYTES))
    return {
        "ecn": "ecn_green",
        "wred_green_enable": "true",
        "green_min_threshold": never,
        "green_max_threshold": never,
        "green_drop_probability": "100",
    }


def _schedulers(weights: list[int], queues: tuple[int, ...]) -> dict[str, dict[str, str]]:
    """Return schedulers with weights reduced to lowest terms; SONiC accepts 1 to 100."""
    if not weights:
        return {}
    shared = reduce(gcd, weights)
    return {
        f"{OWN_NAME}_{number}": {"type": "DWRR", "weight": str(weight // shared)}
        for number, weight in zip(queues, weights, strict=True)
    }


def _maps(access: Access) -> Tables:
    """Return the maps from DSCP to queue, through traffic classes numbered like the queues.

    A DSCP without a class of its own goes to the first class, as on every backend.
    """
    first = access.queues[0]
    queue_of = {str(dscp): str(first) for dscp in range(64)}
    if CONTROL_QUEUE not in access.queues:
        queue_of[str(CONTROL_DSCP)] = str(CONTROL_QUEUE)
    for tos, number in zip(CLASS_TOS, access.queues):  # noqa: B905 (as many as there are classes)
        queue_of[str(tos >> 2)] = str(number)
    same = {str(number): str(number) for number in range(QUEUES)}
    group = {name: name if int(name) in LOSSLESS else "0" for name in same}
    return {
        "DSCP_TO_TC_MAP": {OWN_NAME: queue_of},
        "TC_TO_QUEUE_MAP": {OWN_NAME: same},
        "TC_TO_PRIORITY_GROUP_MAP": {OWN_NAME: group},
        "MAP_PFC_PRIORITY_TO_QUEUE": {OWN_NAME: dict(same)},
    }


def _port(lossless: list[int], watched: list[int]) -> dict[str, str]:
    row = {
        "dscp_to_tc_map": OWN_NAME,
        "tc_to_queue_map": OWN_NAME,
        "tc_to_pg_map": OWN_NAME,
        "pfc_to_queue_map": OWN_NAME,
    }
    # on the switch, these are added to the priorities that are already lossless there
    if lossless:
        row["pfc_enable"] = ",".join(map(str, lossless))
    if watched:
        row["pfcwd_sw_enable"] = ",".join(map(str, watched))
    return row


def _polling() -> dict[str, dict[str, str]]:
    """Return the poll settings: every group that is read is polled as often as SONiC allows."""
    groups = {
        "PORT": POLL_MS,
        "QUEUE": POLL_MS,
        "WRED_ECN_QUEUE": POLL_MS,
        "QUEUE_WATERMARK": WATERMARK_POLL_MS,
        "PFCWD": 0,
    }
    rows = {}
    for group, interval in groups.items():
        rows[group] = {"FLEX_COUNTER_STATUS": "enable"}
        if interval:
            rows[group]["POLL_INTERVAL"] = str(interval)
    return rows
