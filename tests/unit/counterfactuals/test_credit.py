"""Credit: the sample, the rewards from tables, the ranks, and what is printed of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN
from orchestration.core.records import Observation
from orchestration.core.trial import TunerSpec
from orchestration.counterfactuals.credit import draw_cases, measure, plan_credit, tuner_with_reward
from orchestration.counterfactuals.decisions import Decisions
from orchestration.counterfactuals.question import CreditRequest
from orchestration.counterfactuals.ranking import (
    MeasuredCase,
    agreement,
    consistency,
    half_marked_bytes,
    kendall,
)
from orchestration.counterfactuals.rendering import credit_csv, credit_page, credit_to_json
from orchestration.results.reader import TrialResult
from tests.unit.replay.test_replay_runs import run
from tuners.registry import create

PARENT = """campaign: old
testbed: rlcc-7
backend: fluid
tuners:
  - acc
  - {name: graphcc, collect: true}
  - {name: pet, checkpoint: pet-without-flows-dcqcn-1}
  - secn1
traffic:
  - {kind: message-mix, load: 0.6, sizes: [1KB, 50KB]}
  - {kind: incast, fan_in: 5, size: 200KB, period: 500us}
repeats: 1
duration: 1ms
drain: 30ms
"""
KB = 1_000


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> dict[str, TrialResult]:
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.yml").write_text(PARENT, encoding="utf-8")
    trials = run(load_campaign(folder / "old.yml"), folder)
    return {trial.spec.tuner.name: trial for trial in trials}


@pytest.mark.slow
def test_tau_and_its_interval_are_those_of_the_book():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 6, 60).astype(float)
    y = x + rng.normal(0, 3, 60).round()
    cluster = np.repeat(np.arange(20), 3)
    found = kendall(x, y, cluster, seed=1)
    assert found.tau == pytest.approx(kendalltau(x, y, variant="b").statistic, abs=1e-12)
    assert (found.cases, found.clusters) == (60, 20)
    draws = []
    for _ in range(1_000):
        rows = np.concatenate([np.flatnonzero(cluster == c) for c in rng.integers(0, 20, 20)])
        draws.append(kendalltau(x[rows], y[rows], variant="b").statistic)
    assert np.allclose([found.low, found.high], np.quantile(draws, (0.025, 0.975)), atol=0.04)
    assert kendall(x, y, cluster, seed=1) == found


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_tau_of_any_ties(pairs):
    x, y = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    expected = kendalltau(x, y, variant="b").statistic
    found = kendall(x, y, np.arange(len(x)), seed=0).tau
    assert found == pytest.approx(expected, nan_ok=True)


def test_what_is_not_known_ranks_nothing():
    nan = math.nan
    x, y = np.array([1.0, 2.0, nan, 4.0]), np.array([1.0, 2.0, 3.0, nan])
    found = kendall(x, y, np.arange(4), seed=0)
    assert (found.tau, found.cases) == (1.0, 2)
    assert math.isnan(found.low)
    assert math.isnan(kendall(x, np.zeros(4), np.arange(4), seed=0).tau)
    assert agreement(np.array([1.0, -1.0, 1.0, 0.0]), np.array([2.0, -0.1, -3.0, 1.0])) == (2, 1)


def test_like_alternatives_to_one_decision_are_compared(old):
    decisions = Decisions(old["graphcc"])
    case = draw_cases(decisions, tuner_with_reward(decisions), 1, 1, seed=1)[0]
    rows = [(1, 2.0), (1, 1.0), (1, -1.0), (1, -1.0), (1, 0.0), (2, 5.0)]
    measured = [
        MeasuredCase(replace(case, number=number), 0, 0, 0, change, 0, 0, 0, 1, 0, 0)
        for number, change in rows
    ]
    # 2 and 1 agree; each of them and either -1 do not; what did not move says nothing
    assert consistency(measured, "slowdown") == (1, 4)


def test_depth_is_where_half_is_marked():
    def depth(kmin: int, kmax: int, pmax: float) -> float:
        return half_marked_bytes({"kmin_bytes": kmin, "kmax_bytes": kmax, "pmax": pmax})

    assert depth(10, 30, 1.0) == 20
    assert depth(10, 30, 0.25) == depth(0, 30, 0.5) == 30
    assert depth(10, 30, 0.8) < depth(10, 30, 0.6) < depth(20, 40, 0.6)


def test_a_sample_is_of_decisions_at_work_and_of_the_tuners_own_settings(old):
    decisions = Decisions(old["graphcc"])
    tuner = tuner_with_reward(decisions)
    cases = draw_cases(decisions, tuner, 6, 3, seed=4)
    assert cases == draw_cases(decisions, tuner, 6, 3, seed=4)
    assert cases != draw_cases(decisions, tuner, 6, 3, seed=5)
    assert len({case.label for case in cases}) == len(cases) == 18
    table = tuner.choices()
    own = {
        tuple(table[n][row].item() for n in ECN.column_names) for row in range(len(table["pmax"]))
    }
    ports = old["graphcc"].ports
    for case in cases:
        assert tuple(case.setting.values()) in own
        assert case.setting != case.decision.setting
        row = int(np.searchsorted(ports.t_ns, case.decision.at_ns))
        queue = case.decision.target.index
        assert case.queue_bytes == ports.qlen_bytes[row, queue]
        sent = ports.tx_bytes[row + 1, queue] - ports.tx_bytes[row, queue]
        rate = old["graphcc"].testbed.queues[queue].rate_bps
        assert 8e9 * sent > 0.1 * rate * decisions.period_ns
    of_one = [case for case in cases if case.number == 1]
    assert len({tuple(case.setting.values()) for case in of_one}) == 3


def test_the_rewards_are_those_that_the_tuner_keeps(old, tmp_path):
    trial = old["graphcc"]
    tuner = create(TunerSpec("graphcc", {"collect": True}))
    testbed, ports = trial.testbed, trial.ports
    tuner.reset(testbed, 1)
    age = np.zeros(len(testbed.queues), np.int64)
    readings = [
        Observation(int(t_ns), age, {name: ports[name][row] for name in ports.values})
        for row, t_ns in enumerate(ports.t_ns)
    ]
    for reading in readings:
        tuner.act(reading)
    kept = tuner.trace()["reward"]
    for row in range(1, len(readings)):
        mean = readings[row]["qlen_bytes"].astype(float)
        after = readings[row].with_values(qlen_mean_bytes=mean)
        found = tuner.rewards(testbed, readings[row - 1], after)
        np.testing.assert_allclose(found, kept[row], rtol=1e-6)


def reading(t_ns: int, queues: int, qlen: float, sent: int) -> Observation:
    same = np.full(queues, qlen)
    values = {"qlen_bytes": same, "qlen_mean_bytes": same, "tx_bytes": np.full(queues, sent)}
    return Observation(t_ns, np.zeros(queues, np.int64), values)


@pytest.mark.parametrize("name", ["acc", "graphcc", "pet"])
def test_a_shorter_queue_and_a_fuller_link_are_better(name):
    testbed = load_testbed("graphcc")
    count = len(testbed.queues)
    tuner = create(TunerSpec(name))
    before = reading(0, count, 0, 0)
    found = [
        tuner.rewards(testbed, before, reading(100_000, count, qlen, sent))[0]
        for qlen, sent in ((30 * KB, 100 * KB), (300 * KB, 100 * KB), (30 * KB, 50 * KB))
    ]
    assert found[0] > found[1]
    assert found[0] > found[2]
    assert 0 <= tuner.discount < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acc", "pet"])
def test_credit_from_the_plan_to_the_page(old, tmp_path, name):
    request = CreditRequest(old[name].folder, decisions=4, alternatives=2)
    plan = plan_credit(request, tmp_path)
    campaign = load_campaign(plan.replay.file)
    assert len(campaign.trials) == 9
    run(campaign, tmp_path)
    found = measure(plan, tmp_path / campaign.name)
    assert found.differing == ()
    told = json.loads(json.dumps(credit_to_json(found), allow_nan=False))
    assert (told["decisions"], told["counterfactuals"], told["invalid"]) == (4, 8, 0)
    assert told["same_as_parent"]
    assert any(row["changed"] for row in told["measured"])
    first = told["rankings"][0]
    assert (first["cases"], first["reward"], first["judged_by"]) == (8, "reward", "slowdown")
    assert len(credit_csv(found).splitlines()) == 9
    page = credit_page(found, 10)
    assert page.count("<figure>") == 2
    again = measure(plan_credit(request, tmp_path), tmp_path / campaign.name)
    assert credit_to_json(again) == credit_to_json(found)


@pytest.mark.slow
def test_another_process_makes_the_same_campaign(old, tmp_path):
    request = CreditRequest(old["acc"].folder, decisions=2)
    program = (
        "from pathlib import Path; from orchestration.counterfactuals.credit import *;"
        f"print(plan_credit(CreditRequest(Path({str(old['acc'].folder)!r}), decisions=2),"
        f" Path({str(tmp_path)!r})).replay.file)"
    )
    names = [
        subprocess.run(
            [sys.executable, "-c", before + program], capture_output=True, text=True, check=True
        ).stdout.strip()
        for before in ("", "kept = [object() for _ in range(5000)];")
    ]
    assert names == [str(plan_credit(request, tmp_path).replay.file)] * 2


def test_a_tuner_without_a_reward_is_refused(old, tmp_path):
    with pytest.raises(InputError, match="does not offer its reward"):
        plan_credit(CreditRequest(old["secn1"].folder), tmp_path)
    with pytest.raises(InputError, match="nothing would be tried"):
        plan_credit(CreditRequest(old["acc"].folder, decisions=0), tmp_path)
