"""Arms and conditions: which trials are compared where the compared factor is not the tuner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestration.analysis.arms import (
    by_condition,
    chosen_factor,
    default_judges,
    known_judges,
    order_arms,
)
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec

POISSON = {"kind": "poisson", "workload": "WebSearch", "load": "$load"}
INCAST = {"kind": "incast", "fan_in": 4, "size": "$size", "period": "1ms"}
BASE: dict[str, Any] = {
    "campaign": "test",
    "testbed": "graphcc",
    "traffic": [POISSON, INCAST],
    "factors": {"load": [0.3, 0.6], "size": ["10KB", "20KB"]},
    "duration": "2ms",
    "repeats": 2,
}


def trials(folder: Path, **fields: Any) -> tuple[TrialSpec, ...]:
    file = folder / "c.yml"
    file.write_text(json.dumps({**BASE, **fields}), encoding="utf-8")
    return load_campaign(file).trials


def conditions(specs: tuple[TrialSpec, ...], compare: str) -> list[dict[str, set[str]]]:
    """Return the levels of each condition, by factor; of the compared one all arms."""
    return [
        {name: {str(spec.cell[name]) for spec in group} for name in group[0].cell}
        for group in by_condition(specs, lambda spec: spec, compare)
    ]


def test_two_factors_of_one_list_are_compared_one_within_the_other(tmp_path: Path) -> None:
    specs = trials(tmp_path, seed=3)
    for compare, other in (("load", "size"), ("size", "load")):
        found = conditions(specs, compare)
        assert len(found) == 2
        assert all((len(item[compare]), len(item[other])) == (2, 1) for item in found)


def test_two_factors_may_each_replace_a_field_of_the_testbed(tmp_path: Path) -> None:
    varied = {"testbed.buffer": ["8MB", "4MB"], "testbed.hosts_per_leaf": [6, 8]}
    specs = trials(tmp_path, traffic=[{**INCAST, "size": "1KB"}], factors=varied)
    for compare, other in (tuple(varied), tuple(varied)[::-1]):
        found = conditions(specs, compare)
        assert [(len(item[compare]), len(item[other])) for item in found] == [(2, 1)] * 2


def test_what_differs_between_arms_only_belongs_to_the_arms(tmp_path: Path) -> None:
    arms = {
        "published": {"host.congestion_control": "dcqcn", "tuners": ["secn1"]},
        "sprayed": {"host.congestion_control": "swift", "load_balancing": "spray"},
        "slow": {"decision_latency": "10us", "tuners": ["secn2"]},
    }
    found = conditions(trials(tmp_path, arms=arms), "arm")
    assert len(found) == 4
    assert all(item["arm"] == set(arms) for item in found)
    assert all(item["tuner"] == {"secn1", "secn2"} for item in found)


def test_a_factor_is_named_by_the_end_of_its_path_and_all_trials_have_it(tmp_path: Path) -> None:
    specs = trials(tmp_path, traffic=[INCAST], factors={"size": ["1KB"], "host.min_rto": ["1ms"]})
    assert chosen_factor("min_rto", specs) == "host.min_rto"
    assert chosen_factor("tuners", specs) == "tuner"
    with pytest.raises(InputError, match="no factor 'rto' here"):
        chosen_factor("rto", specs)
    with pytest.raises(InputError, match="8 of 16 trials have no factor 'min_rto'"):
        chosen_factor("min_rto", [*specs * 4, *trials(tmp_path)[:8]])


def test_the_baseline_is_the_files_first_level_and_of_tuners_a_published_one() -> None:
    tuners = {"static": "static", "mine": "acc", "secn2": "secn2"}
    assert order_arms(tuners, ("mine", "static", "gone"), "arm") == ["mine", "static", "secn2"]
    assert order_arms(tuners, (), "tuner") == ["secn2", "mine", "static"]
    timeouts = {"drlet": "drlet", "ecmp": "timeout", "letflow": "letflow"}
    assert order_arms(timeouts, (), "tuner")[0] == "letflow"


def test_a_judge_suits_the_traffic_and_its_name_is_known(tmp_path: Path) -> None:
    (both, *_), (alone, *_) = (
        trials(tmp_path),
        trials(tmp_path, traffic=[INCAST], factors={"size": ["1KB"]}),
    )
    assert default_judges(both.traffic) == ("slowdown_mean_all",)
    assert default_judges(alone.traffic) == ("incast_completion_ratio",)
    assert default_judges(()) == ("slowdown_mean_all",)  # an import has no patterns
    assert known_judges(("mean_slowdown", "slowdown_mean"), "judge") == ("slowdown_mean_all",)
    with pytest.raises(InputError, match="no metric is called 'slow'"):
        known_judges(("slow",), "judge")
