"""Checks a campaign's recordings: flows and actions in files, a replay's parent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inventory.strictyaml import Loc, suggest
from orchestration.campaign.fields import file_beside
from orchestration.campaign.finding import Fields, Finding
from orchestration.campaign.repeats import Adaptive, most_repeats
from orchestration.core.errors import InputError
from orchestration.core.problems import Problem
from orchestration.core.topology import Testbed
from orchestration.core.trial import REPEAT, Scalar, of_repeat
from traffic.flow_file import host_numbers, read_flows
from tuners import registry


def repeats_of(whole: Fields, tuner: str = "") -> tuple[int, ...]:
    """Return the repeats of a campaign, or with a tuner's label those of that tuner.

    A replay of trials has the repeats that its `parent` lists, up to the campaign's `repeats`.
    """
    count = most_repeats(whole.get("repeats") or 1)
    parent = whole.get("parent")
    if parent is None or not parent.trials:
        return tuple(range(1, count + 1))
    listed = {item.repeat for item in parent.trials if tuner in ("", item.tuner)}
    return tuple(sorted(repeat for repeat in listed if repeat <= count))


def check_flows(
    loc: Loc,
    pattern: Fields,
    whole: Fields,
    testbed: Testbed | None,
    folder: str,
    told: set[str],
) -> Iterator[Finding]:
    """Yield the faults of a pattern's recorded flows: the first fault of each file.

    `told` has the files whose faults were reported, and is extended: patterns share files.
    """
    if "file" not in pattern:
        return
    name = file_beside(folder, pattern["file"])
    known: dict[str, None] = {}
    faulty = False
    for path in _files(name, repeats_of(whole)):
        try:
            flows = read_flows(path)
            known |= dict.fromkeys(flows.klass.names)
            if testbed is not None:
                host_numbers(flows, testbed)
        except InputError as error:
            faulty = True
            for item in error.problems if path not in told else ():
                yield Finding.of((*loc, "file"), item)
            told.add(path)
    wanted = pattern.get("recorded_class")
    if wanted and wanted not in known and not faulty:
        remedy = f"{suggest(wanted, known)}it has {', '.join(known) or 'no flows at all'}"
        yield Finding(
            (*loc, "class"), f"{pattern['file']} has no flows of class {wanted!r}", remedy
        )


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


def check_parent(whole: Fields, labels: list[str]) -> Iterator[Finding]:
    """Yield the faults in the list of replayed trials."""
    parent = whole.get("parent")
    if parent is None or not parent.trials:
        return
    seen: set[tuple[str, int]] = set()
    for index, item in enumerate(parent.trials):
        loc: Loc = ("parent", "trials", index)
        if item.tuner not in labels:
            remedy = f"{suggest(item.tuner, labels)}its tuners are {', '.join(labels)}"
            yield Finding((*loc, "tuner"), f"no tuner of the campaign is {item.tuner!r}", remedy)
        if (item.tuner, item.repeat) in seen:
            what = f"a second trial for {item.tuner!r} in repeat {item.repeat}"
            yield Finding(loc, what, "remove one of the two")
        seen.add((item.tuner, item.repeat))
    last = max(item.repeat for item in parent.trials)
    if isinstance(whole.get("repeats"), Adaptive):
        remedy = f"write how many of the parent's {last} repeats are replayed"
        yield Finding(("repeats",), "a replay repeats what was recorded, not more", remedy)
    elif (whole.get("repeats") or 1) > last:
        what = f"{whole['repeats']} repeats, and the parent's trials end with repeat {last}"
        yield Finding(("repeats",), what, f"use at most {last}, or list more trials")
    if not repeats_of(whole):
        first = min(item.repeat for item in parent.trials)
        what = f"no trial of the parent is within {whole['repeats']} repeats"
        yield Finding(("repeats",), what, f"use {first} or more")


def _files(name: str, repeats: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(of_repeat(name, repeat) for repeat in repeats))
