"""Checks that a campaign fits its backend, before anything runs (`closloop plan` uses it too)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from inventory.topology import Testbed
from orchestration.model.errors import InputError, Problem
from orchestration.model.ports import Offer
from orchestration.model.trial import TrialSpec
from tuners.registry import create


def check_fit(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    offer: Callable[[Testbed], Offer],
) -> None:
    """Raise InputError if a tuner needs a signal, knob or program that the backend lacks.

    `testbeds` are the trials' testbeds, by name; `offer` is the backend's.
    """
    problems: dict[Problem, None] = {}
    seen: set[tuple[str, str, str]] = set()
    for trial in trials:
        key = (trial.testbed, trial.tuner.name, repr(sorted(trial.tuner.params.items())))
        if key in seen:
            continue
        seen.add(key)
        offered = offer(testbeds[trial.testbed])
        for lack in offered.lacks(create(trial.tuner)):
            what = f"tuner {trial.tuner.name!r} needs the {lack}, which {trial.backend} lacks"
            kind = lack.partition(" ")[0]
            have = getattr(offered, f"{kind}s")
            remedy = f"its {kind}s are {', '.join(have) or 'none'}; run another tuner there"
            problems[Problem(trial.campaign, what, remedy)] = None
    if problems:
        raise InputError(list(problems))
