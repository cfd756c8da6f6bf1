"""Headroom: what a tuner can win over the best single static setting, and the page's data."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from orchestration.analysis.flow_metrics import DoneFlows
from orchestration.core.errors import InputError
from orchestration.papers.claims import Section
from orchestration.papers.headroom_map import headroom_svg
from orchestration.papers.page_data import Headline, HeadlineCell, PageData, read_data, to_json
from orchestration.papers.results import MeasuredTrial
from orchestration.papers.results_page import headroom_part
from orchestration.papers.tuning_headroom import TuningHeadroom, headroom_of_paper, headroom_verdict

SECTION = Section(
    id="s",
    paper="P",
    title="t",
    campaign="c",
    setting="",
    reference="acc",
    learned=("acc",),
    metrics=("slowdown_mean",),
    arms=("acc",),
)
SEEDS = 6


def trial(arm: str, load: float, seed: int, slowdown: float, flows: int = 20) -> MeasuredTrial:
    """Return a trial whose flows have that slowdown in the mean; all are small."""
    spread = np.linspace(0.5, 1.5, flows) * slowdown
    done = DoneFlows(np.zeros(flows, int), np.full(flows, 1_000), spread * 1e4, spread)
    cell = {"tuner": arm, "load": load}
    return MeasuredTrial(
        cell, seed, True, "fluid", done, {}, None, f"acc-{seed % 3}" * (arm == "acc")
    )


def trials(load: float, flows: int = 20, **slowdowns: float) -> tuple[MeasuredTrial, ...]:
    """Return trials of arms (`best_static` for `best-static`), which seeds change alike."""
    return tuple(
        trial(arm.replace("_", "-"), load, seed, value * (1 + 0.1 * seed), flows)
        for arm, value in slowdowns.items()
        for seed in range(SEEDS)
    )


def found(*made: MeasuredTrial, metric: str = "slowdown_mean") -> dict[str, TuningHeadroom]:
    rows = headroom_of_paper("P", [([SECTION], made)])
    return {row.condition_label: row for row in rows if row.metric == metric}


def test_headroom_and_shares_of_it_by_hand() -> None:
    row = found(*trials(0.3, best_static=2.4, oracle=2.0, acc=2.1, placebo=2.6, amt=2.4))[
        "c, load 0.3"
    ]
    assert row.headroom[0] == pytest.approx(0.2)
    assert row.headroom[1] == pytest.approx(0.2), "seeds change all alike: there is no spread"
    shares = {placed.arm: (placed.kind, placed.share[0]) for placed in row.arms}
    assert shares == {
        "acc": ("learned", pytest.approx(0.75)),
        "placebo": ("placebo", pytest.approx(-0.5)),
        "amt": ("rule", pytest.approx(0.0)),
    }
    regrets = {placed.arm: placed.regret[0] for placed in row.arms}
    assert regrets == pytest.approx({"acc": 0.05, "placebo": 0.3, "amt": 0.2})


def test_all_conditions_together_count_alike() -> None:
    rows = found(
        *trials(0.3, best_static=2.4, oracle=2.0, acc=2.0),
        *trials(0.6, best_static=44.0, oracle=40.0, acc=44.0),
    )
    assert list(rows) == ["", "c, load 0.3", "c, load 0.6"]
    assert rows[""].headroom[0] == pytest.approx((0.2 + 0.1) / 2)
    (acc,) = rows[""].arms
    assert acc.share[0] == pytest.approx(0.2 / 0.3)


def test_headroom_that_is_negative_is_told_as_such() -> None:
    row = found(*trials(0.3, best_static=2.0, oracle=2.2, acc=2.1))["c, load 0.3"]
    assert row.headroom[0] < 0
    assert all(math.isnan(placed.share[0]) for placed in row.arms)
    text = "\n".join(headroom_part([row], "p.svg"))
    assert "headroom is negative beyond chance under 1" in text
    assert "| c, load 0.3 | -9.1%" in text


def test_a_campaign_without_an_oracle_has_no_headroom() -> None:
    assert not found(*trials(0.3, best_static=2.0, acc=2.1))
    assert "is not known" in "\n".join(headroom_part([], "p.svg"))


def test_a_tail_is_of_all_repeats_and_needs_flows() -> None:
    arms = {"best_static": 2.4, "oracle": 2.0, "acc": 2.1}
    too_few_flows = found(*trials(0.3, **arms), metric="mice_p99")["c, load 0.3"]
    assert too_few_flows.too_few_flows
    assert math.isnan(too_few_flows.headroom[0])
    assert "too few flows" in "\n".join(headroom_part([too_few_flows], "p.svg"))
    enough = found(*trials(0.3, flows=2_000, **arms), metric="mice_p99")["c, load 0.3"]
    assert enough.headroom[0] == pytest.approx(0.2)
    (acc,) = enough.arms
    assert acc.share[0] == pytest.approx(0.75)
    assert acc.share[1] <= 0.75 <= acc.share[2]


@pytest.mark.parametrize(
    ("headroom", "text"),
    [
        ((0.02, 0.01, 0.03), "nothing to learn"),
        ((0.02, -0.02, 0.08), "nothing to learn, as far as this sample tells"),
        ((-0.02, -0.03, -0.01), "nothing to learn"),
        ((0.08, 0.02, 0.12), "perhaps something to learn"),
        ((0.2, 0.1, 0.3), "something to learn"),
        ((math.nan, math.nan, math.nan), "unknown"),
    ],
)
def test_what_headroom_comes_to(headroom: tuple[float, float, float], text: str) -> None:
    assert headroom_verdict(headroom) == text


def test_the_picture_is_svg_with_every_condition_and_arm() -> None:
    rows = headroom_of_paper(
        "P", [([SECTION], trials(0.3, best_static=2.4, oracle=2, acc=9, amt=2.2))]
    )
    text = headroom_svg(rows)
    ElementTree.fromstring(text)
    assert all(word in text for word in (">c, load 0.3<", ">acc<", ">amt<", ">best-static<"))
    assert headroom_svg([]) == ""


HEADLINE = Headline("A", "text", "says", {"dctcp": HeadlineCell("partly", "less", "sample")})


def test_data_beside_a_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = headroom_of_paper("P", [([SECTION], trials(0.3, best_static=2.0, oracle=2.2, acc=2.1))])
    data = PageData(headroom=tuple(rows), headlines=(HEADLINE,))
    path = tmp_path / "results.json"
    path.write_text(to_json(data), encoding="utf-8")
    assert to_json(read_data(path)) == to_json(data)
    assert "NaN" not in to_json(data)


def test_one_papers_rows_are_renewed_in_the_papers_order() -> None:
    old, new = (
        PageData(headlines=tuple(Headline(paper, word, "", {}) for paper in ("B", "A")))
        for word in ("old", "new")
    )
    merged = new.merged_into(old, ("A", "B"), "B").headlines
    assert [(row.paper, row.text) for row in merged] == [("A", "old"), ("B", "new")]


@pytest.mark.parametrize("text", ["{", '{"version": 7}', '{"version": 1, "headlines": [1]}'])
def test_data_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="without --paper"):
        read_data(path)


def test_without_its_data_a_page_is_not_renewed_in_part(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without --paper"):
        read_data(tmp_path / "results.json")
