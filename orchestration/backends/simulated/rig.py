"""The ns-3 fabric as a rig: waiting runs the simulation, and makes faults when they are due."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from collectors.incidents import KINDS, Incident, incident, pfc_outcome
from collectors.readers.ns3 import (
    HOST_COLUMNS,
    SIGNALS,
    THRESHOLDS,
    FlowWindow,
    buffers,
    nics,
    pair_bytes,
    queues_and_hosts,
    thresholds,
)
from orchestration.backends.common.faults import FaultStep, fault_plan
from orchestration.backends.common.rig import (
    SAMPLES_PER_HOST_READING,
    BaseRig,
    FlowReadings,
    KnobSettings,
    dcqcn_settings,
    merged_facts,
)
from orchestration.backends.simulated.job import build_arrays, cut_ports, route_rows
from orchestration.backends.simulated.program import Operation, Simulation
from orchestration.core.knobs import DCQCN, ECN, FLOWLET_TIMEOUT
from orchestration.core.load_balancing import ECMP, balancing_facts
from orchestration.core.marking_probability import (
    line_max_ps,
    line_pmax,
    read_back_pmax,
    red_max_ps,
)
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import (
    LONG_LIVED,
    MISSING,
    UNFINISHED,
    Change,
    Event,
    FlowRecords,
    Ints,
    Observation,
    Schedule,
)
from orchestration.core.signals import (
    BALANCING_KEYS,
    FLOW_SCOPE,
    HOST_KEYS,
    PAIRS,
    names,
    wants_flow_table,
)
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from traffic.schedule import lasting_flows

_FLOW_COLUMNS = 4
# Per switch: its flowlet timeout, then its signals.
_PATH_COLUMNS = 1 + len(BALANCING_KEYS)
# The program's sums over all flows of RoCE NICs, in its order.
_ROCE_SUMS = (
    *("packets", "resent", "marked", "cnps", "naks", "timeouts", "probes"),
    "untimed_flows",
)


class SimulatedRig(BaseRig):
    """A `Rig` over a started program, in which it builds the fabric of one trial.

    Observations have the signals of flow tables, of hosts and of the traffic matrix if the tuner
    `observes` them.
    """

    fabric = "simulated fabric"

    def __init__(
        self,
        simulation: Simulation,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        observes: Collection[str] = (),
    ) -> None:
        super().__init__(testbed)
        self._simulation = simulation
        self._trial = trial
        self._testbed = testbed
        self._schedule = schedule
        self._steps = list(fault_plan(trial, testbed))
        # Functions from marking probabilities at kmax to the ports' numbers, and back.
        self._max_ps, self._pmax_of = (
            (red_max_ps, read_back_pmax) if trial.host.roce is None else (line_max_ps, line_pmax)
        )
        self._now_ns = self._ended = self._ticks = 0
        self._watches_hosts = not set(HOST_KEYS).isdisjoint(observes)
        self._watches_pairs = PAIRS in observes
        self._flows: FlowWindow | None = None
        if wants_flow_table(observes):
            self._flows = FlowWindow(
                lambda before, slot: simulation.ask(Operation.FLOW_TABLE, [before, slot]),
                testbed,
                trial.samples_per_action,
            )
        self._read_flows = FlowReadings(trial, self._counters)
        self._lasting = lasting_flows(trial, schedule)
        self._lasts_until_ns = trial.duration_ns if self._lasting.any() else 0
        simulation.ask(
            Operation.BUILD,
            *build_arrays(trial, testbed, schedule, observes_flows=self._flows is not None),
        )
        self._known, _ = self._read()
        if self._watches_pairs:
            self._pairs()  # the first request starts the counting
        self._bounds = ECN.bounds(testbed)
        self._setters[ECN.name] = self._set_thresholds
        self._parameters: KnobSettings | None = None
        roce = trial.host.roce
        if roce is not None and roce.control == DCQCN.control:
            self._parameters = dcqcn_settings(roce, testbed, self._exchange_parameters)
            self._setters[DCQCN.name] = self._parameters.apply
        self._paths: _PathChoices | None = None
        if trial.load_balancing.kind != ECMP.kind:
            self._paths = _PathChoices(testbed, partial(simulation.ask, Operation.PATHS))
            self._setters[FLOWLET_TIMEOUT.name] = self._paths.timeouts.apply
        self._built_s = time.monotonic()

    def start(self) -> None:
        """Keep a first reading. The program's time 0 is when all flows are connected: now."""
        self._keep_hosts(self._host_signals(self._read()[1]))
        self._read_flows.take(self._ticks, self._now_ns)

    def now_ns(self) -> int:
        """Return ns-3's time since time 0."""
        return self._now_ns

    def wait_until(self, t_ns: int) -> bool:
        """Run ns-3 until `t_ns`, making faults meanwhile; False once all flows have ended."""
        while self._steps and self._steps[0].t_ns <= t_ns:
            step = self._steps.pop(0)
            self._run(step.t_ns)
            self._make_fault_step(step)
        self._run(t_ns)
        return not self._all_done()

    def _run(self, t_ns: int) -> None:
        now_ns, ended = self._simulation.ask(Operation.RUN, t_ns).tolist()
        self._now_ns, self._ended = now_ns, ended

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return self._ended

    def _all_done(self) -> bool:
        ended = self._ended >= len(self._schedule) - int(self._lasting.sum())
        return ended and self._now_ns >= self._lasts_until_ns

    def _make_fault_step(self, step: FaultStep) -> None:
        if step.kind == "links":
            self._simulation.ask(Operation.LINKS, cut_ports(self._testbed, step.down))
        else:
            self._simulation.ask(Operation.ROUTES, route_rows(self._testbed, step.down))
        self.events.append(Event(self._now_ns, step.kind, step.detail))

    def observe(self) -> Observation:
        """Read all queues at one instant."""
        self._known, hosts = self._read()
        self._ticks += 1
        due = self._ticks % SAMPLES_PER_HOST_READING == 0 or self._all_done()
        signals = self._host_signals(hosts) if due or self._watches_hosts else {}
        if due:
            self._keep_hosts(signals)
        self._read_flows.take(self._ticks, self._now_ns)
        known = self._known
        return Observation(
            t_ns=self._now_ns,
            age_ns=np.zeros(len(known), dtype=np.int64),
            values={
                **{name: known[:, column] for column, name in enumerate(SIGNALS)},
                **(vars(self._flows.read()) if self._flows else {}),
                **(self._paths.signals() if self._paths else {}),
                **(self._buffers()[0] if self._testbed.switch else {}),
                **(signals if self._watches_hosts else {}),
                **({PAIRS: self._pairs()} if self._watches_pairs else {}),
            },
            settings={
                ECN.name: thresholds(known, self._pmax_of),
                **({DCQCN.name: self._parameters.known} if self._parameters else {}),
                **({FLOWLET_TIMEOUT.name: self._paths.timeouts.known} if self._paths else {}),
            },
        )

    def _set_thresholds(self, change: Change) -> Change:
        """Set the thresholds of queues that have others."""
        self._bounds.check(change)
        queues = change.targets
        columns = (change["kmin_bytes"], change["kmax_bytes"], self._max_ps(change["pmax"]))
        rows = np.column_stack(columns)
        differs = (self._known[queues, THRESHOLDS] != rows).any(axis=1)
        if differs.any():
            self._simulation.ask(Operation.THRESHOLDS, queues[differs], *rows[differs].T)
            self._known, _ = self._read()
        return Change(ECN.name, queues, thresholds(self._known[queues], self._pmax_of))

    def _exchange_parameters(self, hosts: Ints, values: Ints) -> Ints:
        words = self._simulation.ask(Operation.PARAMETERS, hosts, values.ravel())
        return words.reshape(values.shape)

    def _read(self) -> tuple[Ints, Ints]:
        """Return the queues' counters, shape (queues, 8), and the hosts', shape (hosts, 5)."""
        return queues_and_hosts(self._simulation.ask(Operation.READ), self._testbed)

    def _buffers(self) -> tuple[dict[str, Ints], dict[str, int]]:
        return buffers(self._simulation.ask(Operation.BUFFERS), self._testbed)

    def _pairs(self) -> Ints:
        words = self._simulation.ask(Operation.PAIRS, len(self._testbed.edges))
        return pair_bytes(words, self._testbed)

    def _host_signals(self, counters: Ints) -> dict[str, Ints]:
        """Return the signals of hosts by key, given their counters; MISSING without RoCE NICs."""
        missing = np.full(len(self._testbed.hosts), MISSING, dtype=np.int64)
        counted = {key: counters[:, column] for key, column in HOST_COLUMNS.items()}
        own = nics(self._simulation.ask(Operation.NICS)) if self._trial.host.roce else {}
        return {**dict.fromkeys(HOST_KEYS, missing), **counted, **own}

    def _keep_hosts(self, signals: dict[str, Ints]) -> None:
        rows = {key.removeprefix("host."): row for key, row in signals.items()}
        self.host_readings.keep(self._now_ns, rows)

    def _incidents(self) -> list[Incident]:
        """Return the incidents that the PFC watchdogs have found."""
        count, *words = self._simulation.ask(Operation.INCIDENTS).tolist()
        incidents = []
        for _ in range(count):
            t_ns, kind, begin, length, *words = words
            numbers, words = words[:length], words[length:]
            incidents.append(incident(self._testbed, t_ns, KINDS[kind], numbers, begin))
        return incidents

    def _counters(self) -> dict[str, Ints]:
        words = self._simulation.ask(Operation.COUNTERS).reshape(-1, len(names(FLOW_SCOPE)))
        return dict(zip(names(FLOW_SCOPE), words.T, strict=True))

    def finish(self, observer: Observer) -> Outcome:
        """Return the trial's outcome; its facts have the numbers of events and of packet-hops."""
        run_s = round(time.monotonic() - self._built_s, 3)
        words = self._simulation.ask(Operation.FLOWS)
        rows, rest = np.split(words, [_FLOW_COLUMNS * len(self._schedule)])
        sent_ns, end_ns, retransmits, status = rows.reshape(-1, _FLOW_COLUMNS).T
        status = np.where(self._lasting & (status == UNFINISHED), LONG_LIVED, status)
        flows = FlowRecords(sent_ns, end_ns, retransmits, status)
        host_packets, simulated, *sums = rest.tolist()
        events: Sequence[Event] = self.events
        pfc_facts: dict[str, Any] = {}
        if self._testbed.switch:
            incidents, pfc_facts = pfc_outcome(self._incidents(), self._buffers()[1])
            events = sorted([*events, *incidents], key=lambda event: event.t_ns)
        switched = int(self._known[:, SIGNALS.index("tx_packets")].sum()) if self._ticks else 0
        facts = {
            "end_ns": self._now_ns,
            "packet_hops": switched + host_packets,
            "events": simulated,
            "run_wall_s": run_s,
            **dict(zip(_ROCE_SUMS, sums, strict=False)),
            **merged_facts(pfc_facts, self._paths.facts() if self._paths else {}),
        }
        roce = self._trial.host.roce
        if roce is None or not roce.policy(lambda: 0).times_round_trips:
            facts.pop("untimed_flows", None)
        sampled, acked = self._read_flows.samples(), self._read_flows.acked()
        return Outcome(flows, self.host_readings.samples(), events, facts, sampled, acked)


class _PathChoices:
    """The switches' choice of paths: their flowlet timeouts as a knob, and their signals."""

    def __init__(self, testbed: Testbed, ask: Callable[[Ints, Ints], Ints]) -> None:
        """`ask` sets the timeouts in ns of some switches, by their indices in `Testbed.switches`.

        It returns `_PATH_COLUMNS` numbers of every switch.
        """
        self._ask = ask
        self._switches = testbed.switches
        self.timeouts = KnobSettings(FLOWLET_TIMEOUT, testbed, self._read()[:, :1], self._exchange)

    def _exchange(self, switches: Ints, timeouts_ns: Ints) -> Ints:
        rows = self._ask(switches, timeouts_ns.ravel()).reshape(-1, _PATH_COLUMNS)
        return rows[switches, :1]

    def _read(self) -> Ints:
        none = np.zeros(0, dtype=np.int64)
        return self._ask(none, none).reshape(-1, _PATH_COLUMNS)

    def signals(self) -> dict[str, Ints]:
        """Read the switches; return their signals by key, arrays (switches,)."""
        return dict(zip(BALANCING_KEYS, self._read()[:, 1:].T, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, as of now."""
        flowlets, reroutes, _, overflows = self.signals().values()
        lost = dict(zip(self._switches, overflows.tolist(), strict=True))
        return balancing_facts(int(flowlets.sum()), int(reroutes.sum()), lost)
