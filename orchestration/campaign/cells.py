"""The cells of a campaign file: each combination of its factors' levels, checked.

The DCQCN set `hpcc` of closloop 0.2 had other parameters than that of today. The campaign file in a
run folder of 0.2 is therefore read with the set's present name, `hpcc-0.2`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import get_args

from inventory.files import load_testbed, load_variant
from inventory.strictyaml import Document, in_order, read, without_nones
from orchestration.campaign import checks, limits, schema, search_result
from orchestration.campaign.factors import Factors, read_factors, substitute_levels
from orchestration.campaign.field_settings import Level
from orchestration.campaign.fields import testbed_name
from orchestration.campaign.patterns import pattern_spec
from orchestration.campaign.schema import CampaignFile
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.pattern import PatternSpec
from orchestration.core.problems import of_value
from orchestration.core.roce import FORMER_HPCC, HPCC, is_former_hpcc
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar


def with_former_sets(files: Sequence[CampaignFile], path: str | Path) -> list[CampaignFile]:
    """Return a campaign file's cells with the DCQCN set that it meant when its trials ran.

    If some trials beside the file have the parameters that 0.2 called `hpcc`, and the file does not
    mention their present name, then `hpcc` in the file means that set.
    """
    named = [file.host.roce.dcqcn.set for file in files]
    if HPCC not in named or FORMER_HPCC in named or not _has_former(Path(path).parent):
        return list(files)
    return [
        _renamed(file) if name == HPCC else file for file, name in zip(files, named, strict=True)
    ]


def has_old_hpcc(trial: Path) -> bool:
    """Return whether a finished trial ran under the parameters that 0.2 called `hpcc`."""
    from orchestration.results.reader import read_trial  # it imports pyarrow

    try:
        roce = read_trial(trial).spec.host.roce
    except InputError:
        return False
    return roce is not None and is_former_hpcc(roce.parameters)


def _has_former(folder: Path) -> bool:
    from orchestration.results.reader import finished_trials

    return any(has_old_hpcc(trial) for trial in finished_trials(folder))


def _renamed(file: CampaignFile) -> CampaignFile:
    dcqcn = file.host.roce.dcqcn.model_copy(update={"set": FORMER_HPCC})
    roce = file.host.roce.model_copy(update={"dcqcn": dcqcn})
    host = file.host.model_copy(update={"roce": roce})
    return file.model_copy(update={"host": host})


@dataclass(frozen=True)
class Cell:
    """One combination of the factors' levels: their labels, and the campaign with these levels.

    Relative paths start in `folder`. `tuner_locations` has the `file:line` of each tuner by its
    label; `too_large` has the problems of trials that exceed a limit.
    """

    labels: dict[str, Scalar]
    file: schema.CampaignFile
    folder: str
    testbed: Testbed
    tuner_locations: Mapping[str, str]
    too_large: tuple[Problem, ...] = ()

    @cached_property
    def testbed_name(self) -> str:
        """The testbed's name or path, as trials have it."""
        return testbed_name(self.folder, self.file.testbed.fields)

    @cached_property
    def patterns(self) -> tuple[PatternSpec, ...]:
        """The traffic patterns of its trials."""
        items, duration_ns = self.file.traffic, self.file.duration
        return tuple(pattern_spec(item, duration_ns, self.folder) for item in items)


def read_cells(
    path: str | Path,
    *,
    backend: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
    tuners: Sequence[Mapping[str, Scalar]] | None = None,
) -> list[Cell]:
    """Return the checked cells of a campaign file; the other arguments override its fields.

    With other `tuners` than the file's, factors that only the file's tuners use are left out.
    Raises InputError as `load_campaign` does.
    """
    document = with_overrides(read(path), backend, clock, repeats)
    factors = read_factors(document)
    trials = limits.count_trials(document, factors, None if tuners is None else len(tuners))
    if too_many := limits.count_problem(document, factors, trials):
        raise InputError(in_order([*factors.problems, too_many]))
    cells, problems = check_cells(document, factors, factors.combinations(), tuners)
    problems += [problem for cell in cells for problem in cell.too_large]
    if problems:
        raise InputError(in_order(problems))
    files = with_former_sets([cell.file for cell in cells], path)
    return [replace(cell, file=file) for cell, file in zip(cells, files, strict=True)]


def check_cells(
    document: Document,
    factors: Factors,
    combinations: Iterable[Mapping[str, Level]],
    tuners: Sequence[Mapping[str, Scalar]] | None = None,
) -> tuple[list[Cell], list[Problem]]:
    """Return the cells of some combinations of a file's factors, and the file's problems.

    Problems of size are not among these but in each cell's `too_large`.
    """
    used = set(factors.levels) if tuners is None else factors.used_outside("tuners")
    problems = list(factors.problems)
    cells: list[Cell] = []
    seen: set[tuple[Scalar, ...]] = set()
    load = cache(load_testbed)
    folder = os.path.dirname(document.name)
    for chosen in combinations:
        labels = {name: level.label for name, level in chosen.items() if name in used}
        if tuple(labels.values()) in seen:
            continue
        seen.add(tuple(labels.values()))
        resolved = substitute_levels(document, factors, chosen)
        if tuners is not None:
            others = {"tuners": [dict(tuner) for tuner in tuners]}
            resolved = replace(resolved, data={**resolved.data, **others})
        resolved, unresolved = search_result.resolve_references(resolved, labels, load)
        problems += unresolved
        model = schema.campaign_file(resolved.data, folder)
        resolved = replace(resolved, data=without_nones(resolved.data, model))
        file, of_cell = resolved.check(model)
        of_cell += _semantic_problems(resolved, load)
        problems += [problem for problem in of_cell if not factors.explains(problem)]
        if file is not None:
            with suppress(InputError):  # no such testbed, which is among the problems
                testbed = load(testbed_name(folder, file.testbed.fields))
                too_large = tuple(limits.size_problems(resolved, file, testbed, folder))
                locations = {
                    tuner.called: document.where(("tuners", index)[: 1 if tuners else 2])
                    for index, tuner in enumerate(file.tuners)
                }
                cells.append(Cell(labels, file, folder, testbed, locations, too_large))
    return cells, problems


def with_overrides(
    document: Document, backend: str | None, clock: str | None, repeats: int | None
) -> Document:
    """Return the document with options of the command line in place of the file's fields.

    Raises InputError for options that are wrong.
    """
    problems = []
    if backend is not None:
        try:
            document.data["backend"] = schema.check_backend(backend)
        except ValueError as error:
            problems.append(of_value(error, "--on"))
    if clock is not None:
        document.data["clock"] = clock
        clocks: tuple[str, ...] = get_args(schema.CampaignFile.model_fields["clock"].annotation)
        if clock not in clocks:
            problems.append(Problem("--clock", f"no clock {clock!r}", f"use {' or '.join(clocks)}"))
    if repeats is not None:
        document.data["repeats"] = repeats
        if repeats < 1:
            problems.append(Problem("--repeats", f"{repeats} repeats", "use 1 or more"))
    raise_any(problems)
    return document


def _semantic_problems(document: Document, load: Callable[[str], Testbed]) -> list[Problem]:
    """Return the problems that the schema cannot see: of fields together, and of the testbed."""
    folder = os.path.dirname(document.name)
    testbed: Testbed | None = None
    problems: list[Problem] = []
    if name := testbed_name(folder, document.data.get("testbed")):
        try:
            testbed = load(name)
        except InputError as error:
            problems += _testbed_problems(document, error)
    located = checks.check(document.data, testbed, folder)
    return problems + [document.problem(*problem) for problem in located]


def _testbed_problems(document: Document, error: InputError) -> Iterable[Problem]:
    """Return the problems of a testbed that cannot be loaded, at the lines of the campaign."""
    loc = ("testbed",)
    if isinstance(document.data["testbed"], str):
        return [document.at(loc, problem) for problem in error.problems]
    try:
        load_variant(document.inside(loc), Path(document.name).parent)
    except InputError as located:
        return located.problems
    return []
