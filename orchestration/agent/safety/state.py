"""Takes a snapshot of the state that a run may change on a device, and restores it afterwards.

    state.snapshot  {interfaces, sysctls, rows} -> the snapshot
    state.restore   {snapshot} -> {"changed": [what was restored], "differences": [what still
                                   differs], "restarted": whether the device has rebooted since}
    state.identity  -> the device's identity (`identity`)

A snapshot has the device's identity, all qdiscs of each interface (RED's parameters decoded), the
named sysctls (paths below /proc/sys), and fingerprints of addresses, routes and rules. On a SONiC
switch it also has the named rows of CONFIG_DB: the run's own WRED profiles, and its queues. A
restore writes RED's parameters at closloop's handles, the sysctls that runs may write (`sysctls`),
and closloop's profiles (`configdb`). Other differences are only reported, because a run did not
cause them. A snapshot of another device is refused.

A reboot resets the running kernel, so nothing of it has to be restored then. It does not reset
CONFIG_DB: warm and fast reboots load it from Redis's dump (sonic-utilities, scripts/fast-reboot:
backup_database; sonic-buildimage PRs 2287 and 12026), and cold ones from config_db.json, which
anybody may have saved meanwhile. So rows are always compared.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..linux.netlink import (
    RTM_GETADDR,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWADDR,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RouteSocket,
    attributes,
    interface_index,
    message,
)
from ..linux.qdiscs import CLASS_TOS, Red, leaf_handle, qdiscs, red_parameters, red_request
from ..linux.sysctls import may_be_restored, read_sysctl, sysctl_path
from ..main import Agent, Operation, OperationError
from ..sonic.configdb import (
    Difference,
    check_keys,
    read_rows,
    row_differences,
    rows_to_write,
    saved_rows,
    write_rows,
)
from .identity import identity, identity_mismatch
from .shared_folder import this_boot
from .snapshot_form import check_form

VERSION = 2

# The handles at which provisioning puts RED, and runs change it.
_RUN_HANDLES = frozenset(leaf_handle(klass) for klass in range(len(CLASS_TOS)))

# Retrying a restore may remove differences of these parts. A run does not cause the others.
RESTORABLE = ("red", "sysctl", "row", "interface")

# A change of RED's limit drops its queued packets, so it waits up to 2 s for an empty queue.
_MAX_TRIES, _RETRY_S = 200, 0.01

# The last word of sch_htb's option TCA_HTB_INIT (struct tc_htb_glob) is a counter; it is left out.
_HTB_INIT, _HTB_STATIC_BYTES = 2, 16


# Attributes that the kernel changes by itself: lifetimes, and flags of links down or offloaded.
_VOLATILE_ADDRESS, _VOLATILE_ROUTE = {6, 8}, {12, 23}
_ROUTE_CLONED, _MULTIPATH = 0x200, 9


class Plan(NamedTuple):
    """The writes that lead from one snapshot to another.

    `reds` are (interface, handle, parent, parameters) to set without changing the inner queue;
    `limits` are the same tuples for REDs whose reported limit is restored afterwards. `rows` are
    whole rows, which exist already: each is written in one step.
    """

    reds: list[tuple[str, int, int, Red]]
    limits: list[tuple[str, int, int, Red]]
    sysctls: dict[str, str]
    rows: dict[str, dict[str, str]]


def snapshot(request: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot of what the request names, with None for each part that is missing.

    Raises OperationError for a sysctl or a row that runs may not change.
    """
    for name in request.get("sysctls", []):
        sysctl_path(name)
    check_keys(request.get("rows") or [])
    return _snapshot(request)


def _snapshot(request: dict[str, Any]) -> dict[str, Any]:
    with RouteSocket() as route:
        return {
            "version": VERSION,
            "boot": this_boot(),
            "identity": identity(),
            "interfaces": _interfaces(route, request.get("interfaces", [])),
            "sysctls": {name: read_sysctl(name) for name in request.get("sysctls", [])},
            "fingerprints": fingerprints(route),
            "rows": None if request.get("rows") is None else read_rows(request["rows"]),
            "saved": None if request.get("rows") is None else saved_rows(request["rows"]),
        }


def restore(target: dict[str, Any]) -> dict[str, Any]:
    """Restore what differs from a snapshot; return what was changed and what still differs.

    If one value cannot be restored, the others still are. Raises OperationError, and writes
    nothing, for a snapshot of another version or of another device, or one that is damaged.
    """
    if target.get("version") != VERSION:
        raise OperationError(
            f"the snapshot has version {target.get('version')!r}, not {VERSION}",
            "restore with the version of closloop that made it",
        )
    check_form(target)
    # snapshots of closloop 0.2.0 have no identity
    other = identity_mismatch(target.get("identity"), identity())
    if other:
        raise OperationError(
            f"the snapshot is of another device: {other}; nothing was written",
            "give the inventory of the rack that the run was on; if the device was replaced or "
            "reinstalled, `closloop restore INVENTORY --forget DEVICE` closes its entry",
        )
    restarted = target["boot"] != this_boot()
    if restarted:
        target = {**target, "interfaces": {}, "sysctls": {}, "fingerprints": {}}
    plan = restore_plan(_snapshot_again(target), target)
    changed: list[str] = []
    errors: list[Difference] = []
    _restore_reds(plan, changed, errors)
    for name, value in plan.sysctls.items():
        try:
            with open(sysctl_path(name), "w") as file:
                file.write(value)
            changed.append(f"sysctl {name}")
        except OSError as error:
            errors.append(Difference("sysctl", name, "cannot be written", value, str(error)))
    write_rows(plan.rows)
    changed += [f"row {key}" for key in plan.rows]
    remaining = errors + differences(target, _snapshot_again(target))
    return {
        "changed": changed,
        "differences": [item._asdict() for item in remaining],
        "restarted": restarted,
    }


def restore_plan(now: dict[str, Any], target: dict[str, Any]) -> Plan:
    """Return the writes that turn the state `now` into `target`. Pure."""
    plan = Plan([], [], {}, {})
    for interface, qdiscs_wanted in target["interfaces"].items():
        present_qdiscs = {item["handle"]: item for item in now["interfaces"].get(interface) or []}
        for item in qdiscs_wanted or []:
            current = present_qdiscs.get(item["handle"])
            if not _is_set_by_runs(item) or current is None or "red" not in current:
                continue
            want, have = Red(**item["red"]), Red(**current["red"])
            at = (interface, item["handle"], current["parent"])
            differs = want._replace(limit_bytes=0) != have._replace(limit_bytes=0)
            if differs:
                plan.reds.append((*at, want._replace(limit_bytes=0)))
            # setting the limit would remove a qdisc that is attached below this RED
            inner = any(other["parent"] == item["handle"] | 1 for other in present_qdiscs.values())
            # after a change that keeps the queue, the kernel reports a limit of 0
            limit_bytes = 0 if differs else have.limit_bytes
            if want.limit_bytes not in (0, limit_bytes) and not inner:
                plan.limits.append((*at, want))
    for name, value in target["sysctls"].items():
        present = now["sysctls"].get(name)
        if present is not None and present != value and may_be_restored(name, value):
            plan.sysctls[name] = value
    plan.rows.update(rows_to_write(now, target))
    return plan


def differences(target: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Return the differences of the state `now` from the snapshot `target`. Pure."""
    result: list[Difference] = []
    for interface, former in target["interfaces"].items():
        result += _qdisc_differences(interface, former, now["interfaces"].get(interface))
    for name, value in target["sysctls"].items():
        if now["sysctls"].get(name) != value:
            part = "sysctl" if value is None or may_be_restored(name, value) else "other sysctl"
            result.append(Difference(part, name, "value", value, now["sysctls"].get(name)))
    for name, value in target["fingerprints"].items():
        if now["fingerprints"].get(name) != value:
            current = now["fingerprints"].get(name)
            result.append(Difference("fingerprint", name, "were changed", value, current))
    return result + row_differences(target, now)


def _qdisc_differences(
    interface: str, target: list[dict[str, Any]] | None, now: list[dict[str, Any]] | None
) -> list[Difference]:
    if target is None or now is None:
        if target is now:
            return []
        states = ["missing" if side is None else "there" for side in (target, now)]
        return [Difference("interface", interface, "interface", *states)]
    result = []
    want_by, have_by = ({(q["handle"], q["parent"]): q for q in side} for side in (target, now))
    for at in sorted({*want_by, *have_by}):
        want, have = want_by.get(at), have_by.get(at)
        where = f"{interface} qdisc {at[0] >> 16:x}: parent {at[1]:#x}"
        if want is None or have is None or want["kind"] != have["kind"]:
            kinds = [None if side is None else side["kind"] for side in (want, have)]
            result.append(Difference("qdisc", where, "kind", *kinds))
        elif "red" in want:
            part = "red" if _is_set_by_runs(want) else "qdisc"
            for field in Red._fields:
                if want["red"][field] != have["red"][field]:
                    item = Difference(part, where, field, want["red"][field], have["red"][field])
                    result.append(item)
        elif want["options"] != have["options"]:
            result.append(Difference("qdisc", where, "options", want["options"], have["options"]))
    return result


def _is_set_by_runs(item: dict[str, Any]) -> bool:
    return "red" in item and item["handle"] in _RUN_HANDLES


def _snapshot_again(target: dict[str, Any]) -> dict[str, Any]:
    rows = None if target["rows"] is None else list(target["rows"])
    names = {part: list(target[part]) for part in ("interfaces", "sysctls")}
    return _snapshot({**names, "rows": rows})


def _interfaces(route: RouteSocket, names: Sequence[str]) -> dict[str, Any]:
    indexes: dict[int, str] = {}
    result: dict[str, Any] = dict.fromkeys(names)
    for name in names:
        with suppress(OSError):
            indexes[interface_index(name)] = name
            result[name] = []
    for item in qdiscs(route):
        if item.ifindex not in indexes:
            continue
        entry: dict[str, Any] = {
            "kind": item.kind,
            "handle": item.handle,
            "parent": item.parent,
            "options": _static_options(item.kind, item.options).hex(),
        }
        if item.kind == "red":
            entry["red"] = red_parameters(item.options)._asdict()
        result[indexes[item.ifindex]].append(entry)
    return result


def _static_options(kind: str, options: bytes) -> bytes:
    if kind != "htb":
        return options
    return attributes(options).get(_HTB_INIT, b"")[:_HTB_STATIC_BYTES]


def fingerprints(route: RouteSocket) -> dict[str, str]:
    """Return hashes of all addresses, routes and rules, which show whether something changed."""
    tables = (
        ("addresses", RTM_GETADDR, RTM_NEWADDR, 8),
        ("routes", RTM_GETROUTE, RTM_NEWROUTE, 12),
        ("rules", RTM_GETRULE, RTM_NEWRULE, 12),
    )
    result = {}
    for name, request_kind, kind, head_bytes in tables:
        messages = route.dump(message(request_kind, bytes(head_bytes)))
        lines = [
            _stable_text(kind, payload, head_bytes)
            for answer_kind, payload in messages
            if answer_kind == kind
        ]
        text = "\n".join(sorted(line for line in lines if line))
        result[name] = hashlib.sha256(text.encode()).hexdigest()
    return result


def _stable_text(kind: int, payload: bytes, head_bytes: int) -> str:
    head, volatile = bytearray(payload[:head_bytes]), set()
    if kind == RTM_NEWADDR:
        head[2] = 0
        volatile = _VOLATILE_ADDRESS
    elif kind == RTM_NEWROUTE:
        if struct.unpack_from("=I", head, 8)[0] & _ROUTE_CLONED:
            return ""
        head[8:12] = bytes(4)
        volatile = _VOLATILE_ROUTE
    parts = [head.hex()]
    for number, value in sorted(attributes(payload, head_bytes).items()):
        if number in volatile:
            continue
        if kind == RTM_NEWROUTE and number == _MULTIPATH:
            value = _without_flags(value)
        parts.append(f"{number}={value.hex()}")
    return " ".join(parts)


def _without_flags(hops: bytes) -> bytes:
    """Return a multipath attribute with the flags of its next hops (dead, link down) cleared."""
    result, at = bytearray(hops), 0
    while at + 8 <= len(hops):
        (length,) = struct.unpack_from("=H", hops, at)
        result[at + 2] = 0
        if length < 8:
            break
        at += (length + 3) & ~3
    return bytes(result)


def _restore_reds(plan: Plan, changed: list[str], errors: list[Difference]) -> None:
    if not plan.reds and not plan.limits:
        return
    with RouteSocket() as route:
        _send_reds(route, plan.reds, changed, errors)
        pending = plan.limits
        for _ in range(_MAX_TRIES):
            nonempty = {(q.ifindex, q.handle) for q in qdiscs(route) if q.qlen}
            ready = [p for p in pending if (_interface_index(p[0]), p[1]) not in nonempty]
            _send_reds(route, ready, changed, errors)
            pending = [item for item in pending if item not in ready]
            if not pending:
                break
            time.sleep(_RETRY_S)


def _send_reds(
    route: RouteSocket,
    reds: Sequence[tuple[str, int, int, Red]],
    changed: list[str],
    errors: list[Difference],
) -> None:
    requests = [
        red_request(_interface_index(interface), handle, parent, red)
        for interface, handle, parent, red in reds
    ]
    answers = route.answers(requests)
    for (interface, handle, _, red), error in zip(reds, answers):
        where = f"{interface} qdisc {handle >> 16:x}:"
        if error is None:
            changed.append(f"RED at {where}")
        else:
            errors.append(Difference("red", where, "cannot be set", red._asdict(), str(error)))


def _interface_index(interface: str) -> int:
    try:
        return interface_index(interface)
    except OSError:
        # an index that does not exist: the kernel refuses it, and the error is reported
        return 2**31 - 1


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        "state.snapshot": snapshot,
        "state.restore": lambda request: restore(request["snapshot"]),
        "state.identity": lambda _: identity(),
    }
