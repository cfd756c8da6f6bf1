"""Queueing disciplines (qdiscs) over netlink: encodes requests and decodes the kernel's answers.

A switch port has a tree of qdiscs: a shaper (tbf), below it weighted round robin between traffic
classes (ets) if there are several, and RED in each class. pyroute2 has no RED encoder and packs
tbf's rate into 32 bits, so requests are built here (struct layouts: linux/pkt_sched.h).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .netlink import (
    NESTED,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    RouteSocket,
    attribute,
    attributes,
    message,
)

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
ADD = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL

TC_H_ROOT = 0xFFFFFFFF
TC_H_INGRESS = 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000
INGRESS_BLOCK = 0xFFFFFFF2  # clsact's ingress hook (TC_H_CLSACT | TC_H_MIN_INGRESS)

# Handles of a port's qdiscs, from the root down. With several classes, the first has LEAF_HANDLE.
NETEM_HANDLE, TBF_HANDLE, LEAF_HANDLE, ETS_HANDLE = 0x10000, 0x20000, 0x30000, 0x80000

# The IPv4 type of service of each traffic class, and the priority that a router gives such a packet
# (rt_tos2priority, include/net/route.h). The two ECN bits are not included.
CLASS_TOS = (0x00, 0x08, 0x10, 0x18)
CLASS_PRIORITIES = (0, 2, 6, 4)
_PRIORITIES = 16

_TCMSG = struct.Struct("=BxxxiIII")
TCA_KIND, TCA_OPTIONS, TCA_XSTATS, TCA_STATS2 = 1, 2, 4, 7
_TCA_DUMP_INVISIBLE, _TCA_HW_OFFLOAD = 10, 12
STATS_BASIC, STATS_QUEUE = 1, 3
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
RED_PARMS, _RED_STAB, RED_MAX_P, _RED_FLAGS = 1, 2, 3, 4
_RED_QOPT = struct.Struct("=IIIBBBB")
# RED's largest probability: 2^32 would overflow.
ALWAYS = 2**32 - 1
_RED_ECN, _RED_NODROP = 1, 8
# Priority 1 in the upper half, protocol ETH_P_ALL in network order in the lower.
_FILTER_INFO = (1 << 16) | struct.unpack("=H", struct.pack("!H", 3))[0]


def tc_message(
    kind: int,
    ifindex: int,
    handle: int = 0,
    parent: int = 0,
    attrs: bytes = b"",
    flags: int = 0,
    info: int = 0,
) -> bytes:
    """Return a message about a qdisc or filter: struct tcmsg, then the attributes `attrs`."""
    return message(kind, _TCMSG.pack(0, ifindex, handle, parent, info) + attrs, flags)


def qdisc(
    ifindex: int, handle: int, parent: int, kind: str, options: bytes, *, nested: bool = False
) -> bytes:
    """Return a request to add a qdisc with encoded options.

    The functions for each kind below also return such a request.
    """
    attrs = attribute(TCA_KIND, kind.encode() + b"\0")
    if options:
        attrs += attribute(TCA_OPTIONS | (NESTED if nested else 0), options)
    return tc_message(RTM_NEWQDISC, ifindex, handle, parent, attrs, ADD)


def leaf_handle(klass: int) -> int:
    """Return the handle of a traffic class's RED; `klass` is 0 for a port with one queue."""
    return LEAF_HANDLE + klass * 0x10000


def leaf_parent(klass: int, queues: int) -> int:
    """Return the parent of a class's RED: the shaper on a port with one queue, else a band."""
    return ETS_HANDLE + 1 + klass if queues > 1 else TBF_HANDLE + 1


def netem(ifindex: int, handle: int, parent: int, delay_ns: int) -> bytes:
    """Add a constant delay. Its packet limit is never reached: packets queue at the qdisc below."""
    limit = 10_000_000
    qopt = struct.pack("=IIIIII", 0, limit, 0, 0, 0, 0)
    latency64 = attribute(10, struct.pack("=q", delay_ns))
    return qdisc(ifindex, handle, parent, "netem", qopt + latency64)


def tbf(
    ifindex: int, handle: int, parent: int, rate_bps: int, bucket_bytes: int, framing_bytes: int
) -> bytes:
    """Add a shaper at `rate_bps` with a bucket of `bucket_bytes`.

    Above 34 Gbit/s the rate is sent as 64 bits (TCA_TBF_RATE64), so that it is exact. Each packet
    is charged `framing_bytes` more, for what a wire carries besides the frame.
    """
    rate = rate_bps // 8
    ratespec = struct.pack("=BBHhHI", 0, 1, framing_bytes, 0, 0, min(rate, 0xFFFFFFFF))
    # this limit applies only to the default child, which is replaced at once
    qopt = ratespec + b"\0" * 12 + struct.pack("=III", 10 * bucket_bytes, 0, 0)
    options = attribute(_TBF_PARMS, qopt) + attribute(_TBF_BURST, struct.pack("=I", bucket_bytes))
    if rate > 0xFFFFFFFF:
        options += attribute(_TBF_RATE64, struct.pack("=Q", rate))
    return qdisc(ifindex, handle, parent, "tbf", options)


def tbf_rate(options: dict[int, bytes]) -> int:
    """Return a shaper's rate in bytes/s from the attributes of its options."""
    if _TBF_RATE64 in options:
        return int(struct.unpack("=Q", options[_TBF_RATE64])[0])
    return int(struct.unpack_from("=I", options[_TBF_PARMS], 8)[0])


def fair_queue(ifindex: int, handle: int, parent: int) -> bytes:
    """Add fq, per-flow round robin, without pacing: this is how a NIC serves its send queues.

    All priorities share one band. Otherwise Linux would give some traffic classes nine times the
    share of others, because a packet's type of service sets its priority. The band is 0: Linux 7.3
    puts a new flow there until it has read the flow's priority. With any other band, a new flow
    would wait until that band has sent its 192 KB.
    """
    bands = 3
    options = (
        attribute(1, struct.pack("=I", 1_000_000))  # TCA_FQ_PLIMIT
        + attribute(2, struct.pack("=I", 100_000))  # TCA_FQ_FLOW_PLIMIT
        + attribute(5, struct.pack("=I", 0))  # TCA_FQ_RATE_ENABLE
        + attribute(16, struct.pack("=i", bands) + bytes(_PRIORITIES))  # TCA_FQ_PRIOMAP
    )
    return qdisc(ifindex, handle, parent, "fq", options)


def byte_fifo(ifindex: int, handle: int, parent: int, limit_bytes: int) -> bytes:
    """Add a plain queue that drops above `limit_bytes` (struct tc_fifo_qopt)."""
    return qdisc(ifindex, handle, parent, "bfifo", struct.pack("=I", limit_bytes))


def ets(ifindex: int, handle: int, parent: int, weights: Sequence[int], frame_bytes: int) -> bytes:
    """Add deficit weighted round robin (sch_ets) between bands, one for each traffic class.

    A band's share of a round is proportional to its weight. The smallest share is at least a full
    frame of `frame_bytes`, so that no band needs several rounds for one frame. Packets whose
    priority belongs to no class go to the first band.
    """
    scale = -(-frame_bytes // min(weights))
    bands = [0] * _PRIORITIES
    for band, priority in enumerate(CLASS_PRIORITIES[: len(weights)]):
        bands[priority] = band
    quanta = b"".join(attribute(4, struct.pack("=I", scale * weight)) for weight in weights)
    priomap = b"".join(attribute(6, bytes([band])) for band in bands)
    options = (
        attribute(1, bytes([len(weights)]))  # TCA_ETS_NBANDS
        + attribute(3 | NESTED, quanta)
        + attribute(5 | NESTED, priomap)
    )
    return qdisc(ifindex, handle, parent, "ets", options, nested=True)


def red(
    ifindex: int,
    handle: int,
    parent: int,
    kmin_bytes: int,
    kmax_bytes: int,
    max_p: int,
    limit_bytes: int,
) -> bytes:
    """Add RED that marks by the instantaneous queue (EWMA weight 1) and drops only above the limit.

    `max_p` is the kernel's 32-bit probability (`orchestration.core.marking_probability.red_max_p`).

    With the flag `nodrop`, a packet that cannot carry a mark is neither marked nor dropped below
    the limit (red_enqueue, net/sched/sch_red.c).
    """
    config = _marking(kmin_bytes, kmax_bytes, max_p, limit_bytes)
    return red_request(ifindex, handle, parent, config, ADD)


def red_change(
    ifindex: int, handle: int, parent: int, kmin_bytes: int, kmax_bytes: int, max_p: int
) -> bytes:
    """Change the thresholds and keep all queued packets and the byte limit of the inner queue."""
    return red_request(ifindex, handle, parent, _marking(kmin_bytes, kmax_bytes, max_p, 0))


class Red(NamedTuple):
    """RED's parameters in the kernel's form (struct tc_red_qopt).

    `max_p` is the 32-bit probability. `flags` are ECN 1, harddrop 2, adaptive 4, nodrop 8; `known`
    are those that this kernel supports. `limit_bytes` reads 0 after a change that kept the inner
    queue; that queue then still has its earlier limit.
    """

    limit_bytes: int
    kmin_bytes: int
    kmax_bytes: int
    wlog: int
    plog: int
    scell_log: int
    max_p: int
    flags: int
    known: int


def _marking(kmin_bytes: int, kmax_bytes: int, max_p: int, limit_bytes: int) -> Red:
    # with a weight of 2^-0 the average is the backlog itself
    flags = _RED_ECN | _RED_NODROP
    return Red(limit_bytes, kmin_bytes, kmax_bytes, 0, 0, 0, max_p, flags, flags)


def red_request(
    ifindex: int, handle: int, parent: int, red: Red, flags: int = NLM_F_REQUEST
) -> bytes:
    """Return a request to set all parameters of a RED, or with `flags` `ADD` to add one.

    With `limit_bytes` 0 the inner queue and its packets stay. Any other value purges it and creates
    a new inner queue with that limit (__red_change, net/sched/sch_red.c).
    """
    # kernels before 5.7 expect the flags among the parameters
    parameters = _RED_QOPT.pack(*red[:6], 0 if red.known else red.flags)
    options = (
        attribute(RED_PARMS, parameters)
        + attribute(_RED_STAB, _idle_table(red.wlog, red.scell_log))
        + attribute(RED_MAX_P, struct.pack("=I", red.max_p))
    )
    if red.known:
        options += attribute(_RED_FLAGS, struct.pack("=II", red.flags, red.known))
    attrs = attribute(TCA_KIND, b"red\0") + attribute(TCA_OPTIONS, options)
    return tc_message(RTM_NEWQDISC, ifindex, handle, parent, attrs, flags)


def red_parameters(options: bytes) -> Red:
    """Return the parameters in a RED qdisc's options."""
    found = attributes(options)
    limit, kmin, kmax, wlog, plog, scell_log, flags = _RED_QOPT.unpack_from(found[RED_PARMS])
    (max_p,) = struct.unpack_from("=I", found.get(RED_MAX_P, bytes(4)))
    known = 0
    if _RED_FLAGS in found:
        flags, known = struct.unpack_from("=II", found[_RED_FLAGS])
    return Red(limit, kmin, kmax, wlog, plog, scell_log, max_p, flags, known)


def _idle_table(wlog: int, scell_log: int) -> bytes:
    """Return the decay of the average during idle time, as shifts for 256 time cells.

    The kernel does not report its table. With weight 1 an idle queue counts as empty at once.
    Otherwise tc (tc_red_eval_idle_damping) lets the shift grow linearly with time, so that it
    reaches 31 between cells 256 and 512; this table uses the middle.
    """
    if wlog == 0 and scell_log == 0:
        return bytes([31]) * 256
    return bytes(min(31, cell * 31 // 384) for cell in range(255)) + bytes([31])


def stack(ifindex: int, config: Mapping[str, Any], parent: int = TC_H_ROOT) -> list[bytes]:
    """Return the requests that build a port's qdiscs, from `parent` down.

    `config` may have a `shaper` (the arguments of `tbf`) and, below it, `fair` queueing (`fq`), a
    `fifo` (the arguments of `byte_fifo`) or `reds` (those of `red`, one for each traffic class).
    Several reds need `weights` and `frame_bytes` (see `ets`).
    """
    requests = []
    if config.get("shaper"):
        requests.append(tbf(ifindex, TBF_HANDLE, parent, **config["shaper"]))
        parent = TBF_HANDLE + 1
    if config.get("fair"):
        requests.append(fair_queue(ifindex, LEAF_HANDLE, parent))
    if config.get("fifo"):
        requests.append(byte_fifo(ifindex, LEAF_HANDLE, parent, **config["fifo"]))
    reds = config.get("reds", [])
    if len(reds) > 1:
        weights, frame_bytes = config["weights"], config["frame_bytes"]
        requests.append(ets(ifindex, ETS_HANDLE, parent, weights, frame_bytes))
    for klass, words in enumerate(reds):
        above = parent if len(reds) == 1 else leaf_parent(klass, len(reds))
        requests.append(red(ifindex, leaf_handle(klass), above, **words))
    return requests


def clsact(ifindex: int) -> bytes:
    """Add clsact, the hook that filters attach to."""
    attrs = attribute(TCA_KIND, b"clsact\0")
    return tc_message(RTM_NEWQDISC, ifindex, INGRESS_HANDLE, TC_H_INGRESS, attrs, ADD)


def drop_arrivals(ifindex: int) -> bytes:
    """Drop every packet that arrives, as at the far end of a cut cable."""
    gact = struct.pack("=IIiii", 0, 0, 2, 0, 0)  # TC_ACT_SHOT
    action = attribute(1, b"gact\0") + attribute(2, attribute(2, gact))
    options = attribute(2, attribute(1, action))  # TCA_MATCHALL_ACT
    attrs = attribute(TCA_KIND, b"matchall\0") + attribute(TCA_OPTIONS, options)
    return tc_message(RTM_NEWTFILTER, ifindex, 1, INGRESS_BLOCK, attrs, ADD, _FILTER_INFO)


def accept_arrivals(ifindex: int) -> bytes:
    """Undo `drop_arrivals`."""
    kind = attribute(TCA_KIND, b"matchall\0")
    return tc_message(RTM_DELTFILTER, ifindex, 1, INGRESS_BLOCK, kind, NLM_F_REQUEST, _FILTER_INFO)


class Qdisc(NamedTuple):
    """One queueing discipline with its counters. `backlog` is in bytes, `qlen` in packets.

    `offloaded` says that a switch's ASIC has taken it over, and that its counters are the ASIC's.
    """

    ifindex: int
    handle: int
    parent: int
    kind: str
    options: bytes
    bytes_: int = 0
    packets: int = 0
    drops: int = 0
    overlimits: int = 0
    backlog: int = 0
    qlen: int = 0
    xstats: bytes = b""
    offloaded: bool = False

    @property
    def red_marked(self) -> int:
        """The number of packets that a RED has marked (struct tc_red_xstats)."""
        return int(struct.unpack_from("=I", self.xstats, 12)[0])


def qdiscs(route: RouteSocket, *, invisible: bool = False) -> list[Qdisc]:
    """Return all qdiscs of the namespace, interface by interface.

    With `invisible`, include those that the kernel hides, such as RED's inner queue.
    """
    attrs = attribute(_TCA_DUMP_INVISIBLE, b"") if invisible else b""
    messages = route.dump(tc_message(RTM_GETQDISC, 0, attrs=attrs))
    return [qdisc_of(payload) for kind, payload in messages if kind == RTM_NEWQDISC]


def qdisc_of(payload: bytes) -> Qdisc:
    """Return the qdisc of a message, given without its netlink header."""
    _, ifindex, handle, parent, _ = _TCMSG.unpack_from(payload)
    found = attributes(payload, _TCMSG.size)
    stats = attributes(found.get(TCA_STATS2, b""))
    sent_bytes, packets = struct.unpack_from("=QI", stats.get(STATS_BASIC, bytes(12)))
    qlen, backlog, drops, _, overlimits = struct.unpack_from(
        "=5I", stats.get(STATS_QUEUE, bytes(20))
    )
    kind = found[TCA_KIND].rstrip(b"\0").decode(errors="replace")
    options, xstats = found.get(TCA_OPTIONS, b""), found.get(TCA_XSTATS, b"")
    return Qdisc(
        ifindex, handle, parent, kind, options,
        sent_bytes, packets, drops, overlimits, backlog, qlen, xstats,
        found.get(_TCA_HW_OFFLOAD, b"\0") != b"\0",
    )  # fmt: skip
