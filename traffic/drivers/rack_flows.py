"""A schedule's flows on a rack's hosts: each runs the socket driver with its share of them.

Flows that programs send are left out: see `programs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inventory.addressing import nic_addresses
from inventory.topology import Testbed
from orchestration.device.errors import DeviceError, printable
from orchestration.device.fleet import Clock, Fleet
from orchestration.model.errors import TrialError
from orchestration.model.records import DONE, FAILED, UNFINISHED, FlowRecords, Schedule
from orchestration.model.trial import SOCKETS, TrialSpec
from traffic.drivers.flows import Endpoints, Flows
from traffic.drivers.services import services

_STEPS = ("flows.listen", "flows.connect", "flows.accept")
_ENDED = "flows.ended"
_COLUMNS = ("sent_ns", "end_ns", "retransmits", "status", "received_bytes")


class RackFlows:
    """The flows of one trial. `connect` makes the connections, `start` lets them begin."""

    def __init__(
        self, trial: TrialSpec, testbed: Testbed, schedule: Schedule, fleet: Fleet
    ) -> None:
        addresses = nic_addresses(testbed)
        of_host = [
            tuple(addresses[port.index] for port in testbed.ports_of[host])
            for host in testbed.hosts
        ]
        self._fleet = fleet
        self._end_ns = trial.duration_ns + trial.drain_ns
        self._flows = Flows.of(schedule, Endpoints(of_host), services(testbed, trial.traffic))
        by_sockets = [spec.driver == SOCKETS for spec in trial.traffic]
        ours = {flow for flow, pattern in enumerate(schedule.klass.tolist()) if by_sockets[pattern]}
        touching = {
            host: [flow for flow in self._flows.touching(number) if flow in ours]
            for number, host in enumerate(testbed.hosts)
        }
        self._share = {host: flows for host, flows in touching.items() if flows}
        self._number = {host: number for number, host in enumerate(testbed.hosts)}
        self._clocks: Mapping[str, Clock] = {}
        self._running: set[str] = set()

    def connect(self, clocks: Mapping[str, Clock]) -> None:
        """Load every host's share and connect all flows. Raises DeviceError."""
        self._clocks = clocks
        self._fleet.ask(
            "flows.load",
            {
                host: {
                    "host": self._number[host],
                    "flows": self._flows.to_json(flows),
                    "end_ns": self._end_ns,
                }
                for host, flows in self._share.items()
            },
        )
        for step in _STEPS:
            self._fleet.ask(step, {host: {} for host in self._share})

    def start(self, t0_ns: int) -> None:
        """Have all hosts begin at `t0_ns` of the controller's CLOCK_MONOTONIC."""
        self._running = set(self._share)
        orders = {host: {"t0_ns": t0_ns + self._clocks[host].offset_ns} for host in self._share}
        self._fleet.ask("flows.go", orders)

    def all_done(self) -> bool:
        """Say whether every flow has ended. Raises TrialError if a driver died."""
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
        """Stop sending, wherever it can be reached."""
        for host in self._share:
            try:
                self._fleet.ask("flows.stop", {host: {}})
            except DeviceError:
                continue  # its driver dies with its agent

    def records(self) -> FlowRecords:
        """Fetch what became of the flows.

        The sender says when a flow ended, the receiver how much of it came.
        """
        answers = self._fleet.ask("flows.results", {host: {} for host in self._share})
        count = len(self._flows)
        columns = {name: np.full(count, -1, dtype=np.int64) for name in ("sent_ns", "end_ns")}
        columns["retransmits"] = np.zeros(count, dtype=np.int64)
        columns["status"] = np.full(count, UNFINISHED, dtype=np.int64)
        received = np.zeros(count, dtype=np.int64)
        for host, numbers in self._share.items():
            own = np.array(numbers, dtype=np.int64)
            said = {name: _column(host, answers[host], name, len(own)) for name in _COLUMNS}
            sent_here = np.array(self._flows.src)[own] == self._number[host]
            for name, column in columns.items():
                column[own[sent_here]] = said[name][sent_here]
            came_here = np.array(self._flows.dst)[own] == self._number[host]
            received[own[came_here]] = said["received_bytes"][came_here]
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
