"""Signals: everything that is measured, declared once.

A signal has a name, a scope (what it is measured of), a unit and a kind. Recorder, tables, spool,
InfluxDB fields, metrics, live view, environments and docs are derived from these declarations. To
add a counter, declare it here and read it in each backend that has it; the others leave it out,
and it is recorded as missing there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from inventory.topology import Testbed

# What a signal is measured of, and what a knob is turned at.
Scope = Literal["queue", "switch", "host", "flow"]
# The table that has a scope's samples, and the columns that name a row's target in any table.
TABLE_OF: dict[Scope, str] = {"queue": "ports", "switch": "switches", "host": "hosts"}
TARGET_COLUMNS: dict[Scope, tuple[str, ...]] = {
    "queue": ("device", "port", "queue"),
    "switch": ("device",),
    "host": ("host",),
}


@dataclass(frozen=True)
class Signal:
    """Something that is measured.

    A cumulative signal counts from the start of the fabric; any other is true at the moment of its
    reading. A `recorded` signal is kept of every sample, in tables, sinks and live views; any other
    is there for tuners only. Recorded signals are whole numbers, never below 0: what is missing is
    written as -1. A signal is `on_demand` if it is read only where a tuner observes it.
    `since` is the version of its table in which its column joined: older files lack it.
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

    def __post_init__(self) -> None:
        if self.recorded and self.dtype != "int64":
            raise ValueError(f"signal {self.name!r} is recorded and not a whole number")

    @property
    def key(self) -> str:
        """What observations and tuners call it: its name, after its scope unless that is queue."""
        return self.name if self.scope == "queue" else f"{self.scope}.{self.name}"


SIGNALS: tuple[Signal, ...] = (
    Signal("qlen_bytes", "queue", "B", "length of the queue"),
    Signal("tx_bytes", "queue", "B", "bytes sent, without framing", cumulative=True),
    Signal("tx_packets", "queue", "packets", "packets sent", cumulative=True),
    Signal("marked_packets", "queue", "packets", "packets marked CE", cumulative=True),
    Signal("dropped_packets", "queue", "packets", "packets dropped", cumulative=True),
    Signal(
        "qlen_mean_bytes",
        "queue",
        "B",
        "mean length of the queue over the samples since the last decision; the loop adds it",
        dtype="float64",
        recorded=False,
    ),
    Signal(
        "incast_degree",
        "queue",
        "hosts",
        "largest number of senders that one receiver has through the queue (PET, section 4.2.1)",
        recorded=False,
        on_demand=True,
    ),
    Signal(
        "mice_flows",
        "queue",
        "flows",
        "flows of up to 1 MB so far, within the flow table's window (PET, section 4.2.1)",
        recorded=False,
        on_demand=True,
    ),
    Signal(
        "elephant_flows",
        "queue",
        "flows",
        "flows of more than 1 MB so far, within the flow table's window",
        recorded=False,
        on_demand=True,
    ),
    Signal("retransmits", "host", "segments", "TCP segments sent again", cumulative=True),
    Signal("timeouts", "host", "timeouts", "retransmission timeouts", cumulative=True),
    Signal(
        "out_of_order",
        "host",
        "segments",
        "TCP segments that arrived before an earlier one",
        cumulative=True,
    ),
    Signal("tx_bytes", "host", "B", "bytes sent, IP headers included", cumulative=True),
)

BY_KEY = {signal.key: signal for signal in SIGNALS}
# What the loop makes of other signals: every backend has it.
DERIVED = ("qlen_mean_bytes",)
# What a flow table is kept for.
FLOW_TABLE = tuple(signal.key for signal in SIGNALS if signal.on_demand)


def recorded(scope: Scope) -> tuple[Signal, ...]:
    """Return the signals of a scope that every sample keeps, in the order of their columns."""
    return tuple(signal for signal in SIGNALS if signal.scope == scope and signal.recorded)


def sampled_scopes() -> tuple[Scope, ...]:
    """Return the scopes that have recorded signals, and so a table of samples."""
    return tuple(scope for scope in TABLE_OF if recorded(scope))


def names(scope: Scope) -> tuple[str, ...]:
    """Return the names of a scope's recorded signals."""
    return tuple(signal.name for signal in recorded(scope))


def wants_flow_table(observes: Iterable[str]) -> bool:
    """Return whether a tuner that observes these signals needs a flow table."""
    return not set(FLOW_TABLE).isdisjoint(observes)


def target_names(testbed: Testbed, scope: Scope) -> list[tuple[str | int, ...]]:
    """Return what `TARGET_COLUMNS` hold for each target of a scope, in the order of its arrays."""
    if scope == "queue":
        return [(queue.device, queue.name, queue.klass) for queue in testbed.queues]
    return [(name,) for name in targets(testbed, scope)]


def targets(testbed: Testbed, scope: Scope) -> tuple[str, ...]:
    """Return the labels of all that a scope has in a testbed, in the order of its arrays.

    Flows are no part of a testbed: their scope has none.
    """
    match scope:
        case "queue":
            return tuple(queue.label for queue in testbed.queues)
        case "switch":
            return testbed.switches
        case "host":
            return testbed.hosts
        case "flow":
            return ()
