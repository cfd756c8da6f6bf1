"""Flows that programs on a rack's hosts send: starts servers first, then clients at their times.

The agent on each host starts them, by its services `programs` and, for prebuilt frames, `incast`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inventory.rack import ECT_0, ROCE_TRAFFIC_CLASS, Rack
from orchestration.agent.senders.connections import Service
from orchestration.core.errors import NotReadyError, TrialError, raise_any
from orchestration.core.pattern import SOCKETS
from orchestration.core.problems import of_text
from orchestration.core.records import FlowRecords, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Clock, Fleet, gather, require_answers
from orchestration.device.errors import DeviceError, printable
from traffic.drivers.connections import SERVICE as RDMA_SERVICE
from traffic.drivers.connections import Gids, host_addresses, rdma_end, services
from traffic.drivers.programs import (
    Flow,
    Launch,
    Options,
    Outcome,
    Output,
    ProgramDriver,
    check_driver,
    load_driver,
)

SERVICES = ("programs", "incast")
# Ports from here on are above the well-known ports and below Linux' ephemeral ports.
FIRST_PORT = 20_000
# Each flow is a process at both ends, and all of them exist from the start of the trial.
MAX_FLOWS_OF_HOST = 500
_LISTEN_PATIENCE_S = 15.0
_STOP_PATIENCE_S = 10.0
_POLL_INTERVAL_S = 0.02
# Data that has not arrived so long after the last client ended is lost.
_ARRIVAL_TIMEOUT_S = 0.5
_MAX_FLOWS_SHOWN = 3

# Identifies a program: its host, and its role with the flow's number.
Key = tuple[str, str]
# By host, its kernel's name of a congestion control by the usual name, if the two differ.
ControlNames = Mapping[str, Mapping[str, str]]
_CONTROL = "congestion_control"


@dataclass(frozen=True)
class Job:
    """A flow, with the driver that sends it and its options."""

    driver: ProgramDriver
    options: Options
    flow: Flow


def services_for(trial: TrialSpec) -> tuple[str, ...]:
    """Return the agent's services that the trial's programs need on hosts."""
    drivers = _drivers(trial).values()
    if not drivers:
        return ()
    return (*SERVICES, RDMA_SERVICE) if any(driver.rdma for driver in drivers) else SERVICES


def uses_rdma(trial: TrialSpec) -> bool:
    """Return whether programs send some of the trial's flows over RDMA."""
    return RDMA_SERVICE in services_for(trial)


def _drivers(trial: TrialSpec) -> dict[int, ProgramDriver]:
    """Return the driver of each pattern that a program sends, by the pattern's number."""
    return {
        number: load_driver(spec.driver.name)
        for number, spec in enumerate(trial.traffic)
        if spec.driver.name != SOCKETS.name
    }


def check_drivers(trial: TrialSpec, testbed: Testbed | None = None) -> None:
    """Raise InputError if options of drivers are wrong, or this machine lacks what they need.

    Campaigns are checked earlier, but a trial need not come from a campaign that was checked.
    """
    problems = []
    for number, spec in enumerate(trial.traffic):
        faults = check_driver(spec.driver, testbed, spec.queue_class)
        if spec.driver.name != SOCKETS.name and (
            lacks := load_driver(spec.driver.name).missing_here()
        ):
            faults.append(of_text(lacks))
        problems += [fault.relocated(f"traffic[{number}].driver") for fault in faults]
    raise_any(problems)


def check_programs(fleet: Fleet, hosts: Sequence[str], trial: TrialSpec) -> None:
    """Raise NotReadyError, with hosts and programs, if a host lacks a program that drivers need."""
    needs: set[str] = set()
    for number, driver in _drivers(trial).items():
        needs.update(driver.needs(dict(trial.traffic[number].driver.options)))
    if not needs:
        return
    answers = fleet.ask("program.missing", {host: {"names": sorted(needs)} for host in hosts})
    missing = [
        f"{host} has no {', '.join(map(str, names))}" for host, names in answers.items() if names
    ]
    if missing:
        raise NotReadyError(
            "; ".join(missing), "install them there (perftest, iperf3, fio), or use other drivers"
        )


def jobs_of(
    trial: TrialSpec,
    rack: Rack,
    schedule: Schedule,
    gids: Gids | None = None,
    names: ControlNames | None = None,
) -> list[Job]:
    """Return the flows of the schedule that programs send; `gids` has the GIDs of all hosts.

    Raises TrialError if a host has too many flows, and DeviceError if a NIC's address has no GID.
    """
    testbed = rack.testbed
    of_host = dict(zip(testbed.hosts, host_addresses(rack), strict=True))
    drivers = _drivers(trial)
    classes = services(testbed, trial.traffic)
    next_port = dict.fromkeys(testbed.hosts, FIRST_PORT)
    jobs = []
    flows = [
        (number, pattern)
        for number, pattern in enumerate(schedule.klass.tolist())
        if pattern in drivers
    ]
    _check_flows_of_hosts(schedule, testbed, [number for number, _ in flows])
    for number, pattern in flows:
        src, dst = (testbed.hosts[int(side[number])] for side in (schedule.src, schedule.dst))
        port = next_port[dst]
        next_port[dst] += 1
        addresses = [of_host[host][number % len(of_host[host])] for host in (src, dst)]
        service = classes[pattern] if classes else Service()
        kernel_names = (names or {}).get(src, {})
        control = kernel_names.get(service.congestion_control, service.congestion_control)
        options = dict(trial.traffic[pattern].driver.options)
        if _CONTROL in options:
            options[_CONTROL] = kernel_names.get(str(options[_CONTROL]), options[_CONTROL])
        ends = [
            rdma_end(rack, host, number, drivers[pattern], options, gids or {})
            for host in (src, dst)
        ]
        flow = Flow(
            number=number,
            start_ns=int(schedule.start_ns[number]),
            src=src,
            dst=dst,
            size_bytes=int(schedule.size_bytes[number]),
            src_address=addresses[0],
            dst_address=addresses[1],
            port=port,
            tos=service.tos,
            congestion_control=control,
            src_rdma_device=ends[0].device,
            dst_rdma_device=ends[1].device,
            traffic_class=service.tos | ECT_0 if classes else ROCE_TRAFFIC_CLASS,
            src_rdma_port=ends[0].port,
            dst_rdma_port=ends[1].port,
            src_gid_index=ends[0].gid_index,
            dst_gid_index=ends[1].gid_index,
        )
        jobs.append(Job(drivers[pattern], options, flow))
    return jobs


def _check_flows_of_hosts(schedule: Schedule, testbed: Testbed, flows: Sequence[int]) -> None:
    """Raise TrialError if a host sends or receives too many of these flows."""
    count = [0] * len(testbed.hosts)
    for number in flows:
        for host in (int(schedule.src[number]), int(schedule.dst[number])):
            count[host] += 1
            if count[host] > MAX_FLOWS_OF_HOST:
                raise TrialError(
                    f"{testbed.hosts[host]} has more than {MAX_FLOWS_OF_HOST} flows that programs "
                    "send",
                    "shorten the trial, lower the load, or leave these flows to sockets",
                )


class RackPrograms:
    """The flows of one trial that programs send. `connect` starts servers, `start` clients."""

    def __init__(self, jobs: Iterable[Job], fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs = list(jobs)
        self._launches: dict[Key, Launch] = {}
        for job in self._jobs:
            for launch in job.driver.launches(job.flow, job.options):
                self._launches[(launch.host, f"{launch.role} {launch.flow}")] = launch
        self._hosts = sorted({host for host, _ in self._launches})
        self._clocks: Mapping[str, Clock] = {}
        self._t0_ns = 0
        self._started: set[Key] = set()
        self._ended: set[Key] = set()
        self._quiet_since_s = 0.0

    def connect(self, clocks: Mapping[str, Clock]) -> None:
        """Start all servers, wait until they listen, and prepare clients. Raises DeviceError."""
        self._clocks = clocks
        for host, taken in self._listening(self._ports()).items():
            if taken:
                raise DeviceError(
                    host,
                    f"{taken[0][0]} port {taken[0][1]}, which a program needs, is in use",
                    "see what listens there: ss -lntup",
                )
        self._launch("server")
        self._await_servers()
        self._launch("client")

    def start(self, t0_ns: int) -> None:
        """Start clients at times counted from `t0_ns` on the controller's CLOCK_MONOTONIC."""
        self._t0_ns = t0_ns
        orders = {host: {"t0_ns": t0_ns + self._clocks[host].offset_ns} for host in self._hosts}
        self._fleet.ask("program.go", orders)

    def all_done(self) -> bool:
        """Return whether every flow has ended.

        When all clients have ended, servers are given only a short time to end too: the data that
        they wait for may be lost.
        """
        self._take_events()
        left = self._started - self._ended
        if any(self._launches[key].role == "client" for key in left):
            self._quiet_since_s = time.monotonic()
            return False
        return not left or time.monotonic() - self._quiet_since_s > _ARRIVAL_TIMEOUT_S

    def stop(self) -> None:
        """End the programs on all hosts that can be reached; the others end with their agents."""
        with suppress(DeviceError):
            self._stop()

    def outcomes(self) -> dict[int, Outcome]:
        """Stop all programs; return the outcome of each flow by its number. Raises DeviceError."""
        self._stop()
        until_s = time.monotonic() + _STOP_PATIENCE_S
        self._take_events()
        while not self._started <= self._ended and time.monotonic() < until_s:
            time.sleep(_POLL_INTERVAL_S)
            self._take_events()
        if left := sorted(self._started - self._ended):
            raise DeviceError(left[0][0], "a program cannot be ended", "log in and end it: ps aux")
        reports = self._each("program.collect", {key: {} for key in self._started})
        outputs = {key: self._output(key, report) for key, report in reports.items()}
        results = {}
        for job in self._jobs:
            flow = job.flow
            server = outputs[(flow.dst, f"server {flow.number}")]
            client = outputs[(flow.src, f"client {flow.number}")]
            results[flow.number] = job.driver.outcome(flow, server, client)
        return results

    def _stop(self) -> None:
        """End all programs. Raises the first DeviceError, after all hosts have been asked.

        Clients go first: a client whose server is gone would report that its flow has failed.
        """
        clients = [key for key in self._started if self._launches[key].role == "client"]
        try:
            self._each("program.stop", {key: {} for key in clients})
        finally:
            self._fleet.ask("program.stop", {host: {} for host in self._hosts})

    def _launch(self, role: str) -> None:
        requests = {
            key: {
                "op": launch.operation,
                "argv": list(launch.argv),
                "limit_s": launch.timeout_s,
                "after_ns": launch.at_ns,
                **launch.extra,
            }
            for key, launch in self._launches.items()
            if launch.role == role
        }
        self._each("", requests)
        self._started |= set(requests)

    def _ports(self) -> dict[str, list[list[Any]]]:
        ports: dict[str, list[list[Any]]] = {}
        for (host, _), launch in self._launches.items():
            if launch.listens:
                ports.setdefault(host, []).extend([name, port] for name, port in launch.listens)
        return ports

    def _listening(self, ports: Mapping[str, list[list[Any]]]) -> dict[str, Any]:
        requests = {host: {"ports": of_host} for host, of_host in ports.items()}
        return self._fleet.ask("program.listening", requests)

    def _await_servers(self) -> None:
        missing = self._ports()
        until_s = time.monotonic() + _LISTEN_PATIENCE_S
        while missing:
            for host, listening in self._listening(missing).items():
                missing[host] = [port for port in missing[host] if port not in listening]
            missing = {host: ports for host, ports in missing.items() if ports}
            self._take_events()
            dead = sorted(self._started & self._ended)
            if dead:
                self._raise_dead(*dead[0])
            if missing and time.monotonic() > until_s:
                host, ports = next(iter(missing.items()))
                raise DeviceError(
                    host,
                    f"its servers do not listen on {ports[0][0]} port {ports[0][1]}",
                    "see what else uses the port, and run its command by hand",
                )
            if missing:
                time.sleep(_POLL_INTERVAL_S)

    def _raise_dead(self, host: str, name: str) -> None:
        report = self._each("program.collect", {(host, name): {}})[(host, name)]
        output = self._output((host, name), report)
        launch = self._launches[(host, name)]
        reason = output.error or output.stderr or output.stdout or f"exit code {output.exit_code}"
        command = " ".join(launch.argv) or launch.operation
        raise DeviceError(
            host,
            f"a server ended before its client connected: {printable(reason)}",
            f"run it by hand there: {command}",
        )

    def _each(self, op: str, arguments: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Any]:
        """Send one request per program, all at once; return the answers. Raises the first error."""
        requests = {}
        for (host, name), own_arguments in arguments.items():
            request = {"program": name, **own_arguments}
            message = (request.pop("op", op), request)
            requests[host, name] = (self._fleet.agents[host], message)
        return require_answers(gather(requests))

    def _take_events(self) -> None:
        """Record which programs have ended, by the agents' events; leave other services' events."""
        for host in self._hosts:
            agent = self._fleet.agents[host]
            agent.poll()
            for event in [e for e in agent.events if e.get("event") == "program.ended"]:
                agent.events.remove(event)
                self._ended.add((host, str(event.get("program"))))

    def _output(self, key: Key, report: Any) -> Output:
        host = key[0]
        try:
            return Output(
                exit_code=int(report["exit_code"]),
                stdout=str(report["stdout"]),
                stderr=str(report["stderr"]),
                started_ns=self._on_trial_clock(host, int(report["started_ns"])),
                ended_ns=self._on_trial_clock(host, int(report["ended_ns"])),
                stopped=bool(report["stopped"]),
                timed_out=bool(report["timed_out"]),
                cut_bytes=int(report["cut_bytes"]),
                error=printable(str(report["error"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(host, f"its report of a program cannot be read: {error}") from error

    def _on_trial_clock(self, host: str, monotonic_ns: int) -> int:
        if monotonic_ns < 0:
            return -1
        return monotonic_ns - self._clocks[host].offset_ns - self._t0_ns


def with_outcomes(records: FlowRecords, outcomes: Mapping[int, Outcome]) -> FlowRecords:
    """Return `records` with the outcomes, by flow number, of the flows that programs sent."""
    names = ("sent_ns", "end_ns", "retransmits", "status")
    columns = {name: getattr(records, name).copy() for name in names}
    for number, outcome in outcomes.items():
        for name, column in columns.items():
            column[number] = getattr(outcome, name)
    return FlowRecords(**columns)


def remarks(outcomes: Mapping[int, Outcome]) -> list[str]:
    """Return the drivers' remarks about flows, each once, with the number of its flows."""
    flows_of: dict[str, list[int]] = {}
    for number, outcome in outcomes.items():
        if outcome.detail:
            flows_of.setdefault(outcome.detail, []).append(number)
    result = []
    for detail, numbers in flows_of.items():
        shown = ", ".join(map(str, numbers[:_MAX_FLOWS_SHOWN]))
        more = ", …" if len(numbers) > _MAX_FLOWS_SHOWN else ""
        result.append(f"{printable(detail)} ({len(numbers)} flows: {shown}{more})")
    return result
