"""Netlink requests for queueing disciplines, as bytes.

pyroute2 has no RED encoder and packs tbf's rate into 32 bits, so the qdisc requests are built here
(struct layouts: linux/pkt_sched.h). Guests build their threshold changes with the same functions,
and so do agents on a rack's switches and Ansible's modules: standard library only, and nothing else
of this project.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

RTM_NEWQDISC, RTM_NEWTFILTER, RTM_DELTFILTER = 36, 44, 45
NLM_F_REQUEST = 0x1
NLM_F_CREATE_EXCL = 0x600

TC_H_ROOT = 0xFFFFFFFF
TC_H_INGRESS = 0xFFFFFFF1
INGRESS_HANDLE = 0xFFFF0000
INGRESS_BLOCK = 0xFFFFFFF2  # clsact's ingress hook (TC_H_CLSACT | TC_H_MIN_INGRESS)

# Handles of a port's qdiscs, from the root down. Of several classes, the first has LEAF_HANDLE.
NETEM_HANDLE, TBF_HANDLE, LEAF_HANDLE, ETS_HANDLE = 0x10000, 0x20000, 0x30000, 0x80000

# The IPv4 type of service of each traffic class, by number, and the priority that a router gives
# such a packet (rt_tos2priority, include/net/route.h). The two ECN bits are no part of either.
CLASS_TOS = (0x00, 0x08, 0x10, 0x18)
CLASS_PRIORITIES = (0, 2, 6, 4)
_PRIORITIES = 16

_TCA_KIND, _TCA_OPTIONS = 1, 2
_NLA_F_NESTED = 0x8000
# RED's largest probability: 2^32 would overflow.
ALWAYS = 2**32 - 1
_RED_ECN, _RED_NODROP = 1, 8

# The idle table: 31 shifts any old average down to 0, so that a queue found idle counts as empty.
_RED_STAB = bytes([31]) * 256


def _nla(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + b"\0" * (-length % 4)


def _request(
    message: int, flags: int, ifindex: int, handle: int, parent: int, info: int, attributes: bytes
) -> bytes:
    body = struct.pack("=BxxxiIII", 0, ifindex, handle, parent, info) + attributes
    return struct.pack("=IHHII", 16 + len(body), message, flags, 0, 0) + body


def _qdisc(
    ifindex: int,
    handle: int,
    parent: int,
    kind: str,
    options: bytes,
    attribute: int = _TCA_OPTIONS,
) -> bytes:
    attributes = _nla(_TCA_KIND, kind.encode() + b"\0") + _nla(attribute, options)
    flags = NLM_F_REQUEST | NLM_F_CREATE_EXCL
    return _request(RTM_NEWQDISC, flags, ifindex, handle, parent, 0, attributes)


def leaf_handle(klass: int) -> int:
    """Return the handle of a traffic class's RED; `klass` is 0 where a port has one queue."""
    return LEAF_HANDLE + klass * 0x10000


def leaf_parent(klass: int, queues: int) -> int:
    """Return what a class's RED hangs from on a port of so many queues: the shaper, or a band."""
    return ETS_HANDLE + 1 + klass if queues > 1 else TBF_HANDLE + 1


def netem(ifindex: int, handle: int, parent: int, delay_ns: int) -> bytes:
    """Add a pure delay. Its packet limit is out of the way: the queue that counts comes after."""
    limit = 10_000_000
    qopt = struct.pack("=IIIIII", 0, limit, 0, 0, 0, 0)
    latency64 = _nla(10, struct.pack("=q", delay_ns))
    return _qdisc(ifindex, handle, parent, "netem", qopt + latency64)


def tbf(
    ifindex: int, handle: int, parent: int, rate_bps: int, bucket_bytes: int, framing_bytes: int
) -> bytes:
    """Add a shaper at line rate with a bucket of `bucket_bytes`.

    The rate is sent as 64 bits (TCA_TBF_RATE64), hence exact above 34 Gbit/s. `framing_bytes` are
    charged for each packet: what a wire carries besides the frame.
    """
    rate = rate_bps // 8
    ratespec = struct.pack("=BBHhHI", 0, 1, framing_bytes, 0, 0, min(rate, 0xFFFFFFFF))
    # limit: only the default child's, which a leaf replaces at once
    qopt = ratespec + b"\0" * 12 + struct.pack("=III", 10 * bucket_bytes, 0, 0)
    options = _nla(1, qopt) + _nla(6, struct.pack("=I", bucket_bytes))
    if rate > 0xFFFFFFFF:
        options += _nla(4, struct.pack("=Q", rate))
    return _qdisc(ifindex, handle, parent, "tbf", options)


def fair_queue(ifindex: int, handle: int, parent: int) -> bytes:
    """Add per-flow round robin without pacing: how a NIC serves its send queues.

    One band for all priorities: Linux would give flows of some traffic classes nine times the share
    of others, by the priority that comes with their type of service. It is band 0, where Linux 7.3
    puts a flow that begins until it has looked at its priority: in any other, that flow would wait
    for the end of the band's turn, 192 KB.
    """
    bands = 3
    options = (
        _nla(1, struct.pack("=I", 1_000_000))  # TCA_FQ_PLIMIT
        + _nla(2, struct.pack("=I", 100_000))  # TCA_FQ_FLOW_PLIMIT
        + _nla(5, struct.pack("=I", 0))  # TCA_FQ_RATE_ENABLE
        + _nla(16, struct.pack("=i", bands) + bytes(_PRIORITIES))  # TCA_FQ_PRIOMAP
    )
    return _qdisc(ifindex, handle, parent, "fq", options)


def ets(ifindex: int, handle: int, parent: int, weights: Sequence[int], frame_bytes: int) -> bytes:
    """Add deficit weighted round robin (sch_ets) between bands, one for each traffic class.

    A round serves each band a whole number of times its weight in bytes, the smallest share a full
    frame of `frame_bytes` at least, so that no band has to save for a frame over rounds. Packets of
    priorities that no class has go to the first band.
    """
    scale = -(-frame_bytes // min(weights))
    bands = [0] * _PRIORITIES
    for band, priority in enumerate(CLASS_PRIORITIES[: len(weights)]):
        bands[priority] = band
    quanta = b"".join(_nla(4, struct.pack("=I", scale * weight)) for weight in weights)
    priomap = b"".join(_nla(6, bytes([band])) for band in bands)
    options = (
        _nla(1, bytes([len(weights)]))  # TCA_ETS_NBANDS
        + _nla(3 | _NLA_F_NESTED, quanta)
        + _nla(5 | _NLA_F_NESTED, priomap)
    )
    return _qdisc(ifindex, handle, parent, "ets", options, _TCA_OPTIONS | _NLA_F_NESTED)


def red(
    ifindex: int,
    handle: int,
    parent: int,
    kmin_bytes: int,
    kmax_bytes: int,
    max_p: int,
    limit_bytes: int,
) -> bytes:
    """Add RED that marks on the instantaneous queue (EWMA weight 1); drop only above the limit.

    `max_p` is the kernel's 32-bit probability (`orchestration.model.red_law.red_max_p`).

    `nodrop`: a packet that cannot carry a mark is queued, whatever the thresholds say (red_enqueue,
    net/sched/sch_red.c), and neither marked nor dropped below the limit.
    """
    options = _red_options(kmin_bytes, kmax_bytes, max_p, limit_bytes)
    return _qdisc(ifindex, handle, parent, "red", options)


# Where `red_change` has kmin, kmax and the probability, in 32-bit words.
RED_CHANGE_WORDS = (14, 15, 83)


def red_change(
    ifindex: int, handle: int, parent: int, kmin_bytes: int, kmax_bytes: int, max_p: int
) -> bytes:
    """Change thresholds and keep everything queued.

    A limit of 0 tells the kernel to leave the inner queue alone; any other value makes it purge
    what is queued (__red_change, net/sched/sch_red.c). The byte limit stays the inner queue's.
    """
    options = _red_options(kmin_bytes, kmax_bytes, max_p, 0)
    attributes = _nla(_TCA_KIND, b"red\0") + _nla(_TCA_OPTIONS, options)
    return _request(RTM_NEWQDISC, NLM_F_REQUEST, ifindex, handle, parent, 0, attributes)


def _red_options(kmin_bytes: int, kmax_bytes: int, max_p: int, limit_bytes: int) -> bytes:
    wlog = 0  # weight 2^-0: the average is the backlog itself
    qopt = struct.pack("=IIIBBBB", limit_bytes, kmin_bytes, kmax_bytes, wlog, 0, 0, 0)
    flags = struct.pack("=II", _RED_ECN | _RED_NODROP, _RED_ECN | _RED_NODROP)
    return _nla(1, qopt) + _nla(2, _RED_STAB) + _nla(3, struct.pack("=I", max_p)) + _nla(4, flags)


def clsact(ifindex: int) -> bytes:
    """Add the hook that filters attach to."""
    attributes = _nla(_TCA_KIND, b"clsact\0")
    flags = NLM_F_REQUEST | NLM_F_CREATE_EXCL
    return _request(RTM_NEWQDISC, flags, ifindex, INGRESS_HANDLE, TC_H_INGRESS, 0, attributes)


def drop_arrivals(ifindex: int) -> bytes:
    """Drop every packet that arrives: the far end of a cut cable."""
    gact = struct.pack("=IIiii", 0, 0, 2, 0, 0)  # TC_ACT_SHOT
    action = _nla(1, b"gact\0") + _nla(2, _nla(2, gact))
    options = _nla(2, _nla(1, action))  # TCA_MATCHALL_ACT
    attributes = _nla(_TCA_KIND, b"matchall\0") + _nla(_TCA_OPTIONS, options)
    flags = NLM_F_REQUEST | NLM_F_CREATE_EXCL
    return _request(RTM_NEWTFILTER, flags, ifindex, 1, INGRESS_BLOCK, _FILTER_INFO, attributes)


def accept_arrivals(ifindex: int) -> bytes:
    """Undo `drop_arrivals`."""
    attributes = _nla(_TCA_KIND, b"matchall\0")
    return _request(
        RTM_DELTFILTER, NLM_F_REQUEST, ifindex, 1, INGRESS_BLOCK, _FILTER_INFO, attributes
    )


# priority 1 in the upper half, protocol ETH_P_ALL in network order in the lower
_FILTER_INFO = (1 << 16) | struct.unpack("=H", struct.pack("!H", 3))[0]
