"""Schema and loader of `claims.yml`: the numbers that the papers print, and their claims.

A section is a table or figure: a campaign, the metrics to show, and the paper's numbers. A claim is
a paper's statement about one tuner in a section, with the size of the effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from inventory.strictyaml import Duration, Loc, StrictModel, in_order, read, suggest
from orchestration.analysis.metrics import METRICS
from orchestration.core.condition import TUNER
from orchestration.core.errors import InputError, check_known, unreadable
from orchestration.core.trial import Scalar

# Factor -> level; {} means every condition.
When = dict[str, Scalar]


class Printed(StrictModel):
    """A paper's numbers for one metric under one condition, by tuner, in base units."""

    when: Annotated[When, Field(default_factory=dict)]
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
    only: Annotated[When, Field(default_factory=dict)]
    flows_from: Duration = 0
    flows_to: Duration | None = None
    steady_from: Duration = 0
    compares: str = TUNER
    printed: tuple[Printed, ...] = ()


class Claim(StrictModel):
    """A claim: `arm` is lower or higher than `against`, the same, or has a value in a range.

    Shares are relative to `against`. `least` is the effect claimed under every condition, `best`
    the largest effect reported. Values within `within` of each other are the same. `low` and `high`
    are the range of a value. `headline` puts the claim into the first table. `notes` says what is
    different here than in the paper, without figures of runs: those stand in the tables. How a
    claim is judged is in `verdicts`, what a failure is put down to in `causes`.
    """

    section: str
    text: str
    says: str
    metric: str
    arm: str
    direction: Literal["lower", "higher", "same", "value"]
    against: str = ""
    when: Annotated[When, Field(default_factory=dict)]
    least: float = 0.0
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
        return max(self.least, (self.best or 0.0) / 2)


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
            document.problem(loc, what, remedy) for loc, what, remedy in _inconsistent(file)
        ]
    if problems or file is None:
        raise InputError(in_order(problems))
    return file


def of_paper(file: ClaimsFile, paper: str, page: Path) -> str:
    """Return the page of which the parts for one paper are to be renewed.

    Raises InputError for a paper without claims, and without a page.
    """
    check_known("--paper", "no claims of a paper {!r}", [paper], file.papers, "there are ")
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(page, error, "leave --paper out, which makes a whole page") from error


def _inconsistent(file: ClaimsFile) -> list[tuple[Loc, str, str]]:
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
