"""Verdicts on the papers' claims, their likely causes, and learned tuners against yardsticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestration.analysis.flow_metrics import DoneFlows
from orchestration.analysis.student_t import noncentrality
from orchestration.papers.claims import Claim, Section
from orchestration.papers.condition import Condition, Repeat
from orchestration.papers.results import SectionResult, placebo_of
from orchestration.papers.section_part import size_text
from orchestration.papers.summary_tables import (
    baseline_sentence,
    baselines,
    claim_text,
    detectable_text,
    headline,
    headline_tables,
    verdict_counts_text,
)
from orchestration.papers.verdicts import ClaimResult, evaluate_claim, likely_cause

SECTION = Section(
    id="s",
    paper="P",
    title="t",
    campaign="c",
    setting="",
    reference="old",
    learned=("new",),
    metrics=("slowdown_mean",),
)

Arms = Mapping[str, Sequence[float]]


def repeats_of(values: Sequence[float], networks: Sequence[str] = ()) -> dict[int, Repeat]:
    """Return repeats with these slowdowns, one a seed."""
    names = networks or [""] * len(values)
    return {
        seed: Repeat({"slowdown_mean": value}, checkpoint=name)
        for seed, (value, name) in enumerate(zip(values, names, strict=True))
    }


def conditions_of(
    *conditions: Arms, transport: str = "", networks: Sequence[str] = ()
) -> list[Condition]:
    """Return conditions with these slowdowns by arm; `networks` are those of the arm `new`."""
    labels = {"transport": transport} if transport else {}
    return [
        Condition(
            {"load": number, **labels},
            {
                arm: repeats_of(values, networks if arm == "new" else ())
                for arm, values in arms.items()
            },
        )
        for number, arms in enumerate(conditions)
    ]


def result_of(*conditions: Condition, section: Section = SECTION) -> SectionResult:
    return SectionResult(section, ("old", "new"), conditions, 10, 0, ("fluid",))


def claim(direction: str, **more: object) -> Claim:
    fields = {"against": "old", **more}
    return Claim.model_validate(
        {
            "section": "s",
            "text": "t",
            "says": "s",
            "metric": "slowdown_mean",
            "arm": "new",
            "direction": direction,
            "headline": True,
            **fields,
        }
    )


def judged(made: Claim, *conditions: Arms) -> str:
    # a placebo that is as the reference passes no claim but that it is the same
    whole = [{"placebo": arms.get("old", OLD), **arms} for arms in conditions]
    return evaluate_claim(made, result_of(*conditions_of(*whole))).by_transport[""].verdict


OLD = [4.0, 5.0, 6.0, 5.5]
HALF = {"old": OLD, "new": [2.0, 2.6, 3.0, 2.7]}  # a half, give or take
SLIGHT = {"old": OLD, "new": [3.92, 4.9, 5.88, 5.39]}  # 2 % lower, for certain
NOISE = {"old": OLD, "new": [5.0, 4.0, 6.1, 5.5]}


@pytest.mark.parametrize(
    ("made", "conditions", "verdict"),
    [
        (claim("lower", min_effect=0.4), [HALF], "reproduced"),
        # the far end of the interval reaches a half, the near end does not
        (claim("lower", min_effect=0.5), [HALF], "partly"),
        (claim("lower", min_effect=0.4), [HALF, SLIGHT], "partly"),
        (claim("lower", min_effect=0.4), [SLIGHT], "partly"),
        (claim("lower"), [SLIGHT, NOISE], "partly"),
        (claim("lower"), [SLIGHT, NOISE, NOISE], "not reproduced"),
        (claim("lower"), [NOISE], "not reproduced"),
        (claim("higher"), [HALF], "not reproduced"),
        (claim("lower", best=0.03), [SLIGHT], "reproduced"),
        (claim("lower", best=0.5), [SLIGHT], "partly"),
        (claim("same", within=0.05), [SLIGHT], "not by learning"),
        (claim("same", within=0.05), [NOISE], "partly"),
        (claim("same", within=0.05), [HALF], "not reproduced"),
        (claim("value", low=1.5, high=3.5), [HALF], "reproduced"),
        # the mean is in the range, its interval is not
        (claim("value", low=2.5, high=3.5), [HALF], "partly"),
        (claim("value", low=7.0, high=9.0), [HALF], "not reproduced"),
        (claim("lower"), [{"old": [4.0], "new": [2.0]}], "no data"),
        (claim("lower"), [{"old": OLD}], "no data"),
        (claim("lower", when={"load": 1}), [NOISE, HALF], "reproduced"),
    ],
)
def test_verdicts(made: Claim, conditions: list[Arms], verdict: str) -> None:
    assert judged(made, *conditions) == verdict


def test_what_the_placebo_does_too_is_not_by_learning() -> None:
    passing, failing = {**HALF, "placebo": HALF["new"]}, {**HALF, "placebo": OLD}
    made = claim("lower", min_effect=0.4)
    assert judged(made, passing) == "not by learning"
    assert judged(made, passing, failing) == "reproduced"
    # partly is partly, whatever the placebo does
    assert judged(made, {**SLIGHT, "placebo": HALF["new"]}) == "partly"
    # a static setting has no placebo, and nobody is compared with chance in a claim about chance
    assert judged(claim("lower", arm="static"), {**passing, "static": HALF["new"]}) == "reproduced"
    assert judged(claim("lower", against="placebo"), failing) == "reproduced"
    result = result_of(*conditions_of(HALF))
    assert evaluate_claim(made, result).by_transport[""].verdict == "no placebo"


def test_a_learned_arm_has_the_placebo_that_is_named_or_nearest() -> None:
    named = SECTION.model_copy(update={"placebos": {"acc": "chance"}})
    assert placebo_of(named, "acc", ("placebo", "placebo-acc")) == "chance"
    assert placebo_of(SECTION, "acc", ("placebo", "placebo-acc")) == "placebo-acc"
    assert placebo_of(SECTION, "pet-without-flows", ("placebo", "placebo-pet")) == "placebo-pet"
    assert placebo_of(SECTION, "acc", ("placebo", "placebo-pet")) == "placebo"


def flows(count: int, seed: int, scale: float) -> DoneFlows:
    fct = scale * np.random.default_rng(seed).exponential(1e6, count)
    return DoneFlows(np.zeros(count, int), np.full(count, 1_000), fct, fct / 1e5)


def tails(count: int, scale: float) -> Condition:
    """Return a condition of five repeats with that many flows each."""
    arms = {"old": 1.0, "new": scale, "placebo": 1.0}
    return Condition(
        {"count": count},
        {
            arm: {seed: Repeat({}, flows(count, seed, one)) for seed in range(5)}
            for arm, one in arms.items()
        },
    )


def test_a_tail_needs_a_hundred_flows_beyond_it() -> None:
    made = claim("lower", metric="mice_p99", min_effect=0.3)
    skipped, enough = tails(1_000, 0.5), tails(2_000, 0.5)
    result = evaluate_claim(made, result_of(skipped))
    assert result.by_transport[""].verdict == "too few flows"
    assert claim_text(result, "") == "1 condition with too few flows"
    judgement = evaluate_claim(made, result_of(skipped, enough)).by_transport[""]
    assert (judgement.verdict, judgement.skipped, len(judgement.rows)) == ("reproduced", 1, 1)
    difference = judgement.rows[0].difference
    assert difference is not None
    # the tail of all flows together, not the mean of the repeats' tails
    assert difference.relative == pytest.approx(-0.5)


def caused(made: Claim, *conditions: Condition) -> dict[str, str]:
    result = evaluate_claim(made, result_of(*conditions))
    return {transport: likely_cause(result, transport) for transport in result.by_transport}


def test_what_differs_between_transports_is_the_transports() -> None:
    good, bad = {**HALF, "placebo": OLD}, {**SLIGHT, "placebo": OLD}
    made = claim("lower", min_effect=0.4)
    here = conditions_of(good, transport="dctcp")
    there = conditions_of(bad, transport="dcqcn")
    assert caused(made, *here, *there) == {"dctcp": "", "dcqcn": "transport"}
    both = conditions_of(bad, transport="dctcp")
    assert set(caused(made, *both, *there).values()) == {"none found"}


def test_a_sample_that_could_not_show_it_is_told_before_all_else() -> None:
    noise = {**NOISE, "placebo": OLD}
    good = {**SLIGHT, "placebo": OLD}
    made = claim("lower", min_effect=0.01)
    found = caused(
        made, *conditions_of(good, transport="dctcp"), *conditions_of(noise, transport="dcqcn")
    )
    assert found == {"dctcp": "", "dcqcn": "sample"}
    # a difference that would have been seen was not there
    assert caused(claim("lower", min_effect=0.99), *conditions_of(noise)) == {"": "none found"}
    # nor is it the sample's where the opposite is beyond chance
    opposite = {"old": OLD, "new": [12.0, 15.0, 20.0, 14.5]}
    assert caused(claim("lower", min_effect=0.5), *conditions_of(opposite)) == {"": "none found"}
    # only a direction is claimed: no size can be too small
    assert caused(claim("lower"), *conditions_of(noise)) == {"": "none found"}


def test_one_good_network_of_several_is_the_trainings() -> None:
    old = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95]
    networks = ["n-1"] * 3 + ["n-2"] * 3
    one_learned = {"old": old, "placebo": old, "new": [5.0, 5.1, 4.9, 10.0, 10.1, 9.9]}
    none_learned = {"old": old, "placebo": old, "new": [9.9, 10.2, 9.8, 10.0, 10.1, 9.9]}
    made = claim("lower", min_effect=0.4)
    assert caused(made, *conditions_of(one_learned, networks=networks)) == {"": "training"}
    # with as many repeats, of which none is told apart by its network
    assert caused(made, *conditions_of(one_learned)) != {"": "training"}
    assert caused(made, *conditions_of(none_learned, networks=networks)) == {"": "none found"}


def test_the_spread_between_networks_can_hide_what_they_share() -> None:
    old = [10.0] * 6
    # neither network alone is enough, all repeats are, if their networks do not count
    arms = {"old": old, "placebo": old, "new": [7.5, 9.0, 8.0, 9.1, 9.9, 9.2]}
    networks = ["n-1"] * 3 + ["n-2"] * 3
    result = evaluate_claim(claim("lower"), result_of(*conditions_of(arms, networks=networks)))
    assert result.by_transport[""].verdict == "not reproduced"
    assert likely_cause(result, "") == "training"


def test_what_more_repeats_would_show_leaves_the_networks_spread_out() -> None:
    old, networks = [10.0] * 4, ["n-1", "n-1", "n-2", "n-2"]
    arms = {"old": old, "new": [7.9, 8.1, 9.4, 9.6]}
    (condition,) = conditions_of(arms, networks=networks)
    found = condition.detectable_by_repeats("new", "old", "slowdown_mean")
    # four repeats, two degrees of freedom, 0.1 from their network's mean each
    error = math.sqrt(4 * 0.1**2 / 2 / 4)
    assert found == pytest.approx(noncentrality(2, 0.05) * error / 10)
    difference = condition.difference("new", "old", "slowdown_mean")
    assert condition.detectable("new", "old", difference) / 10 > 10 * found
    (alike,) = conditions_of(arms)
    whole = alike.detectable("new", "old", alike.difference("new", "old", "slowdown_mean"))
    assert alike.detectable_by_repeats("new", "old", "slowdown_mean") == pytest.approx(whole / 10)


def test_what_could_have_been_shown_of_a_share_is_in_points_as_the_difference_is() -> None:
    old, more = [0.010, 0.011, 0.012, 0.010], [0.001, 0.002, 0.001, 0.003]
    new = [share + one for share, one in zip(old, more, strict=True)]
    found = {}
    for metric in ("lost_share", "slowdown_mean"):
        arms = {
            arm: {seed: Repeat({metric: value}) for seed, value in enumerate(values)}
            for arm, values in (("old", old), ("new", new))
        }
        result = evaluate_claim(claim("higher", metric=metric), result_of(Condition({}, arms)))
        found[metric] = detectable_text(result, "")
    # of four pairs, three degrees of freedom
    minimum = noncentrality(3, 0.05) * float(np.std(more, ddof=1)) / 2
    assert found["lost_share"] == f"{100 * minimum:.2f} points"
    assert found["slowdown_mean"] == f"{100 * minimum / np.mean(old):.1f}%"


def test_a_headline_has_a_column_for_each_transport() -> None:
    arms = {**HALF, "placebo": OLD}
    here, there = (conditions_of(arms, transport=name) for name in ("dcqcn", "dctcp"))
    made: ClaimResult = evaluate_claim(claim("lower", min_effect=0.4), result_of(*here, *there))
    row = headline(made, "P")
    assert list(row.cells) == ["dctcp", "dcqcn"]
    [made_table] = headline_tables([row])
    head, _, line = made_table.splitlines()
    assert head == "| paper | claim | the paper | DCTCP | DCQCN | likely cause |"
    assert line.count("**reproduced**") == 2
    assert "detectable: " in line
    assert verdict_counts_text([row]) == (
        "Of the papers' 1 headline under DCTCP: 1 reproduced.\n"
        "Of the papers' 1 headline under DCQCN: 1 reproduced."
    )


def test_a_tuner_that_does_not_beat_the_best_static_setting_is_reported() -> None:
    better = {"best-static": OLD, "new": HALF["new"], "placebo-new": OLD}
    even = {"best-static": OLD, "new": NOISE["new"], "placebo-new": OLD}
    worse = {"best-static": HALF["new"], "new": OLD, "placebo-new": HALF["new"]}
    static, placebo_verdict = baselines("P", [result_of(*conditions_of(better, even, worse))])
    assert (static.better, static.worse, static.even) == (1, 1, 1)
    assert placebo_verdict.rival == "placebo-new", "its own"
    assert baseline_sentence(static) == (
        "`new` beats the best static setting in 1 of 3 conditions "
        "(worse in 1, not distinguishable from it in 1)."
    )
    static, _ = baselines("P", [result_of(*conditions_of(even, worse))])
    assert baseline_sentence(static).startswith("**`new` does not beat the best static setting**")
    assert baselines("P", [result_of(*conditions_of({"best-static": OLD}))]) == []


def test_another_confidence_moves_the_verdict() -> None:
    (condition,) = conditions_of({"old": OLD, "new": [3.7, 4.6, 5.4, 5.1], "placebo": OLD})
    strict = Condition(condition.factors, condition.repeats, confidence=0.999)
    results = [evaluate_claim(claim("lower"), result_of(one)) for one in (condition, strict)]
    first, second = (result.by_transport[""] for result in results)
    assert (first.verdict, second.verdict) == ("reproduced", "not reproduced")
    assert second.rows[0].detectable > first.rows[0].detectable
    assert not math.isnan(first.rows[0].detectable)


def test_loads_stand_beside_a_condition_if_its_trials_have_them() -> None:
    loads = {"offered_load": 0.6, "delivered_load": 0.57}
    here, there = (
        Condition(
            {"load": 0.6, "transport": transport},
            {"new": {1: Repeat(figures), 2: Repeat(figures)}},
        )
        for transport, figures in (("dctcp", loads), ("dcqcn", {}))
    )
    assert size_text([here]) == "2 seeds, 60.0 % offered, 57.0 % delivered"
    assert size_text([here, there]) == (
        "DCTCP: 2 seeds, 60.0 % offered, 57.0 % delivered; DCQCN: 2 seeds"
    )
