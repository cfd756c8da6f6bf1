"""The queueing disciplines of one interface: build, compare, restore.

The wanted state is an optional shaper and below it a fair queue, a plain one, or RED queues, under
ETS if there are several. Disciplines are compared by the settings that the kernel reports. The
layout and the handles are those of `orchestration.agent.linux.qdiscs`.
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
    """The disciplines of all interfaces; keys are interface indices."""

    def __init__(self, route: RouteSocket) -> None:
        self._route = route

    def read(self) -> dict:
        """Return each interface's disciplines below its root, the root first.

        A value is a list of dicts. Disciplines without a handle are the kernel's defaults, which
        return by themselves when others are removed.
        """
        found: dict = {}
        inner: dict = {}
        for there in qdiscs.qdiscs(self._route, invisible=True):
            index, handle, parent = there.ifindex, there.handle, there.parent
            if parent == qdiscs.TC_H_INGRESS:
                continue
            if handle == 0 and there.kind == "bfifo" and parent & 0xFFFF0000:
                (inner[index, parent & 0xFFFF0000],) = struct.unpack_from("=I", there.options)
            elif handle:
                part = {"kind": there.kind, "handle": handle, "parent": parent}
                found.setdefault(index, []).append({**part, "options": there.options.hex()})
        for index, parts in found.items():
            for part in parts:
                if (index, part["handle"]) in inner:
                    part["inner_limit"] = inner[index, part["handle"]]
            above = {part["handle"]: part["parent"] for part in parts}
            parts.sort(key=lambda part: (_depth(part["parent"], above), part["handle"]))
        return found

    def check(self, index: int, name: str, present: list) -> None:
        """Raise Refused if the present disciplines could not be restored."""
        for part in present:
            kind = part["kind"]
            if kind not in _RESTORABLE and not (kind == "mq" and len(present) == 1):
                raise Refused(
                    f"{name} has a queueing discipline {kind} that was set up by somebody and that "
                    "could not be put back",
                    f"take it away if you can do without it: tc qdisc del dev {name} root",
                )
        if present and self._filters(index):
            raise Refused(
                f"{name} has traffic filters, which could not be put back",
                f"take them away if you can do without them: tc filter del dev {name}",
            )

    def build(self, index: int, present: list, wanted: dict) -> None:
        """Build the wanted disciplines; keep queued packets if only RED's parameters change."""
        requests = qdiscs.stack(index, wanted)
        parts = [decode(request) for request in requests]
        if not _same_shape(present, parts) or not all(
            part.kind == "red" or _same_part(there, part) for there, part in _both(present, parts)
        ):
            self._clear(index, present)
            self._route.request(requests)
            return
        for there, part in _both(present, parts):
            if part.kind == "red" and not _same_part(there, part):
                red = red_parameters(part.options)
                if _red_limit(there) == red.limit_bytes:
                    red = red._replace(limit_bytes=0)
                self._route.request([qdiscs.red_request(index, part.handle, part.parent, red)])

    def restore(self, index: int, present: list, former: list) -> None:
        """Restore the former disciplines, or the kernel's default."""
        self._clear(index, present)
        for part in former:
            place, options = (index, part["handle"], part["parent"]), bytes.fromhex(part["options"])
            if part["kind"] == "red":
                red = red_parameters(options)._replace(limit_bytes=_red_limit(part))
                request = qdiscs.red_request(*place, red, qdiscs.ADD)
            else:
                request = qdiscs.qdisc(*place, part["kind"], options, nested=True)
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
        found = self._route.dump(qdiscs.tc_message(qdiscs.RTM_GETTFILTER, index))
        return any(kind == qdiscs.RTM_NEWTFILTER for kind, _ in found)


def same_queues(present: list, target: object) -> bool:
    """Return True if an interface's disciplines equal the wanted (a dict) or the former ones."""
    if isinstance(target, dict):
        parts = [decode(request) for request in qdiscs.stack(0, target)]
        return _same_shape(present, parts) and all(
            _same_part(a, b) for a, b in _both(present, parts)
        )
    return _comparable(present) == _comparable(target or [])


def shown_queues(value: object) -> str:
    """Return disciplines in a form for people, the root first."""
    if isinstance(value, dict):
        parts = [decode(request) for request in qdiscs.stack(0, value)]
        return " > ".join(_words(p.kind, p.handle, p.options) for p in parts) or "the default"
    parts = value or []
    words = [_words(p["kind"], p["handle"], bytes.fromhex(p["options"])) for p in parts]
    return " > ".join(words) or "the default"


def decode(request: bytes) -> Qdisc:
    """Return the discipline that a request asks for."""
    return qdiscs.qdisc_of(request[HEADER.size :])


def _words(kind: str, handle: int, options: bytes) -> str:
    text = f"{kind} {handle >> 16:x}:"
    if kind == "red":
        red = red_parameters(options)
        text += f" min {red.kmin_bytes} max {red.kmax_bytes} p {red.max_p / 2**32:.6f}"
    if kind == "tbf":
        text += f" rate {8 * qdiscs.tbf_rate(attributes(options))} bit/s"
    return text


def _depth(parent: int, above: dict) -> int:
    depth = 0
    while parent != qdiscs.TC_H_ROOT and parent & 0xFFFF0000 in above and depth < len(above):
        parent, depth = above[parent & 0xFFFF0000], depth + 1
    return depth


def _same_shape(present: list, parts: list) -> bool:
    there = sorted((part["kind"], part["handle"], part["parent"]) for part in present)
    return there == sorted((part.kind, part.handle, part.parent) for part in parts)


def _both(present: list, parts: list) -> list:
    by_handle = {part["handle"]: part for part in present}
    return [(by_handle[part.handle], part) for part in parts]


def _same_part(there: dict, part: Qdisc) -> bool:
    present = bytes.fromhex(there["options"])
    if part.kind == "red":
        now, red = red_parameters(present), red_parameters(part.options)
        return now._replace(limit_bytes=_red_limit(there), known=red.known) == red
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


def _red_limit(there: dict) -> int:
    """Return the limit of RED's inner queue. RED itself reports 0 after a change of thresholds."""
    red = red_parameters(bytes.fromhex(there["options"]))
    return int(there.get("inner_limit", red.limit_bytes))


def _comparable(parts: list) -> list:
    result = []
    for part in parts:
        options = part["options"]
        if part["kind"] == "red":
            red = red_parameters(bytes.fromhex(options))
            options = list(red._replace(limit_bytes=_red_limit(part)))
        result.append([part["kind"], part["handle"], part["parent"], options])
    return sorted(result, key=lambda entry: entry[:3])
