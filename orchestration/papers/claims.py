"""The files of the studies: `claims.yml`, what the papers print and claim, and the campaigns.

A section is a table or figure: a campaign, the metrics to show, and the paper's numbers. A claim is
a paper's statement about one tuner in a section, with the size of the effect.

Campaign files are examples in the source tree (`examples/papers`, `examples/fidelity`), not part of
the package; a file named `search-...` has conditions for `closloop search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from inventory.strictyaml import Duration, Loc, StrictModel, in_order, read, suggest
from orchestration.analysis.metrics import METRICS
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.core.condition import TUNER
from orchestration.core.errors import InputError, Problem, check_known, gather, unreadable
from orchestration.core.problems import unknown
from orchestration.core.trial import Scalar
from orchestration.results.reader import finished_trials

# Factor -> level; {} means every condition.
FactorLevels = dict[str, Scalar]


class Printed(StrictModel):
    """A paper's numbers for one metric under one condition, by tuner, in base units."""

    when: Annotated[FactorLevels, Field(default_factory=dict)]
    metric: str
    arms: dict[str, float]


class Section(StrictModel):
    """A table or figure. Tuners are ranked by the first of `metrics`.

    `only` selects conditions and `arms` selects tuners; the default is all. The other tuners are
    compared with `reference`. Flow metrics count flows that start from `flows_from` to `flows_to`,
    and steady-state metrics the time from `steady_from`; neither counts what is in the campaign's
    warm-up. What is compared are tuners, or the levels of the factor `compares`. `placebos` says
    which arm is the placebo of which learned arm; by default that is `placebo-<arm>`, else
    `placebo`. Yardsticks are shown whatever `arms` are.
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
    compares: str = TUNER
    printed: tuple[Printed, ...] = ()


class Claim(StrictModel):
    """A claim: `arm` is lower or higher than `against`, the same, or has a value in a range.

    Shares are relative to `against`. `min_effect` is the effect claimed under every condition,
    `best` the largest effect reported. Values within `within` of each other are the same. `low`
    and `high` are the range of a value. `headline` puts the claim into the first table. `notes`
    says what is different here than in the paper, without figures of runs: those stand in the
    tables. `verdicts` says how a claim is judged and what a failure is put down to.
    """

    section: str
    text: str
    says: str
    metric: str
    arm: str
    direction: Literal["lower", "higher", "same", "value"]
    against: str = ""
    when: Annotated[FactorLevels, Field(default_factory=dict)]
    min_effect: float = 0.0
    best: float | None = None
    within: float = 0.0
    low: float | None = None
    high: float | None = None
    headline: bool = False
    notes: str = ""

    @property
    def claimed(self) -> float:
        """The smallest effect that reproduces it, a share; 0 if only a direction is claimed."""
        if self.direction == "same":
            return self.within
        return max(self.min_effect, (self.best or 0.0) / 2)


class ClaimsFile(StrictModel):
    """The whole claims file."""

    sections: tuple[Section, ...]
    claims: tuple[Claim, ...]

    @property
    def papers(self) -> tuple[str, ...]:
        """The papers, in the order of their first sections."""
        return tuple(dict.fromkeys(section.paper for section in self.sections))

    def section(self, name: str) -> Section:
        """Return the section with that id."""
        return next(section for section in self.sections if section.id == name)


def load_claims(path: Path | None = None) -> ClaimsFile:
    """Return the packaged claims, or those of a file. Raises InputError with all problems."""
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
    """Return the page of which the parts for one paper are to be renewed.

    Raises InputError for a paper without claims, and without a page.
    """
    check_known("--paper", "no claims of a paper {!r}", [paper], file.papers, "there are ")
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(page, error, "leave --paper out, which makes a whole page") from error


def _inconsistencies(file: ClaimsFile) -> list[tuple[Loc, str, str]]:
    """Return inconsistencies between parts of the file."""
    found: list[tuple[Loc, str, str]] = []
    sections = [section.id for section in file.sections]
    for number, section in enumerate(file.sections):
        metrics = [*section.metrics, *(item.metric for item in section.printed)]
        found += [_unknown(("sections", number), "metric", m, METRICS.papers) for m in metrics]
    for number, claim in enumerate(file.claims):
        loc: Loc = ("claims", number)
        found.append(_unknown((*loc, "section"), "section", claim.section, sections))
        found.append(_unknown((*loc, "metric"), "metric", claim.metric, METRICS.papers))
        if claim.direction == "value" and (claim.low is None or claim.high is None):
            found.append((loc, "a value without its range", "give 'low' and 'high'"))
        if claim.direction != "value" and not claim.against:
            found.append((loc, "a comparison with nobody", "name a tuner in 'against'"))
    return [item for item in found if item[1]]


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
    """Return the named campaigns of the papers, by default all but those to be searched.

    Raises InputError for a folder without files, unknown names, and the problems of all files.
    """
    files = {
        path.stem: path
        for path in sorted(folder.glob("*.yml"))
        if not path.stem.startswith(_SEARCH_PREFIX)
    }
    if not files:
        raise InputError.single(str(folder), "holds no campaign files of the papers", _REMEDY)
    _refuse_searches(folder, set(names) - set(files))
    return _load(files, names, f"campaign in {folder}", backend, repeats)


def _refuse_searches(folder: Path, names: set[str]) -> None:
    """Raise InputError for names of files that are searched, not run."""
    searched = sorted(name for name in names if (folder / f"{name}.yml").is_file())
    if searched:
        raise InputError(
            [
                Problem(name, "is to be searched, not run", f"closloop search {folder / name}.yml")
                for name in searched
            ]
        )


def load_scenarios(
    folder: Path, names: Sequence[str], backend: str, repeats: int | None
) -> dict[str, Campaign]:
    """Return the named scenarios, or all of them, on a backend, simplest first.

    Raises InputError as `load_campaigns` does.
    """
    if not folder.is_dir():
        raise InputError.single(str(folder), "has no campaign files of the scenarios", _REMEDY)
    files = {name: folder / f"{name}.yml" for name in SCENARIOS}
    found = _load(files, names, "scenario", backend, repeats)
    return {name: found[name] for name in SCENARIOS if name in found}


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

    wanted = list(names or files)
    return dict(zip(wanted, gather(load, wanted), strict=True))


def move_stale_trials(campaign: Campaign, runs: Path) -> int:
    """Put aside finished trials that the campaign no longer describes; return how many.

    They move from `runs/<campaign>/` to `runs/<campaign>.stale/`, with a number if the name is
    taken. Other trials stay, and count as finished.
    """
    known = {trial.id for trial in campaign.trials}
    folder = runs / campaign.name
    stale = [path for path in finished_trials(folder) if path.name not in known]
    target = folder.with_name(f"{folder.name}.stale")
    for path in stale:
        target.mkdir(exist_ok=True)
        place, number = target / path.name, 0
        while place.exists():
            number += 1
            place = target / f"{path.name}.{number}"
        path.rename(place)
    return len(stale)
