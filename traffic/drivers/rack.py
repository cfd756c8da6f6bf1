"""A trial's traffic on a rack: flows that sockets send, and flows that programs send."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from inventory.rack import Rack
from orchestration.agent.senders.socket_driver import COLUMNS
from orchestration.core.errors import TrialError
from orchestration.core.pattern import SOCKETS
from orchestration.core.records import DONE, FAILED, UNFINISHED, FlowRecords, Schedule
from orchestration.core.trial import TrialSpec
from orchestration.device.client import AgentClient, Clock, Fleet, Request, gather
from orchestration.device.errors import DeviceError, printable
from traffic.drivers.connections import Endpoints, connected, gids_of, host_addresses, services
from traffic.drivers.rack_programs import (
    ControlNames,
    RackPrograms,
    check_programs,
    jobs_of,
    remarks,
    uses_rdma,
    with_outcomes,
)

_STEPS = ("flows.listen", "flows.connect", "flows.accept")
_ENDED = "flows.ended"
_REFUSED = os.strerror(errno.ECONNREFUSED)


def uses_programs(trial: TrialSpec) -> bool:
    """Return whether programs send some of the trial's flows."""
    return any(spec.driver != SOCKETS for spec in trial.traffic)


class RackTraffic:
    """The traffic of one trial. All of it starts together and ends with the trial.

    With `promptly`, hosts that share their CPUs with other hosts still send on time.
    """

    def __init__(
        self,
        trial: TrialSpec,
        rack: Rack,
        schedule: Schedule,
        fleet: Fleet,
        names: ControlNames | None = None,
        *,
        promptly: bool = False,
    ) -> None:
        """`names` has the kernels' names of congestion controls, for hosts where they differ."""
        names = names or {}
        self._flows = RackFlows(trial, rack, schedule, fleet, names, promptly=promptly)
        self._programs: list[RackPrograms] = []
        if uses_programs(trial):
            check_programs(fleet, rack.testbed.hosts, trial)
            gids = gids_of(fleet, rack.testbed.hosts) if uses_rdma(trial) else {}
            self._programs.append(RackPrograms(jobs_of(trial, rack, schedule, gids, names), fleet))
        self._parts: list[RackFlows | RackPrograms] = [self._flows, *self._programs]
        self.remarks: list[str] = []

    def connect(self, clocks: Mapping[str, Clock]) -> None:
        """Make all connections, and start the servers of programs. Raises DeviceError."""
        for part in self._parts:
            part.connect(clocks)

    def start(self, t0_ns: int) -> None:
        """Start everything at `t0_ns` on the controller's CLOCK_MONOTONIC."""
        for part in self._parts:
            part.start(t0_ns)

    def all_done(self) -> bool:
        """Return whether every flow has ended. Raises TrialError if a driver failed."""
        return all(part.all_done() for part in self._parts)

    def stop(self) -> None:
        """Stop sending on all hosts that can be reached."""
        for part in self._parts:
            part.stop()

    def records(self) -> FlowRecords:
        """Return the outcomes of the flows, and set `remarks` to those of programs."""
        records = self._flows.records()
        for programs in self._programs:
            outcomes = programs.outcomes()
            self.remarks = remarks(outcomes)
            records = with_outcomes(records, outcomes)
        return records


class RackFlows:
    """The flows that sockets send: each host runs the socket driver with its share of them."""

    def __init__(
        self,
        trial: TrialSpec,
        rack: Rack,
        schedule: Schedule,
        fleet: Fleet,
        names: ControlNames,
        *,
        promptly: bool = False,
    ) -> None:
        self._fleet = fleet
        self._names = names
        self._promptly = promptly
        self._end_ns = trial.duration_ns + trial.drain_ns
        testbed = rack.testbed
        ends = Endpoints(host_addresses(rack))
        self._flows = connected(schedule, ends, services(testbed, trial.traffic))
        by_sockets = [spec.driver == SOCKETS for spec in trial.traffic]
        patterns = enumerate(schedule.klass.tolist())
        socket_flows = {flow for flow, pattern in patterns if by_sockets[pattern]}
        shares = {
            host: [flow for flow in self._flows.touching(number) if flow in socket_flows]
            for number, host in enumerate(testbed.hosts)
        }
        self._share = {host: flows for host, flows in shares.items() if flows}
        self._number = {host: number for number, host in enumerate(testbed.hosts)}
        self._clocks: Mapping[str, Clock] = {}
        self._running: set[str] = set()

    def connect(self, clocks: Mapping[str, Clock]) -> None:
        """Load every host's share and connect all flows. Raises DeviceError."""
        self._clocks = clocks
        loads = {
            host: {
                "host": self._number[host],
                "flows": self._flows.to_json(flows, self._names.get(host, {})),
                "end_ns": self._end_ns,
                **({"promptly": True} if self._promptly else {}),
            }
            for host, flows in self._share.items()
        }
        self._fleet.ask("flows.load", loads)
        for step in _STEPS:
            answers = gather(self._each(step))
            errors = [answer for answer in answers.values() if isinstance(answer, DeviceError)]
            if errors:
                raise self._cause(errors)

    def _each(self, op: str) -> dict[str, tuple[AgentClient, Request]]:
        return {host: (self._fleet.agents[host], (op, {})) for host in self._share}

    def _cause(self, errors: Sequence[DeviceError]) -> DeviceError:
        """Return the error of the host that caused the refused connections of other hosts."""
        for error in errors:
            if _REFUSED not in error.message:
                return error
        for host, answer in gather(self._each("flows.lives")).items():
            if isinstance(answer, DeviceError):
                return answer
            if answer is False:
                return DeviceError(
                    host,
                    f"its socket driver's process died, and so {errors[0].message}",
                    "see whether memory ran out there; the same command runs the trial again",
                )
        return errors[0]

    def start(self, t0_ns: int) -> None:
        """Start all hosts at `t0_ns` on the controller's CLOCK_MONOTONIC."""
        self._running = set(self._share)
        orders = {host: {"t0_ns": t0_ns + self._clocks[host].offset_ns} for host in self._share}
        self._fleet.ask("flows.go", orders)

    def all_done(self) -> bool:
        """Return whether every flow has ended. Raises TrialError if a driver died."""
        for host in list(self._running):
            agent = self._fleet.agents[host]
            agent.poll()
            for event in [event for event in agent.events if event.get("event") == _ENDED]:
                agent.events.remove(event)
                if "error" in event:
                    raise TrialError(
                        f"{host}: the traffic driver failed: {printable(str(event['error']))}",
                        "the same command runs the trial again",
                    )
                self._running.discard(host)
        return not self._running

    def stop(self) -> None:
        """Stop sending on all hosts that can be reached."""
        for host in self._share:
            with suppress(DeviceError):  # the driver dies with its agent
                self._fleet.ask("flows.stop", {host: {}})

    def records(self) -> FlowRecords:
        """Fetch the outcomes of the flows.

        The sender knows when a flow ended, the receiver how much of it arrived.
        """
        answers = self._fleet.ask("flows.results", {host: {} for host in self._share})
        count = len(self._flows)
        columns = {name: np.full(count, -1, dtype=np.int64) for name in ("sent_ns", "end_ns")}
        columns["retransmits"] = np.zeros(count, dtype=np.int64)
        columns["status"] = np.full(count, UNFINISHED, dtype=np.int64)
        received = np.zeros(count, dtype=np.int64)
        for host, numbers in self._share.items():
            share = np.array(numbers, dtype=np.int64)
            results = {name: _column(host, answers[host], name, len(share)) for name in COLUMNS}
            is_sender = np.array(self._flows.src)[share] == self._number[host]
            for name, column in columns.items():
                column[share[is_sender]] = results[name][is_sender]
            is_receiver = np.array(self._flows.dst)[share] == self._number[host]
            received[share[is_receiver]] = results["received_bytes"][is_receiver]
        short = (columns["status"] == DONE) & (received != np.array(self._flows.size_bytes))
        columns["status"][short] = FAILED
        columns["end_ns"][short] = -1
        return FlowRecords(**columns)


def _column(host: str, answer: Any, name: str, count: int) -> np.ndarray:
    try:
        column = np.array(answer[name], dtype=np.int64)
        if column.shape != (count,):
            raise ValueError(f"{name} has {column.size} entries of {count}")
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError(host, f"its results cannot be read: {error}") from error
    return column
