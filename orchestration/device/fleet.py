"""Query all agents of a rack at once."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from inventory.rack import Access
from orchestration.device.errors import DeviceError

ANSWER_TIMEOUT_S = 30.0
_CLOCK_ROUNDS = 9
_AT_ONCE = 16

Key = TypeVar("Key")
T = TypeVar("T")
# An operation and its arguments.
Request = tuple[str, Mapping[str, Any]]


def holder_name(what: str) -> str:
    """Return who holds a device, from which machine, and what for: `ann@laptop restore`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()} {what}"


class Agent(Protocol):
    """One device's agent: `client.AgentClient`, or a stand-in for tests."""

    device: str

    def post(self, op: str, **arguments: Any) -> int:
        """Send a request."""

    def result(self, number: int, timeout_s: float = ...) -> Any:
        """Wait for its answer."""

    def poll(self) -> None:
        """Process the messages that have arrived."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Clock:
    """A device's CLOCK_MONOTONIC is the controller's plus `offset_ns`, give or take `error_ns`."""

    offset_ns: int
    error_ns: int


def gather(
    requests: Mapping[Key, tuple[Agent, Request]], timeout_s: float = ANSWER_TIMEOUT_S
) -> dict[Key, Any]:
    """Post all requests, then wait for every answer; return answers and DeviceErrors by key.

    A round takes as long as the slowest device.
    """
    posted: dict[Key, int] = {}
    answers: dict[Key, Any] = dict.fromkeys(requests)
    for key, (agent, (op, arguments)) in requests.items():
        try:
            posted[key] = agent.post(op, **arguments)
        except DeviceError as error:
            answers[key] = error
    for key, number in posted.items():
        try:
            answers[key] = requests[key][0].result(number, timeout_s)
        except DeviceError as error:
            answers[key] = error
    return answers


def answered(answers: dict[Key, Any]) -> dict[Key, Any]:
    """Return the answers of `gather`. Raises the first DeviceError among them."""
    for answer in answers.values():
        if isinstance(answer, DeviceError):
            raise answer
    return answers


def side_by_side(
    accesses: Iterable[Access], work: Callable[[Access], T]
) -> dict[str, T | DeviceError]:
    """Do `work` for all devices in parallel; return results or DeviceErrors by device."""

    def attempt(access: Access) -> T | DeviceError:
        try:
            return work(access)
        except DeviceError as error:
            return error

    wanted = list(accesses)
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(wanted)))) as pool:
        found = pool.map(attempt, wanted)
        return {access.device: made for access, made in zip(wanted, found, strict=True)}


class Fleet:
    """Agents by device. Close it, or use it as a context manager: agents end with it."""

    def __init__(self, agents: Mapping[str, Any]) -> None:
        self.agents = dict(agents)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all agents."""
        for agent in self.agents.values():
            agent.close()

    def ask(self, op: str, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Send `op` to the named devices, each with its own arguments; return the answers.

        Waits for the answers of all devices. Raises DeviceError for the first device that failed.
        """
        return self.exchange({device: (op, arguments) for device, arguments in requests.items()})

    def exchange(self, requests: Mapping[str, Request]) -> dict[str, Any]:
        """Send each device its own request; otherwise like `ask`."""
        return answered(
            gather({device: (self.agents[device], said) for device, said in requests.items()})
        )

    def clocks(self) -> dict[str, Clock]:
        """Measure every device's clock against the local one; the best of several exchanges."""
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
