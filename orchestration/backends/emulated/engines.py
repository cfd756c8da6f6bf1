"""Chooses the engine of emulated trials: the packet engine in the process, or the kernel.

Trials run in the process if the packet engine has all that they need; `_NEEDS` is what it lacks.
Otherwise they run in the virtual-time kernel, and those in real time on this machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inventory.routing import flow_controls
from orchestration.backends.emulated.capabilities import CAPABILITIES
from orchestration.core.congestion import PROGRAM, TCP_CONTROLS, congestion_control
from orchestration.core.engines import ENGINES, KERNEL, ONE_ENGINE, PROCESS, EngineChoice
from orchestration.core.errors import InputError, check_known
from orchestration.core.load_balancing import ECMP
from orchestration.core.ports import Tuner
from orchestration.core.roce import RoceSpec
from orchestration.core.signals import wants_flow_table
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.datapath.engine_build import engine_source
from tuners.registry import create

_OPTION = "--in"
_PROBES = "needs round-trip probes"
_ROCE_ONLY = "RoCE flows only"
assert CAPABILITIES.in_process is not None
_MODE = CAPABILITIES.in_process


class _Case(NamedTuple):
    """What decides about a trial's engine."""

    trial: TrialSpec
    testbed: Testbed
    tuner: Tuner
    nic: RoceSpec
    controls: tuple[str, ...]


def _control(case: _Case) -> str:
    known = (*_MODE.controls, *([case.nic.control] if case.nic.program else ()))
    unknown = [control for control in case.controls if control not in known]
    tcp = [control for control in unknown if control in TCP_CONTROLS]
    if tcp or not case.trial.host.roce:
        return f"flows are Linux TCP ({', '.join(dict.fromkeys(tcp or case.controls))})"
    if not unknown:
        return ""
    lacks = "is in the kernel only"
    if case.nic.telemetry_bytes:
        lacks = "needs telemetry in packets"
    elif congestion_control(unknown[0]).times_round_trips:
        lacks = _PROBES
    return f"the congestion control {unknown[0]} {lacks}"


def _policy(case: _Case) -> str:
    control, program = case.nic.control, case.nic.program
    if not program:
        return ""
    if Path(program).suffix not in _MODE.policies:
        name = Path(program).name
        return f"{name} is compiled for the kernel; its C source would run in the process"
    if control != PROGRAM and congestion_control(control).times_round_trips:
        return f"the congestion control {control} {_PROBES}"
    return ""


def _signals(case: _Case) -> str:
    unknown = [key for key in case.tuner.observes if key not in _MODE.signals]
    if not unknown:
        return ""
    why = ", which needs a flow table" if wants_flow_table(unknown) else ""
    return f"tuner {case.trial.tuner.name!r} observes {unknown[0]}{why}"


def _knobs(case: _Case) -> str:
    unknown = [name for name in case.tuner.knobs if name not in _MODE.knobs]
    return f"tuner {case.trial.tuner.name!r} sets {unknown[0]}" if unknown else ""


def _path_choice(case: _Case) -> str:
    balancing = case.trial.load_balancing
    return "" if balancing == ECMP else f"switches choose paths by {balancing.kind}"


def _if(words: str, needed: Callable[[_Case], object]) -> Callable[[_Case], str]:
    """Return a need that has these words in each trial for which `needed` is true."""
    return lambda case: words if needed(case) else ""


# Each returns why a trial needs the kernel, "" if it does not; the first reason is the one shown.
_NEEDS: tuple[Callable[[_Case], str], ...] = (
    _if("the fabric is Linux' own", lambda case: case.trial.fabric.kind != _MODE.fabric),
    _if("the clock is real", lambda case: case.trial.clock != _MODE.clock),
    _control,
    _if("packets carry telemetry of their path", lambda case: case.nic.telemetry_bytes),
    _if("NICs measure round trips with probes", lambda case: case.nic.rtt_probe_interval_ns),
    _if("NICs decide with a latency", lambda case: case.nic.decision_latency_ns),
    _if("lost packets are sent again alone", lambda case: case.nic.recovery != "go-back-n"),
    _policy,
    _path_choice,
    _if("links fail", lambda case: case.trial.faults),
    _if("a cable has no delay", lambda case: any(not one.delay_ns for one in case.testbed.links)),
    _signals,
    _knobs,
)


def needs_kernel(trial: TrialSpec, testbed: Testbed, tuner: Tuner | None = None) -> str:
    """Return why a trial needs the kernel, as a clause; "" if it can run in the process.

    `tuner` is the one that decides, if that is not the trial's own.
    """
    controls = flow_controls(testbed, trial)
    nic = trial.host.roce or RoceSpec()
    case = _Case(trial, testbed, tuner or create(trial.tuner), nic, controls)
    return next(filter(None, (need(case) for need in _NEEDS)), "")


def chosen_engine(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    requested: str = "",
    tuner: Tuner | None = None,
) -> EngineChoice:
    """Return the engine in which all these trials run, and why; none for trials in real time.

    `requested` is the option --in, "" without it. Raises InputError for a name that no engine has,
    and for the process if a trial needs the kernel.
    """
    trials = list(trials)
    if requested:
        check_known(f"{_OPTION} {requested}", "no engine is called {!r}", [requested], ENGINES)
    real = any(trial.clock != _MODE.clock for trial in trials)
    if requested == KERNEL and not real:
        return EngineChoice(KERNEL, f"as {_OPTION} {KERNEL} says")
    reason = _reason(trials, testbeds, tuner)
    if not reason:
        return EngineChoice(PROCESS, _ROCE_ONLY)
    if requested == PROCESS:
        raise InputError.single(
            f"{_OPTION} {PROCESS}",
            f"these trials need the kernel: {reason}",
            f"leave it out, or use {_OPTION} {KERNEL}",
        )
    return ONE_ENGINE if real else EngineChoice(KERNEL, reason)


@cache
def packet_engine_version() -> str:
    """Return the version of this closloop's packet engine: a hash of its source."""
    return engine_source().hash()


def _reason(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed], tuner: Tuner | None
) -> str:
    """Return why the first trial that does needs the kernel, and which it is, unless all do."""
    judged = _judged(trials, testbeds, tuner)
    needed = [(cell, reason) for cell, reason in judged if reason]
    if not needed:
        return ""
    cell, reason = needed[0]
    every = all(other == reason for _, other in judged)
    return reason if every or not cell else f"{reason}, in cell {cell}"


def _judged(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed], tuner: Tuner | None
) -> list[tuple[str, str]]:
    """Return each cell in words, and why its trials need the kernel; repeats are judged once."""
    judged: dict[str, tuple[str, str]] = {}
    for trial in trials:
        cell = ", ".join(f"{name} {level}" for name, level in trial.cell.items())
        key = repr((cell or trial, trial.tuner.name, sorted(trial.tuner.params.items())))
        if key not in judged:
            judged[key] = cell, needs_kernel(trial, testbeds[trial.testbed], tuner)
    return list(judged.values())
