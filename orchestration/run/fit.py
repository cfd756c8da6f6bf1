"""Checks that a campaign fits its backend, before anything runs (`closloop plan` uses it too)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from orchestration.core.capabilities import Mode, capabilities, mode_of
from orchestration.core.errors import Problem, raise_any
from orchestration.core.knobs import KNOBS
from orchestration.core.load_balancing import ECMP
from orchestration.core.signals import BY_KEY, Need
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from tuners.registry import create

# What a signal needs and a trial has not, in words, and what to do about it.
_LACKING: Mapping[Need, tuple[str, str]] = {
    "roce": (
        "the hosts are under {control}, with no RoCE NICs that measure it",
        "add `host: {{congestion_control: dcqcn}}`",
    ),
    "load-balancing": (
        "the load balancing is {balancing}, which has none",
        "add `load_balancing: flowlets`",
    ),
    "shared-buffer": (
        "the switches of testbed {testbed} have no shared buffer",
        "add 'switch' to the testbed",
    ),
    "pfc": ("testbed {testbed} has no lossless class", "add 'pfc' to the testbed's switch"),
}


def check_fit(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    where: Callable[[TrialSpec], str] = lambda trial: trial.campaign,
) -> None:
    """Raise InputError if a tuner needs a signal, knob or program that a trial cannot have.

    Its backend lacks it, with the trial's fabric and clock; or the trial lacks what it needs: RoCE
    NICs, a congestion control, switches that choose paths or share a buffer. `testbeds` are the
    trials' testbeds, by name; `where` names the place of a trial's tuner.
    """
    problems: dict[Problem, None] = {}
    seen: set[str] = set()
    for trial in trials:
        mode = mode_of(trial)
        control = trial.host if trial.host.roce is None else trial.host.roce.control
        of_tuner = trial.tuner.name, sorted(trial.tuner.params.items())
        key = repr((trial.testbed, of_tuner, control, trial.load_balancing.kind, mode))
        if key in seen:
            continue
        seen.add(key)
        for what, remedy in _problems(trial, testbeds[trial.testbed], mode):
            said = f"tuner {trial.tuner.name!r} {what}"
            problems[Problem(where(trial), said, f"{remedy}, or run another tuner")] = None
    raise_any(problems)


def _problems(trial: TrialSpec, testbed: Testbed, mode: Mode) -> Iterator[tuple[str, str]]:
    """Yield what a trial's tuner needs and lacks, and what to do about it."""
    tuner, backend = create(trial.tuner), capabilities(trial.backend)
    lacks = mode.lacks(tuner)
    for kind, name in lacks:
        has = partial(_offers, kind=kind, name=name)
        have = ", ".join(getattr(mode, f"{kind}s")) or "none"
        remedy = backend.alternative(mode, has) or f"its {kind}s are {have}: give up {name!r}"
        yield f"needs the {kind} {name!r}, which {backend.in_words(mode)} lacks", remedy
    control, balancing = trial.host.congestion_control, trial.load_balancing.kind
    if trial.host.roce is not None:
        control = trial.host.roce.control
    for knob in (KNOBS[name] for name in tuner.knobs if name in KNOBS and not lacks):
        if knob.control and knob.control != control:
            yield (
                f"turns the {knob.plural} of {knob.control}, and the hosts are under {control}",
                f"add `host: {{congestion_control: {knob.control}}}`",
            )
        if knob.load_balancing and knob.load_balancing != balancing:
            yield (
                f"turns the {knob.plural} of {knob.load_balancing}, and the load balancing is "
                f"{balancing}",
                f"add `load_balancing: {knob.load_balancing}`",
            )
    has_need: Mapping[Need, bool] = {
        "roce": trial.host.roce is not None,
        "load-balancing": trial.load_balancing != ECMP,
        "shared-buffer": testbed.switch is not None,
        "pfc": bool(testbed.lossless_queues),
    }
    told: set[Need] = {""}
    for name in tuner.observes if not lacks else ():
        need = BY_KEY[name].needs
        if need not in told and not has_need[need]:
            told.add(need)
            words = {"control": control, "balancing": balancing, "testbed": testbed.name}
            why, remedy = (text.format(**words) for text in _LACKING[need])
            yield f"observes {name!r}, and {why}", remedy


def _offers(mode: Mode, *, kind: str, name: str) -> bool:
    return name in getattr(mode, f"{kind}s")
