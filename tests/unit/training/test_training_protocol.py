"""The protocol of training: its file, its stopping rule, its figures, and what the verb refuses."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest
from typer.testing import CliRunner

from orchestration.campaign.expand import load_campaign
from orchestration.campaign.streams import PROTOCOL
from orchestration.cli.main import app
from orchestration.core.records import DONE, LONG_LIVED, UNFINISHED, FlowRecords, Schedule
from orchestration.core.trial import TunerSpec
from orchestration.training.evaluation import HeldOut, log_slowdown_of
from orchestration.training.outcome import (
    Evaluation,
    Gain,
    Result,
    Selection,
    read_result,
    verdict,
    write_result,
)
from orchestration.training.protocol import load_protocol
from orchestration.training.request import Episodes, TrainRequest, find_scenario
from tuners.registry import check

TRAININGS = [(tuner, item.transport) for item in load_protocol().trainings for tuner in item.tuners]


@pytest.fixture(scope="module")
def protocol():
    return load_protocol()


def test_the_version_of_the_file_is_that_of_campaigns(protocol):
    assert protocol.version == PROTOCOL


@pytest.mark.slow
@pytest.mark.parametrize(("tuner", "transport"), TRAININGS)
def test_what_chooses_is_not_what_was_learned_from(protocol, tuner, transport):
    planned = protocol.training(tuner, transport)
    rule = protocol.rule(tuner, find_scenario(planned.held_out))
    request = TrainRequest(tuner, find_scenario(planned.scenario), rule=rule)
    episodes, held_out = Episodes(request), HeldOut(request, rule)
    scenario = load_campaign(request.scenario).trials
    learned = {trial.traffic for trial in scenario}
    placebo = protocol.placebo(tuner)
    chosen = held_out.trials(placebo, held_out.choosing)
    judged = held_out.trials(placebo, held_out.judging)
    assert not learned & {trial.traffic for trial in [*chosen, *judged]}
    assert not {t.seed for t in chosen} & {t.seed for t in judged}
    assert held_out.testbed.queues == episodes.testbed.queues
    assert {t.host for t in chosen} == {t.host for t in scenario}
    assert check(placebo.name, dict(placebo.params), held_out.testbed) == ()
    assert len(held_out.statics) >= 4
    assert len(chosen) == len(held_out.conditions) * protocol.choosing_seeds


def test_all_tuners_of_a_transport_have_one_scenario_and_one_budget(protocol):
    for transport in ("dctcp", "dcqcn"):
        plans = {
            protocol.training(tuner, transport).scenario for tuner in ("acc", "pet", "graphcc")
        }
        assert len(plans) == 1
    assert protocol.min_seeds >= 5


def test_evaluations_share_the_budget_evenly(protocol):
    rule = protocol.rule("acc", "x.yml", 1_000)
    assert [rule.due(n) for n in (0, 99, 100, 250, 999, 1_000, 5_000)] == [0, 0, 0, 1, 4, 5, 5]


def at(number: int, figure: float) -> Evaluation:
    return Evaluation(100 * number, number, figure, 0.0, 0.0)


def test_the_best_is_kept_and_patience_counts_from_it():
    selection = Selection(patience=2)
    figures = [3.0, 2.0, 2.5, 1.5, 1.5, 1.6]
    kept = [
        selection.add(at(number, figure), {"w": np.array([float(number)])})
        for number, figure in enumerate(figures)
    ]
    assert kept == [True, True, False, True, False, False]  # an equal one is no better
    assert selection.best_parameters["w"][0] == 3
    assert selection.best == at(3, 1.5)
    assert selection.exhausted
    assert not _first(figures[:5]).exhausted


def _first(figures: list[float]) -> Selection:
    selection = Selection(patience=2)
    for number, figure in enumerate(figures):
        selection.add(at(number, figure), {"w": np.array([float(number)])})
    return selection


def test_a_selection_goes_on_from_its_state():
    one = _first([3.0, 2.0, 2.5])
    other = Selection(patience=2)
    other.load({**one.state(), "foreign": np.zeros(1)})
    assert other.evaluations == one.evaluations
    assert other.best_parameters.keys() == {"w"}
    assert not other.add(at(3, 2.2), {"w": np.zeros(1)})
    assert other.exhausted
    assert other.best_parameters["w"][0] == 1


def test_a_gain_is_the_geometric_mean_over_conditions_with_seeds_as_observations():
    ours = np.log([[1.0, 4.0], [2.0, 2.0], [1.0, 1.0]])
    theirs = np.log([[2.0, 4.0], [4.0, 8.0], [1.0, 2.0]])
    gain = Gain.of(ours, theirs)
    # seed 1: sqrt(1/2 * 1), seed 2: sqrt(1/2 * 1/4), seed 3: sqrt(1 * 1/2)
    each = np.log([math.sqrt(1 / 2), math.sqrt(1 / 8), math.sqrt(1 / 2)])
    half = 4.302653 * each.std(ddof=1) / math.sqrt(3)  # Student's t with 2 degrees of freedom
    assert gain.n == 3
    assert gain.mean == pytest.approx(1 - math.exp(each.mean()))
    assert gain.low == pytest.approx(1 - math.exp(each.mean() + half), rel=1e-5)
    assert gain.high == pytest.approx(1 - math.exp(each.mean() - half), rel=1e-5)


def result(seed: int, gain: float) -> Result:
    one = Gain(gain, gain - 0.1, gain + 0.1, 3)
    return Result(seed, 1000, 10, "budget", 900, one, one, "2-16-1", math.nan, 1.0)


@pytest.mark.parametrize(
    ("above", "of", "holds"),
    [(9, 10, True), (8, 10, False), (5, 5, True), (4, 5, False), (4, 4, False)],
)
def test_nine_of_ten_seeds_end_above_the_placebo(protocol, above, of, holds):
    results = [result(seed, 0.1 if seed < above else -0.1) for seed in range(of)]
    found = verdict(results, protocol.share_above, protocol.min_seeds)
    assert (found.above, found.seeds, found.holds) == (above, of, holds)
    assert f"{above} of {of} training seeds" in found.in_words()


def test_a_result_is_read_back(tmp_path):
    one = result(3, 0.2)
    write_result(tmp_path, one)
    assert repr(read_result(tmp_path)) == repr(one)  # NaN is not equal to itself
    assert json.loads((tmp_path / "result.json").read_text())["share"] is None


def test_a_flow_that_does_not_end_counts_with_the_time_that_it_had(cases):
    case = cases("secn1", 1, 1_000_000)
    trial = dataclasses.replace(case.trial, duration_ns=1_000_000, drain_ns=1_000_000)
    schedule = Schedule(
        start_ns=np.array([0, 0, 500_000]),
        src=np.array([0, 0, 0]),
        dst=np.array([1, 1, 1]),
        size_bytes=np.full(3, 100_000),
        klass=np.zeros(3, dtype=np.int64),
        classes=("a",),
    )
    flows = FlowRecords(
        sent_ns=np.zeros(3, dtype=np.int64),
        end_ns=np.array([400_000, -1, -1]),
        retransmits=np.zeros(3, dtype=np.int64),
        status=np.array([DONE, LONG_LIVED, UNFINISHED]),
    )
    job = types.SimpleNamespace(trial=trial, testbed=case.testbed)
    record = types.SimpleNamespace(flows=flows)
    (log_slowdown,) = log_slowdown_of(job, schedule, record)["log_slowdown"]
    from inventory.routing import ideal_times_ns

    ideal_ns = ideal_times_ns(case.testbed, schedule, trial)[0]
    assert math.exp(log_slowdown) == pytest.approx((400_000 + 1_500_000) / 2 / ideal_ns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("acc --seeds 1-x", "'1-x' are no seeds"),
        ("acc --seeds 1-99999999999", "more than 1,000 seeds"),
        ("acc --seed 3", "use --seeds 3"),
        ("acc --episodes 4 --seeds 1-2", "cannot be used with --seeds"),
        ("acc --scenario mine.yml", "needs a scenario and a held-out one"),
        ("acc --transport swift", "acc is not trained under 'swift'"),
        ("rl-cc --seeds 1-2", "leave out the other options"),
    ],
)
def test_what_the_verb_refuses(words, said):
    done = CliRunner().invoke(app, ["train", *words.split()])
    assert said in " ".join((done.output + str(done.exception)).split())


def test_the_placebo_draws_from_the_tuners_own_settings(protocol):
    assert protocol.placebo("pet") == TunerSpec("random", {"of": "pet"})
