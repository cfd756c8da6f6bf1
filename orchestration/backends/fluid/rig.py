"""The fluid fabric as a rig: its clock, its thresholds, its faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestration.backends.common.faults import FaultStep, fault_plan
from orchestration.backends.fluid.flows import FlowWindow
from orchestration.backends.fluid.network import FluidNetwork, Paths
from orchestration.backends.fluid.senders import Senders
from orchestration.core.errors import TrialError
from orchestration.core.knobs import ECN
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import (
    DONE,
    Action,
    Applied,
    Change,
    Event,
    Floats,
    FlowRecords,
    HostReading,
    Ints,
    Observation,
    Program,
    Samples,
    Schedule,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec

# The model's longest step: a few round trips of an idle leaf-spine fabric.
STEP_NS = 25_000


class FluidRig:
    """A `Rig` over the fluid model, for one trial.

    With `flow_table`, observations count the flows of each queue.
    """

    def __init__(
        self, trial: TrialSpec, testbed: Testbed, schedule: Schedule, *, flow_table: bool = False
    ) -> None:
        self._testbed = testbed
        self._seed = trial.seed
        paths = Paths(testbed, trial.seed)
        self._network = FluidNetwork(testbed, paths.stages)
        slot = max(1, trial.action_period_ns // trial.sample_period_ns)
        self._window = FlowWindow(testbed, schedule, slot) if flow_table else None
        self._senders = Senders(
            testbed, schedule, self._network, paths, trial.host.min_rto_ns, self._window
        )
        self._now_ns = 0
        self._faults = list(fault_plan(trial, testbed))
        self._down: frozenset[int] = frozenset()
        self._events: list[Event] = []
        self._host_rows: list[tuple[int, Ints, Ints, Ints]] = []
        nics = [port for host in testbed.hosts for port in testbed.ports_of[host]]
        number = {host: index for index, host in enumerate(testbed.hosts)}
        self._nics = np.array([port.index for port in nics], dtype=np.int64)
        self._bounds = ECN.bounds(testbed)
        self._turn = {ECN.name: self._set_thresholds}
        self._nic_host = np.array([number[port.device] for port in nics], dtype=np.int64)

    def start(self) -> None:
        """Start the clock. The first wait admits the schedule's first flows."""
        self._now_ns = 0

    def now_ns(self) -> int:
        """Return the model's time."""
        return self._now_ns

    def wait_until(self, t_ns: int) -> bool:
        """Advance the model to `t_ns`; return False once every flow has ended."""
        while self._now_ns < t_ns:
            while self._faults and self._faults[0].t_ns <= self._now_ns:
                self._take(self._faults.pop(0))
            until_ns = min(t_ns, self._faults[0].t_ns) if self._faults else t_ns
            idle_ns = self._senders.idle_until_ns()
            if idle_ns is None or idle_ns < until_ns:
                steps = math.ceil((until_ns - self._now_ns) / STEP_NS)
                step_ns = (until_ns - self._now_ns) / steps
                for step in range(steps):
                    self._senders.step(self._now_ns + step * step_ns, step_ns)
            self._now_ns = until_ns
        self._senders.settle()
        return not self._senders.over(self._now_ns)

    def observe(self) -> Observation:
        """Read every queue, and record a row of the hosts' counters."""
        network, queues = self._network, self._network.queues
        self._keep_hosts()
        return Observation(
            t_ns=self._now_ns,
            age_ns=np.zeros(len(queues), dtype=np.int64),
            values={
                "qlen_bytes": _whole(network.lengths()[queues]),
                "tx_bytes": _whole(network.tx_bytes[queues]),
                "tx_packets": _whole(network.tx_packets[queues]),
                "marked_packets": _whole(network.marked_packets[queues]),
                "dropped_packets": _whole(network.dropped_packets[queues]),
                **(vars(self._window.read()) if self._window else {}),
            },
            settings={ECN.name: self._thresholds(queues)},
        )

    def apply(self, action: Action) -> Applied:
        """Make the changes at once."""
        return Applied(self._now_ns, tuple(self._turn[one.knob](one) for one in action))

    def install(self, programs: Sequence[Program]) -> None:
        """Refuse: the model's devices run no programs."""
        raise TrialError(f"the fluid model cannot run {programs[0].kind!r}")

    def _set_thresholds(self, change: Change) -> Change:
        self._bounds.check(change)
        self._network.set_thresholds(change)
        found = self._thresholds(self._network.queues[change.targets])
        return Change(ECN.name, change.targets, found)

    def _thresholds(self, ports: Ints) -> dict[str, Any]:
        network = self._network
        kmin, kmax = network.kmin[ports].astype(np.int64), network.kmax[ports].astype(np.int64)
        return ECN.named(kmin, kmax, network.pmax[ports])

    def finish(self, observer: Observer) -> Outcome:
        """Return the trial's outcome."""
        facts = {"clock": "virtual", "model": "fluid", "step_ns": STEP_NS}
        return Outcome(self.flows(), self.hosts(), self._events, facts)

    def flows(self) -> FlowRecords:
        """Return the outcome of every flow up to now."""
        return self._senders.records(self._now_ns)

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return int(np.count_nonzero(self.flows().status == DONE))

    def last_hosts(self) -> HostReading | None:
        """Return the last reading of the hosts, without a new one; None before the first."""
        if not self._host_rows:
            return None
        t_ns, retransmits, timeouts, tx_bytes = self._host_rows[-1]
        values = {"retransmits": retransmits, "timeouts": timeouts, "tx_bytes": tx_bytes}
        return HostReading(t_ns, {**values, "out_of_order": np.zeros_like(timeouts)})

    def hosts(self) -> Samples:
        """Return the hosts' counters, one row for each observation."""
        count = len(self._testbed.hosts)

        def table(column: int) -> Ints:
            rows = [row[column] for row in self._host_rows]
            return np.array(rows, dtype=np.int64).reshape(len(rows), count)

        # a fluid stays in order
        in_order = np.zeros((len(self._host_rows), count), dtype=np.int64)
        t_ns = np.array([row[0] for row in self._host_rows], dtype=np.int64)
        return Samples.of("host", t_ns, table(1), table(2), in_order, table(3))

    def _keep_hosts(self) -> None:
        sent = np.zeros(len(self._testbed.hosts))
        np.add.at(sent, self._nic_host, self._network.tx_bytes[self._nics])
        row = (self._senders.retransmits_by_host(), self._senders.timeouts.copy(), _whole(sent))
        self._host_rows.append((self._now_ns, *row))

    def _take(self, step: FaultStep) -> None:
        self._events.append(Event(self._now_ns, step.kind, step.detail))
        if step.kind == "routes":
            self._senders.reroute(Paths(self._testbed, self._seed, step.down))
            return
        for links, up in ((step.down - self._down, False), (self._down - step.down, True)):
            ends = [self._testbed.links[index] for index in sorted(links)]
            self._network.set_links((end for link in ends for end in (link.a, link.b)), up=up)
        self._down = step.down


def _whole(values: Floats) -> Ints:
    whole: Ints = np.rint(values).astype(np.int64)
    return whole
