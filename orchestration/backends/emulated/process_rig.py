"""The packet engine as a rig: a trial of RoCE flows in this process, in virtual time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collectors.readers.tc import QueueReading
from inventory.routing import nic_policy, window_bytes
from orchestration.backends.common.rig import (
    SAMPLES_PER_HOST_READING,
    BaseRig,
    FlowReadings,
    KnobSettings,
    dcqcn_settings,
    merged_facts,
)
from orchestration.backends.emulated.process_fabric import (
    fabric_arrays,
    flow_array,
    nic_settings,
)
from orchestration.backends.emulated.thresholds import Thresholds
from orchestration.core.congestion import NicPolicy
from orchestration.core.knobs import DCQCN, ECN
from orchestration.core.ports import Observer, Outcome, TrialRun, Tuner
from orchestration.core.records import Event, Floats, Ints, Observation, TrialRecord
from orchestration.core.roce import RoceSpec
from orchestration.core.signals import HOST_KEYS, names
from orchestration.datapath.flows import RESULT, FlowResults
from orchestration.datapath.hosts import SIGNALS
from orchestration.datapath.library import load_engine
from orchestration.datapath.packet_engine import PacketEngine
from orchestration.datapath.ports import (
    BUFFER_STATE,
    INCIDENT,
    PAUSE_STATE,
    QUEUE_STATE,
    QueueFile,
    SharedBuffers,
    queue_reading,
)
from orchestration.session import run_trial
from traffic.schedule import lasting_flows
from tuners.registry import create

_NS_PER_US = 1000


def run_in_process(run: TrialRun) -> TrialRecord:
    """Run one trial of RoCE flows in this process, and return its record.

    Raises TrialError if the engine refuses the trial, and NotReadyError without the library.
    """
    begin = time.monotonic()
    with _ended_at_once():
        tuner = run.tuner or create(run.trial.tuner)
        rig = ProcessRig(run, tuner)
        built = time.monotonic()
        record = run_trial(rig, tuner, run)
    stages = {"build": round(built - begin, 3), "run": round(time.monotonic() - built, 3)}
    return replace(record, facts={**record.facts, "stages_s": stages})


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Let SIGTERM end a worker at once: Python's handler would wait until the engine returns.

    There is nothing to clean up. A worker leads a session of its own. An episode of an environment
    runs in a thread of the user's process, whose signals are the user's.
    """
    is_worker = os.getsid(0) == os.getpid()
    if not is_worker or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _EngineFlows(FlowResults):
    """The results of flows in the engine, on a clock that reads 1 at the trial's time 0."""

    def __init__(self, run: TrialRun, policy: NicPolicy, engine: PacketEngine) -> None:
        lasting = lasting_flows(run.trial, run.schedule)
        super().__init__(run.schedule, policy, lasting, run.trial.duration_ns)
        self._engine = engine
        self.t0_ns = 1

    def now_ns(self) -> int:
        return self._engine.now_ns + self.t0_ns

    def received(self) -> int:
        return self._engine.counts()["flows_received"]

    def results(self) -> np.ndarray:
        states = self._engine.flows().view(RESULT)
        for name in ("sent_ns", "received_ns", "done_ns"):
            states[name] += np.uint64(self.t0_ns)  # CL_NEVER becomes 0
        results = np.zeros(len(states), dtype=RESULT)
        results[self._order] = states
        return results


class _EngineQueues:
    """All queues of the engine, in the order of `Testbed.queues`."""

    def __init__(self, engine: PacketEngine) -> None:
        self._engine = engine

    def read(self) -> QueueReading:
        return queue_reading(self._engine.queues().view(QUEUE_STATE))

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        self._engine.set_thresholds(queues, kmin_bytes, kmax_bytes, self.in_kernel(pmax))

    in_kernel = staticmethod(QueueFile.in_kernel)
    from_kernel = staticmethod(QueueFile.from_kernel)


class ProcessRig(BaseRig):
    """A rig over the packet engine: reads the fabric, and sets its knobs."""

    fabric = "packet engine"

    def __init__(self, run: TrialRun, tuner: Tuner) -> None:
        trial, testbed, library = run.trial, run.testbed, load_engine()
        roce, policy = trial.host.roce, nic_policy(testbed, trial.host)
        assert roce is not None  # `engines.needs_kernel`
        assert policy is not None
        super().__init__(testbed)
        self._run = run
        departures = trial.fabric.marks == "departures"
        arrays = fabric_arrays(testbed, trial.seed, library, marks_departures=departures)
        self._engine = PacketEngine(arrays, library)
        self._queues = _EngineQueues(self._engine)
        self._thresholds = Thresholds(testbed, self._queues)
        self._setters[ECN.name] = self._thresholds.apply
        self._shared = SharedBuffers(testbed) if testbed.switch else None
        self._flows = _EngineFlows(run, policy, self._engine)
        self._post(roce, policy)
        nic_device = arrays.ports["device"][self._engine.nic_ports]
        host_of = np.cumsum(arrays.devices["is_switch"] == 0) - 1
        self._host_of_nic: Ints = host_of[nic_device]
        self._watches_hosts = not set(HOST_KEYS).isdisjoint(tuner.observes)
        self._parameters: KnobSettings | None = None
        if roce.control == DCQCN.control:
            self._parameters = dcqcn_settings(roce, testbed, self._exchange)
            self._setters[DCQCN.name] = self._parameters.apply
        self._read_flows = FlowReadings(trial, self._flows.counters)
        self._ticks, self._ended = 0, False

    def _post(self, roce: RoceSpec, policy: NicPolicy) -> None:
        """Give the trial's flows to the NICs."""
        testbed, trial = self._run.testbed, self._run.trial
        engine = self._engine
        if roce.program:
            from orchestration.datapath.native_policy import native_policy

            control = native_policy(Path(roce.program)).policy
        else:
            control = engine.policy(roce.control)
        roce = replace(roce, window_bytes=window_bytes(testbed, roce))
        classes = [testbed.class_index(spec.queue_class) for spec in trial.traffic]
        answers = policy.answers_marks
        flows, _ = flow_array(
            testbed, self._run.schedule, classes, engine.library, ecn_capable=answers
        )
        engine.post(control, nic_settings(roce, policy), flows)

    def start(self) -> None:
        """Begin: time 0 is now."""
        self._engine.run(0)
        self.host_readings.keep(0, self._hosts())
        self._read_flows.take(self._ticks, 0)

    def now_ns(self) -> int:
        """Return the engine's time, in ns since time 0."""
        return self._engine.now_ns

    def wait_until(self, t_ns: int) -> bool:
        """Let everything happen until `t_ns`; return False once every flow has ended."""
        end_ns = self._run.trial.duration_ns
        self._engine.run(t_ns, lambda now_ns: self._run.progress(now_ns, end_ns))
        self._ended = self._flows.all_done()
        return not self._ended

    def observe(self) -> Observation:
        """Read all queues."""
        t_ns, queues = self.now_ns(), self._queues.read()
        self._thresholds.known = queues
        self._ticks += 1
        due = self._ended or self._ticks % SAMPLES_PER_HOST_READING == 0
        hosts = self._hosts() if due or self._watches_hosts else {}
        if due:
            self.host_readings.keep(t_ns, hosts)
        self._read_flows.take(self._ticks, t_ns)
        return Observation(
            t_ns=t_ns,
            age_ns=np.zeros(len(queues.qlen_bytes), dtype=np.int64),
            values={
                **queues.counters(),
                **self._shared_values(),
                **({f"host.{k}": v for k, v in hosts.items()} if self._watches_hosts else {}),
            },
            settings={
                ECN.name: self._thresholds.settings(queues),
                **({DCQCN.name: self._parameters.known} if self._parameters else {}),
            },
        )

    def _shared_values(self) -> dict[str, Ints]:
        if self._shared is None:
            return {}
        pauses, buffers = self._engine.pauses(), self._engine.buffers()
        return self._shared.values(pauses.view(PAUSE_STATE), buffers.view(BUFFER_STATE))

    def _hosts(self) -> dict[str, Ints]:
        """Return the signals of hosts by name, arrays (hosts,).

        A host's value is the sum over its NICs; for round-trip times it is the longest. What only
        TCP counts is 0.
        """
        nics, hosts = self._engine.nics(), len(self._run.testbed.hosts)
        values = {name: np.zeros(hosts, dtype=np.int64) for name in names("host")}
        for name, field in SIGNALS.items():
            combine = np.maximum if name == "rtt_ns" else np.add
            combine.at(values[name], self._host_of_nic, nics[field].astype(np.int64))
        return values

    def _exchange(self, hosts: Ints, values: Ints) -> Ints:
        """Set DCQCN's parameters of hosts, (hosts, parameters), and return those read back."""
        ports, count = self._engine.nic_ports, self._engine.library.lib.CL_PARAMETERS
        row = np.full(len(self._run.testbed.hosts), -1)
        row[hosts] = np.arange(len(hosts))
        nics = np.flatnonzero(row[self._host_of_nic] >= 0)
        wanted = values[row[self._host_of_nic[nics]]]
        parameters = np.zeros((len(nics), count), dtype=np.int64)
        parameters[:, : wanted.shape[1] - 1] = wanted[:, :-1]
        self._engine.set_parameters(ports[nics], parameters, wanted[:, -1] * _NS_PER_US)
        found, interval_ns = self._engine.parameters(ports[nics])
        # all NICs of a host have the same; a host's need not be neighbours
        first = np.zeros(len(row), dtype=np.int64)
        first[self._host_of_nic[::-1]] = np.arange(len(ports))[::-1]
        index = np.searchsorted(nics, first[hosts])
        columns = found[index, : wanted.shape[1] - 1], interval_ns[index] // _NS_PER_US
        result: Ints = np.column_stack(columns)
        return result

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return self._flows.received()

    def finish(self, observer: Observer) -> Outcome:
        """Return the trial's outcome."""
        pfc_events: list[Event] = []
        pfc_facts: dict[str, Any] = {}
        if self._shared:
            states, found = self._engine.buffers(), self._engine.incidents()
            pfc_events, pfc_facts = self._shared.outcome(
                0, states.view(BUFFER_STATE), found.view(INCIDENT)
            )
        marks = self._run.trial.fabric.marks
        return Outcome(
            self._flows.records(),
            self.host_readings.samples(),
            pfc_events,
            {
                "clock": "virtual",
                "red": {"straight_line_on": f"the instantaneous queue, {marks}"},
                "end_ns": self.now_ns(),
                **merged_facts(pfc_facts),
                **self._flows.facts(),
            },
            self._read_flows.samples(),
            self._read_flows.acked(),
        )
