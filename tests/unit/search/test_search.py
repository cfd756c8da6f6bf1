"""Successive halving on known objectives, files that campaigns take settings from, and a search."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign, trial_seed
from orchestration.campaign.search_result import (
    ResultGroup,
    ResultInterval,
    ResultRank,
    read_search_result,
    search_result_yaml,
)
from orchestration.cli.main import app
from orchestration.core.errors import ClosloopError, InputError
from orchestration.results.reader import finished_trials
from orchestration.search.halving import (
    SEARCH,
    Halving,
    MetricValues,
    SearchBudget,
    Seed,
    TrialKey,
    first_seeds,
    stage_costs,
)
from orchestration.search.request import SearchRequest
from orchestration.search.run import plan_search
from orchestration.search.space import Dimension, Setting, Space, threshold_space, with_ranges
from orchestration.search.verbs import _indistinguishable, _of_group
from orchestration.search.verify import VERIFICATION, verify

SIZE = Dimension("kmin_bytes", 1_000, 400_000, 1_000, 400_000, ("packet", "buffer"))
LARGER = Dimension("kmax_bytes", 1_000, 400_000, 1_000, 400_000, ("packet", "buffer"))
PMAX = Dimension("pmax", 0.01, 1.0, 0.0001, 1.0, ("rare", "all"), whole=False)
SPACE = Space((SIZE, LARGER, PMAX))


def octaves(value: object, best: float) -> float:
    return abs(math.log2(float(value) / best))  # type: ignore[arg-type]


class Objective:
    """Figures by a law, with noise by seed that all settings share, and some that each has."""

    def __init__(
        self,
        law: Callable[[dict[str, object], int], float],
        noise: float = 0.0,
        *,
        higher: bool = False,
    ) -> None:
        self.law, self.noise = law, noise
        self.figures = MetricValues(higher=higher)
        self.stages: list[tuple[str, int]] = []

    def measure(self, stage: str, asks: list[TrialKey]) -> None:
        new = [ask for ask in asks if ask not in self.figures]
        self.stages.append((stage, len(new)))
        for ask in new:
            digest = hash_of(ask)
            shared = 1 + 0.3 * math.sin(ask.seed.number + 5 * ask.condition)
            own = 1 + self.noise * math.sin(digest)
            self.figures.add(ask, shared * own * self.law(dict(ask.setting), ask.condition))

    def search(self, space: Space, conditions: int, budget: SearchBudget, seed: int = 1) -> Halving:
        found = Halving(space, range(conditions), budget, self.figures, self.measure, seed)
        found.run()
        return found


def hash_of(ask: TrialKey) -> int:
    numbers = [float(value) for _, value in ask.setting]
    return int(sum(numbers) * 7919) % 100_003 + 31 * ask.seed.number


def bowl(kmin: float, kmax: float, pmax: float) -> Callable[[dict[str, object], int], float]:
    def law(setting: dict[str, object], condition: int) -> float:
        shift = 4.0 ** (2 * condition)  # each condition wants larger thresholds than the last
        return 10 * (
            1
            + 0.05 * octaves(setting["kmin_bytes"], kmin * shift)
            + 0.05 * octaves(setting["kmax_bytes"], kmax * shift)
            + 0.02 * octaves(setting["pmax"], pmax)
        )

    return law


def test_it_finds_a_known_optimum_and_the_optimum_of_each_condition() -> None:
    objective = Objective(bowl(4_000, 16_000, 0.2), noise=0.002)
    found = objective.search(SPACE, 2, SearchBudget(27, 3, 4))
    for condition, scale in ((0, 1), (1, 16)):
        best = dict(found.best_in(condition, 1)[0])
        assert octaves(best["kmin_bytes"], 4_000 * scale) < 0.6
        assert octaves(best["kmax_bytes"], 16_000 * scale) < 0.6
        assert octaves(best["pmax"], 0.2) < 1
    single = dict(found.best(1)[0])
    assert 4_000 * 0.7 < float(single["kmin_bytes"]) < 64_000 * 1.4
    regrets = objective.figures.mean_regret(found.best(3), (0, 1), first_seeds(9))
    assert [regrets[s] for s in found.best(3)] == sorted(regrets.values())


def test_figures_that_should_be_high_are_searched_the_other_way_round() -> None:
    law = bowl(20_000, 80_000, 0.2)
    objective = Objective(lambda one, at: 1 / law(one, at), higher=True)
    best = dict(objective.search(SPACE, 1, SearchBudget(27, 3, 4)).best(1)[0])
    assert octaves(best["kmin_bytes"], 20_000) < 0.6
    assert octaves(best["kmax_bytes"], 80_000) < 0.6


def test_a_winner_at_an_edge_widens_the_range_until_the_optimum_is_inside() -> None:
    narrow = with_ranges(SPACE, ["kmin_bytes=1KB:8KB", "kmax_bytes=1KB:8KB"])
    objective = Objective(bowl(64_000, 128_000, 0.1))
    found = objective.search(narrow, 1, SearchBudget(9, 1, 4))
    best = dict(found.best(1)[0])
    assert octaves(best["kmax_bytes"], 128_000) < 1.1
    assert float(best["kmin_bytes"]) > 8_000
    said = [note for note in found.notes if "kmax" in note]
    assert said[0].startswith("a winner lies at the edge of the range of kmax, 8KB")
    assert "went on to 32KB" in said[0]


def test_a_winner_at_a_physical_limit_ends_the_search_and_says_why() -> None:
    objective = Objective(bowl(1, 1, 5.0))
    found = objective.search(SPACE, 1, SearchBudget(9, 4, 4))
    assert dict(found.best(1)[0]) == {"kmin_bytes": 1_000, "kmax_bytes": 1_000, "pmax": 1.0}
    assert len([stage for stage, _ in objective.stages if stage.startswith("step")]) == 8
    assert "the best setting of condition 1 has pmax 1, the limit: all" in found.notes
    assert not any("edge of the range" in note for note in found.notes)


def test_of_equal_settings_the_smaller_values_win_whatever_the_order() -> None:
    flat = Objective(lambda one, at: 5.0)
    ranking = flat.search(SPACE, 2, SearchBudget(9, 0, 4)).best(9)
    assert ranking == sorted(ranking)


def test_a_search_follows_its_seed_and_nothing_else() -> None:
    runs = [
        Objective(bowl(4_000, 16_000, 0.2), 0.01).search(SPACE, 2, SearchBudget(27, 2, 4), seed)
        for seed in (1, 1, 2)
    ]
    assert runs[0].best(5) == runs[1].best(5)
    first = [set(SPACE.first(27, seed)) for seed in (1, 2)]
    assert first[0] != first[1]


def test_it_tries_no_more_than_its_plan_says() -> None:
    for conditions, budget in itertools.product(
        (1, 3), (SearchBudget(27, 2, 4), SearchBudget(10, 1, 4))
    ):
        objective = Objective(bowl(20_000, 80_000, 0.2), 0.01)
        objective.search(SPACE, conditions, budget)
        maximum = sum(count for _, count in stage_costs(budget, conditions, 9))
        assert len(objective.figures) <= maximum


def test_rungs_keep_a_third_and_give_three_times_the_seeds() -> None:
    assert SearchBudget(81).rungs() == [(81, 1), (27, 3), (9, 9)]
    assert SearchBudget(27).rungs() == [(27, 1), (9, 3), (3, 9)]
    assert SearchBudget(3).rungs() == [(3, 1)]


def test_the_first_settings_fill_the_space_and_include_the_known_ones() -> None:
    testbed = load_testbed("graphcc")
    space = threshold_space([testbed], None, dcqcn=False)
    settings = [dict(one) for one in space.first(64, 5)]
    assert len(settings) == 64
    secn1 = {"kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01, "per_25g": False}
    assert secn1 in settings, "mixed rates: scaled by rate or not is searched too"
    buffer = max(queue.buffer_bytes for queue in testbed.queues)
    assert all(1_000 <= s["kmin_bytes"] <= s["kmax_bytes"] <= buffer for s in settings)
    kmax = np.log2([float(s["kmax_bytes"]) for s in settings])
    parts, _ = np.histogram(kmax, bins=4, range=(np.log2(1_000), np.log2(buffer)))
    assert parts.min() >= 3
    assert 20 < sum(bool(s["per_25g"]) for s in settings) < 44


def test_fresh_seeds_undo_the_winners_curse() -> None:
    """With nothing but luck to choose by, no finalist differs from another on fresh seeds."""
    objective = Objective(lambda one, at: 10.0, noise=0.2)
    budget = SearchBudget(27, 0, 60)
    found = objective.search(SPACE, 1, budget)
    answer = verify(found, {0: {}}, budget.verify, objective.figures, objective.measure, {})
    assert not any(one.differs for one in answer.ranking)
    assert answer.conditions[0].headroom.mean == 0
    asked = {ask.seed.purpose for ask in objective.figures._of}
    assert asked == {SEARCH, VERIFICATION}
    seeds = {trial_seed(1, n, p) for p in (SEARCH, VERIFICATION, "evaluation") for n in range(9)}
    assert len(seeds) == 27


def test_settings_that_differ_at_no_seed_are_called_identical() -> None:
    best, twin, other = ({"kmin_bytes": kmin, "pmax": 1.0} for kmin in (1_000, 2_000, 3_000))
    nothing = ResultInterval(mean=0.0, low=0.0, high=0.0)
    some = ResultInterval(mean=0.0, low=-0.1, high=0.1)
    ranks = (
        ResultRank(setting=best, regret=0.0),
        ResultRank(setting=twin, regret=0.0, behind=nothing),
        ResultRank(setting=other, regret=0.0, behind=some),
    )
    group = ResultGroup(
        when={}, **{"best-static": best}, headroom=nothing, ranking=ranks, conditions=()
    )
    said = _of_group(group)
    assert said[1:] == [
        "  identical to it at every seed:",
        "    with kmin 2KB",
        "  not distinguishable from it:",
        "    with kmin 3KB: +0.0 % [-10.0, +10.0]",
    ]
    assert not any("cannot be told" in line for line in _indistinguishable(ranks[:2]))


def test_verification_tells_settings_apart_that_differ_and_says_the_headroom() -> None:
    objective = Objective(bowl(4_000, 16_000, 0.2), noise=0.001)
    budget = SearchBudget(27, 3, 8)
    found = objective.search(SPACE, 2, budget)
    answer = verify(found, {0: {}, 1: {}}, budget.verify, objective.figures, objective.measure, {})
    assert answer.conditions[0].ranking[-1].differs
    assert not answer.conditions[0].ranking[0].differs
    # half of 4 octaves in two dimensions at 5 % each, over the oracle's own 10 x 1.0
    assert 0.1 < answer.headroom.low <= answer.headroom.mean <= answer.headroom.high < 0.3
    for one in answer.conditions:
        assert one.headroom.mean >= 0


def test_a_setting_without_a_figure_ranks_last_and_a_seed_without_any_falls_away() -> None:
    figures = MetricValues()
    seeds = first_seeds(2)
    one, other, third = (((("x", n),)) for n in (1, 2, 3))
    for setting, values in ((one, (2.0, math.nan)), (other, (3.0, math.nan)), (third, (1.0, 1.0))):
        for seed, value in zip(seeds, values, strict=True):
            figures.add(TrialKey(setting, 0, seed), value)
    regrets = figures.regret([one, other, third], 0, seeds)
    assert regrets == {one: math.inf, other: math.inf, third: 0.0}
    missing = MetricValues()
    for setting, value in ((one, 2.0), (other, 3.0)):
        missing.add(TrialKey(setting, 0, seeds[0]), value)
        missing.add(TrialKey(setting, 0, seeds[1]), math.nan)
    assert missing.regret([one, other], 0, seeds) == {one: 0.0, other: 0.5}
    missing.add(TrialKey(one, 1, seeds[0]), 0.0)
    with pytest.raises(ClosloopError, match="regret is relative"):
        missing.regret([one], 1, seeds[:1])


# a search of real trials, and campaigns that use what it found

CAMPAIGN = """\
campaign: small
testbed: graphcc
backend: fluid
tuners: [secn1, {name: static, from: search-results/small.yml}]
traffic:
  - {kind: poisson, workload: FB_Hadoop, load: $load}
factors: {load: [0.3, 0.6]}
repeats: 1
duration: 500us
drain: 50ms
"""
SMALL = ["--settings", "4", "--rounds", "0", "--verify", "2", "--range", "kmax_bytes=1KB:400KB"]


def write(folder: Path, text: str = CAMPAIGN) -> Path:
    path = folder / "small.yml"
    path.write_text(text, encoding="utf-8")
    return path


def run(file: Path, out: Path, *options: str) -> str:
    done = CliRunner().invoke(
        app, ["search", str(file), "--out", str(out), *SMALL, *options], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_a_search_goes_on_where_it_was_and_finds_the_same_with_any_number_of_workers(
    tmp_path: Path,
) -> None:
    file, out = write(tmp_path), tmp_path / "runs"
    text = run(file, out, "--jobs", "2")
    assert "best static setting: kmin" in text
    path = tmp_path / "search-results" / "small.yml"
    first = path.read_text(encoding="utf-8")
    found = read_search_result(path)
    trials = finished_trials(out / "small-search")
    assert found.trials == len(trials)
    assert search_result_yaml(found) == first
    specs = [json.loads((one / "trial.json").read_text())["spec"] for one in trials]
    evaluation = {trial_seed(1, n) for n in range(1, 20)}
    assert not evaluation & {spec["seed"] for spec in specs}

    for number, folder in enumerate(trials):
        if number % 3:  # as if it had been killed
            for item in folder.iterdir():
                item.unlink()
            folder.rmdir()
    run(file, out, "--jobs", "1")
    assert path.read_text(encoding="utf-8") == first
    assert len(finished_trials(out / "small-search")) == len(trials)

    campaign = load_campaign(write(tmp_path, CAMPAIGN.replace("]\ntraffic", ORACLE_TOO)))
    params = {(one.cell["tuner"], one.cell["load"]): one.tuner.params for one in campaign.trials}
    (group,) = found.groups
    assert params["best-static", 0.3] == params["best-static", 0.6] == group.best_static
    assert params["oracle", 0.3] == group.conditions[0].oracle
    assert params["oracle", 0.6] == group.conditions[1].oracle
    assert all("from" not in one.tuner.params for one in campaign.trials)

    changed = write(tmp_path, CAMPAIGN.replace("500us", "600us"))
    with pytest.raises(InputError, match="trials of other conditions"):
        run(changed, out)


ORACLE_TOO = ", {name: static, from: search-results/small.yml, of: condition}]\ntraffic"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (
            SearchBudget(10**9, 0, 2),
            r"--settings: 1,000,000,000 under \d+ conditions are more than 10,000 s",
        ),
        (
            SearchBudget(4, 10**9, 2),
            r"--rounds: 1,000,000,000 under \d+ conditions are more than 1,000,0",
        ),
        (
            SearchBudget(4, 0, 10**9),
            r"--verify: 1,000,000,000 under \d+ conditions are more than 1,000,0",
        ),
    ],
)
def test_a_budget_without_end_is_refused(
    tmp_path: Path, budget: SearchBudget, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        plan_search(SearchRequest(write(tmp_path), budget=budget))


def test_the_plan_starts_nothing(tmp_path: Path) -> None:
    text = run(write(tmp_path), tmp_path / "runs", "--plan", "--json")
    assert (
        json.loads(text)["trials"]
        == plan_search(SearchRequest(write(tmp_path), budget=SearchBudget(4, 0, 2))).trials
    )
    assert not (tmp_path / "runs").exists()


def test_a_group_has_its_own_best_setting(tmp_path: Path) -> None:
    request = SearchRequest(write(tmp_path), by=("load",))
    assert [group.when for group in request.groups] == [{"load": 0.3}, {"load": 0.6}]
    with pytest.raises(InputError, match="no factor 'loud'"):
        _ = SearchRequest(write(tmp_path), by=("loud",)).groups


def test_arms_and_other_compared_factors_are_conditions_of_a_search(tmp_path: Path) -> None:
    text = CAMPAIGN.replace("backend: fluid\n", "compare: congestion_control\n").replace(
        "factors: {", "factors: {host.congestion_control: [dcqcn, swift, dctcp], "
    )
    request = SearchRequest(write(tmp_path, text), by=("congestion_control",))
    controls = [{"host.congestion_control": name} for name in ("dcqcn", "swift", "dctcp")]
    assert [group.when for group in request.groups] == controls
    assert [len(group.conditions) for group in request.groups] == [2, 2, 2]
    assert [said.partition(":")[0] for said in request.cautions] == [
        "host.congestion_control swift, load 0.3",
        "host.congestion_control swift, load 0.6",
    ]
    alone = SearchRequest(write(tmp_path, text.replace("dcqcn, swift, dctcp", "swift, timely")))
    with pytest.raises(InputError, match=r"thresholds make no difference: .* under swift, timely"):
        _ = alone.cautions


@pytest.mark.slow
def test_an_arm_may_have_the_setting_that_a_search_found(tmp_path: Path) -> None:
    arms = (
        "arms:\n"
        "  published: {tuners: [secn1]}\n"
        "  patient: {host.min_rto: 5ms, tuners: [secn1]}\n"
        "  searched: {tuners: [{name: static, from: search-results/small.yml, of: condition}]}\n"
    )
    text = CAMPAIGN.replace(CAMPAIGN.splitlines()[3] + "\n", arms)
    run(file := write(tmp_path, text), tmp_path)
    found = read_search_result(tmp_path / "search-results" / "small.yml")
    oracles = [item.oracle for group in found.groups for item in group.conditions]
    trials = [trial for trial in load_campaign(file).trials if trial.cell["arm"] == "searched"]
    assert [dict(trial.tuner.params) for trial in trials] == [
        next(
            item.oracle
            for group in found.groups
            for item in group.conditions
            if item.when == {"load": trial.cell["load"], "arm": "searched"}
        )
        for trial in trials
    ]
    assert len(oracles) == 6


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"metric": "slow"}, "settings cannot be chosen by 'slow'"),
        ({"metric": "lost_share"}, "settings cannot be chosen by 'lost_share'"),
        ({"over": "pmax"}, "unknown: 'pmax'"),
        ({"with_dcqcn": True}, "not all conditions have hosts with DCQCN"),
        ({"ranges": ("kmin=1KB:2KB",)}, "there are kmin_bytes"),
        ({"ranges": ("kmin_bytes=2KB:1KB",)}, "not a range inside the limits 1000"),
        ({"ranges": ("kmin_bytes",)}, "write it like kmin_bytes=1KB:200KB"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    how: dict[str, object], says: str, tmp_path: Path
) -> None:
    request = SearchRequest(write(tmp_path), **how)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=says):
        _ = request.objective, request.searched, request.groups


def test_dcqcns_parameters_are_searched_where_hosts_have_it(tmp_path: Path) -> None:
    text = CAMPAIGN.replace("backend: fluid\n", "host: {congestion_control: dcqcn}\n")
    wide = SearchRequest(
        write(tmp_path, text), with_dcqcn=True, ranges=("min_time_between_cnps=1:100",)
    )
    (group,) = wide.groups
    names = [one.name for one in group.space.dimensions]
    assert names[-3:] == ["rate_reduce_monitor_period", "clamp_tgt_rate", "min_time_between_cnps"]
    trial = wide.searched.trial(TrialKey(group.space.first(9, 1)[8], 0, Seed(SEARCH, 1)))
    assert trial.tuner.params["rpg_ai_rate"] > 0
    alone = SearchRequest(write(tmp_path, text), over="dcqcn").groups[0].space
    settings: list[Setting] = alone.first(20, 1)
    assert {dict(one)["kmax_bytes"] for one in settings} == {200_000}
