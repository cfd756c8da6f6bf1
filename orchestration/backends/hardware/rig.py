"""A rack as a rig, over SSH: reads queues, changes thresholds, starts the traffic.

Times are those of the controller's clock: the machine on which this runs. A device's times are
converted with the offset that was measured before the start (`Clock`), whose error is at most half
a round-trip time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from inventory.rack import Rack
from orchestration.backends.common.rig import BaseRig, Ticker
from orchestration.backends.hardware.switches import ReadBack, Request, Switch, SwitchReading
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import MISSING, Change, Event, Ints, Observation
from orchestration.core.signals import BY_KEY, names
from orchestration.device.client import Clock, Fleet

if TYPE_CHECKING:
    from orchestration.backends.hardware.safety.guard import Guard
    from orchestration.backends.hardware.safety.limits import ChangeLimiter, GuardrailMonitor
    from orchestration.backends.hardware.switch_programs import PathChoice, RackFlowTables
    from traffic.drivers.rack import RackTraffic

# Traffic starts this long after all hosts were told when.
HEAD_START_NS = 100_000_000
# The period of reading hosts' TCP counters, which are also read at the start and the end.
_HOSTS_EVERY_NS = 1_000_000_000
# How long to wait for the last counters of switches that poll, and how often to look for them.
_LAST_POLLS_NS, _POLL_WAIT_NS = 2_000_000_000, 20_000_000
# The signals that are read from switches; a signal that a switch lacks is recorded as missing.
SIGNALS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
# The time of numbers whose age is unknown: before every trial, so that no sample counts as new.
_UNKNOWN_NS = -(2**62)
_CUMULATIVE = tuple(name for name in SIGNALS if BY_KEY[name].cumulative)


class HardwareRig(BaseRig):
    """A rig over a rack's agents. `switches` are in the testbed's order.

    With `paths`, switches choose paths other than by the flow's hash; with `flows`, they keep flow
    tables.
    """

    fabric = "rack"

    def __init__(
        self,
        rack: Rack,
        fleet: Fleet,
        switches: Sequence[Switch],
        clocks: Mapping[str, Clock],
        traffic: RackTraffic,
        guard: Guard,
        guardrails: GuardrailMonitor,
        limiter: ChangeLimiter,
        paths: PathChoice | None = None,
        flows: RackFlowTables | None = None,
    ) -> None:
        super().__init__(rack.testbed)
        self._fleet = fleet
        # in the order in which they run at a port: a packet that the choice of paths sends out by
        # another port is not counted at this one
        self._programs = [part for part in (paths, flows) if part is not None]
        self._switches = switches
        self._traffic = traffic
        self._guard, self._guardrails, self._limiter = guard, guardrails, limiter
        self._ticker = Ticker()
        self._queues = len(rack.testbed.queues)
        self._labels = [queue.label for queue in rack.testbed.queues]
        self._peaks = np.full(self._queues, MISSING, dtype=np.int64)
        self._hosts = rack.testbed.hosts
        devices = [queue.device for queue in rack.testbed.queues]
        counts = [devices.count(switch.device) for switch in switches]
        self._counts = counts
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        offsets_ns = [clocks[switch.device].offset_ns for switch in switches]
        self._offset_ns = np.repeat(offsets_ns, counts)
        self._base: dict[str, Ints] = {}
        self._bounds = ECN.bounds(rack.testbed)
        self._setters[ECN.name] = self._set_thresholds
        self._timeouts = paths.timeouts if paths and paths.is_by_flowlet else None
        if self._timeouts:
            self._setters[FLOWLET_TIMEOUT.name] = self._timeouts.apply
        self._requested = np.full((3, self._queues), np.nan)
        self._t0_ns = time.monotonic_ns()
        self._first_hosts: Ints | None = None
        self._known: dict[int, SwitchReading] = {}
        self._exchange({number: switch.open_request() for number, switch in enumerate(switches)})
        self.read_latency_ns: list[int] = []
        self.set_latency_ns: list[int] = []
        reads_back = np.repeat([switch.reads_back for switch in switches], counts)
        self.read_back = ReadBack(self._labels, reads_back)

    def start(self) -> None:
        """Start the traffic, and return at time 0.

        The connections were made before, while switches still chose paths by their hash.
        """
        for program in self._programs:
            program.begin()
        self._t0_ns = time.monotonic_ns() + HEAD_START_NS
        self._traffic.start(self._t0_ns)
        self._read_all()
        self._base = {name: self._values(name) for name in _CUMULATIVE}
        self._sample_hosts()
        self._ticker.sleep_until(self._t0_ns)
        if self.now_ns() > HEAD_START_NS:
            text = "the start was late: it took long to tell all hosts"
            self.events.append(Event(0, "warning", text))

    def now_ns(self) -> int:
        """Return ns of the controller's clock since time 0."""
        return time.monotonic_ns() - self._t0_ns

    def wait_until(self, t_ns: int) -> bool:
        """Sleep until `t_ns`, then make the changes that are due; False once all flows ended."""
        self._ticker.sleep_until(self._t0_ns + t_ns)
        self._guard.tick()
        self._set(self._limiter.due(self.now_ns()))
        return not self._traffic.all_done()

    def observe(self) -> Observation:
        """Read all queues: send a request to each switch, then collect the answers."""
        begin_ns = self.now_ns()
        self._read_all()
        signals = {key: values for part in self._programs for key, values in part.values().items()}
        end_ns = self.now_ns()
        self.read_latency_ns.append(end_ns - begin_ns)
        hosts = self.last_hosts()
        if hosts is None or end_ns - hosts.t_ns >= _HOSTS_EVERY_NS:
            self._sample_hosts()
        taken_ns = self._on_this_clock(self._values("t_ns"))
        timed = {name for reading in self._known.values() for name in reading.signal_t_ns}
        observation = Observation(
            t_ns=begin_ns,
            age_ns=np.where(taken_ns == _UNKNOWN_NS, MISSING, np.maximum(0, end_ns - taken_ns)),
            taken_ns=taken_ns,
            took_ns=self._joined(lambda each: MISSING if each.took_ns is None else each.took_ns),
            taken_by={name: self._on_this_clock(self._times(name)) for name in timed},
            values={
                name: self._since_start(name) if name in _CUMULATIVE else self._values(name)
                for name in SIGNALS
            }
            | signals,
            settings={
                ECN.name: self._thresholds(),
                **({FLOWLET_TIMEOUT.name: self._timeouts.known} if self._timeouts else {}),
            },
        )
        peaks = self._joined(lambda each: MISSING if each.peak_bytes is None else each.peak_bytes)
        self._peaks = np.maximum(self._peaks, peaks)
        paused_ns = self._joined(lambda each: 0 if each.paused_ns is None else each.paused_ns)
        offered = not self._traffic.all_done()
        self._guardrails.feed(end_ns, observation, paused_ns, offered)
        return observation

    def _set_thresholds(self, change: Change) -> Change:
        """Change thresholds where they differ; return what switches report afterwards.

        The limiter holds back a change that comes too early: then the former thresholds are
        returned.
        """
        self._bounds.check(change)
        self._set(self._limiter.submit(change, self.now_ns()))
        columns, targets = self._thresholds(), change.targets
        return Change(ECN.name, targets, {name: row[targets] for name, row in columns.items()})

    def _thresholds(self) -> dict[str, Any]:
        return ECN.named(*map(self._values, ECN.column_names))

    def flows_done(self) -> int:
        """Return -1: not known before the end."""
        return -1

    def finish(self, observer: Observer) -> Outcome:
        """Give the observer a last reading, of counters that switches have polled after the end."""
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
        return Outcome(self._traffic.records(), self.host_readings.samples(), self.events)

    def peaks(self) -> dict[str, int]:
        """Return the highest watermark of each queue that has one, by its label."""
        return {
            self._labels[number]: int(peak) for number, peak in enumerate(self._peaks) if peak > 0
        }

    def _set(self, change: Change) -> None:
        """Send settings that differ from those last requested, and compare what is reported."""
        if not len(change.targets):
            return
        begin_ns = self.now_ns()
        rows = np.stack([change[name] for name in ECN.column_names])
        same = (self._requested[:, change.targets] == rows).all(axis=0)
        self._requested[:, change.targets] = rows
        changed = change.at(~same)
        queues = changed.targets
        switch_of = np.searchsorted(self._first, queues, side="right") - 1
        requests: dict[int, Request] = {}
        for number in np.unique(switch_of).tolist():
            part = changed.at(switch_of == number)
            requests[number] = self._switches[number].set_request(
                part.targets - self._first[number], *(part[name] for name in ECN.column_names)
            )
        if not requests:
            return
        self._exchange(requests)
        self.set_latency_ns.append(self.now_ns() - begin_ns)
        reported = [values[queues] for values in self._thresholds().values()]
        self.read_back.compare(changed, np.stack(reported))

    def _read_all(self) -> None:
        requests = {number: each.read_request() for number, each in enumerate(self._switches)}
        self._exchange(requests)

    def _exchange(self, requests: Mapping[int, Request]) -> None:
        """Send requests to switches, by their numbers, then store the readings in their answers.

        Raises the first DeviceError.
        """
        switches = {number: self._switches[number] for number in requests}
        by_device = {switch.device: requests[number] for number, switch in switches.items()}
        answers = self._fleet.exchange(by_device)
        for number, switch in switches.items():
            self._known[number] = switch.reading(answers[switch.device])

    def _joined(self, values_of: Callable[[SwitchReading], Any]) -> Any:
        """Return an array over all queues; a single number stands for all queues of its switch."""
        readings = [self._known[number] for number in range(len(self._switches))]
        parts = zip(readings, self._counts, strict=True)
        return np.concatenate([np.broadcast_to(values_of(each), count) for each, count in parts])

    def _values(self, name: str) -> Any:
        return self._joined(attrgetter(name))

    def _times(self, name: str) -> Ints:
        times: Ints = self._joined(lambda each: each.signal_t_ns.get(name, each.t_ns))
        return times

    def _on_this_clock(self, t_ns: Ints) -> Ints:
        """Convert devices' times to ns since time 0."""
        return np.where(t_ns == MISSING, _UNKNOWN_NS, t_ns - self._offset_ns - self._t0_ns)

    def _since_start(self, name: str) -> Ints:
        now: Ints = self._values(name)
        base = self._base.get(name, np.zeros_like(now))
        return np.where((now == MISSING) | (base == MISSING), MISSING, now - base)

    def _sample_hosts(self) -> None:
        answers = self._fleet.ask("tcp.counters", {host: {} for host in self._hosts})
        counts = np.array([list(map(int, answers[host])) for host in self._hosts], dtype=np.int64)
        if self._first_hosts is None:
            self._first_hosts = counts
        grown = (counts - self._first_hosts).T
        values = dict(zip(names("host"), grown, strict=False))
        self.host_readings.keep(max(0, self.now_ns()), values)
