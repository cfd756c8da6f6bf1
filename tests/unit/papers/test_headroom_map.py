"""Headroom over a map: settings chosen on some seeds and judged on others."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from orchestration.analysis.flow_metrics import DoneFlows
from orchestration.core.errors import InputError
from orchestration.core.trial import Scalar
from orchestration.papers.cross_fit import check_metrics, static_trials_of
from orchestration.papers.headroom_map import (
    GENERATED_BELOW,
    HeadroomMap,
    keep_text_above,
    make_map,
    map_svg,
    page,
    to_json,
)
from orchestration.papers.results import MeasuredTrial

MEAN, TAIL = "slowdown_mean", "mice_p95"


def trial(
    setting: str, seed: int, slowdown: float, flows: int = 20, **cell: Scalar
) -> MeasuredTrial:
    """Return a trial of small flows with that slowdown in the mean."""
    spread = np.linspace(0.5, 1.5, flows) * slowdown
    done = DoneFlows(np.zeros(flows, int), np.full(flows, 1_000), spread * 1e4, spread)
    labels = {"tuner": setting, **cell}
    return MeasuredTrial(labels, seed, True, "fluid", done, {}, tuner="static", params=setting)


def trials(
    figures: dict[str, dict[str, float]], seeds: int = 6, noise: float = 0.0, **more: Scalar
) -> list[MeasuredTrial]:
    """Return trials of {mix: {setting: mean slowdown}}, each with noise of its own."""
    rng = np.random.default_rng(7)
    return [
        trial(setting, seed, value * (1 + noise * rng.standard_normal()), mix=mix, **more)
        for seed in range(seeds)
        for mix, settings in figures.items()
        for setting, value in settings.items()
    ]


def mapped(
    made: list[MeasuredTrial],
    *metrics: str,
    by: tuple[str, ...] = (),
    setting_factors: tuple[str, ...] = (),
) -> HeadroomMap:
    return make_map(static_trials_of("runs/x", made, by, setting_factors), metrics or (MEAN,))


# Shallow is best for the mix, deep for elephants, and the middle is what one setting should be.
KNOWN = {
    "mix": {"deep": 4.0, "middle": 2.2, "shallow": 2.0},
    "elephants": {"deep": 10.0, "middle": 12.0, "shallow": 30.0},
}


def test_a_known_headroom_is_found() -> None:
    found = mapped(trials(KNOWN))
    here = {one.condition_label: one for one in found.cells}
    assert {
        condition_label: one.headroom[0] for condition_label, one in here.items()
    } == pytest.approx({"": 0.15, "elephants": 0.2, "mix": 0.1})
    assert {one.best_static for one in found.cells} == {"middle"}
    assert (here["elephants"].oracle, here["mix"].oracle) == ("deep", "shallow")
    assert all(one.agreed for one in found.cells)


@pytest.mark.slow
def test_noise_makes_headroom_of_settings_that_are_equal_but_not_across_seeds() -> None:
    """Chosen and judged by the same seeds, eight equal settings have some headroom everywhere."""
    equal = {f"mix {number}": {f"s{one}": 2.0 for one in range(8)} for number in range(30)}
    whole = mapped(trials(equal, seeds=4, noise=0.2)).at("", "", MEAN)
    assert whole is not None
    assert whole.in_sample > 0.08
    assert abs(whole.headroom[0]) < 0.03
    assert whole.headroom[1] < 0 < whole.headroom[2]
    assert not whole.agreed


def test_no_seed_judges_what_it_chose() -> None:
    """In each half another setting looks best, and is worst in the other one."""
    made = [
        trial(setting, seed, 1.0 if lucky == seed % 2 else 2.0, mix=mix)
        for mix in ("a", "b")
        for setting, lucky in (("even", 0), ("odd", 1))
        for seed in range(4)
    ]
    # in mix b the steady one is far the best
    made += [
        trial("steady", seed, value, mix=mix)
        for mix, value in (("a", 1.4), ("b", 0.1))
        for seed in range(4)
    ]
    found = mapped(made)
    at_a = found.at("", "a", MEAN)
    assert at_a is not None
    # best-static is steady in all folds; the oracle of a is chosen as 1.0, and judged as 2.0
    assert at_a.headroom[0] == pytest.approx(1.4 / 2.0 - 1)
    assert at_a.in_sample == pytest.approx(0.0)


def test_equal_settings_have_no_headroom_at_all() -> None:
    same = {"mix": {"a": 2.0, "b": 2.0}, "elephants": {"a": 9.0, "b": 9.0}}
    assert {one.headroom for one in mapped(trials(same)).cells} == {(0.0, 0.0, 0.0)}


def test_a_single_condition_has_no_headroom_and_no_row_for_all() -> None:
    (one,) = mapped(trials({"mix": KNOWN["mix"]})).cells
    assert (one.condition_label, one.headroom[0], one.best_static, one.oracle) == (
        "mix", 0.0, "shallow", "shallow",
    )  # fmt: skip


def test_groups_choose_by_themselves_and_joined_factors_are_settings() -> None:
    fast = trials(KNOWN, nics="fast")
    slow = trials(
        {mix: {s: 2 * v for s, v in of.items()} for mix, of in KNOWN.items()}, nics="slow"
    )
    by = mapped(fast + slow, by=("nics",))
    assert by.groups == ("fast", "slow")
    for group in by.groups:
        whole = by.at(group, "", MEAN)
        assert whole is not None
        assert whole.headroom[0] == pytest.approx(0.15)
    setting_factors = mapped(fast + slow, setting_factors=("nics",))
    assert "middle, fast" in setting_factors.static_trials.settings
    assert {one.best_static for one in setting_factors.cells} == {"middle, fast"}


def test_a_setting_without_a_trial_that_others_have_is_not_chosen() -> None:
    made = [
        replace(one, valid=False) if one.cell["tuner"] == "middle" and one.seed == 0 else one
        for one in trials(KNOWN)
    ]
    found = mapped(made)
    assert found.static_trials.invalid == 2
    assert found.at("", "mix", MEAN).best_static == "deep"  # type: ignore[union-attr]


def test_tails_need_flows_and_large_flows_have_to_be_there() -> None:
    made = mapped(trials(KNOWN), TAIL, "long_mean")
    assert all(one.too_few_flows for one in made.cells if one.metric == TAIL)
    assert all(one.seeds == 0 for one in made.cells if one.metric == "long_mean")
    many = [
        trial(setting, seed, value, flows=800, mix=mix)
        for seed in range(4)
        for mix, settings in KNOWN.items()
        for setting, value in settings.items()
    ]
    whole = mapped(many, TAIL).at("", "", TAIL)
    assert whole is not None
    assert whole.headroom[0] == pytest.approx(0.15)


def test_arms_that_act_or_know_their_condition_are_left_out() -> None:
    acting = replace(trial("amt", 0, 1.0, mix="mix"), tuner="amt")
    knowing = [
        replace(trial("oracle", 0, 1.0, mix=mix), params=mix) for mix in ("mix", "elephants")
    ]
    static_trials = static_trials_of("runs/x", [*trials(KNOWN), acting, *knowing], (), ())
    assert static_trials.left_out == ("amt", "oracle")
    assert static_trials.settings == ("deep", "middle", "shallow")


def test_input_that_has_no_headroom_is_refused_with_the_remedy() -> None:
    made = trials(KNOWN)
    with pytest.raises(InputError, match="no factor is called 'nic'"):
        static_trials_of("runs/x", made, ("nic",), ())
    with pytest.raises(InputError, match="is also part of the setting"):
        static_trials_of("runs/x", made, ("mix",), ("mix",))
    with pytest.raises(InputError, match="has 1 static setting, and"):
        static_trials_of("runs/x", [one for one in made if one.cell["tuner"] == "deep"], (), ())
    with pytest.raises(InputError, match="less than two seeds"):
        static_trials_of("runs/x", trials(KNOWN, seeds=1), (), ())
    with pytest.raises(InputError, match="headroom cannot be measured by 'goodput'"):
        check_metrics(["goodput"])


def test_page_picture_and_json_say_the_same() -> None:
    found = mapped(trials(KNOWN), MEAN, TAIL)
    text = page(found, "headroom.svg")
    assert "| all together | **+15.0% [+15.0% to +15.0%]** | – |" in text
    assert "| elephants | **+20.0% [+20.0% to +20.0%]** | too few flows |" in text
    assert "| – | elephants | deep (20.0%) | – |" in text
    assert "on average; above 10% under 1 of 2 conditions (beyond chance under 1)" in text
    ElementTree.fromstring(map_svg(found))
    assert "+20%" in map_svg(found)
    data = json.loads(json.dumps(to_json(found), allow_nan=False))
    whole = next(one for one in data["places"] if one["condition"] is None)
    assert whole["headroom"] == pytest.approx(0.15)
    assert whole["verdict"] == "something to learn"


def test_a_page_keeps_what_its_author_wrote() -> None:
    once = keep_text_above("map 1\n", f"# Mine\n\n{GENERATED_BELOW}\n\nold\n")
    assert once == f"# Mine\n\n{GENERATED_BELOW}\n\nmap 1\n"
    assert keep_text_above("map 2\n", once) == f"# Mine\n\n{GENERATED_BELOW}\n\nmap 2\n"
