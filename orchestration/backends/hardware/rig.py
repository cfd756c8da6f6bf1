"""The rack that the loop drives over SSH: reads queues, changes thresholds, starts the traffic.

The clock is the controller's. A device's times are converted with the offset measured before the
start (`Clock`), whose error is at most half a round trip.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inventory.rack import Rack
from orchestration.backends.hardware.readback import ReadBack
from orchestration.backends.hardware.switches import Request, Switch, SwitchReading
from orchestration.backends.ticker import Ticker
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import (
    MISSING,
    Action,
    Applied,
    Change,
    Event,
    HostReading,
    Ints,
    Observation,
    Program,
    Samples,
)
from orchestration.core.signals import BY_KEY, names
from orchestration.device.client import Clock, Fleet

if TYPE_CHECKING:
    from orchestration.backends.hardware.balancing import Balancing
    from orchestration.backends.hardware.flow_tables import RackFlowTables
    from orchestration.backends.hardware.safety.breaker import CorridorWatch
    from orchestration.backends.hardware.safety.guard import Guard
    from orchestration.backends.hardware.safety.limiter import ChangeLimiter
    from traffic.drivers.rack import RackTraffic

# Traffic starts this long after the order has gone out to all hosts.
HEAD_START_NS = 100_000_000
# The period of reading hosts' TCP counters, which are also read at the start and the end.
_HOSTS_EVERY_NS = 1_000_000_000
_HOST_COUNTERS = 4
# How long to wait for the last counters of switches that poll, and how often to look for them.
_LAST_POLLS_NS, _POLL_WAIT_NS = 2_000_000_000, 20_000_000
# The signals that are read from switches; a signal that a switch lacks is recorded as missing.
SIGNALS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
# Numbers of unknown age: before every trial, so that no sample counts them as new.
_UNKNOWN_NS = -(2**62)
_CUMULATIVE = tuple(name for name in SIGNALS if BY_KEY[name].cumulative)


class HardwareRig:
    """The Rig protocol over a rack's agents. `switches` are in the order of the testbed's.

    Without `paths`, switches choose by their hash; with `flows`, they keep flow tables.
    """

    def __init__(
        self,
        rack: Rack,
        fleet: Fleet,
        switches: Sequence[Switch],
        clocks: Mapping[str, Clock],
        traffic: RackTraffic,
        guard: Guard,
        corridor: CorridorWatch,
        limiter: ChangeLimiter,
        paths: Balancing | None = None,
        flows: RackFlowTables | None = None,
    ) -> None:
        self._fleet = fleet
        # in the order of their programs at a port: a packet that leaves by another is not counted
        self._programs = [part for part in (paths, flows) if part is not None]
        self._switches = switches
        self._clocks = clocks
        self._traffic = traffic
        self._guard = guard
        self._corridor = corridor
        self._limiter = limiter
        self._ticker = Ticker()
        self._queues = len(rack.testbed.queues)
        self._labels = [queue.label for queue in rack.testbed.queues]
        self._peaks = np.full(self._queues, MISSING, dtype=np.int64)
        self._hosts = rack.testbed.hosts
        counts = [sum(1 for q in rack.testbed.queues if q.device == s.device) for s in switches]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._base: dict[str, Ints] = {}
        self._bounds = ECN.bounds(rack.testbed)
        self._turn = {ECN.name: self._set_thresholds}
        self._paths = paths
        if paths and paths.is_by_flowlet:
            self._turn[FLOWLET_TIMEOUT.name] = paths.turn
        self._asked = np.full((3, self._queues), np.nan)
        self._t0_ns = time.monotonic_ns()
        self._host_times: list[int] = []
        self._host_rows: list[list[list[int]]] = []
        self._known: dict[int, SwitchReading] = {}
        self._read_all("open")
        self.read_latency_ns: list[int] = []
        self.set_latency_ns: list[int] = []
        self.events: list[Event] = []
        reads_back = np.repeat([switch.reads_back for switch in switches], counts)
        self.read_back = ReadBack(self._labels, reads_back)

    def start(self) -> None:
        """Start the traffic, and return at time 0. Connections were made by the switches' hash."""
        for program in self._programs:
            program.begin()
        self._t0_ns = time.monotonic_ns() + HEAD_START_NS
        self._traffic.start(self._t0_ns)
        self._read_all("read")
        self._base = {name: self._joined(name) for name in _CUMULATIVE}
        self._sample_hosts()
        self._ticker.sleep_until(self._t0_ns)
        if self.now_ns() > HEAD_START_NS:
            self.events.append(Event(0, "warning", "the start was late: the orders took long"))

    def now_ns(self) -> int:
        """Return ns of the controller's clock since time 0."""
        return time.monotonic_ns() - self._t0_ns

    def wait_until(self, t_ns: int) -> bool:
        """Sleep until `t_ns`; return False once every flow has ended."""
        self._ticker.sleep_until(self._t0_ns + t_ns)
        self._guard.tick()
        self._set(self._limiter.due(self.now_ns()))
        return not self._traffic.all_done()

    def observe(self) -> Observation:
        """Read all queues: send a request to each switch, then collect the answers."""
        begin_ns = self.now_ns()
        self._read_all("read")
        seen = {key: values for part in self._programs for key, values in part.values().items()}
        end_ns = self.now_ns()
        self.read_latency_ns.append(end_ns - begin_ns)
        if not self._host_times or end_ns - self._host_times[-1] >= _HOSTS_EVERY_NS:
            self._sample_hosts()
        taken_ns = self._on_this_clock(self._joined("t_ns"))
        observation = Observation(
            t_ns=begin_ns,
            age_ns=np.where(taken_ns == _UNKNOWN_NS, MISSING, np.maximum(0, end_ns - taken_ns)),
            taken_ns=taken_ns,
            took_ns=self._took(),
            taken_by={name: self._on_this_clock(self._times(name)) for name in self._timed()},
            values={
                name: self._since_start(name) if name in _CUMULATIVE else self._joined(name)
                for name in SIGNALS
            }
            | seen,
            settings={ECN.name: self._thresholds(), **self._timeouts()},
        )
        for place, first in enumerate(self._first[:-1].tolist()):
            peak = self._known[place].peak_bytes
            if peak is not None:
                mine = self._peaks[first : first + len(peak)]
                np.maximum(mine, peak, out=mine)
        offered = not self._traffic.all_done()
        self._corridor.feed(end_ns, observation, self._paused_ns(), offered)
        return observation

    def apply(self, action: Action) -> Applied:
        """Make the changes and return what the switches report afterwards.

        Queues that already have the wanted settings are skipped. A change that may not be made yet
        is held back; the report then has the settings that are still in place.
        """
        changes = tuple(self._turn[change.knob](change) for change in action)
        return Applied(self.now_ns(), changes)

    def install(self, programs: Sequence[Program]) -> None:
        """Refuse: these devices run no programs."""
        raise TrialError(f"the rack cannot run {programs[0].kind!r}")

    def _set_thresholds(self, change: Change) -> Change:
        self._bounds.check(change)
        self._set(self._limiter.submit(change, self.now_ns()))
        found = self._thresholds()
        asked = change.targets
        return Change(ECN.name, asked, {name: values[asked] for name, values in found.items()})

    def _thresholds(self) -> dict[str, Any]:
        return ECN.named(*(self._joined(name) for name in ECN.column_names))

    def _timeouts(self) -> dict[str, dict[str, Ints]]:
        if self._paths is None or not self._paths.is_by_flowlet:
            return {}
        return {FLOWLET_TIMEOUT.name: self._paths.known}

    def flows_done(self) -> int:
        """Return -1: not known before the end."""
        return -1

    def finish(self, observer: Observer) -> Outcome:
        """Pass the last numbers to the observer: polls of switches, hosts' last counters."""
        end_ns = self.now_ns()
        until_ns = end_ns + _LAST_POLLS_NS
        while True:
            observation = self.observe()
            taken_ns = observation.taken_ns
            if taken_ns is None or bool((taken_ns >= end_ns).all()) or self.now_ns() > until_ns:
                break
            self._ticker.sleep_until(time.monotonic_ns() + _POLL_WAIT_NS)
        observer.observed(observation)
        for program in self._programs:
            program.end()
        self._sample_hosts()
        return Outcome(self._traffic.records(), self.hosts(), self.events)

    def peaks(self) -> dict[str, int]:
        """Return the highest watermark of each queue that has one, by its label."""
        return {
            self._labels[number]: int(peak) for number, peak in enumerate(self._peaks) if peak > 0
        }

    def last_hosts(self) -> HostReading | None:
        """Return the last reading of the hosts, without a new one; None before the first."""
        if not self._host_rows:
            return None
        grown = np.array(self._host_rows[-1]) - np.array(self._host_rows[0])
        return HostReading(self._host_times[-1], dict(zip(names("host"), grown.T, strict=False)))

    def hosts(self) -> Samples:
        """Return the TCP counters of all hosts so far."""
        shape = (len(self._host_times), len(self._hosts), _HOST_COUNTERS)
        values = np.array(self._host_rows, dtype=np.int64).reshape(shape)
        values -= values[:1]
        t_ns = np.array(self._host_times, dtype=np.int64)
        return Samples.of("host", t_ns, *np.moveaxis(values, 2, 0))

    def _set(self, change: Change) -> None:
        """Send settings that differ from those last requested; store what is in place then."""
        if not len(change.targets):
            return
        begin_ns = self.now_ns()
        wanted = np.stack([change[name] for name in ECN.column_names])
        same = (self._asked[:, change.targets] == wanted).all(axis=0)
        self._asked[:, change.targets] = wanted
        changed = change.at(~same)
        queues = changed.targets
        owner = np.searchsorted(self._first, queues, side="right") - 1
        requests: dict[int, Request] = {}
        for place in np.unique(owner).tolist():
            mine = changed.at(owner == place)
            requests[place] = self._switches[place].set_request(
                mine.targets - self._first[place], *(mine[name] for name in ECN.column_names)
            )
        if not requests:
            return
        self._take(requests)
        self.set_latency_ns.append(self.now_ns() - begin_ns)
        found = [values[queues] for values in self._thresholds().values()]
        self.read_back.compare(changed, np.stack(found))

    def _read_all(self, what: str) -> None:
        ask = {
            place: switch.open_request() if what == "open" else switch.read_request()
            for place, switch in enumerate(self._switches)
        }
        self._take(ask)

    def _take(self, requests: Mapping[int, Request]) -> None:
        """Send requests to switches, then process every answer. Raises the first DeviceError."""
        switches = {place: self._switches[place] for place in requests}
        asked = {switch.device: requests[place] for place, switch in switches.items()}
        answers = self._fleet.exchange(asked)
        for place, switch in switches.items():
            self._known[place] = switch.reading(answers[switch.device])

    def _joined(self, name: str) -> Any:
        return np.concatenate([getattr(self._known[at], name) for at in range(len(self._switches))])

    def _timed(self) -> set[str]:
        return {name for reading in self._known.values() for name in reading.signal_t_ns}

    def _times(self, name: str) -> Ints:
        known = [self._known[at] for at in range(len(self._switches))]
        return np.concatenate([one.signal_t_ns.get(name, one.t_ns) for one in known])

    def _took(self) -> Ints:
        """Return how long the readings of all queues took; MISSING where switches poll."""
        took = [self._known[at].took_ns for at in range(len(self._switches))]
        known = [MISSING if one is None else one for one in took]
        return np.repeat(np.array(known, dtype=np.int64), np.diff(self._first))

    def _on_this_clock(self, t_ns: Ints) -> Ints:
        """Convert devices' times to ns since time 0."""
        return np.where(t_ns == MISSING, _UNKNOWN_NS, t_ns - self._offsets() - self._t0_ns)

    def _paused_ns(self) -> Ints:
        parts = [self._known[place].paused_ns for place in range(len(self._switches))]
        counts = np.diff(self._first).tolist()
        return np.concatenate(
            [
                np.zeros(count, dtype=np.int64) if part is None else part
                for part, count in zip(parts, counts, strict=True)
            ]
        )

    def _since_start(self, name: str) -> Ints:
        now: Ints = self._joined(name)
        base = self._base.get(name, np.zeros_like(now))
        return np.where((now == MISSING) | (base == MISSING), MISSING, now - base)

    def _offsets(self) -> Ints:
        counts = np.diff(self._first)
        offsets = [self._clocks[switch.device].offset_ns for switch in self._switches]
        return np.repeat(np.array(offsets, dtype=np.int64), counts)

    def _sample_hosts(self) -> None:
        answers = self._fleet.ask("tcp.counters", {host: {} for host in self._hosts})
        self._host_times.append(max(0, self.now_ns()))
        self._host_rows.append([list(map(int, answers[host])) for host in self._hosts])
