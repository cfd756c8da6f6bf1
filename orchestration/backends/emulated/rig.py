"""The fabric that the loop drives, in the guest: builds it, reads queues, changes thresholds."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from collectors.readers.flows import FlowReading, FlowTables
from collectors.readers.tc import QueueReading
from orchestration.backends.emulated.data_path.flow_tables import OwnFlowTables
from orchestration.backends.emulated.data_path.hosts import HostCounters
from orchestration.backends.emulated.data_path.nics import SIGNALS as NIC_SIGNALS
from orchestration.backends.emulated.data_path.nics import NicFile
from orchestration.backends.emulated.data_path.pauses import SharedBuffers
from orchestration.backends.emulated.data_path.ports import QueueFile
from orchestration.backends.emulated.fabric import FIRST_NAMESPACE_FD
from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.linux_queues import LinuxQueues
from orchestration.backends.emulated.namespaces import (
    enter_namespace,
    links_operational,
    new_namespace,
    offloads_off,
    route_socket,
    send_requests,
)
from orchestration.backends.flow_samples import FlowSamples
from orchestration.backends.ticker import Ticker
from orchestration.model.errors import TrialError
from orchestration.model.knobs import ECN
from orchestration.model.ports import Observer, Outcome
from orchestration.model.records import (
    MISSING,
    Action,
    Applied,
    Change,
    Event,
    Floats,
    FlowRecords,
    Ints,
    Observation,
    Program,
    Samples,
)

# Settings of the whole guest, written before the namespaces copy them.
_GLOBAL_SYSCTLS = {
    "fs/nr_open": "2000000",
    "net/core/somaxconn": "65535",
    "net/core/netdev_max_backlog": "10000000",
    "net/core/rmem_max": "268435456",
    "net/core/wmem_max": "268435456",
    "net/ipv4/tcp_allowed_congestion_control": "reno cubic dctcp bbr",
    "net/ipv4/tcp_congestion_control": "dctcp",
    "net/ipv4/tcp_rmem": "4096 16777216 134217728",
    "net/ipv4/tcp_wmem": "4096 8388608 134217728",
    "net/ipv4/tcp_mem": "1000000 2000000 4000000",
}
# Hosts' TCP counters are read at every tenth sample.
HOST_EVERY = 10
_HEAD_START_NS = 2_000_000
# A trial's time 0 is a multiple of this on the guest's clock. However long its tuner took to load,
# the kernel's ticks then fall at the same times, so two trials differ only from the moment their
# thresholds do.
_TIME_0_MULTIPLE_NS = 100_000_000
# The kernel's link watch runs once a second.
_CARRIER_TRIES, _CARRIER_WAIT_S = 100, 0.1


def write_sysctl(name: str, value: str) -> None:
    """Write one sysctl of this namespace."""
    with open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


class Fabric:
    """The namespaces with their sockets. Building them takes no virtual time."""

    def __init__(self, job: Job) -> None:
        for name, value in _GLOBAL_SYSCTLS.items():
            write_sysctl(name, value)
        self.number = {item.name: place for place, item in enumerate(job.namespaces)}
        self.sockets: list[socket.socket] = []
        self.offloads_on: list[str] = []
        for place, item in enumerate(job.namespaces):
            new_namespace(FIRST_NAMESPACE_FD + place)
            for name, value in item.sysctls.items():
                write_sysctl(name, value)
            self.sockets.append(route_socket())
        send_requests(self.sockets[0], job.links)
        for place, item in enumerate(job.namespaces):
            send_requests(self.sockets[place], item.links_up)
        self._wait_for_carriers()
        for place, item in enumerate(job.namespaces):
            self.enter(place)
            on = offloads_off(item.interfaces)
            self.offloads_on += [f"{item.name} {what}" for what in on]
            send_requests(self.sockets[place], item.requests)

    def _wait_for_carriers(self) -> None:
        """Let virtual time pass until the kernel has noticed that every link is up."""
        for _ in range(_CARRIER_TRIES):
            if all(links_operational(netlink) for netlink in self.sockets):
                return
            time.sleep(_CARRIER_WAIT_S)
        raise RuntimeError("a link of the fabric does not come up")

    def enter(self, place: int) -> None:
        """Move this process into a device's namespace."""
        enter_namespace(FIRST_NAMESPACE_FD + place)


class Traffic(Protocol):
    """Sends the trial's flows, in a process of its own."""

    def launch(self, t0_ns: int) -> None:
        """Start the traffic at `t0_ns` of CLOCK_MONOTONIC."""

    def alive(self) -> None:
        """Raise RuntimeError if the driver has died."""

    def all_done(self) -> bool:
        """Return whether every flow has ended."""

    def ended_ns(self) -> int | None:
        """Return when the last of them ended, of CLOCK_MONOTONIC; None if nothing is read later."""

    def flows_done(self) -> int:
        """Return how many flows have ended."""

    def outcome(self) -> FlowRecords:
        """Wait for the driver's end, and return the outcome of the flows."""

    def facts(self) -> dict[str, Any]:
        """Return facts on how the flows were sent, after `outcome`."""

    def counters(self) -> dict[str, Ints]:
        """Return the signals of flows that RoCE NICs send, arrays (flows,)."""


class NoTraffic:
    """Traffic of a fabric on which no trial runs."""

    def launch(self, t0_ns: int) -> None:
        """Send nothing."""

    def alive(self) -> None:
        """Do nothing: there is no driver."""

    def all_done(self) -> bool:
        """Return False: no flow was started."""
        return False

    def ended_ns(self) -> None:
        """Return None: no flow ends."""

    def flows_done(self) -> int:
        """Return 0."""
        return 0

    def facts(self) -> dict[str, Any]:
        """Return none."""
        return {}

    def outcome(self) -> FlowRecords:
        """Return no flows."""
        none = np.zeros(0, dtype=np.int64)
        return FlowRecords(none, none, none, none)

    def counters(self) -> dict[str, Ints]:
        """Return none."""
        return {}


class Queues(Protocol):
    """All queues of the fabric, in the order of `Testbed.queues`."""

    @property
    def calls(self) -> int:
        """Return the system calls that the last reading took."""

    def read(self) -> QueueReading:
        """Read all queues."""

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""

    def in_kernel(self, pmax: Floats) -> Ints:
        """Return the kernel's numbers for probabilities at kmax."""

    def from_kernel(self, max_p: Floats) -> Floats:
        """Return the probabilities at kmax that the kernel's numbers stand for."""


class EmulatedRig:
    """The Rig protocol over a built fabric. With `flows`, observations have flow-table counts.

    With `watches_nics`, they have the signals of hosts' RoCE NICs.
    """

    def __init__(
        self,
        job: Job,
        fabric: Fabric,
        traffic: Traffic,
        flows: FlowTables | OwnFlowTables | None = None,
        *,
        watches_nics: bool = False,
    ) -> None:
        self._fabric = fabric
        self._traffic = traffic
        self._job = job
        self._flows = flows
        self._program = flows if isinstance(flows, FlowTables) else None
        self._steps = list(job.steps)
        self._queues: Queues = (
            LinuxQueues(job.testbed, job.queue_places, fabric.sockets)
            if job.trial.fabric.kind == "linux"
            else QueueFile(len(job.testbed.queues), flows=isinstance(flows, OwnFlowTables))
        )
        self._shared = SharedBuffers(job.testbed) if job.testbed.switch else None
        self._known: QueueReading | None = None
        self._hosts = HostCounters(
            [FIRST_NAMESPACE_FD + fabric.number[name] for name in job.testbed.hosts]
        )
        addresses = [job.host_addresses[name] for name in job.testbed.hosts]
        self._nics = NicFile(addresses) if job.trial.host.roce is not None else None
        self._nic_rows: list[dict[str, Ints]] = []
        self._flow_every = job.trial.flow_sample_period_ns // job.trial.sample_period_ns
        self._flow_samples = FlowSamples()
        self._watches_nics = watches_nics
        self._bounds = ECN.bounds(job.testbed)
        self._turn = {ECN.name: self._set_thresholds}
        self._ticker = Ticker()
        self._t0_ns = 0
        self._ticks = 0
        self.events: list[Event] = []

    def start(self) -> None:
        """Start the traffic, and return at time 0."""
        earliest_ns = time.monotonic_ns() + _HEAD_START_NS
        self._t0_ns = -(-earliest_ns // _TIME_0_MULTIPLE_NS) * _TIME_0_MULTIPLE_NS
        self._traffic.launch(self._t0_ns)
        self._ticker.sleep_until(self._t0_ns)
        self._sample_hosts(0)
        self._sample_flows(0)

    def now_ns(self) -> int:
        """Return virtual ns since time 0; 0 before it."""
        return time.monotonic_ns() - self._t0_ns if self._t0_ns else 0

    def wait_until(self, t_ns: int) -> bool:
        """Sleep until `t_ns`, with the faults on the way; False once every flow has ended."""
        self._take_steps(t_ns)
        self._ticker.sleep_until(self._t0_ns + t_ns)
        self._traffic.alive()
        return not self._traffic.all_done()

    def _take_steps(self, until_ns: int) -> None:
        while self._steps and self._steps[0].t_ns <= until_ns:
            step = self._steps.pop(0)
            self._ticker.sleep_until(self._t0_ns + step.t_ns)
            for place, requests in step.requests:
                send_requests(self._fabric.sockets[place], requests)
            self.events.append(Event(self.now_ns(), step.kind, step.detail))

    def readings(self, times_ns: range) -> tuple[list[Observation], bool]:
        """Read at the first of `times_ns`, or at several; say whether flows are left.

        The data path reads by itself, and this process sleeps until the last reading. It sleeps
        only as long as nothing else is to be read at one of the times.
        """
        if not isinstance(self._queues, QueueFile):
            more = self.wait_until(times_ns[0])
            return [self.observe()], more
        at_once = self._program or self._shared or self._watches_nics
        ahead = 1 if at_once else HOST_EVERY - self._ticks % HOST_EVERY
        if self._flow_every:
            ahead = min(ahead, self._flow_every - self._ticks % self._flow_every)
        times = times_ns[: min(ahead, self._queues.most_ahead)]
        self._queues.ask(self._t0_ns + times[0], times.step, len(times))
        self._take_steps(times[-1])
        found = self._queues.asked()
        self._traffic.alive()
        more = not self._traffic.all_done()
        if not more and (ended_ns := self._traffic.ended_ns()) is not None:
            after = sum(sample.t_ns < ended_ns for sample in found)
            found = found[: after + 1]
        self._ticks += len(found)
        self._known = found[-1].queues
        seen = [
            self._observation(sample.t_ns - self._t0_ns, sample.queues, sample.flows)
            for sample in found
        ]
        if self._ticks % HOST_EVERY == 0 or not more:
            self._sample_hosts(seen[-1].t_ns)
        self._sample_flows(seen[-1].t_ns)
        return seen, more

    def observe(self) -> Observation:
        """Read all queues, with one dump per switch, at one instant of virtual time."""
        if isinstance(self._queues, QueueFile):
            self._queues.ask(time.monotonic_ns(), 1, 1)
            ((t_ns, reading, flows),) = self._queues.asked()
            t_ns -= self._t0_ns
            self._known = reading
        else:
            t_ns, reading, flows = self.now_ns(), self._read(), None
        self._ticks += 1
        if self._ticks % HOST_EVERY == 0 or self._traffic.all_done():
            self._sample_hosts(t_ns)
        self._sample_flows(t_ns)
        return self._observation(t_ns, reading, flows, self.now_ns() - t_ns)

    def _observation(
        self, t_ns: int, reading: QueueReading, flows: FlowReading | None, age_ns: int = 0
    ) -> Observation:
        if self._program:
            flows = self._program.read()
        counted = vars(flows) if flows else {}
        shared = self._shared.read() if self._shared else {}
        return Observation(
            t_ns=t_ns,
            age_ns=np.full(len(self._job.queue_places), age_ns, dtype=np.int64),
            values={**reading.counters(), **counted, **shared, **self._nic_values()},
            settings={ECN.name: self._thresholds(reading)},
        )

    def _sample_hosts(self, t_ns: int) -> None:
        self._hosts.sample(t_ns)
        if self._nics is not None:
            self._nic_rows.append(self._nics.read())

    def _sample_flows(self, t_ns: int) -> None:
        """Read every flow if it is time for that."""
        if self._flow_every and self._ticks % self._flow_every == 0:
            self._flow_samples.add(t_ns, self._traffic.counters())

    def _host_samples(self) -> Samples:
        samples = self._hosts.samples()
        rows = self._nic_rows
        own = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        return Samples(samples.t_ns, {**samples.values, **own})

    def _nic_values(self) -> dict[str, Ints]:
        """Return the NICs' signals if the tuner observes them; MISSING where hosts have no NIC."""
        if not self._watches_nics:
            return {}
        missing = np.full(len(self._job.testbed.hosts), MISSING, dtype=np.int64)
        found = self._nics.read() if self._nics else dict.fromkeys(NIC_SIGNALS, missing)
        return {f"host.{name}": values for name, values in found.items()}

    def apply(self, action: Action) -> Applied:
        """Make the changes, and read them back from the kernel."""
        changes = tuple(self._turn[change.knob](change) for change in action)
        return Applied(self.now_ns(), changes)

    def install(self, programs: Sequence[Program]) -> None:
        """Refuse: these devices run no programs."""
        raise TrialError(f"the emulated fabric cannot run {programs[0].kind!r}")

    def _set_thresholds(self, change: Change) -> Change:
        """Change thresholds without touching queued packets.

        Queues that already have the wanted settings are skipped: a change restarts RED's count of
        packets since its last mark.
        """
        self._bounds.check(change)
        queues, max_p = change.targets, self._queues.in_kernel(change["pmax"])
        known = self._known or self._read()
        differs = (known.kmin_bytes[queues] != change["kmin_bytes"]) | (
            known.kmax_bytes[queues] != change["kmax_bytes"]
        )
        differs |= known.max_p[queues] != max_p
        if differs.any():
            self._queues.set(queues[differs], *(change[name][differs] for name in ECN.column_names))
            known = self._read()
        found = self._thresholds(known)
        return Change(ECN.name, queues, {name: values[queues] for name, values in found.items()})

    def _thresholds(self, reading: QueueReading) -> dict[str, np.ndarray]:
        pmax = self._queues.from_kernel(reading.max_p)
        return ECN.named(reading.kmin_bytes, reading.kmax_bytes, pmax)

    def _read(self) -> QueueReading:
        self._known = self._queues.read()
        return self._known

    @property
    def calls_per_reading(self) -> int:
        """Return the system calls that the last reading of all queues took."""
        return self._queues.calls

    def flows_done(self) -> int:
        """Return how many flows have ended by now."""
        return self._traffic.flows_done()

    def finish(self, observer: Observer) -> Outcome:
        """Wait for the traffic driver, and return the trial's outcome."""
        flows = self._traffic.outcome()
        events, found = self._shared.outcome(self._t0_ns) if self._shared else ([], {})
        return Outcome(
            flows,
            self._host_samples(),
            sorted([*self.events, *events], key=lambda event: event.t_ns),
            {
                "kernel": os.uname().release,
                "offloads_on": self._fabric.offloads_on,
                "offloads_checked": sum(len(item.interfaces) for item in self._job.namespaces),
                "end_ns": self.now_ns(),
                "system_calls_per_reading": self.calls_per_reading,
                **({"flow_table": self._flows.facts()} if self._flows else {}),
                **found,
                **self._traffic.facts(),
            },
            self._flow_samples.samples() if self._flow_every else None,
        )
