"""A rack's agents, addressed together: one round takes as long as the slowest device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from orchestration.device.errors import DeviceError

_CLOCK_ROUNDS = 9


class Agent(Protocol):
    """One device's agent: `client.AgentClient`, or a stand-in for tests."""

    device: str

    def post(self, op: str, **arguments: Any) -> int:
        """Send a request."""

    def result(self, number: int, timeout_s: float = ...) -> Any:
        """Wait for its answer."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Clock:
    """A device's CLOCK_MONOTONIC is the controller's plus `offset_ns`, give or take `error_ns`."""

    offset_ns: int
    error_ns: int


class Fleet:
    """Agents by device. Close it, or use it as a context manager: agents end with it."""

    def __init__(self, agents: Mapping[str, Any]) -> None:
        self.agents = dict(agents)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all agents."""
        for agent in self.agents.values():
            agent.close()

    def ask(self, op: str, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Send `op` to the devices named, with each one's arguments; return the answers.

        Every device is asked, and every answer waited for. Raises DeviceError for the first device
        that failed.
        """
        posted: dict[str, int] = {}
        answers: dict[str, Any] = {}
        failed: DeviceError | None = None
        for device, arguments in requests.items():
            try:
                posted[device] = self.agents[device].post(op, **arguments)
            except DeviceError as error:
                failed = failed or error
        for device, number in posted.items():
            try:
                answers[device] = self.agents[device].result(number)
            except DeviceError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return answers

    def clocks(self) -> dict[str, Clock]:
        """Measure every device's clock against this one: the best of some exchanges."""
        best: dict[str, Clock] = {}
        for device, agent in self.agents.items():
            for _ in range(_CLOCK_ROUNDS):
                sent_ns = time.monotonic_ns()
                there_ns = int(agent.result(agent.post("clock"))["monotonic_ns"])
                back_ns = time.monotonic_ns()
                error_ns = (back_ns - sent_ns + 1) // 2
                if device not in best or error_ns < best[device].error_ns:
                    best[device] = Clock(there_ns - (sent_ns + back_ns) // 2, error_ns)
        return best
