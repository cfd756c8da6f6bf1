"""Congestion controls of RoCE NICs in a campaign file: their parameters, and users' programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from collectors.bpf.policy import PolicyError, policy_object, read_policy
from inventory.strictyaml import StrictModel, suggest
from orchestration.campaign.located_problem import LocatedProblem
from orchestration.core.congestion import (
    GROUP,
    PROGRAM,
    TELEMETRY_MBPS,
    Parameter,
    congestion_control,
)
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.plugins import offered
from orchestration.core.problems import Code, of_value
from orchestration.core.topology import Testbed
from orchestration.core.units import parse_duration_ns, parse_rate_bps, parse_size_bytes
from orchestration.datapath.native_policy import native_policy, runs_natively
from orchestration.policies.store import program_path

_EXAMPLES = {"time": "25us", "rate": "10Mbps", "number": "0.8", "size": "80B", "count": "5"}
_MBPS = 1_000_000


class Program(StrictModel):
    """A user's congestion control: a BPF object or its C source, and its numeric parameters."""

    program: str = Field(description="its file, like my_policy.c or my_policy.bpf.o")
    parameters: tuple[Any, ...] = Field(
        default=(), description="whole numbers below 2^32, as many as the program takes"
    )


def move_program(host: object) -> object:
    """Return `host` with `congestion_control: {program: …}` moved into its `roce` settings."""
    if not isinstance(host, dict) or not isinstance(host.get("congestion_control"), dict):
        return host
    roce = host.get("roce", {})
    if not isinstance(roce, dict):
        return host
    program = dict(host["congestion_control"])
    if isinstance(program.get("parameters"), list):
        program["parameters"] = tuple(program["parameters"])
    return {**host, "congestion_control": PROGRAM, "roce": {**roce, "program": program}}


def read_values(control: str, given: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return the parameters of a congestion control as the integers that NICs take.

    They are those that differ from the defaults, sorted by name; for a control that is loaded into
    the NICs, all of them, in the order of its C source. Raises ValueError for a value that cannot
    be read or is out of range.
    """
    own = congestion_control(control)
    values = {name: _read(own.parameters[name], given[name]) for name in given}
    if not own.compiled_in:
        return tuple((own.defaults | values).items())
    return tuple(sorted((k, v) for k, v in values.items() if own.defaults[k] != v))


def _read(parameter: Parameter, value: object) -> int:
    number = _READERS[parameter.kind](value)
    if not parameter.minimum <= number <= parameter.maximum:
        minimum, maximum = (
            format_parameter(parameter, n) for n in (parameter.minimum, parameter.maximum)
        )
        raise ValueError(f"{value!r} is not from {minimum} to {maximum}")
    return number


def _read_mbps(value: object) -> int:
    mbps, rest = divmod(parse_rate_bps(value), _MBPS)
    if rest:
        raise ValueError(f"{value!r} is not a whole number of Mbit/s")
    return mbps


def _read_thousandths(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e9:
        raise ValueError(f"{value!r} is not a number")
    thousandths = round(value * 1000)
    if abs(thousandths - value * 1000) > 1e-6:
        raise ValueError(f"{value!r} has more than three decimals")
    return thousandths


def _read_count(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


_READERS: Mapping[str, Callable[[object], int]] = {
    "time": parse_duration_ns,
    "rate": _read_mbps,
    "number": _read_thousandths,
    "size": parse_size_bytes,
    "count": _read_count,
}


def format_parameter(parameter: Parameter, value: int) -> Any:
    """Return a parameter's value as it is written in a campaign file: 25000 ns is `25000ns`."""
    suffix = {"time": "ns", "rate": "Mbps", "size": "B"}.get(parameter.kind)
    if suffix:
        return f"{value}{suffix}"
    return value / 1000 if parameter.kind == "number" else value


def check_control(
    control: str,
    given: Mapping[str, Mapping[str, Any]],
    program: Program | None,
    folder: Path,
    testbed: Testbed | None,
) -> Iterator[LocatedProblem]:
    """Report parameters that the control does not take, and a program that cannot be loaded.

    `given` has parameters by the names of controls. The program's path starts in `folder`.
    """
    for name, parameters in given.items():
        if parameters and control and name != control:
            yield LocatedProblem(
                ("host", "roce", name),
                f"the congestion control is {control}, not {name}",
                f"remove it, or use `congestion_control: {name}`",
            )
        if parameters:
            yield from _check_parameters(name, parameters)
    if control == PROGRAM and program is not None:
        yield from _check_program(program, folder)
    elif control in offered(GROUP) and not (own := congestion_control(control)).compiled_in:
        yield from _check_source(own.source, len(own.parameters), str(own.source), "declared")
    if control == "hpcc" and testbed is not None:
        rates = {rate // _MBPS for rate in (link.rate_bps for link in testbed.links)}
        unknown = sorted(rates - set(TELEMETRY_MBPS))
        if unknown:
            yield LocatedProblem(
                ("host", "congestion_control"),
                f"HPCC's telemetry has no number for a link of {unknown[0]} Mbit/s",
                f"use another control, or links of {', '.join(map(str, TELEMETRY_MBPS))} Mbit/s",
            )


def _check_parameters(control: str, given: Mapping[str, Any]) -> Iterator[LocatedProblem]:
    own, faulty = congestion_control(control), False
    known, values = own.parameters, own.defaults
    for name, value in given.items():
        loc = ("host", "roce", control, name)
        if name not in known:
            faulty = True
            yield LocatedProblem(
                loc,
                f"{control} has no parameter {name!r}",
                f"{suggest(name, known)}it has {', '.join(known)}",
            )
            continue
        try:
            values[name] = _read(known[name], value)
        except ValueError as error:
            faulty = True
            example = f"write it like {_EXAMPLES[known[name].kind]}"
            yield LocatedProblem(loc, of_value(error).what, example, Code.WRONG_VALUE)
    fault = None if faulty else own.contradiction(values)
    if fault is not None:
        yield LocatedProblem(("host", "roce", control, fault[0]), fault[1], fault[2])


def _check_program(program: Program, folder: Path) -> Iterator[LocatedProblem]:
    loc = ("host", "congestion_control")
    for number in program.parameters:
        if type(number) is not int or not 0 <= number < 2**32:
            what = f"a program's parameters are whole numbers below 2^32, and one is {number!r}"
            yield LocatedProblem(loc, what, "write them like [40, 200]")
    try:
        path = program_path(folder, program.program)
    except InputError as error:
        yield from (LocatedProblem.of(loc, problem) for problem in error.problems)
    else:
        yield from _check_source(path, len(program.parameters), program.program)


class PolicyDeclaration(NamedTuple):
    """What a policy's CL_POLICY says: how many parameters it takes, if it asks for telemetry."""

    parameters: int
    telemetry: bool


def declaration_of(path: Path) -> PolicyDeclaration:
    """Return the declaration of a policy's file.

    A machine without clang compiles no BPF object; a C source is then compiled for the process.
    Raises PolicyError for a file that is not a policy, NotReadyError without any compiler.
    """
    try:
        policy = read_policy(policy_object(path))
        return PolicyDeclaration(policy.parameters, policy.telemetry)
    except NotReadyError:
        if not runs_natively(path):
            raise
    try:
        native = native_policy(path)
    except InputError as error:
        raise PolicyError(error.problems) from error
    return PolicyDeclaration(native.parameters, native.asks_telemetry)


def _check_source(
    path: Path, count: int, name: str, how: str = "given"
) -> Iterator[LocatedProblem]:
    """Report a file that is no policy, or that takes another number of parameters than `count`."""
    loc = ("host", "congestion_control")
    try:
        expected = declaration_of(path).parameters
    except PolicyError as error:
        yield from (LocatedProblem.of(loc, problem.relocated(name)) for problem in error.problems)
    except NotReadyError as error:
        yield from (LocatedProblem.of(loc, problem) for problem in error.problems)
    else:
        if expected != count:
            yield LocatedProblem(
                loc,
                f"{name} takes {expected} parameters, and {count} are {how}",
                "give as many as its CL_POLICY says",
            )
