"""The queueing disciplines of one interface: build, compare, put back.

Wanted are the shaper (or none), and below it either a fair queue or RED queues, under ETS where
there are several. They are compared by what the kernel reports of their settings; the layout and
the handles are those of `orchestration.device.qdiscs`.
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

from ansible.module_utils import netlink, qdiscs
from ansible.module_utils.closloop.reconcile import Refused
from ansible.module_utils.netlink import RouteSocket, attribute, attributes, message

_RTM_DELQDISC, _RTM_NEWTFILTER, _RTM_GETTFILTER = 37, 44, 46
_CREATE_EXCL = 0x600
_TCMSG = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS, _DUMP_INVISIBLE = 1, 2, 10
_NESTED = 0x8000
_CLSACT = 0xFFFFFFF1
# Disciplines that can be made again from what the kernel reports of them.
_RESTORABLE = ("bfifo", "codel", "fq", "fq_codel", "netem", "pfifo", "red", "sfq", "tbf")


class Part(NamedTuple):
    """One discipline: where it hangs and its settings, as the kernel's attributes."""

    kind: str
    handle: int
    parent: int
    options: bytes


class Queues:
    """The disciplines of all interfaces; keys are interface indices."""

    def __init__(self, route: RouteSocket) -> None:
        self._route = route

    def read(self) -> dict:
        """Return each interface's disciplines below its root, the root first.

        A value is a list of dicts. Disciplines without a handle are the kernel's defaults: they
        come back by themselves when others go away.
        """
        found: dict = {}
        inner: dict = {}
        request = message(
            netlink.RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0) + attribute(_DUMP_INVISIBLE, b"")
        )
        for kind, payload in self._route.dump(request):
            if kind != netlink.RTM_NEWQDISC:
                continue
            _, index, handle, parent, _ = _TCMSG.unpack_from(payload)
            attrs = attributes(payload, _TCMSG.size)
            name = attrs[_KIND].rstrip(b"\0").decode()
            options = attrs.get(_OPTIONS, b"")
            if parent == _CLSACT:
                continue
            if handle == 0 and name == "bfifo" and parent & 0xFFFF0000:
                (inner[index, parent & 0xFFFF0000],) = struct.unpack_from("=I", options)
            elif handle:
                part = {"kind": name, "handle": handle, "parent": parent, "options": options.hex()}
                found.setdefault(index, []).append(part)
        for index, parts in found.items():
            for part in parts:
                if (index, part["handle"]) in inner:
                    part["inner_limit"] = inner[index, part["handle"]]
            above = {part["handle"]: part["parent"] for part in parts}
            parts.sort(key=lambda part: (_depth(part["parent"], above), part["handle"]))
        return found

    def check(self, index: int, name: str, present: list) -> None:
        """Raise Refused if what is there could not be made again."""
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
        """Put the wanted disciplines in place; keep what is queued where only RED changes."""
        requests = expected_requests(index, wanted)
        parts = [decode(request) for request in requests]
        if not _same_shape(present, parts) or not all(
            part.kind == "red" or _same_part(there, part) for there, part in _both(present, parts)
        ):
            self._clear(index, present)
            self._route.request(requests)
            return
        for there, part in _both(present, parts):
            if part.kind == "red" and not _same_part(there, part):
                red = netlink.red_parameters(part.options)
                if _red_limit(there) == red.limit_bytes:
                    red = red._replace(limit_bytes=0)
                self._route.request([netlink.red_request(index, part.handle, part.parent, red)])

    def restore(self, index: int, present: list, former: list) -> None:
        """Put former disciplines back, or the kernel's default."""
        self._clear(index, present)
        for part in former:
            options = bytes.fromhex(part["options"])
            if part["kind"] == "red":
                red = netlink.red_parameters(options)
                limit = part.get("inner_limit", red.limit_bytes)
                red = red._replace(limit_bytes=limit)
                request = netlink.red_request(index, part["handle"], part["parent"], red)
            else:
                body = _TCMSG.pack(0, index, part["handle"], part["parent"], 0)
                body += attribute(_KIND, part["kind"].encode() + b"\0")
                if options:
                    body += attribute(_OPTIONS | _NESTED, options)
                request = message(netlink.RTM_NEWQDISC, body)
            packed = bytearray(request)
            struct.pack_into("=H", packed, 6, _CREATE_EXCL)
            self._route.request([bytes(packed)])

    def _clear(self, index: int, present: list) -> None:
        """Delete the root discipline, and all below it."""
        if not present:
            return
        body = _TCMSG.pack(0, index, 0, qdiscs.TC_H_ROOT, 0)
        try:
            self._route.request([message(_RTM_DELQDISC, body)])
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def _filters(self, index: int) -> bool:
        body = _TCMSG.pack(0, index, 0, 0, 0)
        return any(
            kind == _RTM_NEWTFILTER for kind, _ in self._route.dump(message(_RTM_GETTFILTER, body))
        )


def expected_requests(index: int, wanted: dict) -> list:
    """Return the requests that build the wanted disciplines on an interface without any."""
    parent, requests = qdiscs.TC_H_ROOT, []
    shaper = wanted.get("shaper")
    if shaper:
        requests.append(
            qdiscs.tbf(
                index,
                qdiscs.TBF_HANDLE,
                parent,
                shaper["rate_bps"],
                shaper["bucket_bytes"],
                shaper["framing_bytes"],
            )
        )
        parent = qdiscs.TBF_HANDLE + 1
    if wanted.get("fair"):
        requests.append(qdiscs.fair_queue(index, qdiscs.LEAF_HANDLE, parent))
    reds = wanted.get("reds", [])
    if len(reds) > 1:
        weights, frame_bytes = wanted["weights"], wanted["frame_bytes"]
        requests.append(qdiscs.ets(index, qdiscs.ETS_HANDLE, parent, weights, frame_bytes))
    for klass, red in enumerate(reds):
        above = parent if len(reds) == 1 else qdiscs.leaf_parent(klass, len(reds))
        requests.append(
            qdiscs.red(
                index,
                qdiscs.leaf_handle(klass),
                above,
                red["kmin_bytes"],
                red["kmax_bytes"],
                red["max_p"],
                red["limit_bytes"],
            )
        )
    return requests


def same_queues(present: list, target: object) -> bool:
    """True if an interface's disciplines are the wanted ones (a dict), or the former ones."""
    if isinstance(target, dict):
        parts = [decode(request) for request in expected_requests(0, target)]
        return _same_shape(present, parts) and all(
            _same_part(a, b) for a, b in _both(present, parts)
        )
    return _comparable(present) == _comparable(target or [])


def shown_queues(value: object) -> str:
    """Return disciplines as people read them, the root first."""
    if isinstance(value, dict):
        parts = [decode(request) for request in expected_requests(0, value)]
        return " > ".join(_words(p.kind, p.handle, p.options) for p in parts) or "the default"
    parts = value or []
    words = [_words(p["kind"], p["handle"], bytes.fromhex(p["options"])) for p in parts]
    return " > ".join(words) or "the default"


def decode(request: bytes) -> Part:
    """Return what a request for a discipline asks for."""
    _, _, handle, parent, _ = _TCMSG.unpack_from(request, 16)
    found = attributes(request, 16 + _TCMSG.size)
    return Part(found[_KIND].rstrip(b"\0").decode(), handle, parent, found.get(_OPTIONS, b""))


def _words(kind: str, handle: int, options: bytes) -> str:
    text = f"{kind} {handle >> 16:x}:"
    if kind == "red":
        red = netlink.red_parameters(options)
        text += f" min {red.kmin_bytes} max {red.kmax_bytes} p {red.max_p / 2**32:.6f}"
    if kind == "tbf":
        text += f" rate {8 * _tbf_rate(attributes(options))} bit/s"
    return text


def _depth(parent: int, above: dict) -> int:
    """Return how many disciplines are over the one that hangs from `parent`."""
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


def _same_part(there: dict, part: Part) -> bool:
    present = bytes.fromhex(there["options"])
    if part.kind == "red":
        now, red = netlink.red_parameters(present), netlink.red_parameters(part.options)
        return now._replace(limit_bytes=_red_limit(there), known=red.known) == red
    known, wanted = attributes(present), attributes(part.options)
    if part.kind == "tbf":
        # the bucket is reported in coarse time; the limit, ten times the bucket, is exact
        return (
            _tbf_rate(known) == _tbf_rate(wanted)
            and known[1][:6] == wanted[1][:6]
            and (known[1][24:28] == wanted[1][24:28])
        )
    # an older kernel does not know, nor report, every attribute
    return all(known[kind] == value for kind, value in wanted.items() if kind in known)


def _tbf_rate(options: dict) -> int:
    """Return bytes/s: TCA_TBF_RATE64, or the rate in struct tc_tbf_qopt."""
    if 4 in options:
        return int(struct.unpack("=Q", options[4])[0])
    return int(struct.unpack_from("=I", options[1], 8)[0])


def _red_limit(there: dict) -> int:
    """Return what RED's inner queue may hold: after a change of thresholds RED reports 0."""
    red = netlink.red_parameters(bytes.fromhex(there["options"]))
    return int(there.get("inner_limit", red.limit_bytes))


def _comparable(parts: list) -> list:
    result = []
    for part in parts:
        options = part["options"]
        if part["kind"] == "red":
            red = netlink.red_parameters(bytes.fromhex(options))
            options = list(red._replace(limit_bytes=_red_limit(part)))
        result.append([part["kind"], part["handle"], part["parent"], options])
    return sorted(result, key=lambda entry: entry[:3])
