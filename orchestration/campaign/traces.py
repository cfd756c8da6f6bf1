"""Checks of a campaign's traces: flows and actions in files, and a replay's parent.

A trace is a recording that can be played again. A *replay* repeats the trials of an earlier run,
its *parent*, with their recorded flows or actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inventory.strictyaml import Loc, suggest
from orchestration.campaign.fields import resolve_file
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.repeats import Adaptive, max_repeats
from orchestration.core.pattern import REPEAT, CampaignContext, of_repeat
from orchestration.core.problems import Problem
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar
from tuners import registry


def repeats_of(campaign: Fields, tuner: str = "") -> tuple[int, ...]:
    """Return the numbers of a campaign's repeats; with a tuner's label, of that tuner's.

    A replay has the repeats that its `parent` lists, up to the campaign's `repeats`.
    """
    count = max_repeats(campaign.get("repeats") or 1)
    parent = campaign.get("parent")
    if parent is None or not parent.trials:
        return tuple(range(1, count + 1))
    listed = {item.repeat for item in parent.trials if tuner in ("", item.tuner)}
    return tuple(sorted(repeat for repeat in listed if repeat <= count))


def surroundings(campaign: Fields, testbed: Testbed | None, folder: str) -> CampaignContext:
    """Return what patterns are checked against: the testbed, the duration, and files of traces.

    The campaign's relative paths start at `folder`.
    """

    def files(name: str) -> tuple[str, ...]:
        path = resolve_file(folder, name)
        return tuple(dict.fromkeys(of_repeat(path, repeat) for repeat in repeats_of(campaign)))

    return CampaignContext(testbed, campaign.get("duration"), files, set())


def check_tuner(
    name: str,
    params: Mapping[str, Scalar],
    label: str,
    campaign: Fields,
    testbed: Testbed | None,
) -> tuple[Problem, ...]:
    """Return the problems that `tuners.registry.check` finds, with the actions of every repeat."""
    actions = registry.recording_paths(name, params)
    if not any(REPEAT in path for path in actions.values()):
        return registry.check(name, dict(params), testbed)
    problems: dict[Problem, None] = {}
    for repeat in repeats_of(campaign, label):
        own = {key: of_repeat(path, repeat) for key, path in actions.items()}
        problems |= dict.fromkeys(registry.check(name, {**params, **own}, testbed))
    return tuple(problems)


def check_parent(campaign: Fields, labels: list[str]) -> Iterator[LocatedProblem]:
    """Yield the problems in the list of trials that a campaign replays."""
    parent = campaign.get("parent")
    if parent is None or not parent.trials:
        return
    declared = campaign.get("arms")
    arms = list(map(str, declared)) if isinstance(declared, dict) and declared else [""]
    seen: set[tuple[str, int, str]] = set()
    for index, item in enumerate(parent.trials):
        loc: Loc = ("parent", "trials", index)
        if item.tuner not in labels:
            remedy = f"{suggest(item.tuner, labels)}its tuners are {', '.join(labels)}"
            yield LocatedProblem(
                (*loc, "tuner"), f"no tuner of the campaign is called {item.tuner!r}", remedy
            )
        if item.arm not in arms:
            what, remedy = (
                f"no arm {item.arm!r} in this campaign",
                f"its arms are {', '.join(arms)}",
            )
            yield LocatedProblem((*loc, "arm"), what, remedy if any(arms) else "leave 'arm' out")
        if (item.tuner, item.repeat, item.arm) in seen:
            what = f"a second trial for {item.tuner!r} in repeat {item.repeat}"
            yield LocatedProblem(loc, what, "remove one of the two")
        seen.add((item.tuner, item.repeat, item.arm))
    last = max(item.repeat for item in parent.trials)
    if isinstance(campaign.get("repeats"), Adaptive):
        remedy = f"write how many of the parent's {last} repeats are replayed"
        what = "a replay cannot have adaptive repeats: it has only what was recorded"
        yield LocatedProblem(("repeats",), what, remedy)
    elif (campaign.get("repeats") or 1) > last:
        what = f"{campaign['repeats']} repeats, and the parent's trials end with repeat {last}"
        yield LocatedProblem(("repeats",), what, f"use at most {last}, or list more trials")
    if not repeats_of(campaign):
        first = min(item.repeat for item in parent.trials)
        what = f"no trial of the parent is within {campaign['repeats']} repeats"
        yield LocatedProblem(("repeats",), what, f"use {first} or more")
