"""What drivers of programs have in common: a flow is a server on one host and a client on another.

A driver only says what to start and reads what came out; starting is the backend's work. Servers
are started first; when all of them listen, each client is started at its flow's time.

How a flow's times are found: the program says how long the transfer took, the host when the
client's process ended. So a transfer is taken to end with the client's process and to begin that
long before; the making of connections, which these programs do first, shows as lateness between
the schedule's start and `sent_ns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol

from orchestration.model.status import DONE, FAILED, UNFINISHED
from traffic.drivers.parsing import OutputError, excerpt

Scalar = str | int | float | bool
Options = Mapping[str, Scalar]

# A count that a program does not tell; the same as `records.MISSING`, without NumPy.
UNKNOWN = -1

_MODULES = {"perftest": "Perftest", "iperf3": "Iperf3", "fio": "Fio", "scapy": "ScapyIncast"}
_FILES = {"scapy": "scapy_incast"}


@dataclass(frozen=True)
class Flow:
    """One flow for a program. Hosts are names, addresses those of the NICs that it uses.

    `port` is the receiver's and no other flow's there. `tos` is the byte of the IPv4 header that
    the flow's traffic class has, ECN bits excluded. RDMA devices are "" where a host has none.
    """

    number: int
    start_ns: int
    src: str
    dst: str
    size_bytes: int
    src_address: str
    dst_address: str
    port: int
    tos: int = 0
    congestion_control: str = ""
    src_rdma_device: str = ""
    dst_rdma_device: str = ""


@dataclass(frozen=True)
class Launch:
    """What to start on a host. `at_ns` is on the trial's clock; None is at once.

    `listens` are the (protocol, port)s that tell that a server is ready. `operation` is the
    agent's that starts it, with `extra` arguments of its own.
    """

    host: str
    argv: tuple[str, ...]
    role: Literal["server", "client"]
    flow: int
    at_ns: int | None = None
    stdin: bytes = b""
    timeout_s: float = 3600.0
    listens: tuple[tuple[str, int], ...] = ()
    operation: str = "program.start"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """What became of a started program; times on the trial's clock, -1 for never.

    `exit_code` is minus the signal's number where one ended it. `stopped`: it was ended by us, as
    the trial was over. `error` says why it could not be started, or that its host is lost.
    """

    exit_code: int
    stdout: str
    stderr: str
    started_ns: int
    ended_ns: int
    stopped: bool = False
    timed_out: bool = False
    cut_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a flow; `status` is one of `orchestration.model.status`."""

    sent_ns: int
    end_ns: int
    retransmits: int
    status: int
    detail: str = ""


class ProgramDriver(Protocol):
    """A program that sends flows."""

    name: str

    def needs(self, options: Options) -> tuple[str, ...]:
        """Return the programs that hosts must have."""

    def check(self, options: Options) -> list[str]:
        """Return what is wrong with a campaign's options, as `what: remedy`."""

    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the server's and the client's start."""

    def outcome(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return what became of the flow, by what both printed."""


def driver(name: str) -> ProgramDriver:
    """Return the driver of that name. Raises ValueError, naming those there are."""
    if name not in _MODULES:
        raise ValueError(f"unknown driver {name!r}: there are sockets, {', '.join(_MODULES)}")
    module = import_module(f"traffic.drivers.{_FILES.get(name, name)}")
    made: ProgramDriver = getattr(module, _MODULES[name])()
    return made


@dataclass(frozen=True)
class Option:
    """One option of a driver, as campaigns give it: in base units (bytes, bits/s, ns)."""

    name: str
    default: Scalar
    text: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


def read_options(declared: Sequence[Option], given: Options) -> tuple[dict[str, Any], list[str]]:
    """Return every declared option's value, and what is wrong with those given."""
    values: dict[str, Any] = {option.name: option.default for option in declared}
    problems = []
    for name, value in given.items():
        option = next((option for option in declared if option.name == name), None)
        if option is None:
            problems.append(f"unknown option {name!r}: there are {', '.join(sorted(values))}")
        elif problem := _wrong(option, value):
            problems.append(problem)
        else:
            values[name] = value
    return values, problems


def _wrong(option: Option, value: Scalar) -> str:
    name, default = option.name, option.default
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = (
        whole
        if isinstance(default, int) and not isinstance(default, bool)
        else (isinstance(value, type(default)) or (isinstance(default, float) and whole))
    )
    if not fits:
        return f"{name} is {value!r}: give a {_KINDS[type(default)]}"
    if option.choices and value not in option.choices:
        return f"{name} is {value!r}: give one of {', '.join(option.choices)}"
    if isinstance(value, str) and not option.choices and not _is_word(value):
        return f"{name} is {excerpt(value)!r}: give letters, digits and ._- only"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if option.low is not None and value < option.low:
            return f"{name} is {value}: give at least {option.low:g}"
        if option.high is not None and value > option.high:
            return f"{name} is {value}: give at most {option.high:g}"
    return ""


_KINDS: dict[type, str] = {int: "whole number", float: "number", bool: "true or false", str: "word"}


def _is_word(value: str) -> bool:
    # what stands on a command line must not be taken for an option there
    return not value or (value[0].isalnum() and all(c.isalnum() or c in "._-" for c in value))


def failure(program: str, output: Output, role: str) -> str:
    """Return why a program did not end well, or "" if it did."""
    if output.error:
        return f"{program} {role}: {output.error}"
    if output.timed_out:
        return f"{program} {role} ran out of time and was ended"
    if output.cut_bytes:
        return f"{program} {role} printed {output.cut_bytes} bytes more than are kept"
    if output.exit_code < 0:
        return f"{program} {role} was ended by signal {-output.exit_code}"
    if output.exit_code:
        said = excerpt(output.stderr or output.stdout) or "it says nothing"
        return f"{program} {role} ended with {output.exit_code}: {said}"
    return ""


def failed(client: Output, detail: str) -> Outcome:
    """Return the outcome of a flow whose program failed."""
    return Outcome(client.started_ns, -1, UNKNOWN, FAILED, detail)


def unreadable(client: Output, error: OutputError) -> Outcome:
    """Return the outcome of a flow whose program's output cannot be used."""
    remedy = f"; {error.remedy}" if error.remedy else ""
    return failed(client, f"{error}{remedy}")


def unfinished(client: Output, detail: str = "") -> Outcome:
    """Return the outcome of a flow that the trial's end cut off."""
    return Outcome(client.started_ns, -1, UNKNOWN, UNFINISHED, detail)


def finished(
    client: Output,
    duration_ns: int | None,
    retransmits: int = UNKNOWN,
    detail: str = "",
    end_ns: int | None = None,
) -> Outcome:
    """Return the outcome of a whole transfer that took `duration_ns`.

    It is placed as the module says; without a duration it is given the client's whole run.
    """
    end_ns = client.ended_ns if end_ns is None else end_ns
    sent_ns = client.started_ns
    if duration_ns is not None:
        sent_ns = max(sent_ns, end_ns - duration_ns)
    # ends on two hosts are as exact as their clocks
    return Outcome(sent_ns, max(sent_ns, end_ns), retransmits, DONE, detail)
