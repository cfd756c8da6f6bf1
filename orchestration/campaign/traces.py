"""Checks a campaign's recordings: flows and actions in files, a replay's parent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inventory.strictyaml import Loc, suggest
from orchestration.campaign.fields import resolve_file
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.repeats import Adaptive, max_repeats
from orchestration.core.pattern import REPEAT, Surroundings, of_repeat
from orchestration.core.problems import Problem
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar
from tuners import registry


def repeats_of(whole: Fields, tuner: str = "") -> tuple[int, ...]:
    """Return the repeats of a campaign, or with a tuner's label those of that tuner.

    A replay of trials has the repeats that its `parent` lists, up to the campaign's `repeats`.
    """
    count = max_repeats(whole.get("repeats") or 1)
    parent = whole.get("parent")
    if parent is None or not parent.trials:
        return tuple(range(1, count + 1))
    listed = {item.repeat for item in parent.trials if tuner in ("", item.tuner)}
    return tuple(sorted(repeat for repeat in listed if repeat <= count))


def surroundings(whole: Fields, testbed: Testbed | None, folder: str) -> Surroundings:
    """Return what a campaign has around its patterns; its paths start at `folder`."""

    def files(name: str) -> tuple[str, ...]:
        path = resolve_file(folder, name)
        return tuple(dict.fromkeys(of_repeat(path, repeat) for repeat in repeats_of(whole)))

    return Surroundings(testbed, whole.get("duration"), files, set())


def check_tuner(
    name: str,
    params: Mapping[str, Scalar],
    label: str,
    whole: Fields,
    testbed: Testbed | None,
) -> tuple[Problem, ...]:
    """Return the faults that `tuners.registry.check` finds, in the actions of every repeat."""
    actions = registry.actions_of(name, params)
    if not any(REPEAT in path for path in actions.values()):
        return registry.check(name, dict(params), testbed)
    found: dict[Problem, None] = {}
    for repeat in repeats_of(whole, label):
        own = {key: of_repeat(path, repeat) for key, path in actions.items()}
        found |= dict.fromkeys(registry.check(name, {**params, **own}, testbed))
    return tuple(found)


def check_parent(whole: Fields, labels: list[str]) -> Iterator[LocatedProblem]:
    """Yield the faults in the list of replayed trials."""
    parent = whole.get("parent")
    if parent is None or not parent.trials:
        return
    seen: set[tuple[str, int]] = set()
    for index, item in enumerate(parent.trials):
        loc: Loc = ("parent", "trials", index)
        if item.tuner not in labels:
            remedy = f"{suggest(item.tuner, labels)}its tuners are {', '.join(labels)}"
            yield LocatedProblem(
                (*loc, "tuner"), f"no tuner of the campaign is {item.tuner!r}", remedy
            )
        if (item.tuner, item.repeat) in seen:
            what = f"a second trial for {item.tuner!r} in repeat {item.repeat}"
            yield LocatedProblem(loc, what, "remove one of the two")
        seen.add((item.tuner, item.repeat))
    last = max(item.repeat for item in parent.trials)
    if isinstance(whole.get("repeats"), Adaptive):
        remedy = f"write how many of the parent's {last} repeats are replayed"
        yield LocatedProblem(("repeats",), "a replay repeats what was recorded, not more", remedy)
    elif (whole.get("repeats") or 1) > last:
        what = f"{whole['repeats']} repeats, and the parent's trials end with repeat {last}"
        yield LocatedProblem(("repeats",), what, f"use at most {last}, or list more trials")
    if not repeats_of(whole):
        first = min(item.repeat for item in parent.trials)
        what = f"no trial of the parent is within {whole['repeats']} repeats"
        yield LocatedProblem(("repeats",), what, f"use {first} or more")
