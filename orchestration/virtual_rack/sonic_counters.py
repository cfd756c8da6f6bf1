"""The counters of SONiC's syncd: groups of counters, each polled at an interval of its own.

syncd is SONiC's daemon between Redis and SAI, the API of switch ASICs. This module follows
sonic-sairedis, syncd/FlexCounter.cpp, and sonic-swss, orchagent/flexcounterorch.cpp:

- A group is polled as soon as its row in FLEX_COUNTER_TABLE enables it, at most every 100 ms.
- A row or an interval that is removed changes nothing: polling goes on as before.
- Counters are written to COUNTERS_DB under SAI's names and object ids. From release 202505 on, the
  time of the poll follows for groups that are read in bulk.
- The current depth is read only for queues that the PFC watchdog watches
  (`sonic_orchagent.PfcWatchdog`).

The watermark is the largest depth that a poll of any group has read since the last watermark poll.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from orchestration.virtual_rack.sonic_model import (
    ForwardingPlane,
    PortCounts,
    QueueCounts,
    SwitchModel,
    port_oid,
    queue_oids,
)

MIN_INTERVAL_MS = 100
# The weight of the newest poll in smoothed rates (`alpha` in SONiC's port_rates.lua).
_ALPHA = 0.18
_NO_QUEUE = QueueCounts()
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
QueueKey = tuple[str, int]


@dataclass(frozen=True)
class CounterGroup:
    """One group: its field in COUNTERS:TIME_STAMP, and the interval until a row sets another."""

    stamp: str
    interval_ms: int


GROUPS = {
    "PORT": CounterGroup("PORT_STAT_COUNTER_Port_Counter", 1000),
    "QUEUE": CounterGroup("QUEUE_STAT_COUNTER_Queue_Counter", 10_000),
    "QUEUE_WATERMARK": CounterGroup("QUEUE_WATERMARK_STAT_COUNTER_Queue_Counter", 60_000),
    "WRED_ECN_QUEUE": CounterGroup("WRED_ECN_QUEUE_STAT_COUNTER_WRED_Queue_Counter", 10_000),
    "PFCWD": CounterGroup("PFC_WD_Queue_Counter", MIN_INTERVAL_MS),
}


class FlexCounters:
    """All groups of one switch.

    `write(key, fields)` sets fields of a hash in COUNTERS_DB. `watched()` returns the queues whose
    depth is read for the PFC watchdog.
    """

    def __init__(
        self,
        model: SwitchModel,
        plane: ForwardingPlane,
        write: Callable[[str, Mapping[str, str]], None],
        watched: Callable[[], Collection[QueueKey]],
    ) -> None:
        self._model, self._plane, self._write, self._watched = model, plane, write, watched
        self._enabled: set[str] = set()
        self._interval_ms = {name: group.interval_ms for name, group in GROUPS.items()}
        self._next_ns: dict[str, int] = {}
        self._peaks: dict[QueueKey, int] = {}
        self._last: dict[str, PortCounts] = {}
        self._rates: dict[str, list[float]] = {}

    def apply_row(self, key: str, row: Mapping[str, str] | None, now_ns: int) -> None:
        """Apply the present content of a row of CONFIG_DB. A removed row (None) changes nothing."""
        table, _, name = key.partition("|")
        delayed = row is not None and row.get("FLEX_COUNTER_DELAY_STATUS") == "true"
        if table == "FLEX_COUNTER_TABLE" and name in GROUPS and row is not None and not delayed:
            status = row.get("FLEX_COUNTER_STATUS")
            if status == "enable":
                self._enabled.add(name)
            elif status is not None:
                self._enabled.discard(name)
            self.set_interval(name, row.get("POLL_INTERVAL", ""))
        self.reschedule(now_ns)

    def set_interval(self, group: str, text: str) -> None:
        """Set a group's polling interval to `text`, in ms; text that is not a number is ignored."""
        if _NUMBER.match(text):
            self._interval_ms[group] = max(MIN_INTERVAL_MS, int(text))

    def reschedule(self, now_ns: int) -> None:
        """Compute when each group is polled next, after groups or intervals have changed."""
        for group in GROUPS:
            interval = self._polling_interval_ns(group)
            if interval is None:
                self._next_ns.pop(group, None)
            else:
                # a group that has just been enabled is polled at once
                at = self._next_ns.get(group, now_ns)
                self._next_ns[group] = min(at, now_ns + interval)

    def _polling_interval_ns(self, group: str) -> int | None:
        """Return a group's polling interval, or None while it is not polled."""
        if group not in self._enabled:
            return None
        if group == "WRED_ECN_QUEUE" and not self._model.counts_marks:
            return None
        if group == "PFCWD" and not self._watched():
            return None
        return self._interval_ms[group] * 1_000_000

    def next_ns(self) -> int | None:
        """Return the time of the next poll (CLOCK_MONOTONIC), or None if there is none."""
        return min(self._next_ns.values(), default=None)

    def poll(self, now_ns: int) -> None:
        """Poll the groups that are due, and write their counters."""
        due = [group for group, at in self._next_ns.items() if at <= now_ns]
        if not due:
            return
        queues = self._plane.queues()
        for queue_key, counts in queues.items():
            self._peaks[queue_key] = max(self._peaks.get(queue_key, 0), counts.depth_bytes)
        for group in due:
            if group == "PORT":
                self._poll_ports()
            else:
                self._poll_queues(group, queues)
            if self._model.stamps_polls:
                stamp = {f"{GROUPS[group].stamp}_time_stamp": str(now_ns)}
                self._write("COUNTERS:TIME_STAMP", stamp)
            interval = self._polling_interval_ns(group)
            assert interval is not None
            late = (now_ns - self._next_ns[group]) % interval
            self._next_ns[group] = now_ns + interval - late

    def _poll_queues(self, group: str, queues: Mapping[tuple[str, int], QueueCounts]) -> None:
        watched = self._watched()
        for number, queue, oid in queue_oids(self._model):
            queue_key = self._model.ports[number].name, queue
            fields = dict(
                self._queue_fields(group, queues.get(queue_key, _NO_QUEUE), queue_key, watched)
            )
            if fields:
                self._write(f"COUNTERS:{oid}", fields)
        if group == "QUEUE_WATERMARK":
            self._peaks.clear()

    def _queue_fields(
        self,
        group: str,
        counts: QueueCounts,
        queue_key: tuple[str, int],
        watched: Collection[QueueKey],
    ) -> Iterator[tuple[str, str]]:
        if group == "QUEUE":
            yield "SAI_QUEUE_STAT_PACKETS", str(counts.tx_packets)
            yield "SAI_QUEUE_STAT_BYTES", str(counts.tx_bytes)
            yield "SAI_QUEUE_STAT_DROPPED_PACKETS", str(counts.dropped_packets)
        elif group == "WRED_ECN_QUEUE":
            yield "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS", str(counts.marked_packets)
        elif group == "QUEUE_WATERMARK":
            yield "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES", str(self._peaks.get(queue_key, 0))
        elif queue_key in watched:
            yield "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES", str(counts.depth_bytes)
            yield "PFC_WD_STATUS", "operational"

    def _poll_ports(self) -> None:
        interval = self._polling_interval_ns("PORT")
        assert interval is not None
        ports = self._plane.ports()
        for number, name in enumerate(port.name for port in self._model.ports):
            oid, counts = port_oid(number), ports.get(name, PortCounts())
            self._write(f"COUNTERS:{oid}", _port_fields(counts))
            last = self._last.get(name)
            if last is not None:
                self._write(f"RATES:{oid}", self._smoothed(name, last, counts, interval / 1e9))
            self._last[name] = counts

    def _smoothed(
        self, name: str, last: PortCounts, now: PortCounts, interval_s: float
    ) -> dict[str, str]:
        """Return smoothed rates in bytes/s and packets/s. (BPS in a name stands for bytes/s.)"""
        new = [
            (getattr(now, field) - getattr(last, field)) / interval_s
            for field in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
        ]
        old = self._rates.get(name)
        rates = new
        if old is not None:
            rates = [_ALPHA * n + (1 - _ALPHA) * o for n, o in zip(new, old, strict=True)]
        self._rates[name] = rates
        return dict(zip(("RX_BPS", "TX_BPS", "RX_PPS", "TX_PPS"), map(repr, rates), strict=True))


def _port_fields(counts: PortCounts) -> dict[str, str]:
    """Return a port's counters. A virtual rack has no pause frames, so PFC counters are 0."""
    fields = {
        "SAI_PORT_STAT_IF_IN_OCTETS": counts.rx_bytes,
        "SAI_PORT_STAT_IF_IN_UCAST_PKTS": counts.rx_packets,
        "SAI_PORT_STAT_IF_IN_ERRORS": counts.rx_errors,
        "SAI_PORT_STAT_IF_IN_DISCARDS": counts.rx_drops,
        "SAI_PORT_STAT_IF_OUT_OCTETS": counts.tx_bytes,
        "SAI_PORT_STAT_IF_OUT_UCAST_PKTS": counts.tx_packets,
        "SAI_PORT_STAT_IF_OUT_ERRORS": counts.tx_errors,
        "SAI_PORT_STAT_IF_OUT_DISCARDS": counts.tx_drops,
    }
    for direction in ("RX", "TX"):
        fields |= {f"SAI_PORT_STAT_PFC_{priority}_{direction}_PKTS": 0 for priority in range(8)}
    return {name: str(value) for name, value in fields.items()}
