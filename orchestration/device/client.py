"""The controller's clients of agents: one open connection per device, and all of a rack at once."""

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


class AgentClient:
    """The agent on one device. Always close it: the agent ends with the connection."""

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
        """Send a request; return its number for `result`. Raises DeviceGone."""
        number = next(self._numbers)
        self._send(encode({"id": number, "op": op, **arguments}))
        return number

    def result(self, number: int, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Wait for an answer. Raises DeviceError if the operation failed there, or DeviceGone."""
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
        """Send a request and wait for its answer."""
        return self.result(self.post(op, **arguments), timeout_s)

    def poll(self) -> None:
        """Process the messages that have arrived, without waiting; new events are in `events`."""
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
            problem = f"says something that is not the agent's: {self._secrets.hide(error.start)}"
        if problem:
            # outside of the handler: a traceback would show what it hides
            remedy = "see whether something changes what its agent sends"
            raise DeviceError(self.device, problem, remedy)
        for message in messages:
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)

    def _ended(self) -> DeviceError:
        """Return why the channel has ended, from the device's standard error."""
        said = b""
        with suppress(Exception):
            self._channel.settimeout(2.0)
            while piece := self._channel.recv_stderr(65_536):
                said += piece
        text = self._secrets.hide(said)
        what = f"its agent ended: {text}" if text else "its agent has ended or was killed"
        return DeviceGone(self.device, what, "run again; `closloop restore` puts back what is left")


@dataclass(frozen=True)
class Clock:
    """A device's CLOCK_MONOTONIC is the controller's plus `offset_ns`, give or take `error_ns`."""

    offset_ns: int
    error_ns: int


def gather(
    requests: Mapping[Key, tuple[AgentClient, Request]], timeout_s: float = ANSWER_TIMEOUT_S
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


def require_answers(answers: dict[Key, Any]) -> dict[Key, Any]:
    """Return the answers of `gather`. Raises the first DeviceError among them."""
    for answer in answers.values():
        if isinstance(answer, DeviceError):
            raise answer
    return answers


def in_parallel(
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
        return require_answers(
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


_START_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 20


def open_agents(
    accesses: Iterable[Access],
    known_hosts_file: str,
    services: Mapping[str, Sequence[str]],
    secrets: Secrets | None = None,
) -> tuple[dict[str, AgentClient], list[DeviceError]]:
    """Start an agent on every device in parallel; return the agents by device, and the errors."""

    def start(access: Access) -> AgentClient:
        return AgentClient(access, known_hosts_file, services[access.device], secrets)

    agents: dict[str, AgentClient] = {}
    problems: list[DeviceError] = []
    for device, made in in_parallel(accesses, start).items():
        if isinstance(made, DeviceError):
            problems.append(made)
        else:
            agents[device] = made
    return agents, problems
