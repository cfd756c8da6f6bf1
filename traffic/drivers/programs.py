"""The base of drivers that send flows with programs such as iperf3: options, commands, outcomes.

A flow is a server on one host and a client on another. A driver only says which programs to start
and parses their output; the backend starts them. Servers are started first. When all of them
listen, each client is started at its flow's time.

A flow's times are derived as follows. The program reports how long the transfer took, and the host
reports when the client's process ended. The transfer is assumed to have ended with the client's
process, and to have begun that long before. Programs connect before they transfer, so `sent_ns` is
later than the scheduled start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from inventory.rack import ROCE_TRAFFIC_CLASS
from orchestration.core import plugins
from orchestration.core.pattern import SOCKETS, DriverSpec
from orchestration.core.problems import Problem, of_text
from orchestration.core.status import DONE, FAILED, UNFINISHED
from orchestration.core.trial import Scalar
from traffic.drivers.output import OutputError, excerpt

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

Options = Mapping[str, Scalar]

# A count that a program does not report; the same as `records.MISSING`, without NumPy.
UNKNOWN = -1

GROUP = "closloop.drivers"


@dataclass(frozen=True)
class Flow:
    """One flow for a program. Hosts are names; addresses are those of the NICs that it uses.

    `port` is a port of the receiver that no other flow uses. `tos` is the byte of the traffic class
    in the IPv4 header, without the ECN bits; for RDMA, where no TCP sets these bits,
    `traffic_class` is the whole byte. RDMA devices are "" if a host has none. The GID at the given
    RDMA port and index is that of the flow's address for RoCE v2; an index of -1 is unknown.
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
    traffic_class: int = ROCE_TRAFFIC_CLASS
    src_rdma_port: int = 1
    dst_rdma_port: int = 1
    src_gid_index: int = -1
    dst_gid_index: int = -1


@dataclass(frozen=True)
class Launch:
    """A program to start on a host at `at_ns` of the trial's clock; None means immediately.

    A server is ready when it listens on all (protocol, port) pairs of `listens`. `operation` is the
    agent's operation that starts the program, with `extra` arguments.
    """

    host: str
    argv: tuple[str, ...]
    role: Literal["server", "client"]
    flow: int
    at_ns: int | None = None
    timeout_s: float = 3600.0
    listens: tuple[tuple[str, int], ...] = ()
    operation: str = "program.start"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """The result of a started program; times on the trial's clock, -1 for never.

    `exit_code` is minus the signal's number if a signal ended it. `stopped` means that closloop
    ended it at the end of the trial. `error` says why it could not be started, or that the
    connection to its host is lost.
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
    """The outcome of a flow. `status` is one of `orchestration.core.status`."""

    sent_ns: int
    end_ns: int
    retransmits: int
    status: int
    detail: str = ""


@dataclass(frozen=True)
class Option:
    """One option of a driver. If it has a `unit`, campaigns may write its value with a unit."""

    name: str
    default: Scalar
    text: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: Literal["", "bytes", "bps", "ns"] = ""


class FlowFailed(Exception):  # noqa: N818 (names what is so)
    """A program did not send its flow; the message says why."""


class ProgramDriver(ABC):
    """A program that sends flows; `docs/traffic-programs.md` describes its options."""

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    # Whether it sends over RDMA, and whether it can set its packets' type of service, which decides
    # about their traffic class.
    rdma: ClassVar[bool] = False
    marks: ClassVar[bool] = True

    def needs(self, options: Options) -> tuple[str, ...]:
        """Return the names of the programs that hosts must have."""
        return (self.name,)

    def missing_here(self) -> str:
        """Return what the controller lacks, as `what: remedy`; "" if nothing."""
        return ""

    def check(self, options: Options, testbed: Testbed | None = None) -> list[Problem]:
        """Return the problems of a campaign's options, on a testbed if one is given.

        The location of a problem is an option's name, or "" for the driver as a whole.
        """
        values, problems = _read(self.options, options)
        conflicts = self._conflicts(values, options, testbed)
        return [of_text(text, name) for name, text in (*problems, *conflicts)]

    def values(self, options: Options) -> dict[str, Any]:
        """Return the value of every option, with defaults for those not given."""
        return _read(self.options, options)[0]

    def _conflicts(
        self, values: Mapping[str, Any], given: Options, testbed: Testbed | None
    ) -> Iterable[tuple[str, str]]:
        """Return problems of options in combination: an option's name and `what: remedy`."""
        return ()

    @abstractmethod
    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the commands of the server and the client."""

    def outcome(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome of the flow, given the output of both programs."""
        if self._cut_off(server, client):
            return Outcome(client.started_ns, -1, UNKNOWN, UNFINISHED)
        try:
            return self._result(flow, server, client)
        except OutputError as error:
            why = error.why
        except FlowFailed as error:
            why = str(error)
        return Outcome(client.started_ns, -1, UNKNOWN, FAILED, why)

    def _cut_off(self, server: Output, client: Output) -> bool:
        """Return whether the end of the trial interrupted the flow."""
        return client.stopped

    @abstractmethod
    def _result(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome of an uninterrupted flow. Raises OutputError or FlowFailed."""


def driver_names() -> tuple[str, ...]:
    """Return the names of the installed drivers."""
    return (SOCKETS.name, *sorted(plugins.offered(GROUP)))


def is_driver(name: str) -> bool:
    """Return whether a name is that of a driver, or has the form `file.py:Class`."""
    return plugins.is_file(name) or name in driver_names()


def load_driver(name: str) -> ProgramDriver:
    """Return a driver, given its name or `file.py:Class` (see `orchestration.core.plugins`).

    Raises ValueError for an unknown name, with the known ones, and for a class that is not a
    driver.
    """
    if not is_driver(name):
        raise ValueError(f"unknown driver {name!r}: there are {', '.join(driver_names())}")
    loaded = plugins.load(name, GROUP)
    if not (isinstance(loaded, type) and issubclass(loaded, ProgramDriver)):
        remedy = "derive a class from traffic.drivers.programs.ProgramDriver"
        raise plugins.PluginError(f"{name!r} is not a driver", remedy)
    driver: ProgramDriver = loaded()
    return driver


def check_driver(
    spec: DriverSpec, testbed: Testbed | None = None, queue_class: str = ""
) -> list[Problem]:
    """Return the problems of a driver's options, on a testbed and its class if they are given."""
    if spec.name == SOCKETS.name:
        what, remedy = "sockets have no option {!r}", "remove it, or name a program that has it"
        return [Problem(key, what.format(key), remedy) for key, _ in spec.options]
    driver = load_driver(spec.name)
    problems = driver.check(dict(spec.options), testbed)
    classes = [] if testbed is None else [klass.name for klass in testbed.classes]
    # packets without the type of service of a class belong to the first class
    if queue_class in classes[1:] and not driver.marks:
        what = f"{driver.name} cannot mark its packets as those of {queue_class}"
        problems.append(Problem("", what, "leave these flows to sockets or to iperf3"))
    return problems


def option_units(name: str) -> dict[str, str]:
    """Return the unit of each option of a driver that has one."""
    options = () if name == SOCKETS.name else load_driver(name).options
    return {option.name: option.unit for option in options if option.unit}


def server_and_client(
    flow: Flow, server: Sequence[str], client: Sequence[str], timeout_s: float = 3600.0
) -> tuple[Launch, Launch]:
    """Return the commands of a server that listens on the flow's TCP port, and of its client."""
    listens = (("tcp", flow.port),)
    return (
        Launch(flow.dst, tuple(server), "server", flow.number, None, timeout_s, listens),
        Launch(flow.src, tuple(client), "client", flow.number, flow.start_ns, timeout_s),
    )


def _read(
    declared: Sequence[Option], given: Options
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    values: dict[str, Any] = {option.name: option.default for option in declared}
    by_name = {option.name: option for option in declared}
    problems = []
    for name, value in given.items():
        if name not in by_name:
            names = ", ".join(sorted(by_name))
            problems.append((name, f"unknown option {name!r}: there are {names}"))
        elif problem := _wrong(by_name[name], value):
            problems.append((name, problem))
        else:
            values[name] = value
    return values, problems


def _wrong(option: Option, value: Scalar) -> str:
    name, kind = option.name, type(option.default)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole if kind is int else isinstance(value, kind)):
        return f"{name} is {value!r}: give a {_KINDS[kind]}"
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


_KINDS: dict[type, str] = {int: "whole number", bool: "true or false", str: "word"}


def _is_word(value: str) -> bool:
    # a value on a command line must not be mistaken for an option
    return not value or (value[0].isalnum() and all(c.isalnum() or c in "._-" for c in value))


def failure_reason(program: str, output: Output, role: str) -> str:
    """Return why a program failed; "" if it did not."""
    if output.error:
        return f"{program} {role}: {output.error}"
    if output.timed_out:
        return f"{program} {role} ran out of time and was ended"
    if output.cut_bytes:
        return f"{program} {role} printed {output.cut_bytes} bytes more than the limit"
    if output.exit_code < 0:
        return f"{program} {role} was ended by signal {-output.exit_code}"
    if output.exit_code:
        message = excerpt(output.stderr or output.stdout) or "it printed nothing"
        return f"{program} {role} ended with {output.exit_code}: {message}"
    return ""


def completed(
    client: Output,
    duration_ns: int | None,
    retransmits: int = UNKNOWN,
    detail: str = "",
    end_ns: int | None = None,
) -> Outcome:
    """Return the outcome of a complete transfer that took `duration_ns`.

    Its times are derived as described at the top of this module. Without a duration, they are the
    start and the end of the client's process.
    """
    end_ns = client.ended_ns if end_ns is None else end_ns
    sent_ns = client.started_ns
    if duration_ns is not None:
        sent_ns = max(sent_ns, end_ns - duration_ns)
    # times from two hosts are only as exact as their clocks
    return Outcome(sent_ns, max(sent_ns, end_ns), retransmits, DONE, detail)
