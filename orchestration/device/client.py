"""Clients of agents: one connection for each device, and requests to many devices at once.

An *agent* is closloop's program on a device of a rack. The controller, where closloop runs, sends
it there by SSH, and talks to it through that connection.
"""

from __future__ import annotations

import getpass
import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from inventory.rack import Access
from orchestration.agent.main import Decoder, FrameError, encode
from orchestration.device.bundle import program
from orchestration.device.errors import DeviceError, DeviceGone, lost, printable, silent
from orchestration.device.ssh import Secrets, connect, disconnect
from orchestration.device.start import start

if TYPE_CHECKING:
    from fabric import Connection

ANSWER_TIMEOUT_S = 30.0
_CLOCK_ROUNDS = 9
_MAX_THREADS = 16

Key = TypeVar("Key")
T = TypeVar("T")
# An operation and its arguments.
Request = tuple[str, Mapping[str, Any]]


def holder_name(what: str) -> str:
    """Return the name under which a device is leased: user, machine, purpose: `ann@laptop run`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()} {what}"


class AgentClient:
    """A client of the agent on one device, which is started. Always close it; the agent then ends.

    `services` are the agent's modules that are needed there. Raises what `connect` and
    `orchestration.device.start.start` raise. `events` are messages that answer no request.
    """

    def __init__(
        self,
        access: Access,
        known_hosts_file: str,
        services: Sequence[str],
        secrets: Secrets | None = None,
    ) -> None:
        self.device = access.device
        self.access = access
        self.events: deque[dict[str, Any]] = deque()
        self._numbers = itertools.count(1)
        self._decoder = Decoder()
        self._answers: dict[int, dict[str, Any]] = {}
        self._secrets = secrets or Secrets()
        self._connection: Connection = connect(access, known_hosts_file, secrets)
        try:
            open_session = self._connection.client.get_transport().open_session
            self._channel = start(open_session, access, self._secrets)
            self._start(services)
        except BaseException:
            self.close()
            raise

    def _start(self, services: Sequence[str]) -> None:
        self._send(program())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not any(event.get("event") == "ready" for event in self.events):
            self._read(deadline)
        self.events.clear()
        self.about: dict[str, Any] = self.call("hello", services=list(services))

    def post(self, op: str, **arguments: Any) -> int:
        """Send a request, and return its number for `result`. Raises DeviceGone."""
        number = next(self._numbers)
        self._send(encode({"id": number, "op": op, **arguments}))
        return number

    def result(self, number: int, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Wait for a request's answer and return it.

        Raises DeviceError if the operation failed on the device, and DeviceGone if no answer comes
        within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while number not in self._answers:
            self._read(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise DeviceError(
                self.device,
                printable(str(answer["error"])),
                printable(str(answer.get("remedy", ""))),
            )
        return answer.get("ok")

    def call(self, op: str, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
        """Send a request, and return its answer. Raises as `result` does."""
        return self.result(self.post(op, **arguments), timeout_s)

    def poll(self) -> None:
        """Read the messages that have arrived, without waiting; events are added to `events`."""
        while self._channel.recv_ready():
            self._take(self._channel.recv(_READ_BYTES))

    def close(self) -> None:
        """End the agent and the connection."""
        with suppress(Exception):
            self._channel.close()
        disconnect(self._connection)

    def _send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (OSError, EOFError) as error:
            raise lost(self.device, printable(str(error))) from error

    def _read(self, deadline: float) -> None:
        self._channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            piece = self._channel.recv(_READ_BYTES)
        except TimeoutError as error:
            raise silent(self.device, "its agent does not answer") from error
        except (OSError, EOFError) as error:
            raise lost(self.device, printable(str(error))) from error
        if not piece:
            raise self._ended()
        self._take(piece)

    def _take(self, piece: bytes) -> None:
        problem = ""
        messages: list[dict[str, Any]] = []
        try:
            messages = self._decoder.feed(piece)
        except FrameError as error:
            problem = f"sends what is not the agent's: {self._secrets.hide(error.start)}"
        if problem:
            # outside of the handler, as a traceback would show the passwords that are hidden here
            remedy = "see whether something changes what its agent sends"
            raise DeviceError(self.device, problem, remedy)
        for message in messages:
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)

    def _ended(self) -> DeviceError:
        """Return the error that says why the channel has ended, by the agent's standard error."""
        output = b""
        with suppress(Exception):
            self._channel.settimeout(2.0)
            while piece := self._channel.recv_stderr(65_536):
                output += piece
        text = self._secrets.hide(output)
        what = f"its agent ended: {text}" if text else "its agent has ended or was killed"
        return DeviceGone(self.device, what, "run again; `closloop restore` puts back what is left")


@dataclass(frozen=True)
class Clock:
    """A device's CLOCK_MONOTONIC is the controller's plus `offset_ns`, within ±`error_ns`."""

    offset_ns: int
    error_ns: int


def gather(
    requests: Mapping[Key, tuple[AgentClient, Request]], timeout_s: float = ANSWER_TIMEOUT_S
) -> dict[Key, Any]:
    """Send all requests, then wait for all answers; return answers or DeviceErrors by key.

    It takes as long as the slowest device.
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


def require_answers(answers: dict[Key, Any]) -> dict[Key, Any]:
    """Return the answers of `gather`; raise the first DeviceError among them."""
    for answer in answers.values():
        if isinstance(answer, DeviceError):
            raise answer
    return answers


def in_parallel(
    accesses: Iterable[Access], work: Callable[[Access], T]
) -> dict[str, T | DeviceError]:
    """Call `work` for all devices in parallel; return results or DeviceErrors by device."""

    def attempt(access: Access) -> T | DeviceError:
        try:
            return work(access)
        except DeviceError as error:
            return error

    devices = list(accesses)
    with ThreadPoolExecutor(min(_MAX_THREADS, max(1, len(devices)))) as pool:
        results = pool.map(attempt, devices)
        return {access.device: result for access, result in zip(devices, results, strict=True)}


class Fleet:
    """The agents of several devices. A context manager; agents end when it is closed."""

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
        """Send the operation `op` to devices, each with its own arguments; return their answers.

        Waits for all devices, and then raises the DeviceError of the first that failed.
        """
        return self.exchange({device: (op, arguments) for device, arguments in requests.items()})

    def exchange(self, requests: Mapping[str, Request]) -> dict[str, Any]:
        """Send each device its own request; otherwise like `ask`."""
        to_agents = {name: (self.agents[name], request) for name, request in requests.items()}
        return require_answers(gather(to_agents))

    def clocks(self) -> dict[str, Clock]:
        """Measure every device's clock against the local one, by the fastest of several exchanges.

        The error is half of the exchange's round-trip time.
        """
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


_START_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 20


def open_agents(
    accesses: Iterable[Access],
    known_hosts_file: str,
    services: Mapping[str, Sequence[str]],
    secrets: Secrets | None = None,
) -> tuple[dict[str, AgentClient], list[DeviceError]]:
    """Start an agent on every device in parallel; return agents by device, and errors of others.

    `services` has the agent's modules that each device needs.
    """

    def start(access: Access) -> AgentClient:
        return AgentClient(access, known_hosts_file, services[access.device], secrets)

    agents: dict[str, AgentClient] = {}
    problems: list[DeviceError] = []
    for device, started in in_parallel(accesses, start).items():
        if isinstance(started, DeviceError):
            problems.append(started)
        else:
            agents[device] = started
    return agents, problems
