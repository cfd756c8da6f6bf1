"""What `closloop search` found, as a file, and campaigns that use it by reference.

    tuners:
      - {name: static, label: best-static, from: found/graphcc.yml}
      - {name: static, label: oracle, from: found/graphcc.yml, of: condition}

A reference becomes the tuner's plain parameters before the file is checked. So a trial is pure
data, and its id follows the numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ruamel.yaml import YAML

from inventory.strictyaml import Document, Loc, StrictModel, read
from orchestration.campaign.fields import resolve_file, resolve_path
from orchestration.core.condition import BEST_STATIC, ORACLE
from orchestration.core.errors import InputError, Problem
from orchestration.core.problems import Code
from orchestration.core.topology import Testbed

RESULT_FORMAT: Literal[1] = 1
# In a campaign file: where a setting comes from, and that it is the one of the trial's condition.
FROM, OF, CONDITION = "from", "of", "condition"

Value = bool | int | float | str
Params = dict[str, Value]
When = dict[str, Value]
_SEARCH, _FIND = "search again: closloop search", "find it: closloop search"


class ResultInterval(StrictModel):
    """A mean over verification seeds with its 95 % interval; the bounds are null if unknown."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether it is 0 at every seed."""
        return self.mean == (self.low or 0) == (self.high or 0) == 0


class ResultRank(StrictModel):
    """A setting that was verified. `behind` is its figure minus that of the best, in regret.

    `told_apart` says whether it differs from the best beyond chance, after Holm's correction.
    """

    setting: Params
    regret: float | None
    behind: ResultInterval | None = None
    told_apart: bool = False


class ResultCondition(StrictModel):
    """A condition: its oracle, the figure of that, and what the best single static loses to it."""

    when: When
    oracle: Params
    figure: ResultInterval
    headroom: ResultInterval
    ranking: tuple[ResultRank, ...]


class ResultGroup(StrictModel):
    """Conditions that share one best static setting: all of them, unless the search had `--by`."""

    when: When
    best_static: Params = Field(alias="best-static")
    headroom: ResultInterval
    ranking: tuple[ResultRank, ...]
    conditions: tuple[ResultCondition, ...]


class ResultCampaign(StrictModel):
    """The campaign that was searched: its name, its file, and the file's SHA-256."""

    name: str
    file: str
    sha256: str


class ResultSeeds(StrictModel):
    """The campaign's seed, and how many of the two streams that come from it were used."""

    campaign: int
    search: int
    verification: int


class SearchResult(StrictModel):
    """The file. `testbeds` are digests by name; `ranges` where the search ended up looking."""

    found: Literal[1]
    closloop: str
    campaign: ResultCampaign
    backend: str
    tuner: str
    metric: str
    seeds: ResultSeeds
    effort: dict[str, int]
    trials: int
    testbeds: dict[str, str]
    ranges: dict[str, tuple[Value, ...]]
    notes: tuple[str, ...] = ()
    groups: tuple[ResultGroup, ...]


def search_result_yaml(found: SearchResult) -> str:
    """Return what was found as YAML, which `read_search_result` reads."""
    head = [
        "# Written by closloop search: the best static settings of a campaign. Campaigns use it by",
        f"#   {{name: {found.tuner}, label: best-static, from: THIS FILE}}",
        f"#   {{name: {found.tuner}, label: oracle, from: THIS FILE, of: condition}}",
        "# Regrets are shares: 0.05 is 5 % worse than the best. docs/search.md says what it means.",
    ]
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # only what holds nothing nested is on one line
    yaml.sort_base_mapping_type_on_output, yaml.width = False, 10_000
    text = StringIO()
    yaml.dump(found.model_dump(mode="json", by_alias=True), text)
    return "\n".join([*head, text.getvalue()])


def fabric_digest(testbed: Testbed) -> str:
    """Return a digest of what thresholds depend on: links with rates and delays, buffers, MTU."""
    names = testbed.ports
    links = [
        (names[link.a].device, names[link.b].device, link.rate_bps, link.delay_ns)
        for link in testbed.links
    ]
    buffers = [port.buffer_bytes for port in testbed.ports]
    text = json.dumps([testbed.name, testbed.mtu_bytes, links, buffers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_search_result(path: str | Path) -> SearchResult:
    """Return what a search found. Raises InputError if the file is missing or not one of these."""
    name = str(path)
    if not Path(path).is_file():
        raise InputError.single(name, "no such file", f"{_FIND} CAMPAIGN -o {name}")
    document = read(path)
    written = document.data.get("found")
    if written != RESULT_FORMAT:
        what = "is no file of closloop search" if written is None else f"has format {written!r}"
        what = f"{what}; this reads format {RESULT_FORMAT}"
        raise InputError.single(name, what, f"{_SEARCH} CAMPAIGN")
    found, problems = document.check(SearchResult)
    if found is None or problems:
        first = problems[0]
        what = f"is damaged: {first.what}"
        raise InputError.single(
            first.where, what, f"{_SEARCH} CAMPAIGN -o {name}", Code.DAMAGED_FILE
        )
    return found


@lru_cache(maxsize=16)
def _cached(path: str, changed_ns: int) -> SearchResult:
    return read_search_result(path)


def resolve_references(
    document: Document, labels: Mapping[str, Any], load: Callable[[str], Testbed]
) -> tuple[Document, list[Problem]]:
    """Return the file of a cell with every reference replaced by parameters, and the problems.

    `labels` are the levels of the cell's factors; `load` returns a testbed. A reference that cannot
    be resolved becomes a tuner without parameters, so that only its own problem is reported.
    """
    tuners = document.data.get("tuners")
    if not isinstance(tuners, list):
        return document, []
    resolved: list[Any] = list(tuners)
    problems: list[Problem] = []
    for index, entry in enumerate(tuners):
        if not isinstance(entry, dict) or FROM not in entry:
            continue
        label = entry.get("label") or (ORACLE if OF in entry else BEST_STATIC)
        try:
            params = _params(document, index, entry, labels, load)
            resolved[index] = {"name": entry.get("name"), "label": label, **params}
        except InputError as error:
            problems += error.problems
            resolved[index] = {"name": "secn1", "label": label}
    return replace(document, data={**document.data, "tuners": resolved}), problems


def _params(
    document: Document,
    index: int,
    entry: Mapping[str, Any],
    labels: Mapping[str, Any],
    load: Callable[[str], Testbed],
) -> Params:
    loc: Loc = ("tuners", index)
    folder = os.path.dirname(document.name)
    extra = sorted(set(entry) - {"name", "label", FROM, OF})
    if extra:
        what = f"a tuner with {FROM!r} has parameters of its own: {', '.join(extra)}"
        raise InputError([document.problem(loc, what, "keep the one or the other")])
    if entry.get(OF, CONDITION) != CONDITION:
        what = f"{OF!r} is {entry[OF]!r}"
        remedy = f"write {OF}: {CONDITION}, or leave it out for the best single setting"
        raise InputError([document.problem((*loc, OF), what, remedy)])
    name = entry[FROM]
    if not isinstance(name, str):
        what = f"{FROM!r} is {name!r}, not a file"
        raise InputError([document.problem((*loc, FROM), what, "name what closloop search wrote")])
    found = _read(document, (*loc, FROM), resolve_file(folder, name))
    if entry.get("name") != found.tuner:
        what = f"{name} has settings of tuner {found.tuner!r}, not of {entry.get('name')!r}"
        raise InputError([document.problem(loc, what, f"write name: {found.tuner}")])
    _check_testbed(document, (*loc, FROM), name, found, load)
    if OF in entry:
        conditions = [one for group in found.groups for one in group.conditions]
        chosen = [one.oracle for one in conditions if _fits(labels, one.when)]
        known = [one.when for one in conditions]
    else:
        chosen = [one.best_static for one in found.groups if _fits(labels, one.when)]
        known = [one.when for one in found.groups]
    if len(chosen) != 1:
        what = f"{name} has no setting for {_text(labels)}"
        remedy = f"it has {'; '.join(map(_text, known))}. {_SEARCH} {document.name}"
        raise InputError([document.problem((*loc, FROM), what, remedy)])
    return chosen[0]


def _read(document: Document, loc: Loc, path: str) -> SearchResult:
    if not os.path.isfile(path):
        remedy = f"{_FIND} {document.name} -o {path}"
        raise InputError([document.problem(loc, f"there is no {path}", remedy)])
    try:
        return _cached(path, os.stat(path).st_mtime_ns)
    except InputError as error:
        raise InputError(document.at(loc, fault) for fault in error.problems) from error


def _check_testbed(
    document: Document, loc: Loc, name: str, found: SearchResult, load: Callable[[str], Testbed]
) -> None:
    wanted = document.data.get("testbed")
    if not isinstance(wanted, str):
        return
    try:
        testbed = load(resolve_path(os.path.dirname(document.name), wanted))
    except InputError:
        return  # reported where the testbed is named
    digest = fabric_digest(testbed)
    if digest in found.testbeds.values():
        return
    same = testbed.name in found.testbeds
    what = (
        f"{name} was found on a testbed {testbed.name} that has changed since"
        if same
        else f"{name} was found on {', '.join(found.testbeds)}, not on {testbed.name}"
    )
    raise InputError([document.problem(loc, what, f"{_SEARCH} {document.name}")])


def _fits(labels: Mapping[str, Any], when: When) -> bool:
    return all(name in labels and labels[name] == level for name, level in when.items())


def _text(when: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {level}" for name, level in when.items()) or "every condition"
