"""Checks that a campaign fits its backend, before anything runs (`closloop plan` uses it too)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from inventory.topology import Testbed
from orchestration.model.errors import InputError, Problem
from orchestration.model.knobs import KNOBS
from orchestration.model.load_balancing import ECMP
from orchestration.model.ports import Offer
from orchestration.model.signals import BALANCING_KEYS, PAIRS
from orchestration.model.trial import TrialSpec
from tuners.registry import create


def check_fit(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    offer: Callable[[Testbed], Offer],
    where: Callable[[TrialSpec], str] = lambda trial: trial.campaign,
) -> None:
    """Raise InputError if a tuner needs a signal, knob or program that the backend lacks.

    Likewise if it needs a knob that is of another congestion control than the hosts' NICs have, or
    knobs or signals of switches that choose paths where they do not. `testbeds` are the trials'
    testbeds, by name; `offer` is the backend's; `where` names the place of a trial's tuner.
    """
    problems: dict[Problem, None] = {}
    seen: set[tuple[str, ...]] = set()
    for trial in trials:
        roce = trial.host.roce
        control = trial.host.congestion_control if roce is None else roce.control
        params = repr(sorted(trial.tuner.params.items()))
        balancing = trial.load_balancing.kind
        key = (trial.testbed, trial.tuner.name, params, control, balancing, trial.fabric.kind)
        if key in seen:
            continue
        seen.add(key)
        offered, tuner = offer(testbeds[trial.testbed]), create(trial.tuner)
        lacks = offered.lacks(tuner)
        for lack in lacks:
            what = f"tuner {trial.tuner.name!r} needs the {lack}, which {trial.backend} lacks"
            kind = lack.partition(" ")[0]
            have = getattr(offered, f"{kind}s")
            remedy = f"its {kind}s are {', '.join(have) or 'none'}; run another tuner there"
            problems[Problem(where(trial), what, remedy)] = None
        for knob in (KNOBS[name] for name in tuner.knobs if name in KNOBS and not lacks):
            if knob.control and knob.control != control:
                what = (
                    f"tuner {trial.tuner.name!r} turns the {knob.plural} of {knob.control}, "
                    f"and the hosts are under {control}"
                )
                remedy = f"add `host: {{congestion_control: {knob.control}}}`, or run another tuner"
                problems[Problem(where(trial), what, remedy)] = None
            if knob.load_balancing and knob.load_balancing != balancing:
                what = (
                    f"tuner {trial.tuner.name!r} turns the {knob.plural} of {knob.load_balancing}, "
                    f"and the load balancing is {balancing}"
                )
                remedy = f"add `load_balancing: {knob.load_balancing}`, or run another tuner"
                problems[Problem(where(trial), what, remedy)] = None
        seen_of_paths = [name for name in tuner.observes if name in BALANCING_KEYS]
        if balancing == ECMP.kind and seen_of_paths and not lacks:
            what = (
                f"tuner {trial.tuner.name!r} observes {seen_of_paths[0]!r}, and the load balancing "
                f"is {balancing}, which has none"
            )
            remedy = "add `load_balancing: flowlets`, or run another tuner"
            problems[Problem(where(trial), what, remedy)] = None
        on_linux = trial.backend == "emulated" and trial.fabric.kind == "linux"
        if PAIRS in tuner.observes and on_linux:
            what = f"tuner {trial.tuner.name!r} observes {PAIRS!r}, which `fabric: linux` lacks"
            problems[Problem(where(trial), what, "use `fabric: closloop`")] = None
    if problems:
        raise InputError(list(problems))
