"""The beginning of a results page as data: headroom, arms, verdicts of headlines, baselines.

It is written into a JSON file beside the page, so that programs can read it, and so that one
paper's part of the page can be replaced on a machine without the runs of the other papers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from orchestration.analysis.statistics import Estimate, PairedDifference
from orchestration.core.errors import InputError, unreadable
from orchestration.core.units import format_rate
from orchestration.papers.tuning_headroom import TuningHeadroom
from orchestration.render.json import json_text
from orchestration.render.numbers import NO_SHARE, NOTHING, Unit, percent, points, quantity

VERSION = 1


@dataclass(frozen=True)
class HeadlineCell:
    """A headline under one transport: its verdict, the measurement as text, the likely cause."""

    verdict: str
    measured: str
    cause: str = ""


@dataclass(frozen=True)
class Headline:
    """A paper's headline, with a cell for each transport; the key is "" where they do not vary."""

    paper: str
    text: str
    says: str
    cells: Mapping[str, HeadlineCell]


@dataclass(frozen=True)
class Baseline:
    """In how many conditions an arm is better or worse than a rival, or neither (`even`)."""

    paper: str
    transport: str
    arm: str
    rival: str
    better: int
    worse: int
    even: int


@dataclass(frozen=True)
class Arm:
    """An arm of a paper's campaigns. `networks` counts its named networks."""

    paper: str
    arm: str
    kind: str
    networks: int
    trials: int


@dataclass(frozen=True)
class Caution:
    """A reason to run trials of a paper again before their results are believed."""

    paper: str
    text: str


@dataclass(frozen=True)
class PageData:
    """The beginning of the page. The aliases are the keys of `results.json`."""

    headroom: tuple[TuningHeadroom, ...] = ()
    arms: tuple[Arm, ...] = ()
    headlines: tuple[Headline, ...] = ()
    baselines: Annotated[tuple[Baseline, ...], Field(alias="yardsticks")] = ()
    cautions: tuple[Caution, ...] = ()

    def merged_into(self, former: PageData, papers: Sequence[str], paper: str) -> PageData:
        """Return `former` with one paper's rows replaced by these, in the order of `papers`."""

        def merged(name: str) -> tuple[Any, ...]:
            kept = [row for row in getattr(former, name) if row.paper != paper]
            rows = [*kept, *(row for row in getattr(self, name) if row.paper == paper)]
            rank = {name: number for number, name in enumerate(papers)}
            return tuple(sorted(rows, key=lambda row: rank.get(row.paper, len(rank))))

        return PageData(**{field.name: merged(field.name) for field in fields(self)})


_PAGE_DATA = TypeAdapter(PageData)


def to_json(data: PageData) -> str:
    """Return the data as JSON text; unknown numbers are null."""
    stored = _PAGE_DATA.dump_python(data, by_alias=True)
    return json_text({"version": VERSION, **stored}, ensure_ascii=False) + "\n"


def read_data(path: Path) -> PageData:
    """Return the data from the JSON file beside a page.

    Raises InputError if the file is missing, as beside an older page, or cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error, "write the whole page again, without --paper") from error
    try:
        data = json.loads(text)
        if data.pop("version", None) != VERSION:
            raise ValueError(f"is not of version {VERSION}")
        return _PAGE_DATA.validate_python(_null_as_unknown(data))
    except (ValueError, ValidationError) as error:
        what = f"cannot be read: {str(error).splitlines()[0]}"
        raise InputError.single(
            str(path), what, "write the whole page again, without --paper"
        ) from error


def _null_as_unknown(value: Any) -> Any:
    if value is None:
        return math.nan
    if isinstance(value, dict):
        return {key: _null_as_unknown(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_null_as_unknown(inner) for inner in value]
    return value


_BLOCK = "\n## "


def renew_sections(former: str, fresh: str, paper: str) -> str:
    """Return the page `fresh` with the sections of all papers except one taken from `former`.

    The beginning of the page, and sections that `former` does not have, are those of `fresh`.
    """
    kept = _blocks(former)
    parts = []
    for title, block in _blocks(fresh).items():
        owner, of_paper, _ = title.partition(": ")
        head = title.startswith("# ")
        chosen = bool(of_paper) and not head and owner != paper and title in kept
        parts.append(kept[title] if chosen else block)
    return _BLOCK.join(parts)


def _blocks(page: str) -> dict[str, str]:
    """Return the parts of a page by their titles; the title of the first part is its first line."""
    return {block.partition("\n")[0]: block for block in page.split(_BLOCK)}


def amount(value: float, unit: Unit) -> str:
    """Return a value with its unit and three significant digits: `398Gbps`, `12.6KB`, `2.84`."""
    if unit == "share":
        return quantity(0.0 if abs(value) < NO_SHARE else value, unit)
    if unit != "bps":
        return quantity(value, unit)
    if not math.isfinite(value):
        return NOTHING
    digits = max(0, 2 - math.floor(math.log10(abs(value))) % 3) if value else 0
    return format_rate(round(value), digits)


def estimate_text(estimate: Estimate, unit: Unit) -> str:
    """Return `2.84 ±0.10`: the mean and half of its interval."""
    text = amount(estimate.mean, unit)
    half = (estimate.high - estimate.low) / 2
    return f"{text} ±{amount(half, unit)}" if half > 0 else text


def difference_text(difference: PairedDifference, unit: Unit) -> str:
    """Return a difference with its interval: `-12.6% [-15.0% to -9.8%]`, of shares in points.

    The interval is in the metric's unit if there is no relative one, because the reference's mean
    does not differ significantly from 0.
    """
    if not difference.n or not math.isfinite(difference.mean):
        return NOTHING
    if unit == "share":
        return f"{points(difference.mean, difference.low, difference.high)} points"
    text = percent(difference.relative) if math.isfinite(difference.relative) else ""
    if math.isfinite(difference.relative_low):
        low, high = difference.relative_low, difference.relative_high
        return f"{text} [{percent(low)} to {percent(high)}]"
    if math.isfinite(difference.low) or not text:
        sign = "+" if difference.mean > 0 else ""
        text = f"{text}, {sign}{amount(difference.mean, unit)}".removeprefix(", ")
    if math.isfinite(difference.low):
        text += f" [{amount(difference.low, unit)} to {amount(difference.high, unit)}]"
    return text
