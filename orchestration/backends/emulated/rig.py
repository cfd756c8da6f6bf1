"""The emulated fabric as a rig, in the guest: reads the fabric, and sets its knobs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.snapshot import samples_per_snapshot
from orchestration.backends.common.rig import (
    SAMPLES_PER_HOST_READING,
    BaseRig,
    FlowReadings,
    KnobSettings,
    Ticker,
    dcqcn_settings,
    merged_facts,
)
from orchestration.backends.emulated.job import FIRST_NAMESPACE_FD, Job, ifindex
from orchestration.backends.emulated.namespaces import Fabric, send_requests
from orchestration.backends.emulated.thresholds import Thresholds
from orchestration.backends.emulated.traffic import Traffic
from orchestration.core.knobs import DCQCN, ECN, FLOWLET_TIMEOUT
from orchestration.core.ports import Observer, Outcome
from orchestration.core.records import Event, Observation
from orchestration.core.signals import HOST_KEYS, PAIRS
from orchestration.core.trial import REAL
from orchestration.datapath.hosts import Hosts, NicFile, ParameterFile, TrafficMatrix
from orchestration.datapath.paths import PathFile
from orchestration.datapath.ports import QueueFile, SharedBuffers, kernel_buffers
from orchestration.datapath.samples import KernelFlowTables, Sample, SampleFile
from traffic.schedule import lasting_flows

if TYPE_CHECKING:
    from collectors.readers.flows import FlowTables
    from orchestration.backends.emulated.linux_devices import NamespaceHosts
    from orchestration.backends.emulated.thresholds import Queues

# Time 0 is at least this long after `start`.
_HEAD_START_NS = 2_000_000
# In real time, processes need longer until they wait for time 0.
_HEAD_START_REAL_NS = 50_000_000
# In real time, a reading that takes longer than this had to wait; it is repeated, up to so many
# times in total.
_READING_REAL_NS, _READINGS_REAL = 1_000_000, 3
# A trial's time 0 is a multiple of this on the guest's clock. The kernel's ticks are then at the
# same times of every trial, however long its tuner took to load, so two trials are the same until
# their thresholds differ.
_TIME_0_MULTIPLE_NS = 100_000_000


class EmulatedRig(BaseRig):
    """A rig over a built fabric.

    Observations have the signals of flow tables if these are given as `flows`, and the signals of
    hosts and the traffic matrix if the tuner `observes` them.
    """

    fabric = "emulated fabric"

    def __init__(
        self,
        job: Job,
        fabric: Fabric,
        traffic: Traffic,
        flows: FlowTables | KernelFlowTables | None = None,
        observes: Collection[str] = (),
    ) -> None:
        testbed, trial = job.testbed, job.trial
        super().__init__(testbed)
        self._fabric, self._traffic, self._job, self._flows = fabric, traffic, job, flows
        # the data path's engine counts flows with its own readings; BPF programs are read apart
        self._programs = None if isinstance(flows, KernelFlowTables) else flows
        self._steps = list(job.steps)
        self._shared = SharedBuffers(testbed) if testbed.switch else None
        self._real = trial.clock == REAL
        addresses = [job.plan.host_addresses[name] for name in testbed.hosts]
        self._hosts: Hosts | NamespaceHosts
        self._queues: Queues
        self._samples: SampleFile | None = None
        self._paths: PathFile | None = None
        if PathFile.is_used_in(trial):
            ports = [ifindex(port) for port in testbed.ports]
            self._paths = PathFile(trial, testbed, ports, self._namespaces(testbed.switches))
        if self._real:
            from orchestration.backends.emulated.linux_devices import NamespaceHosts

            self._hosts = NamespaceHosts(fabric, testbed.hosts)
        else:
            nics = NicFile(addresses) if trial.host.roce is not None else None
            self._hosts = Hosts(self._namespaces(testbed.hosts), nics)
        if trial.fabric.kind == "linux":
            from orchestration.backends.emulated.linux_devices import linux_queues

            self._queues = linux_queues(job, fabric)
        else:
            assert isinstance(self._hosts, Hosts)  # only a guest has closloop's data path
            self._queues = QueueFile(len(testbed.queues))
            self._samples = self._sample_file(self._hosts, observes)
        self._thresholds = Thresholds(testbed, self._queues)
        self._watches_hosts = not set(HOST_KEYS).isdisjoint(observes)
        self._setters[ECN.name] = self._thresholds.apply
        self._parameters: KnobSettings | None = None
        roce = trial.host.roce
        if roce is not None and roce.control == DCQCN.control:
            parameters = ParameterFile(addresses)
            self._parameters = dcqcn_settings(roce, testbed, parameters.exchange)
            self._setters[DCQCN.name] = self._parameters.apply
        self._timeouts: KnobSettings | None = None
        if self._paths and trial.load_balancing.kind == "flowlets":
            self._timeouts = KnobSettings(
                FLOWLET_TIMEOUT, testbed, self._paths.timeouts_ns(), self._paths.exchange
            )
            self._setters[FLOWLET_TIMEOUT.name] = self._timeouts.apply
        self._read_flows = FlowReadings(trial, traffic.counters)
        self._lasting = bool(lasting_flows(trial, job.schedule).any())
        self._ticker = Ticker()
        self._t0_ns = self._ticks = 0

    def _namespaces(self, devices: Iterable[str]) -> list[int]:
        """Return the file descriptors of devices' network namespaces."""
        return [FIRST_NAMESPACE_FD + self._fabric.number[name] for name in devices]

    def _sample_file(self, hosts: Hosts, observes: Collection[str]) -> SampleFile:
        """Return the file through which the data path's engine takes readings by itself."""
        testbed = self._job.testbed
        pairs = None
        if PAIRS in observes:
            edges = self._namespaces(testbed.edges)
            pairs = TrafficMatrix(testbed, edges, self._job.plan.host_addresses)
        return SampleFile(
            len(testbed.queues),
            hosts,
            self._shared,
            self._traffic.senders,
            flows=isinstance(self._flows, KernelFlowTables),
            pairs=pairs,
            paths=self._paths,
        )

    def start(self) -> None:
        """Start the traffic, and return at time 0."""
        head_start_ns = _HEAD_START_REAL_NS if self._real else _HEAD_START_NS
        earliest_ns = time.monotonic_ns() + head_start_ns
        self._t0_ns = -(-earliest_ns // _TIME_0_MULTIPLE_NS) * _TIME_0_MULTIPLE_NS
        if self._paths:
            self._paths.begin_at(self._t0_ns)
        self._traffic.launch(self._t0_ns)
        self._ticker.sleep_until(self._t0_ns)
        self.host_readings.keep(0, self._hosts.read())
        self._read_flows.take(self._ticks, 0)

    @property
    def t0_ns(self) -> int:
        """Time 0 by CLOCK_MONOTONIC; 0 before `start`."""
        return self._t0_ns

    def now_ns(self) -> int:
        """Return the ns since time 0, of virtual time in a guest; 0 before `start`."""
        return time.monotonic_ns() - self._t0_ns if self._t0_ns else 0

    def wait_until(self, t_ns: int) -> bool:
        """Sleep until `t_ns`, and make the faults until then; False once every flow has ended."""
        self._make_fault_steps(t_ns)
        self._ticker.sleep_until(self._t0_ns + t_ns)
        self._traffic.check_alive()
        return not self._traffic.all_done()

    def _make_fault_steps(self, until_ns: int) -> None:
        while self._steps and self._steps[0].t_ns <= until_ns:
            step = self._steps.pop(0)
            self._ticker.sleep_until(self._t0_ns + step.t_ns)
            for namespace, requests in step.requests:
                send_requests(self._fabric.sockets[namespace], requests)
            if self._paths and step.down is not None:
                self._paths.links_down(step.down)
            self.events.append(Event(self.now_ns(), step.kind, step.detail))

    def readings(self, times_ns: range) -> tuple[list[Observation], bool]:
        """Read at the first of `times_ns`, or at several of them; return whether flows are left.

        The data path's engine takes the readings, while this process sleeps until the last of them:
        at most until the next fault or the next snapshot for viewers.
        """
        if self._samples is None:
            more = self.wait_until(times_ns[0])
            return [self.observe()], more
        times = times_ns[: self._readings_ahead(times_ns, self._samples)]
        self._request(self._samples, self._t0_ns + times[0], times.step, len(times))
        self._make_fault_steps(times[-1])
        samples = self._samples.fetch()
        self._traffic.check_alive()
        more = not self._traffic.all_done()
        observations = [
            self._observation(sample, last=not more and sample is samples[-1]) for sample in samples
        ]
        self._read_flows.take(self._ticks, observations[-1].t_ns)
        return observations, more

    def _readings_ahead(self, times_ns: range, samples: SampleFile) -> int:
        """Return how many readings to request at once.

        No reading is requested beyond the next fault, which this process makes, the next reading of
        flows, or the end of long-lived flows.
        """
        maximum = min(
            samples.max_ahead, max(SAMPLES_PER_HOST_READING, samples_per_snapshot(self._job.trial))
        )
        if self._steps:
            before = range(times_ns.start, self._steps[0].t_ns, times_ns.step)
            maximum = min(maximum, max(1, len(before)))
        maximum = min(maximum, self._read_flows.ticks_until_due(self._ticks))
        if self._lasting:
            before = range(times_ns.start, self._job.trial.duration_ns + 1, times_ns.step)
            maximum = min(maximum, len(before) or maximum)
        return min(maximum, len(times_ns))

    def _request(self, samples: SampleFile, first_ns: int, period_ns: int, readings: int) -> None:
        """Request readings of the data path's engine: of hosts at each, or when they are due."""
        due = SAMPLES_PER_HOST_READING - 1 - self._ticks % SAMPLES_PER_HOST_READING
        hosts = (0, 1) if self._watches_hosts else (due, SAMPLES_PER_HOST_READING)
        samples.request(first_ns, period_ns, readings, *hosts)

    def observe(self) -> Observation:
        """Read all queues, in a guest at one instant of virtual time."""
        if self._samples is None:
            sample = self._read_sample()
        else:
            self._request(self._samples, time.monotonic_ns(), 1, 1)
            (sample,) = self._samples.fetch()
        observation = self._observation(sample, last=self._traffic.all_done(), age=True)
        self._read_flows.take(self._ticks, observation.t_ns)
        return observation

    def _read_sample(self) -> Sample:
        """Read all queues, with one dump per switch.

        In real time, the reading is repeated if the kernel made it wait: it takes a lock that all
        namespaces of the machine share.
        """
        for _ in range(_READINGS_REAL if self._real else 1):
            sample = Sample(time.monotonic_ns(), self._queues.read())
            if self._real and time.monotonic_ns() - sample.t_ns < _READING_REAL_NS:
                break
        return sample

    def _observation(self, sample: Sample, *, last: bool, age: bool = False) -> Observation:
        """Return a sample as an observation, and keep its readings of hosts if these are due.

        They are due at the trial's `last` sample in any case. With `age`, the observation says how
        old the sample is by now.
        """
        self._thresholds.known = sample.queues
        self._ticks += 1
        t_ns = sample.t_ns - self._t0_ns
        due = last or self._ticks % SAMPLES_PER_HOST_READING == 0
        hosts = sample.hosts
        if hosts is None and (due or self._watches_hosts):
            hosts = self._hosts.read()
        if hosts is not None and due:
            self.host_readings.keep(t_ns, hosts)
        flows = sample.flows if self._programs is None else self._programs.read()
        watched = hosts if hosts is not None and self._watches_hosts else {}
        age_ns = self.now_ns() - t_ns if age else 0
        return Observation(
            t_ns=t_ns,
            age_ns=np.full(len(self._job.plan.queue_locations), age_ns, dtype=np.int64),
            values={
                **sample.queues.counters(),
                **(vars(flows) if flows else {}),
                **(sample.shared or {}),
                **(sample.paths or {}),
                **{f"host.{name}": values for name, values in watched.items()},
                **({PAIRS: sample.pairs} if sample.pairs is not None else {}),
            },
            settings={
                ECN.name: self._thresholds.settings(sample.queues),
                **({DCQCN.name: self._parameters.known} if self._parameters else {}),
                **({FLOWLET_TIMEOUT.name: self._timeouts.known} if self._timeouts else {}),
            },
        )

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return self._traffic.flows_done()

    def finish(self, observer: Observer) -> Outcome:
        """Wait for the traffic driver, and return the trial's outcome."""
        flows = self._traffic.outcome()
        pfc_events: list[Event] = []
        pfc_facts: dict[str, Any] = {}
        if self._shared:
            of_kernel = kernel_buffers(self._shared.switches)
            pfc_events, pfc_facts = self._shared.outcome(self._t0_ns, *of_kernel)
        path_facts = self._paths.facts() if self._paths else {}
        absent = {"findings": self._fabric.findings()} if self._real else {}
        return Outcome(
            flows,
            self.host_readings.samples(),
            sorted([*self.events, *pfc_events], key=lambda event: event.t_ns),
            {
                "kernel": os.uname().release,
                "offloads_on": self._fabric.offloads_on,
                "offloads_checked": sum(len(item.interfaces) for item in self._job.plan.namespaces),
                "end_ns": self.now_ns(),
                **({"flow_table": self._flows.facts()} if self._flows else {}),
                **merged_facts(pfc_facts, path_facts, absent),
                **self._traffic.facts(),
            },
            self._read_flows.samples(),
            self._read_flows.acked(),
        )
