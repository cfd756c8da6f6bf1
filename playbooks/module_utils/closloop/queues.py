"""Builds, compares and restores the queueing disciplines (qdiscs) of interfaces.

The desired state is an optional shaper, and below it a fair queue, a plain queue, or RED queues,
under ETS if there are several. Disciplines are compared by the settings that the kernel reports.
The layout and the handles are those of `orchestration.agent.linux.qdiscs`.
"""

from __future__ import annotations

import errno
import struct

from ansible.module_utils.agent.linux import qdiscs
from ansible.module_utils.agent.linux.netlink import HEADER, RouteSocket, attributes
from ansible.module_utils.agent.linux.qdiscs import Qdisc, red_parameters
from ansible.module_utils.closloop.reconcile import Refused

# Disciplines that can be restored from what the kernel reports.
_RESTORABLE = ("bfifo", "codel", "fq", "fq_codel", "netem", "pfifo", "red", "sfq", "tbf")


class Queues:
    """The queueing disciplines of all interfaces, by interface index."""

    def __init__(self, route: RouteSocket) -> None:
        self._route = route

    def read(self) -> dict:
        """Return each interface's disciplines below its root, the root first.

        A value is a list of dicts. Disciplines without a handle are left out: they are the kernel's
        defaults, which return by themselves when others are removed.
        """
        parts_by_index: dict = {}
        inner: dict = {}
        for present_part in qdiscs.qdiscs(self._route, invisible=True):
            index, handle, parent = present_part.ifindex, present_part.handle, present_part.parent
            if parent == qdiscs.TC_H_INGRESS:
                continue
            if handle == 0 and present_part.kind == "bfifo" and parent & 0xFFFF0000:
                (inner[index, parent & 0xFFFF0000],) = struct.unpack_from(
                    "=I", present_part.options
                )
            elif handle:
                part = {"kind": present_part.kind, "handle": handle, "parent": parent}
                parts_by_index.setdefault(index, []).append(
                    {**part, "options": present_part.options.hex()}
                )
        for index, parts in parts_by_index.items():
            for part in parts:
                if (index, part["handle"]) in inner:
                    part["inner_limit"] = inner[index, part["handle"]]
            parent_of = {part["handle"]: part["parent"] for part in parts}
            parts.sort(key=lambda part: (_depth(part["parent"], parent_of), part["handle"]))
        return parts_by_index

    def check(self, index: int, name: str, present: list) -> None:
        """Raise Refused if the present disciplines could not be restored."""
        for part in present:
            kind = part["kind"]
            if kind not in _RESTORABLE and not (kind == "mq" and len(present) == 1):
                raise Refused(
                    f"{name} has a queueing discipline {kind} that somebody set up and that could "
                    "not be restored",
                    f"remove it if you do not need it: tc qdisc del dev {name} root",
                )
        if present and self._filters(index):
            raise Refused(
                f"{name} has traffic filters, which could not be restored",
                f"remove them if you do not need them: tc filter del dev {name}",
            )

    def build(self, index: int, present: list, wanted: dict) -> None:
        """Build the desired disciplines; queued packets stay if only RED's parameters change."""
        requests = qdiscs.stack(index, wanted)
        parts = [decode(request) for request in requests]
        if not _same_shape(present, parts) or not all(
            part.kind == "red" or _same_part(present_part, part)
            for present_part, part in _pairs(present, parts)
        ):
            self._clear(index, present)
            self._route.request(requests)
            return
        for present_part, part in _pairs(present, parts):
            if part.kind == "red" and not _same_part(present_part, part):
                red = red_parameters(part.options)
                if _red_limit(present_part) == red.limit_bytes:
                    red = red._replace(limit_bytes=0)
                self._route.request([qdiscs.red_request(index, part.handle, part.parent, red)])

    def restore(self, index: int, present: list, former: list) -> None:
        """Restore the former disciplines, or the kernel's default."""
        self._clear(index, present)
        for part in former:
            position, options = (
                (index, part["handle"], part["parent"]),
                bytes.fromhex(part["options"]),
            )
            if part["kind"] == "red":
                red = red_parameters(options)._replace(limit_bytes=_red_limit(part))
                request = qdiscs.red_request(*position, red, qdiscs.ADD)
            else:
                request = qdiscs.qdisc(*position, part["kind"], options, nested=True)
            self._route.request([request])

    def _clear(self, index: int, present: list) -> None:
        if not present:
            return
        try:
            self._route.request(
                [qdiscs.tc_message(qdiscs.RTM_DELQDISC, index, 0, qdiscs.TC_H_ROOT)]
            )
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def _filters(self, index: int) -> bool:
        parts_by_index = self._route.dump(qdiscs.tc_message(qdiscs.RTM_GETTFILTER, index))
        return any(kind == qdiscs.RTM_NEWTFILTER for kind, _ in parts_by_index)


def same_queues(present: list, target: object) -> bool:
    """Return True if an interface's disciplines equal the desired (a dict) or the former ones."""
    if isinstance(target, dict):
        parts = [decode(request) for request in qdiscs.stack(0, target)]
        return _same_shape(present, parts) and all(
            _same_part(a, b) for a, b in _pairs(present, parts)
        )
    return _comparable(present) == _comparable(target or [])


def describe_queues(value: object) -> str:
    """Return disciplines in a form for people, the root first."""
    if isinstance(value, dict):
        parts = [decode(request) for request in qdiscs.stack(0, value)]
        return " > ".join(_describe(p.kind, p.handle, p.options) for p in parts) or "the default"
    parts = value or []
    words = [_describe(p["kind"], p["handle"], bytes.fromhex(p["options"])) for p in parts]
    return " > ".join(words) or "the default"


def decode(request: bytes) -> Qdisc:
    """Return the discipline that a request would create."""
    return qdiscs.qdisc_of(request[HEADER.size :])


def _describe(kind: str, handle: int, options: bytes) -> str:
    text = f"{kind} {handle >> 16:x}:"
    if kind == "red":
        red = red_parameters(options)
        text += f" min {red.kmin_bytes} max {red.kmax_bytes} p {red.max_p / 2**32:.6f}"
    if kind == "tbf":
        text += f" rate {8 * qdiscs.tbf_rate(attributes(options))} bit/s"
    return text


def _depth(parent: int, parent_of: dict) -> int:
    depth = 0
    while (
        parent != qdiscs.TC_H_ROOT and parent & 0xFFFF0000 in parent_of and depth < len(parent_of)
    ):
        parent, depth = parent_of[parent & 0xFFFF0000], depth + 1
    return depth


def _same_shape(present: list, parts: list) -> bool:
    present_part = sorted((part["kind"], part["handle"], part["parent"]) for part in present)
    return present_part == sorted((part.kind, part.handle, part.parent) for part in parts)


def _pairs(present: list, parts: list) -> list:
    by_handle = {part["handle"]: part for part in present}
    return [(by_handle[part.handle], part) for part in parts]


def _same_part(present_part: dict, part: Qdisc) -> bool:
    present = bytes.fromhex(present_part["options"])
    if part.kind == "red":
        now, red = red_parameters(present), red_parameters(part.options)
        return now._replace(limit_bytes=_red_limit(present_part), known=red.known) == red
    known, wanted = attributes(present), attributes(part.options)
    if part.kind == "tbf":
        # the bucket is reported in coarse time units; the limit, ten times the bucket, is exact
        return (
            qdiscs.tbf_rate(known) == qdiscs.tbf_rate(wanted)
            and known[1][:6] == wanted[1][:6]
            and (known[1][24:28] == wanted[1][24:28])
        )
    if part.kind == "bfifo":
        return present == part.options
    # an older kernel neither knows nor reports every attribute
    return all(known[kind] == value for kind, value in wanted.items() if kind in known)


def _red_limit(present_part: dict) -> int:
    """Return the limit of RED's inner queue, since RED reports 0 after a change of thresholds."""
    red = red_parameters(bytes.fromhex(present_part["options"]))
    return int(present_part.get("inner_limit", red.limit_bytes))


def _comparable(parts: list) -> list:
    result = []
    for part in parts:
        options = part["options"]
        if part["kind"] == "red":
            red = red_parameters(bytes.fromhex(options))
            options = list(red._replace(limit_bytes=_red_limit(part)))
        result.append([part["kind"], part["handle"], part["parent"], options])
    return sorted(result, key=lambda entry: entry[:3])
