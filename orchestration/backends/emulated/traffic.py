"""The senders of a trial's flows, in the guest: a process with TCP sockets, RoCE NICs, or both."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.datapath.samples import Senders, report_sender_done

if TYPE_CHECKING:
    from orchestration.core.records import FlowRecords, Ints


class Traffic:
    """Sends the trial's flows. This base class sends nothing.

    `senders` are the parts that report to the data path's engine when all their flows have ended.
    """

    senders = Senders.NOBODY

    def launch(self, t0_ns: int) -> None:
        """Start the traffic at `t0_ns` of CLOCK_MONOTONIC."""

    def check_alive(self) -> None:
        """Raise RuntimeError if a driver has died. Takes no virtual time while it is alive."""

    def all_done(self) -> bool:
        """Return whether every flow has ended, as far as its sender knows."""
        return False

    def flows_done(self) -> int:
        """Return how many flows have ended."""
        return 0

    def outcome(self) -> FlowRecords:
        """Wait until the senders have ended; return the records of all flows."""
        import numpy as np

        from orchestration.core.records import FlowRecords

        return FlowRecords(*(np.zeros(0, dtype=np.int64) for _ in fields(FlowRecords)))

    def facts(self) -> dict[str, Any]:
        """Return facts on how the flows were sent; call it after `outcome`."""
        return {}

    def counters(self) -> dict[str, Ints]:
        """Return the signals of flows, arrays (flows,); MISSING for flows that are not RoCE."""
        return {}


class _SocketTraffic(Traffic):
    """Flows over TCP sockets, sent by a driver in a process of its own that ends with the trial."""

    senders = Senders.PROCESS

    def __init__(self, job: Any, fabric: Any, schedule: Any, ended: Callable[[], None]) -> None:
        """Start the process and connect its sockets.

        `ended` is called in that process when all flows have ended. `board` is memory that both
        processes share. Raises RuntimeError if the process dies.
        """
        from orchestration.agent.senders.socket_driver import Board, SocketDriver
        from traffic.drivers.connections import Endpoints, connected, services

        self._flows = len(schedule)
        memory = mmap.mmap(-1, Board.size_bytes(self._flows))
        self.board = Board(self._flows, memoryview(memory))
        self._ended = ended
        self._child_ended = False
        self._status: int | None = None
        hosts = job.testbed.hosts
        endpoints = Endpoints([job.plan.host_addresses[name] for name in hosts])
        self._end_ns = job.trial.duration_ns + job.trial.drain_ns
        go, self._go = os.pipe()
        ready_reader, ready_writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            of_pattern = services(job.testbed, job.trial.traffic)
            flows = connected(schedule, endpoints, of_pattern)
            namespaces = [fabric.number[name] for name in hosts]
            driver = SocketDriver(flows, lambda host: fabric.enter(namespaces[host]), self.board)
            self._run_driver(driver, go, ready_writer)
        os.close(ready_writer)
        signal.signal(signal.SIGCHLD, lambda *_: setattr(self, "_child_ended", True))
        if os.read(ready_reader, 1) != b"r":
            raise RuntimeError("the traffic driver died while it opened its sockets: see above")

    def _run_driver(self, driver: Any, go: int, ready_writer: int) -> None:
        """In the driver's process: open sockets, report that, wait for time 0, send, and exit."""
        try:
            driver.prepare()
            os.write(ready_writer, b"r")
            os.read(go, 1)
            driver.run(self.board.t0_ns, self._end_ns)
            self._ended()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def launch(self, t0_ns: int) -> None:
        self.board.t0_ns = t0_ns
        os.write(self._go, b"g")

    def check_alive(self) -> None:
        if self._child_ended and self._status is None:
            self._wait()

    def all_done(self) -> bool:
        return self.board.done >= self._flows

    def flows_done(self) -> int:
        return self.board.done

    def outcome(self) -> FlowRecords:
        from traffic.drivers.connections import flow_records

        self._wait()
        return flow_records(self.board)

    def _wait(self) -> None:
        """Wait until the driver's process has ended; raise RuntimeError if it ended badly."""
        if self._status is None:
            _, self._status = os.waitpid(self._pid, 0)
        if self._status:
            raise RuntimeError(f"the traffic driver ended with status {self._status}: see above")


class _RoceTraffic(Traffic):
    """Flows of RoCE NICs, which the data path sends without any process."""

    senders = Senders.NICS

    def __init__(self, job: Any, schedule: Any) -> None:
        from inventory.routing import window_bytes
        from orchestration.datapath.flows import ECT0, RoceFlows
        from traffic.drivers.connections import services
        from traffic.schedule import lasting_flows

        testbed, trial = job.testbed, job.trial
        addresses = [job.plan.host_addresses[name] for name in testbed.hosts]
        tos = [service.tos | ECT0 for service in services(testbed, trial.traffic)]
        roce = trial.host.roce
        if roce.program:
            from collectors.bpf.policy import attach

            attach(Path(roce.program))
        roce = replace(roce, window_bytes=window_bytes(testbed, roce))
        self._flows = RoceFlows(
            schedule,
            addresses,
            roce,
            job.plan.policy,
            tos,
            lasting=lasting_flows(trial, schedule),
            lasts_until_ns=trial.duration_ns,
            icrc=job.probe is not None,
        )

    def launch(self, t0_ns: int) -> None:
        self._flows.post(t0_ns)

    def all_done(self) -> bool:
        return self._flows.all_done()

    def flows_done(self) -> int:
        return self._flows.received()

    def outcome(self) -> FlowRecords:
        return self._flows.records()

    def facts(self) -> dict[str, int]:
        return self._flows.facts()

    def counters(self) -> dict[str, Ints]:
        return self._flows.counters()


class _MixedTraffic(Traffic):
    """Flows of both transports."""

    senders = Senders.PROCESS | Senders.NICS

    def __init__(self, parts: list[tuple[Any, Traffic]]) -> None:
        """`parts` are pairs of a mask, shape (flows of the schedule,), and these flows' senders."""
        self._parts = parts

    def launch(self, t0_ns: int) -> None:
        for _, traffic in self._parts:
            traffic.launch(t0_ns)

    def check_alive(self) -> None:
        for _, traffic in self._parts:
            traffic.check_alive()

    def all_done(self) -> bool:
        return all(traffic.all_done() for _, traffic in self._parts)

    def flows_done(self) -> int:
        return sum(traffic.flows_done() for _, traffic in self._parts)

    def outcome(self) -> FlowRecords:
        import numpy as np

        from orchestration.core.records import FlowRecords

        count = len(self._parts[0][0])
        columns = {field.name: np.zeros(count, dtype=np.int64) for field in fields(FlowRecords)}
        for flows, traffic in self._parts:
            records = traffic.outcome()
            for name, values in columns.items():
                values[flows] = getattr(records, name)
        return FlowRecords(**columns)

    def counters(self) -> dict[str, Ints]:
        import numpy as np

        from orchestration.core.records import MISSING
        from orchestration.core.signals import FLOW_SCOPE, names

        count = len(self._parts[0][0])
        columns = {name: np.full(count, MISSING, dtype=np.int64) for name in names(FLOW_SCOPE)}
        for flows, traffic in self._parts:
            for name, values in traffic.counters().items():
                columns[name][flows] = values
        return columns

    def facts(self) -> dict[str, Any]:
        return {name: fact for _, traffic in self._parts for name, fact in traffic.facts().items()}


def make_traffic(job: Any, fabric: Any) -> Traffic:
    """Return the senders of the trial's flows, ready to start."""
    if job.trial.host.roce is None:
        has_engine = job.trial.fabric.kind != "linux"
        ended = report_sender_done if has_engine else lambda: None
        return _SocketTraffic(job, fabric, job.schedule, ended)
    from inventory.routing import roce_flows
    from traffic.schedule import select_flows

    roce = roce_flows(job.testbed, job.trial, job.schedule)
    if roce.all():
        return _RoceTraffic(job, job.schedule)
    return _MixedTraffic(
        [
            (roce, _RoceTraffic(job, select_flows(job.schedule, roce))),
            (
                ~roce,
                _SocketTraffic(job, fabric, select_flows(job.schedule, ~roce), report_sender_done),
            ),
        ]
    )
