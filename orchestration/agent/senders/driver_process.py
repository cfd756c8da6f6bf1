"""Sends and receives this host's share of a schedule, with the socket driver in a child process.

    flows.load     load the flows sent or received here (`Flows.to_json`), and the host's number;
                   with `promptly`, the child gets real-time priority on the CPU
    flows.listen   open the listening sockets
    flows.connect  connect the flows sent from here, once every host listens
    flows.accept   accept the flows received here, once every host has connected
    flows.go       start at a time on CLOCK_MONOTONIC; the event `flows.ended` reports the end
    flows.lives    return whether the child runs, or has reported why it ended
    flows.results  return the results of the flows
    flows.stop     end the child

There is one child per trial. The kernel ends it if the agent ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..main import Agent, Operation, OperationError
from .connections import Flows
from .socket_driver import COLUMNS, Board, SocketDriver

_PR_SET_PDEATHSIG = 1
_ERROR_BYTES = 2000
# The agent does nothing else while its driver connects, so this is well below ANSWER_TIMEOUT_S.
_CONNECT_TIMEOUT_S = 10.0
_STEPS = ("listen", "connect", "accept")
# waitid: return at once, and do not reap the child.
_WAIT_FLAGS = os.WEXITED | os.WNOHANG | os.WNOWAIT


def _use_real_time_priority() -> None:
    """Let this process run as soon as it wakes, before all processes without real-time priority.

    Where that is not allowed, it wakes as late as others, which the trial's stamp reports.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


class Sender:
    """The agent's side of the driver's process."""

    def __init__(
        self, agent: Agent, host: int, flows: Flows, end_ns: int, promptly: bool = False
    ) -> None:
        self._agent = agent
        self._promptly = promptly
        self._flows = flows
        self._outgoing = sum(1 for src in flows.src if src == host)
        memory = mmap.mmap(-1, Board.size_bytes(len(flows)))
        self.board = Board(len(flows), memoryview(memory))
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._watched = False
        self._has_reported_error = False
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            self._child(parent, host, end_ns, orders, answers)
        os.close(orders)
        os.close(answers)

    def _child(self, parent: int, host: int, end_ns: int, orders: int, answers: int) -> None:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            driver = SocketDriver(
                self._flows, lambda _: None, self.board, {host}, _CONNECT_TIMEOUT_S
            )
            steps: list[Callable[[], None]] = [getattr(driver, name) for name in _STEPS]
            for step in steps:
                if not os.read(orders, 1):
                    os._exit(0)
                step()
                os.write(answers, b"+")
            if os.read(orders, 1):
                if self._promptly:
                    _use_real_time_priority()
                driver.run(self.board.t0_ns, end_ns)
                os.write(answers, b".")
            code = 0
        except OSError as error:
            os.write(answers, f"-{error}".encode()[:_ERROR_BYTES])
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os.write(answers, b"-the driver failed: " + traceback.format_exc().encode()[-1500:])
        finally:
            os._exit(code)

    def step(self, name: str) -> None:
        """Let the child take its next step. Raises OperationError with the child's error."""
        self._send_order(b"s")
        answer = os.read(self._answers, _ERROR_BYTES)
        if answer != b"+":
            self._has_reported_error = bool(answer)
            reason = answer[1:].decode(errors="replace") or "its process died"
            raise OperationError(
                f"the socket driver cannot {name}: {reason}",
                "check whether an earlier run still uses the ports, and whether the routes exist",
            )

    def go(self, t0_ns: int) -> None:
        """Start at `t0_ns`. The controller gets an event when every flow here has ended."""
        self.board.t0_ns = t0_ns
        self._send_order(b"g")
        self._agent.watch(self._answers, self._ended)
        self._watched = True

    def _send_order(self, order: bytes) -> None:
        with suppress(BrokenPipeError):  # the end of its answers shows that the child died
            os.write(self._orders, order)

    def _ended(self) -> None:
        answer = os.read(self._answers, _ERROR_BYTES)
        self._forget()
        event: dict[str, Any] = {"event": "flows.ended", "done": self.board.done}
        if answer != b".":
            event["error"] = answer[1:].decode(errors="replace") or "the driver's process died"
        self._agent.send(event)

    def lives(self) -> bool:
        """Return whether the child still runs, or has reported why it ended."""
        if self._has_reported_error:
            return True
        return bool(self.pid) and os.waitid(os.P_PID, self.pid, _WAIT_FLAGS) is None

    def results(self) -> dict[str, list[int]]:
        """Return the results of all flows, by column."""
        return {name: list(getattr(self.board, name)) for name in COLUMNS}

    def stop(self) -> None:
        """End the child. May be called twice."""
        if not self.pid:
            return
        self._forget()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0
        os.close(self._orders)
        os.close(self._answers)

    def _forget(self) -> None:
        if self._watched:
            self._agent.forget(self._answers)
            self._watched = False


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name, over at most one sender."""
    current: list[Sender] = []

    def sender() -> Sender:
        if not current:
            raise OperationError("no flows are loaded", "send flows.load first")
        return current[0]

    def stop(_: object = None) -> None:
        while current:
            current.pop().stop()

    def load(request: dict[str, Any]) -> int:
        stop()
        flows = Flows.from_json(request["flows"])
        host, end_ns = int(request["host"]), int(request["end_ns"])
        current.append(Sender(agent, host, flows, end_ns, bool(request.get("promptly"))))
        return sender().pid

    def step(request: dict[str, Any]) -> None:
        sender().step(str(request["op"]).rpartition(".")[2])

    agent.at_end(stop)
    return {
        "flows.load": load,
        **{f"flows.{name}": step for name in _STEPS},
        "flows.go": lambda request: sender().go(int(request["t0_ns"])),
        "flows.lives": lambda _: sender().lives(),
        "flows.results": lambda _: sender().results(),
        "flows.stop": stop,
    }
