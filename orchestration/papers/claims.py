"""The files of the studies: `claims.yml`, which has what papers print and claim, and campaigns.

A section of the claims file is a table or figure of a paper: a campaign, the metrics to show, and
the paper's own numbers. A claim is a paper's statement about one arm of a section, with the size of
its effect.

Campaign files are in the source tree (`examples/papers`, `examples/fidelity`) and not part of the
package. A campaign file named `search-...` is for `closloop search`: it is searched, not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from inventory.strictyaml import Duration, Loc, StrictModel, in_order, read, suggest
from orchestration.analysis.metrics import METRICS
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.core.errors import InputError, Problem, check_known, gather, unreadable
from orchestration.core.problems import unknown
from orchestration.core.trial import Scalar
from orchestration.results.reader import finished_trials

# The level of each named factor; {} selects every condition.
FactorLevels = dict[str, Scalar]


class Printed(StrictModel):
    """The numbers that a paper prints for one metric under one condition: by arm, in base units."""

    when: Annotated[FactorLevels, Field(default_factory=dict)]
    metric: str
    arms: dict[str, float]


class Section(StrictModel):
    """A table or figure of a paper.

    The arms are the levels of the factor `compare` (older files call it `compares`), by default of
    the one that the campaign compares. It is named as in campaigns. All arms are compared with the
    arm `reference`; the first of `metrics` is the primary one. `only` selects conditions and `arms`
    selects arms; by default all are shown. The baselines (best static setting, oracle, placebos,
    tuners by rule) are always shown. `placebos` says which arm is the placebo of which learned arm;
    by default it is `placebo-<arm>`, else `placebo`. Metrics of flows count flows that start from
    `flows_from` until `flows_to`, metrics of the steady state the time from `steady_from`; neither
    counts the campaign's warm-up.
    """

    id: str
    paper: str
    title: str
    campaign: str
    setting: str
    reference: str
    learned: tuple[str, ...]
    placebos: Annotated[dict[str, str], Field(default_factory=dict)]
    metrics: tuple[str, ...]
    arms: tuple[str, ...] = ()
    only: Annotated[FactorLevels, Field(default_factory=dict)]
    flows_from: Duration = 0
    flows_to: Duration | None = None
    steady_from: Duration = 0
    compare: str = Field("", validation_alias=AliasChoices("compare", "compares"))
    printed: tuple[Printed, ...] = ()


class Claim(StrictModel):
    """A claim: `arm` is lower or higher than `against`, or the same, or has a value in a range.

    Effects are shares of the value of `against`. `min_effect` is what the paper claims under every
    condition (older files call it `least`), `best` the largest effect that it reports. Values that
    differ by at most `within` are the same. `low` and `high` bound the range of a value. With
    `headline` the claim is in the page's first table. `notes` says how our setting differs from the
    paper's, without results of runs, which are in the tables. The rule of verdicts is in
    `orchestration.papers.verdicts`.
    """

    section: str
    text: str
    says: str
    metric: str
    arm: str
    direction: Literal["lower", "higher", "same", "value"]
    against: str = ""
    when: Annotated[FactorLevels, Field(default_factory=dict)]
    min_effect: float = Field(0.0, validation_alias=AliasChoices("min_effect", "least"))
    best: float | None = None
    within: float = 0.0
    low: float | None = None
    high: float | None = None
    headline: bool = False
    notes: str = ""

    @property
    def claimed(self) -> float:
        """The smallest share that reproduces the claim; 0 if any in its direction does."""
        if self.direction == "same":
            return self.within
        return max(self.min_effect, (self.best or 0.0) / 2)


class ClaimsFile(StrictModel):
    """The content of a claims file."""

    sections: tuple[Section, ...]
    claims: tuple[Claim, ...]

    @property
    def papers(self) -> tuple[str, ...]:
        """The papers, in the order of their first sections."""
        return tuple(dict.fromkeys(section.paper for section in self.sections))

    def section(self, name: str) -> Section:
        """Return the section with the id `name`."""
        return next(section for section in self.sections if section.id == name)


def load_claims(path: Path | None = None) -> ClaimsFile:
    """Return a file's claims, by default the package's. Raises InputError with all problems."""
    if path is None:
        with resources.as_file(resources.files("orchestration.papers") / "claims.yml") as own:
            return load_claims(own)
    document = read(path)
    file, problems = document.check(ClaimsFile)
    if file is not None:
        problems += [
            document.problem(loc, what, remedy) for loc, what, remedy in _inconsistencies(file)
        ]
    if problems or file is None:
        raise InputError(in_order(problems))
    return file


def read_former_page(file: ClaimsFile, paper: str, page: Path) -> str:
    """Return the text of the page whose parts about one paper are to be replaced.

    Raises InputError for a paper without claims, and if the page cannot be read.
    """
    check_known("--paper", "the claims file has no paper {!r}", [paper], file.papers, "there are ")
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(page, error, "leave --paper out, to write the whole page") from error


def _inconsistencies(file: ClaimsFile) -> list[tuple[Loc, str, str]]:
    """Return what parts of the file say against each other: where, what, and the remedy."""
    problems: list[tuple[Loc, str, str]] = []
    sections = [section.id for section in file.sections]
    for number, section in enumerate(file.sections):
        metrics = [*section.metrics, *(item.metric for item in section.printed)]
        problems += [_unknown(("sections", number), "metric", m, METRICS.papers) for m in metrics]
    for number, claim in enumerate(file.claims):
        loc: Loc = ("claims", number)
        problems.append(_unknown((*loc, "section"), "section", claim.section, sections))
        problems.append(_unknown((*loc, "metric"), "metric", claim.metric, METRICS.papers))
        if claim.direction == "value" and (claim.low is None or claim.high is None):
            problems.append((loc, "a claim about a value has no range", "give 'low' and 'high'"))
        if claim.direction != "value" and not claim.against:
            problems.append((loc, "a comparison names no opponent", "name an arm in 'against'"))
    return [item for item in problems if item[1]]


def _unknown(loc: Loc, noun: str, name: str, known: Iterable[str]) -> tuple[Loc, str, str]:
    names = list(known)
    if name in names:
        return loc, "", ""
    return loc, f"no {noun} {name!r}", f"{suggest(name, names)}known are {', '.join(names)}"


_SEARCH_PREFIX = "search-"
# From the simplest to the most realistic.
SCENARIOS = ("idle-path", "one-flow", "incast", "websearch")
_REMEDY = "run it in the source tree, or name the folder with --campaigns"


def load_campaigns(
    folder: Path,
    names: Sequence[str],
    *,
    backend: str | None = None,
    repeats: int | None = None,
) -> dict[str, Campaign]:
    """Return the named campaigns of the papers, by default all except those that are searched.

    Raises InputError for a folder without campaign files, for unknown names, and with the problems
    of all files.
    """
    files = {
        path.stem: path
        for path in sorted(folder.glob("*.yml"))
        if not path.stem.startswith(_SEARCH_PREFIX)
    }
    if not files:
        raise InputError.single(str(folder), "has no campaign files of the papers", _REMEDY)
    _refuse_searches(folder, set(names) - set(files))
    return _load(files, names, f"campaign in {folder}", backend, repeats)


def _refuse_searches(folder: Path, names: set[str]) -> None:
    """Raise InputError for names of files that are searched, not run."""
    searched = sorted(name for name in names if (folder / f"{name}.yml").is_file())
    if searched:
        raise InputError(
            [
                Problem(
                    name,
                    "is a campaign to search, not to run",
                    f"closloop search {folder / name}.yml",
                )
                for name in searched
            ]
        )


def load_scenarios(
    folder: Path, names: Sequence[str], backend: str, repeats: int | None
) -> dict[str, Campaign]:
    """Return the named scenarios on a backend, by default all, the simplest first.

    Raises InputError as `load_campaigns` does.
    """
    if not folder.is_dir():
        raise InputError.single(str(folder), "has no campaign files of the scenarios", _REMEDY)
    files = {name: folder / f"{name}.yml" for name in SCENARIOS}
    scenarios = _load(files, names, "scenario", backend, repeats)
    return {name: scenarios[name] for name in SCENARIOS if name in scenarios}


def _load(
    files: Mapping[str, Path],
    names: Sequence[str],
    noun: str,
    backend: str | None,
    repeats: int | None,
) -> dict[str, Campaign]:
    def load(name: str) -> Campaign:
        if name not in files:
            raise InputError([unknown(name, f"no such {noun}", name, files, "there are ")])
        return load_campaign(files[name], backend=backend, repeats=repeats)

    chosen = list(names or files)
    return dict(zip(chosen, gather(load, chosen), strict=True))


def move_stale_trials(campaign: Campaign, runs: Path) -> int:
    """Move away finished trials that the campaign no longer describes; return how many.

    They move from `runs/<campaign>/` to `runs/<campaign>.stale/`, with a number added if the name
    is taken. All other trials stay and count as finished.
    """
    known = {trial.id for trial in campaign.trials}
    folder = runs / campaign.name
    stale = [path for path in finished_trials(folder) if path.name not in known]
    target = folder.with_name(f"{folder.name}.stale")
    for path in stale:
        target.mkdir(exist_ok=True)
        new_path, number = target / path.name, 0
        while new_path.exists():
            number += 1
            new_path = target / f"{path.name}.{number}"
        path.rename(new_path)
    return len(stale)
