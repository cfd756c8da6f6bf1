"""The results page in Markdown: headroom, the answer, then a section for each table and figure.

Headroom is tuning headroom, how much slower the best static setting for all conditions is than the
best one for each condition; PFC's headroom, a switch buffer, is something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestration.analysis.metrics import METRICS, TUNING_HEADROOM_METRICS
from orchestration.analysis.quantiles import MIN_BEYOND
from orchestration.core.outputs import check_outputs
from orchestration.papers import verdicts
from orchestration.papers.claims import ClaimsFile, load_claims, read_former_page
from orchestration.papers.condition import order_transports
from orchestration.papers.headroom_map import headroom_svg
from orchestration.papers.page_data import Caution, PageData, read_data, renew_sections, to_json
from orchestration.papers.results import (
    MeasuredTrial,
    SectionResult,
    evaluate_section,
    read_measured_trials,
)
from orchestration.papers.section_part import section_part
from orchestration.papers.summary_tables import (
    arms_of,
    arms_table,
    baseline_table,
    baselines,
    headline,
    headline_tables,
    verdict_counts_text,
)
from orchestration.papers.tuning_headroom import (
    MIN_HEADROOM,
    TuningHeadroom,
    headroom_of_paper,
    headroom_verdict,
)
from orchestration.papers.verdicts import CAUSES, ClaimResult, evaluate_claim
from orchestration.render.markdown import rows_table
from orchestration.render.numbers import NOTHING, percent_span
from orchestration.results.reader import recorded_files

INTRODUCTION = f"""\
Headroom of a condition is what a tuner can win there at most: how much slower the best static
setting for all conditions (`best-static`) is than the best static setting for that condition
(`oracle`), paired by seed, with its 95 % interval. It has nothing to do with the headroom of PFC's
buffers. Both settings come from searches on other seeds than these. So headroom can be negative:
the setting chosen for the condition is then no better there than the setting for all conditions.
Below {100 * MIN_HEADROOM:.0f} % there is nothing to learn. A tuner's *share* of the headroom is how
far it gets from `best-static` (0 %) to the oracle (100 %); below 0 % it is worse than the static
setting. The share is shown only where headroom is above 0 beyond chance. *All together* is the mean
over conditions.
"""


def headroom_part(rows: Sequence[TuningHeadroom], picture: str) -> Iterator[str]:
    """Yield the page's part on headroom; `picture` is the name of its SVG file, beside the page."""
    yield "## Headroom\n"
    if not rows:
        yield "No campaign has both `best-static` and `oracle`: headroom is not known.\n"
        return
    yield INTRODUCTION
    yield f"![Headroom by condition, and where each tuner lies]({picture})\n"
    yield f"{_summary(rows)}\n"
    yield _over_all_table(rows)
    yield from _condition_tables(rows)


def _summary(rows: Sequence[TuningHeadroom]) -> str:
    """Return a sentence for each metric: under how many conditions there is something to learn."""
    sentences = []
    for metric in TUNING_HEADROOM_METRICS:
        known = [
            row
            for row in rows
            if row.metric == metric and row.condition_label and math.isfinite(row.headroom[0])
        ]
        too_few_flows = sum(
            row.metric == metric and bool(row.condition_label) and row.too_few_flows for row in rows
        )
        if not known:
            label = METRICS[metric].short_label
            sentences.append(f"- By {label} headroom is not known: too few flows.")
            continue
        nothing = sum(row.headroom[0] < MIN_HEADROOM for row in known)
        negative = sum(row.headroom[2] < 0 for row in known)
        text = f"- By {METRICS[metric].short_label} there is "
        text += "**nothing to learn**" if nothing == len(known) else "nothing to learn"
        text += f" under {nothing} of {len(known)} conditions"
        if too_few_flows:
            text += f", and {too_few_flows} more have too few flows"
        if negative:
            text += f"; headroom is negative beyond chance under {negative}"
        maximum = max(known, key=lambda row: row.headroom[0])
        where = f"`{maximum.condition_label}`" + (
            f", {maximum.transport.upper()}" if maximum.transport else ""
        )
        sentences.append(
            f"{text}. The largest headroom is {percent_span(*maximum.headroom)} ({where})."
        )
    return "\n".join(sentences)


def _cell(row: TuningHeadroom | None) -> str:
    if row is None:
        return NOTHING
    if row.too_few_flows:
        return "too few flows"
    return f"{percent_span(*row.headroom)}\n{headroom_verdict(row.headroom)}"


def _transports(rows: Sequence[TuningHeadroom]) -> tuple[str, ...]:
    return order_transports({row.transport for row in rows})


def _over_all_table(rows: Sequence[TuningHeadroom]) -> str:
    together = [row for row in rows if not row.condition_label]
    cells: dict[tuple[str, str], dict[str, TuningHeadroom]] = {}
    for row in together:
        cells.setdefault((row.paper, row.transport), {})[row.metric] = row
    papers, order = list(dict.fromkeys(paper for paper, _ in cells)), _transports(together)
    keys = sorted(cells, key=lambda key: (papers.index(key[0]), order.index(key[1])))
    heads = (
        "all together",
        "transport",
        *(METRICS[metric].short_label for metric in TUNING_HEADROOM_METRICS),
    )
    rows_of_cells = [
        [
            paper,
            transport.upper() or NOTHING,
            *(_cell(cells[paper, transport].get(metric)) for metric in TUNING_HEADROOM_METRICS),
        ]
        for paper, transport in keys
    ]
    return rows_table(heads, rows_of_cells)


def _condition_tables(rows: Sequence[TuningHeadroom]) -> Iterator[str]:
    """Yield a table for each paper: headroom by condition, and shares of it in the first metric."""
    for paper in dict.fromkeys(row.paper for row in rows):
        yield f"### {paper}: headroom by condition, and the share of it in mean slowdown\n"
        yield _condition_table([row for row in rows if row.paper == paper])


def _condition_table(rows: Sequence[TuningHeadroom]) -> str:
    """Return one paper's headroom by condition, and its arms' shares of it in the first metric."""
    metrics = TUNING_HEADROOM_METRICS
    arms = dict.fromkeys(
        of_arm.arm for row in rows if row.metric == metrics[0] for of_arm in row.arms
    )
    heads = ["condition", *(f"headroom, {METRICS[m].short_label}" for m in metrics), *arms]
    by_key: dict[tuple[str, str], dict[str, TuningHeadroom]] = {}
    for row in rows:
        by_key.setdefault((row.condition_label, row.transport), {})[row.metric] = row
    conditions = list(dict.fromkeys(condition for condition, _ in by_key))
    transports = _transports(rows)
    cells = []
    for key in sorted(by_key, key=lambda k: (conditions.index(k[0]), transports.index(k[1]))):
        condition, transport = key
        by_metric = by_key[key]
        label = ", ".join(filter(None, (condition or "all together", transport.upper())))
        first = by_metric.get(metrics[0])
        shares = {
            of_arm.arm: percent_span(*of_arm.share, sign="", digits=0)
            for of_arm in (first.arms if first else ())
        }
        cells.append(
            [
                label,
                *(_cell(by_metric.get(metric)) for metric in metrics),
                *(shares.get(arm, NOTHING) for arm in arms),
            ]
        )
    return rows_table(heads, cells)


_HEAD = """\
# Results: what came out of the papers

`closloop papers results` writes this page from run folders alone; how to run the campaigns is in
[papers.md](../papers.md). Only the papers' own numbers, and the notes on how a setting differs from
its paper's, are written by hand. On one kernel the campaigns repeat themselves to the bit
([decision 36](../decisions/0036-one-seed-is-one-result.md)).
"""

_HOW_TO_READ = f"""\
## How to read it

Each number is the mean over repeats (seeds) with half of its 95 % interval, by Student's t. A
difference is that of the tuner from the reference, paired by seed, in percent of the reference's
mean, with its 95 % interval by Fieller's method. Intervals are not corrected for the number of
comparisons on this page. Where a campaign's repeats are adaptive, the intervals are those of the
interim analysis at which a condition stopped; they hold over all analyses. Training seeds come from
another random stream than these. Where the networks of a learned tuner are used in rotation over
the repeats, its numbers are also over training seeds: the interval is from a hierarchical
bootstrap, which draws networks and then repeats of each (Davison and Hinkley 1997, section 3.8;
Saravanan et al. 2020), is widened for few networks, and is never narrower than Student's. A tail is
the quantile of all repeats' flows together, with a bootstrap that draws repeats; with less than
{MIN_BEYOND} flows beyond it, it is not shown. The loads beside a condition are the offered load and
what receivers accepted, in percent of the hosts' line rates.

*best-static* is the best single static setting for all conditions, and *oracle* is the best one for
each condition; both were searched for on other seeds. A *placebo* runs the loop of its tuner with
the same actions, but draws them at random. RL-CC's sections compare congestion controls; there,
*best-dcqcn* has the best parameters of a grid, chosen by power (goodput over RTT inflation) on
other seeds.

{verdicts.RULE}
{CAUSES}
Queue lengths are the mean and standard deviation over all samples while flows arrive, of all switch
ports, or of the ports to the receiver where the table says so. Throughput is the payload that
switches sent to hosts in that time, including what is retransmitted or discarded. DCTCP is that of
Linux; DCQCN is that of RoCE NICs with PFC, as in the papers of GraphCC, ACC and PET. Both run over
closloop's own fabric. Each section says how times and the number of hosts are scaled.

RL-CC's sections have RoCE NICs over the same fabric. There, goodput, RTT and Jain's index are those
of long-lived flows, in the part of the trial that is counted. Goodput is acknowledged payload over
the receivers' line rates, and a lost packet is one that a switch dropped.
"""


def opening(data: PageData, picture: str) -> str:
    """Return the beginning of the page: headroom, the arms, and the answer."""
    lines = [_HEAD, *_cautions(data), *headroom_part(data.headroom, picture)]
    if data.arms:
        lines += ["### The arms\n", arms_table(data.arms)]
    lines += ["## The answer\n", f"{verdict_counts_text(data.headlines)}\n"]
    lines += headline_tables(data.headlines)
    if data.baselines:
        lines += [
            "### Against the best fixed setting and against chance\n",
            "In how many conditions a tuner is better or worse beyond chance, by the first metric\n"
            "of each table. Its placebo has the same actions and period, and draws at random.\n",
            baseline_table(data.baselines),
        ]
    return "\n".join(lines) + "\n"


def _cautions(data: PageData) -> Iterator[str]:
    """Yield the reasons to run trials again, each with the papers that it applies to."""
    papers: dict[str, dict[str, None]] = {}
    for caution in data.cautions:
        papers.setdefault(caution.text, {})[caution.paper] = None
    for text, names in papers.items():
        yield f"**To be run again** ({', '.join(names)}): {text}.\n"


def results_page(
    file: ClaimsFile,
    runs: Path,
    phase: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> tuple[PageData, str]:
    """Return the data of the page's beginning, and the rest of the page as Markdown.

    They are made of the campaign folders under `runs`, which may be missing; the same folders give
    the same page. `phase` is called with the name of each phase, `progress` with how many of its
    steps are done and their number. Raises InputError for a file that cannot be read.
    """
    measured: dict[str, tuple[MeasuredTrial, ...]] = {}
    results = {}
    for campaign in dict.fromkeys(section.campaign for section in file.sections):
        phase(f"reading {campaign}")
        measured[campaign] = read_measured_trials(runs / campaign, progress)
        for section in file.sections:
            if section.campaign == campaign:
                results[section.id] = evaluate_section(section, measured[campaign])
    phase("judging claims")
    claims = []
    for number, claim in enumerate(file.claims):
        claims.append(evaluate_claim(claim, results[claim.section]))
        progress(number + 1, len(file.claims))
    phase("measuring headroom")
    data = _data(file, results, claims, measured)
    phase("writing tables")
    lines = [_HOW_TO_READ]
    for number, section in enumerate(file.sections):
        progress(number, len(file.sections))
        own = [result for result in claims if result.claim.section == section.id]
        lines += section_part(results[section.id], own)
    return data, "\n".join(lines).rstrip() + "\n"


def _data(
    file: ClaimsFile,
    results: Mapping[str, SectionResult],
    claims: Sequence[ClaimResult],
    measured: Mapping[str, tuple[MeasuredTrial, ...]],
) -> PageData:
    data: dict[str, list[Any]] = {field.name: [] for field in fields(PageData)}
    for paper in file.papers:
        sections = [section for section in file.sections if section.paper == paper]
        campaigns = dict.fromkeys(section.campaign for section in sections)
        parts = [
            ([s for s in sections if s.campaign == campaign], measured[campaign])
            for campaign in campaigns
        ]
        own = [results[section.id] for section in sections]
        ids = {section.id for section in sections}
        headlines = [one for one in claims if one.claim.headline and one.claim.section in ids]
        texts = (text for _, trials in parts for trial in trials for text in trial.cautions)
        data["headroom"] += headroom_of_paper(paper, parts)
        data["arms"] += arms_of(paper, own)
        data["headlines"] += [headline(result, paper) for result in headlines]
        data["baselines"] += baselines(paper, own)
        data["cautions"] += [Caution(paper, text) for text in dict.fromkeys(texts)]
    return PageData(**{name: tuple(rows) for name, rows in data.items()})


def page_files(
    runs: Path,
    output: Path,
    claims: Path | None,
    paper: str,
    phase: Callable[[str], None],
    step: Callable[[int, int], None],
) -> dict[Path, tuple[str, str]]:
    """Return the files to write, each with its kind and text: the page, its data, its picture.

    With `paper`, the parts of the page `output` about other papers are kept. Raises InputError for
    claims or a former page that cannot be read, and if an output is one of the inputs.
    """
    data_file = output.with_suffix(".json")
    picture_file = output.with_name(f"{output.stem}-headroom.svg")
    reads = [*([claims] if claims else []), *recorded_files([runs])]
    check_outputs([output, data_file, picture_file], reads)
    file = load_claims(claims)
    former = read_former_page(file, paper, output) if paper else ""
    kept = read_data(data_file) if paper else None
    data, rest = results_page(file, runs, phase, step)
    if kept is not None:
        data = data.merged_into(kept, file.papers, paper)
    text = opening(data, picture_file.name) + rest
    files = {
        output: ("page", renew_sections(former, text, paper) if paper else text),
        data_file: ("data", to_json(data)),
    }
    svg = headroom_svg(data.headroom)
    return {**files, picture_file: ("picture", svg)} if svg else files
