"""Signals: everything that is measured, declared once.

A signal has a name, a scope (at which kind of target it is measured), a unit and a kind. The
recorder, tables, the spool, InfluxDB fields, metrics, the live view, environments and docs are
derived from these declarations. To add a counter, declare it here and read it in each backend that
has it. The other backends record it as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# The kind of target at which a signal is measured or a knob is set.
# A "priority" is a lossless traffic class at a switch port. A "pair" is an ordered pair of edge
# switches: the traffic matrix has an entry for each.
Scope = Literal["queue", "priority", "switch", "host", "flow", "pair"]
# For each scope, the table of its samples.
TABLE_OF: dict[Scope, str] = {
    "queue": "ports",
    "priority": "pauses",
    "switch": "switches",
    "host": "hosts",
    "flow": "flow_samples",
    "pair": "pairs",
}
# Scopes without samples in some trials: their signals need switches with a shared buffer, or ones
# that choose paths.
OPTIONAL_SCOPES: tuple[Scope, ...] = ("priority", "switch")
# The rig itself reads flows, every `flow_sample_period` of the campaign; their samples are in the
# trial's folder only.
FLOW_SCOPE: Scope = "flow"
# For each scope, the columns that name the target of a row in any table.
TARGET_COLUMNS: dict[Scope, tuple[str, ...]] = {
    "queue": ("device", "port", "queue"),
    "priority": ("device", "port", "queue"),
    "switch": ("device",),
    "host": ("host",),
    "flow": ("flow_id",),
    "pair": ("device", "to"),
}


# What a trial must have for a signal to be measured: RoCE NICs, switches that choose paths, buffers
# that a switch's ports share, or lossless traffic classes ("pfc").
Need = Literal["", "roce", "load-balancing", "shared-buffer", "pfc"]


@dataclass(frozen=True)
class Signal:
    """Something that is measured.

    A `cumulative` signal counts from the start of the fabric; any other is the value at the moment
    of reading. A `recorded` signal is kept for every sample, in tables, sinks and live views; the
    others are for tuners only. Recorded signals are integers of at least 0; -1 means missing. An
    `on_demand` signal is read only if a tuner observes it. `since` is the version of the table in
    which the signal's column was added; older files lack it. `needs` is what a trial must have for
    the signal to be measured, "" for nothing.
    """

    name: str
    scope: Scope
    unit: str
    help: str
    dtype: Literal["int64", "float64"] = "int64"
    cumulative: bool = False
    recorded: bool = True
    on_demand: bool = False
    since: int = 1
    needs: Need = ""

    def __post_init__(self) -> None:
        if self.recorded and self.dtype != "int64":
            raise ValueError(f"signal {self.name!r} is recorded, so its dtype has to be int64")

    @property
    def key(self) -> str:
        """Its name in observations and tuners: `host.cnps`; without the scope if that is queue."""
        return self.name if self.scope == "queue" else f"{self.scope}.{self.name}"


def _of(scope: Scope, **common: Any) -> Callable[..., Signal]:
    """Return a function that declares signals of a scope, all with the `common` fields."""

    def declare(name: str, unit: str, help: str, **own: Any) -> Signal:
        return Signal(name, scope, unit, help, **(common | own))

    return declare


_COUNTED = {"cumulative": True}
_queue = _of("queue")
_queue_on_demand = _of("queue", recorded=False, on_demand=True)
_priority = _of("priority", needs="pfc")
_switch = _of("switch", needs="shared-buffer")
_balancing = _of("switch", needs="load-balancing", since=2)
_host = _of("host")
_nic = _of("host", needs="roce", since=2)
_flow = _of("flow", needs="roce")
SIGNALS: tuple[Signal, ...] = (
    _queue("qlen_bytes", "B", "length of the queue"),
    _queue("tx_bytes", "B", "bytes sent, without framing", **_COUNTED),
    _queue("tx_packets", "packets", "packets sent", **_COUNTED),
    _queue("marked_packets", "packets", "packets marked CE", **_COUNTED),
    _queue("dropped_packets", "packets", "packets dropped", **_COUNTED),
    _queue(
        "qlen_mean_bytes",
        "B",
        "mean length of the queue over the samples since the last decision; the loop adds it",
        dtype="float64",
        recorded=False,
    ),
    _queue_on_demand(
        "incast_degree",
        "hosts",
        "largest number of senders that one receiver has through the queue (PET, section 4.2.1)",
    ),
    _queue_on_demand(
        "mice_flows",
        "flows",
        "flows of up to 1 MB so far, within the flow table's window (PET, section 4.2.1)",
    ),
    _queue_on_demand(
        "elephant_flows", "flows", "flows of more than 1 MB so far, within the flow table's window"
    ),
    _priority("pauses_received", "frames", "pause frames that the peer sent", **_COUNTED),
    _priority("paused_ns", "ns", "time for which the peer had stopped the queue", **_COUNTED),
    _priority("pauses_sent", "frames", "pause frames sent to the peer", **_COUNTED),
    _priority("pausing_ns", "ns", "time for which the port had stopped its peer", **_COUNTED),
    _priority("held_bytes", "B", "bytes in the buffer that came in by the port"),
    _priority("headroom_bytes", "B", "bytes of them in the port's headroom"),
    _switch("buffer_bytes", "B", "bytes in the shared buffer, headroom included"),
    _switch("headroom_bytes", "B", "bytes in the headroom of all ports"),
    _balancing(
        "flowlets",
        "flowlets",
        "flowlets that began where there is a choice of ports; under spray, packets",
        **_COUNTED,
    ),
    _balancing(
        "reroutes",
        "flowlets",
        "flowlets that left by another port than their flow's former one",
        **_COUNTED,
    ),
    _balancing(
        "flowlet_entries",
        "entries",
        "entries of the flowlet table whose flow sent a packet within the timeout",
    ),
    _balancing(
        "flowlet_overflows",
        "packets",
        "packets that found no entry, and took their flow's ECMP path",
        **_COUNTED,
    ),
    _host("retransmits", "segments", "TCP segments sent again", **_COUNTED),
    _host("timeouts", "timeouts", "retransmission timeouts, of TCP and of RoCE NICs", **_COUNTED),
    _host(
        "out_of_order", "segments", "TCP segments that arrived before an earlier one", **_COUNTED
    ),
    _host(
        "tx_bytes",
        "B",
        "bytes sent, IP headers included; on emulated and real hosts a large segment of TCP has "
        "its headers once, and RoCE counts nothing",
        **_COUNTED,
    ),
    _nic("cnps", "packets", "congestion notifications that its RoCE flows got", **_COUNTED),
    _nic("roce_resent", "packets", "RoCE packets sent again", **_COUNTED),
    _nic("rtt_ns", "ns", "the last round trip that a RoCE flow measured, 0 if none"),
    _nic(
        "rate_bps",
        "bit/s",
        "sum of the rates that congestion control allows its unfinished RoCE flows",
    ),
    _host(
        "received_packets",
        "packets",
        "packets with data that arrived, sent again ones too",
        since=3,
        **_COUNTED,
    ),
    _host(
        "out_of_order_packets",
        "packets",
        "those of them that arrived while an earlier one was missing",
        since=3,
        **_COUNTED,
    ),
    Signal(
        "bytes",
        "pair",
        "B",
        "bytes that came in at an edge switch for another's hosts, IP headers included (DRLet, "
        "equation 2)",
        cumulative=True,
        recorded=False,
        on_demand=True,
    ),
    _flow("acked_bytes", "B", "payload that was acknowledged", **_COUNTED),
    _flow("resent_packets", "packets", "packets sent again", **_COUNTED),
    _flow("rtts", "round trips", "round trips that were measured", **_COUNTED),
    _flow("rtt_sum_ns", "ns", "sum of these round trips", **_COUNTED),
    _flow("rate_bps", "bit/s", "rate that congestion control allows it"),
)

BY_KEY = {signal.key: signal for signal in SIGNALS}
# Every backend has these signals, because the loop computes them from others.
DERIVED = ("qlen_mean_bytes",)
# Signals of hosts, by their keys in observations.
HOST_KEYS = tuple(signal.key for signal in SIGNALS if signal.scope == "host")


def _needing(need: Need, scope: Scope) -> tuple[str, ...]:
    return tuple(s.key for s in SIGNALS if s.needs == need and s.scope == scope)


# The keys of signals of RoCE NICs, of switches that choose paths, and of shared buffers.
NIC_KEYS = _needing("roce", "host")
BALANCING_KEYS = _needing("load-balancing", "switch")
SHARED_BUFFER_KEYS = (*_needing("pfc", "priority"), *_needing("shared-buffer", "switch"))
# The signals that need a flow table.
FLOW_TABLE = tuple(s.key for s in SIGNALS if s.on_demand and s.scope == "queue")
# The signal that is the traffic matrix of edge switches.
PAIRS = "pair.bytes"


def recorded(scope: Scope) -> tuple[Signal, ...]:
    """Return the recorded signals of a scope, in the order of their columns."""
    return tuple(signal for signal in SIGNALS if signal.scope == scope and signal.recorded)


def sampled_scopes() -> tuple[Scope, ...]:
    """Return the scopes whose targets the testbed has and whose signals are recorded."""
    return tuple(scope for scope in TABLE_OF if recorded(scope) and scope != FLOW_SCOPE)


def names(scope: Scope) -> tuple[str, ...]:
    """Return the names of a scope's recorded signals."""
    return tuple(signal.name for signal in recorded(scope))


def wants_flow_table(observes: Iterable[str]) -> bool:
    """Return whether a tuner that observes these signals needs a flow table."""
    return not set(FLOW_TABLE).isdisjoint(observes)


def target_names(testbed: Testbed, scope: Scope) -> list[tuple[str | int, ...]]:
    """Return the values of `TARGET_COLUMNS` for each target of a scope, in the order of arrays."""
    if scope == "pair":
        return [(src, dst) for src in testbed.edges for dst in testbed.edges if src != dst]
    if scope in ("queue", "priority"):
        queues = testbed.queues if scope == "queue" else testbed.lossless_queues
        return [(queue.device, queue.name, queue.klass) for queue in queues]
    return [(name,) for name in targets(testbed, scope)]


def targets(testbed: Testbed, scope: Scope) -> tuple[str, ...]:
    """Return the labels of a scope's targets in a testbed, in the order of arrays.

    Flows are not part of a testbed, so their scope has no targets.
    """
    match scope:
        case "queue":
            return tuple(queue.label for queue in testbed.queues)
        case "priority":
            return tuple(queue.label for queue in testbed.lossless_queues)
        case "switch":
            return testbed.switches
        case "host":
            return testbed.hosts
        case "flow":
            return ()
        case "pair":
            return tuple(f"{src}>{dst}" for src, dst in target_names(testbed, "pair"))
