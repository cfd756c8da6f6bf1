"""The fluid model as a rig: its clock, its thresholds, its faults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orchestration.backends.common.faults import FaultStep, fault_plan
from orchestration.backends.common.rig import BaseRig
from orchestration.backends.fluid.flows import FlowWindow
from orchestration.backends.fluid.network import FluidNetwork, Paths
from orchestration.backends.fluid.senders import Senders
from orchestration.core.knobs import ECN
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import (
    DONE,
    Change,
    Event,
    Floats,
    FlowRecords,
    Ints,
    Observation,
    Schedule,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec

# The model's longest step: a few round-trip times of an idle leaf-spine fabric.
STEP_NS = 25_000


class FluidRig(BaseRig):
    """A `Rig` over the fluid model, for one trial.

    With `flow_table`, observations have the signals of a flow table: the flows of each queue.
    """

    fabric = "fluid model"

    def __init__(
        self, trial: TrialSpec, testbed: Testbed, schedule: Schedule, *, flow_table: bool = False
    ) -> None:
        super().__init__(testbed)
        self._testbed = testbed
        self._seed = trial.seed
        paths = Paths(testbed, trial.seed)
        self._network = FluidNetwork(testbed, paths.stages)
        per_slot = trial.samples_per_action
        self._window = FlowWindow(testbed, schedule, per_slot) if flow_table else None
        self._senders = Senders(
            testbed, schedule, self._network, paths, trial.host.min_rto_ns, self._window
        )
        self._now_ns = 0
        self._fault_steps = list(fault_plan(trial, testbed))
        self._down: frozenset[int] = frozenset()
        nics = [port for host in testbed.hosts for port in testbed.ports_of[host]]
        number = {host: index for index, host in enumerate(testbed.hosts)}
        self._nics = np.array([port.index for port in nics], dtype=np.int64)
        self._bounds = ECN.bounds(testbed)
        self._setters[ECN.name] = self._set_thresholds
        self._nic_host = np.array([number[port.device] for port in nics], dtype=np.int64)

    def start(self) -> None:
        """Do nothing: the clock is at 0, and the first wait admits the first flows."""

    def now_ns(self) -> int:
        """Return the model's time."""
        return self._now_ns

    def wait_until(self, t_ns: int) -> bool:
        """Advance the model to `t_ns`; return False once every flow has ended."""
        while self._now_ns < t_ns:
            while self._fault_steps and self._fault_steps[0].t_ns <= self._now_ns:
                self._make_fault_step(self._fault_steps.pop(0))
            until_ns = min(t_ns, self._fault_steps[0].t_ns) if self._fault_steps else t_ns
            idle_ns = self._senders.idle_until_ns()
            if idle_ns is None or idle_ns < until_ns:
                steps = math.ceil((until_ns - self._now_ns) / STEP_NS)
                step_ns = (until_ns - self._now_ns) / steps
                for step in range(steps):
                    self._senders.step(self._now_ns + step * step_ns, step_ns)
            self._now_ns = until_ns
        self._senders.settle()
        return not self._senders.all_ended(self._now_ns)

    def observe(self) -> Observation:
        """Read every queue, and keep a reading of the hosts' counters for the record."""
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

    def _set_thresholds(self, change: Change) -> Change:
        self._bounds.check(change)
        self._network.set_thresholds(change)
        thresholds = self._thresholds(self._network.queues[change.targets])
        return Change(ECN.name, change.targets, thresholds)

    def _thresholds(self, ports: Ints) -> dict[str, Any]:
        network = self._network
        kmin, kmax = network.kmin[ports].astype(np.int64), network.kmax[ports].astype(np.int64)
        return ECN.named(kmin, kmax, network.pmax[ports])

    def finish(self, observer: Observer) -> Outcome:
        """Return the trial's outcome."""
        facts = {"clock": "virtual", "model": "fluid", "step_ns": STEP_NS}
        return Outcome(self.flows(), self.host_readings.samples(), self.events, facts)

    def flows(self) -> FlowRecords:
        """Return the outcome of every flow up to now."""
        return self._senders.records(self._now_ns)

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return int(np.count_nonzero(self.flows().status == DONE))

    def _keep_hosts(self) -> None:
        sent = np.zeros(len(self._testbed.hosts))
        np.add.at(sent, self._nic_host, self._network.tx_bytes[self._nics])
        timeouts = self._senders.timeouts.copy()
        values = {
            "retransmits": self._senders.retransmits_by_host(),
            "timeouts": timeouts,
            "out_of_order": np.zeros_like(timeouts),  # a fluid is never reordered
            "tx_bytes": _whole(sent),
        }
        self.host_readings.keep(self._now_ns, values)

    def _make_fault_step(self, step: FaultStep) -> None:
        self.events.append(Event(self._now_ns, step.kind, step.detail))
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
