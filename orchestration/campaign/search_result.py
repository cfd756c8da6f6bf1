"""Search results: the files that `closloop search` writes, and campaigns that refer to them.

    tuners:
      - {name: static, label: best-static, from: search-results/graphcc.yml}
      - {name: static, label: oracle, from: search-results/graphcc.yml, of: condition}

A reference is replaced by the tuner's plain parameters before the campaign is checked. A trial thus
has numbers and no reference, and its id depends on these numbers only.
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
from orchestration.campaign.fields import resolve_file, testbed_name
from orchestration.core.condition import BEST_STATIC, ORACLE
from orchestration.core.errors import InputError, Problem
from orchestration.core.problems import Code
from orchestration.core.topology import Testbed

RESULT_FORMAT: Literal[1] = 1
# Where `closloop search` puts its results, beside the campaign; up to 0.2 it was the other folder.
RESULTS_FOLDER, _FORMER_FOLDER = "search-results", "found"
# In a campaign file: `from: FILE` names a search result; with `of: condition` a trial gets the
# best setting of its own condition, and not the one that is best over all conditions.
FROM, OF, CONDITION = "from", "of", "condition"

Value = bool | int | float | str
Params = dict[str, Value]
When = dict[str, Value]
_SEARCH, _FIND = "search again: closloop search", "find it: closloop search"


class ResultInterval(StrictModel):
    """A mean over verification seeds with its 95 % interval; unknown bounds are null."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether the value is 0 at every seed."""
        return self.mean == (self.low or 0) == (self.high or 0) == 0


class ResultRank(StrictModel):
    """A setting that was verified at fresh seeds, as compared with the best one.

    `behind` is its regret minus that of the best setting. `differs` says whether this difference is
    significant (paired t-test with Holm's correction).
    """

    setting: Params
    regret: float | None
    behind: ResultInterval | None = None
    differs: bool = Field(default=False, alias="told_apart")


class ResultCondition(StrictModel):
    """A condition (levels of factors), its best static setting, and that setting's metric.

    `headroom` is how much the best single setting for all conditions loses to this one.
    """

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
    """The campaign's seed, and how many seeds of the search's two random streams were used."""

    campaign: int
    search: int
    verification: int


class SearchResult(StrictModel):
    """A search result as it is in its file.

    `testbeds` has `fabric_digest` by testbed name, `ranges` the final range of each parameter.
    """

    format: Literal[1] = Field(alias="found")
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


def search_result_yaml(result: SearchResult) -> str:
    """Return a search result as YAML, which `read_search_result` reads."""
    head = [
        "# Written by closloop search: the best static settings of a campaign. Campaigns use it by",
        f"#   {{name: {result.tuner}, label: best-static, from: THIS FILE}}",
        f"#   {{name: {result.tuner}, label: oracle, from: THIS FILE, of: condition}}",
        "# Regrets are shares: 0.05 is 5 % worse than the best. docs/search.md says what it means.",
    ]
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # lists and mappings without nested ones are on one line
    yaml.sort_base_mapping_type_on_output, yaml.width = False, 10_000
    text = StringIO()
    yaml.dump(result.model_dump(mode="json", by_alias=True), text)
    return "\n".join([*head, text.getvalue()])


def fabric_digest(testbed: Testbed) -> str:
    """Return a digest of what good thresholds depend on: link rates and delays, buffers, MTU.

    A search result is refused for a testbed with another digest. 16 hexadecimal digits.
    """
    names = testbed.ports
    links = [
        (names[link.a].device, names[link.b].device, link.rate_bps, link.delay_ns)
        for link in testbed.links
    ]
    buffers = [port.buffer_bytes for port in testbed.ports]
    text = json.dumps([testbed.name, testbed.mtu_bytes, links, buffers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_search_result(path: str | Path) -> SearchResult:
    """Return the search result in a file.

    Raises InputError if the file is missing, damaged, or no search result of this format.
    """
    name = str(path)
    if not Path(path).is_file():
        raise InputError.single(name, "no such file", f"{_FIND} CAMPAIGN -o {name}")
    document = read(path)
    written = document.data.get("found")
    if written != RESULT_FORMAT:
        what = "is no search result" if written is None else f"has format {written!r}"
        what = f"{what}; this closloop reads format {RESULT_FORMAT}"
        raise InputError.single(name, what, f"{_SEARCH} CAMPAIGN")
    result, problems = document.check(SearchResult)
    if result is None or problems:
        first = problems[0]
        what = f"is damaged: {first.what}"
        raise InputError.single(
            first.where, what, f"{_SEARCH} CAMPAIGN -o {name}", Code.DAMAGED_FILE
        )
    return result


@lru_cache(maxsize=16)
def _cached(path: str, changed_ns: int) -> SearchResult:
    return read_search_result(path)


def resolve_references(
    document: Document, labels: Mapping[str, Any], load: Callable[[str], Testbed]
) -> tuple[Document, list[Problem]]:
    """Return a cell's campaign document with references replaced by parameters, and the problems.

    `labels` are the levels of the cell's factors; `load` returns a testbed by its name or path. A
    reference that cannot be resolved becomes a tuner without parameters, so that no problems are
    reported that only follow from the first.
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
        remedy = "write the path of a file that closloop search wrote"
        raise InputError([document.problem((*loc, FROM), what, remedy)])
    result = _read(document, (*loc, FROM), _result_file(folder, name))
    if entry.get("name") != result.tuner:
        what = f"{name} has settings of tuner {result.tuner!r}, not of {entry.get('name')!r}"
        raise InputError([document.problem(loc, what, f"write name: {result.tuner}")])
    _check_testbed(document, (*loc, FROM), name, result, load)
    if OF in entry:
        conditions = [item for group in result.groups for item in group.conditions]
        settings = [item.oracle for item in conditions if _fits(labels, item.when)]
        known = [item.when for item in conditions]
    else:
        settings = [group.best_static for group in result.groups if _fits(labels, group.when)]
        known = [group.when for group in result.groups]
    if len(settings) != 1:
        what = f"{name} has no setting for {_text(labels)}"
        remedy = f"it has {'; '.join(map(_text, known))}. {_SEARCH} {document.name}"
        raise InputError([document.problem((*loc, FROM), what, remedy)])
    return settings[0]


def _result_file(folder: str, name: str) -> str:
    """Return the path of a search result that a campaign in `folder` names.

    A campaign of 0.2 names it `found/x.yml`; if there is none, `search-results/x.yml` is taken.
    """
    path = resolve_file(folder, name)
    inside, file = os.path.split(path)
    if os.path.basename(inside) == _FORMER_FOLDER and not os.path.isfile(path):
        moved = os.path.join(os.path.dirname(inside), RESULTS_FOLDER, file)
        return moved if os.path.isfile(moved) else path
    return path


def _read(document: Document, loc: Loc, path: str) -> SearchResult:
    if not os.path.isfile(path):
        remedy = f"{_FIND} {document.name} -o {path}"
        raise InputError([document.problem(loc, f"there is no {path}", remedy)])
    try:
        return _cached(path, os.stat(path).st_mtime_ns)
    except InputError as error:
        raise InputError(document.at(loc, problem) for problem in error.problems) from error


def _check_testbed(
    document: Document, loc: Loc, name: str, result: SearchResult, load: Callable[[str], Testbed]
) -> None:
    """Raise InputError if the campaign's testbed is not one that was searched on."""
    named = testbed_name(os.path.dirname(document.name), document.data.get("testbed"))
    try:
        testbed = load(named)
    except InputError:
        return  # reported where the testbed is named
    if fabric_digest(testbed) in result.testbeds.values():
        return
    what = f"{name} was searched on {', '.join(result.testbeds)}, not on {testbed.name}"
    if testbed.name in result.testbeds:
        what = f"testbed {testbed.name} has changed since {name} was searched on it"
    raise InputError([document.problem(loc, what, f"{_SEARCH} {document.name}")])


def _fits(labels: Mapping[str, Any], when: When) -> bool:
    return all(name in labels and labels[name] == level for name, level in when.items())


def _text(when: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {level}" for name, level in when.items()) or "every condition"
