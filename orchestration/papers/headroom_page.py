"""The page's first part: headroom in words, one picture, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestration.analysis.metrics import HEADROOM, METRICS
from orchestration.papers.condition import in_order
from orchestration.papers.headroom import LEAST, Headroom, verdict_on
from orchestration.render.markdown import rows_table
from orchestration.render.numbers import NOTHING, percent_span

INTRODUCTION = f"""\
Headroom is what any tuner can win: by how much the single best static setting (`best-static`) is
above the best static setting of each condition (`oracle`), paired by seed, with its 95 % interval.
Both are searched for on other seeds than these. So headroom may come out negative: then the setting
chosen for a condition alone is no better there than the one for all. Where it is below
{100 * LEAST:.0f} % there is nothing to learn. A tuner's *share* of it is the part of the way from
`best-static` (0 %) to the oracle (100 %) that the tuner goes; below 0 % it is worse than the static
setting. It is not told where headroom is not above 0 beyond chance. *All together* is the mean over
conditions.
"""


def headroom_part(rows: Sequence[Headroom], picture: str) -> Iterator[str]:
    """Yield the part of the page; `picture` is the name of its file, beside the page."""
    yield "## Headroom\n"
    if not rows:
        yield "No campaign has both `best-static` and `oracle`: headroom is not known.\n"
        return
    yield INTRODUCTION
    yield f"![Headroom by condition, and where each tuner lies]({picture})\n"
    yield f"{_summary(rows)}\n"
    yield _whole_table(rows)
    yield from _condition_tables(rows)


def _summary(rows: Sequence[Headroom]) -> str:
    """Return one sentence a metric: under how many conditions there is something to learn."""
    sentences = []
    for metric in HEADROOM:
        known = [
            row
            for row in rows
            if row.metric == metric and row.place and math.isfinite(row.headroom[0])
        ]
        few = sum(row.metric == metric and bool(row.place) and row.few for row in rows)
        if not known:
            sentences.append(f"- By {METRICS[metric].short_label} nothing is known: too few flows.")
            continue
        nothing = sum(row.headroom[0] < LEAST for row in known)
        negative = sum(row.headroom[2] < 0 for row in known)
        text = f"- By {METRICS[metric].short_label} there is "
        text += "**nothing to learn**" if nothing == len(known) else "nothing to learn"
        text += f" under {nothing} of {len(known)} conditions"
        if few:
            text += f", and {few} more have too few flows"
        if negative:
            text += f"; headroom is negative beyond chance under {negative}"
        most = max(known, key=lambda row: row.headroom[0])
        where = f"`{most.place}`" + (f", {most.transport.upper()}" if most.transport else "")
        sentences.append(f"{text}. The most is {percent_span(*most.headroom)} ({where}).")
    return "\n".join(sentences)


def _cell(row: Headroom | None) -> str:
    if row is None:
        return NOTHING
    if row.few:
        return "too few flows"
    return f"{percent_span(*row.headroom)}\n{verdict_on(row.headroom)}"


def _transports(rows: Sequence[Headroom]) -> tuple[str, ...]:
    return in_order({row.transport for row in rows})


def _whole_table(rows: Sequence[Headroom]) -> str:
    together = [row for row in rows if not row.place]
    cells: dict[tuple[str, str], dict[str, Headroom]] = {}
    for row in together:
        cells.setdefault((row.paper, row.transport), {})[row.metric] = row
    papers, order = list(dict.fromkeys(paper for paper, _ in cells)), _transports(together)
    keys = sorted(cells, key=lambda key: (papers.index(key[0]), order.index(key[1])))
    heads = ("all together", "transport", *(METRICS[metric].short_label for metric in HEADROOM))
    return rows_table(
        heads,
        [
            [paper, transport.upper() or NOTHING, *(_cell(cells[key].get(m)) for m in HEADROOM)]
            for key in keys
            for paper, transport in [key]
        ],
    )


def _condition_tables(rows: Sequence[Headroom]) -> Iterator[str]:
    """Yield a table a paper: headroom by condition, and shares of that in the first metric."""
    for paper in dict.fromkeys(row.paper for row in rows):
        mine = [row for row in rows if row.paper == paper]
        arms = list(
            dict.fromkeys(p.arm for row in mine if row.metric == HEADROOM[0] for p in row.arms)
        )
        yield f"### {paper}: headroom by condition, and the share of it in mean slowdown\n"
        heads = ["condition", *(f"headroom, {METRICS[m].short_label}" for m in HEADROOM), *arms]
        keys = dict.fromkeys((row.place, row.transport) for row in mine)
        order = _transports(mine)
        places = list(dict.fromkeys(place for place, _ in keys))
        cells = []
        for place, transport in sorted(keys, key=lambda k: (places.index(k[0]), order.index(k[1]))):
            here = {r.metric: r for r in mine if (r.place, r.transport) == (place, transport)}
            label = ", ".join(filter(None, (place or "all together", transport.upper())))
            first = here.get(HEADROOM[0])
            shares = (
                {p.arm: percent_span(*p.share, sign="", digits=0) for p in first.arms}
                if first
                else {}
            )
            told = [shares.get(arm, NOTHING) for arm in arms]
            cells.append([label, *(_cell(here.get(metric)) for metric in HEADROOM), *told])
        yield rows_table(heads, cells)
