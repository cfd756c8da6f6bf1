"""Loads drawn by strata: the load asked for in each window, bursts and distributions as before."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.pattern import INDEPENDENT, STRATA
from orchestration.core.trial import TrialSpec, TunerSpec
from tests.testbeds import star
from tests.trials import trial_spec
from traffic.arrivals import stratified, window_cuts
from traffic.patterns.incast import IncastSpec
from traffic.patterns.message_mix import MessageMixSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule
from traffic.workloads import load_workload

MS = 10**6
GOLDEN = (323, "0357296dd56ca490")
COLUMNS = ("start_ns", "src", "dst", "size_bytes")
TESTBED = star(*[25] * 24)
CAPACITY_BYTES = 24 * 25e9 / 8 * 10e-3  # of all hosts in 10 ms
TRIAL = trial_spec(
    testbed="star",
    traffic=(PoissonSpec("WebSearch", 0.6, 0, 10 * MS, draw=STRATA),),
    seed=7,
    repeat=0,
    duration_ns=10 * MS,
    drain_ns=MS,
)


def schedule(trial=TRIAL, **changes):
    return make_schedule(dataclasses.replace(trial, **changes), TESTBED)


def loads(draw, seeds, window_ns=(0, 10 * MS), **changes):
    """The loads that windows of trials offer, shape (seeds,)."""
    spec = dataclasses.replace(TRIAL.traffic[0], draw=draw, stop_ns=window_ns[1])
    found = []
    for seed in range(seeds):
        flows = schedule(seed=seed, traffic=(spec,), **changes)
        inside = (flows.start_ns >= window_ns[0]) & (flows.start_ns < window_ns[1])
        found.append(flows.size_bytes[inside].sum())
    return np.array(found) / CAPACITY_BYTES * 10 * MS / (window_ns[1] - window_ns[0])


def test_golden_schedule():
    """Notices an accidental change of the draws, which would unpair old results."""
    traffic = (
        TRIAL.traffic[0],
        MessageMixSpec((1_000, 1_000_000), 0.2, 2 * MS, 4 * MS, draw=STRATA),
    )
    flows = schedule(traffic=traffic, warm_up_ns=3 * MS)
    digest = hashlib.sha256()
    for name in COLUMNS:
        digest.update(getattr(flows, name).astype("<i8").tobytes())
    assert (len(flows), digest.hexdigest()[:16]) == GOLDEN


@pytest.mark.slow
def test_the_mean_load_is_the_one_asked_for_and_its_deviation_a_tenth():
    before, now = loads(INDEPENDENT, 300), loads(STRATA, 300)
    assert before.std() > 0.06
    assert now.std() < before.std() / 10
    assert now.mean() == pytest.approx(0.6, abs=4 * now.std() / 300**0.5)


@pytest.mark.slow
def test_a_heavy_tail_stays_unbiased():
    """Of DataMining, one flow in 50 has most of the bytes: no mean must lose it."""
    heavy = dataclasses.replace(TRIAL.traffic[0], workload="DataMining", load=1.0)
    sums = [schedule(seed=seed, traffic=(heavy,)).size_bytes.sum() for seed in range(4_000)]
    asked = CAPACITY_BYTES
    assert np.mean(sums) == pytest.approx(asked, abs=4 * np.std(sums) / 4_000**0.5)
    assert np.std(sums) < 0.7 * asked


@pytest.mark.slow
def test_fewer_flows_than_one_are_as_many_in_the_mean():
    rare = dataclasses.replace(TRIAL.traffic[0], load=0.0005)
    expected = 0.0005 * CAPACITY_BYTES / load_workload("WebSearch").mean_bytes
    assert expected < 0.5
    counts = [len(schedule(seed=seed, traffic=(rare,))) for seed in range(2_000)]
    assert set(counts) == {0, 1}
    assert np.mean(counts) == pytest.approx(expected, abs=4 * (expected / 2_000) ** 0.5)


def test_a_warm_up_has_its_own_strata():
    """Otherwise what is measured would be a random part of what is drawn."""
    window = (6 * MS, 10 * MS)
    apart = loads(STRATA, 200, window, warm_up_ns=6 * MS)
    assert apart.std() < loads(STRATA, 200, window).std() / 5
    assert apart.mean() == pytest.approx(0.6, abs=4 * apart.std() / 200**0.5)


def test_bursts_are_those_of_a_poisson_process():
    """Counts of 50 us: variance over mean is 1 - 50 us / 10 ms; and gaps are exponential."""
    small = dataclasses.replace(TRIAL.traffic[0], workload="AliStorage2019")
    counts, gaps = [], []
    for seed in range(30):
        start_ns = schedule(seed=seed, traffic=(small,)).start_ns
        counts.append(np.histogram(start_ns, bins=200, range=(0, 10 * MS))[0])
        gaps.append(np.diff(start_ns))
    counts, gaps = np.array(counts), np.concatenate(gaps)
    assert counts.var() / counts.mean() == pytest.approx(0.995, abs=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.03)


def test_sizes_follow_the_workload_and_are_in_no_order():
    flows = schedule()
    size, n = flows.size_bytes, len(flows)
    quantiles = load_workload("WebSearch").quantile(np.arange(n + 1) / n)
    ordered = np.sort(size)
    assert np.all(ordered >= np.floor(quantiles[:-1]))
    assert np.all(ordered <= np.ceil(quantiles[1:]))
    rank = np.argsort(np.argsort(size))
    assert abs(np.corrcoef(rank[:-1], rank[1:])[0, 1]) < 4 / n**0.5


def test_a_message_mix_has_each_size_equally_often_to_one():
    mix = MessageMixSpec((1_000, 10_000, 100_000), 0.05, 0, 10 * MS, draw=STRATA)
    _, counts = np.unique(schedule(traffic=(mix,)).size_bytes, return_counts=True)
    assert len(counts) == 3
    assert counts.max() - counts.min() <= 1


def test_every_tuner_has_the_same_flows_and_patterns_leave_each_other_alone():
    alone = schedule()
    other = schedule(
        tuner=TunerSpec("static", {"kmin_bytes": 1}),
        backend="emulated",
        traffic=(*TRIAL.traffic, IncastSpec(3, 64_000, MS, 0, 4 * MS), *TRIAL.traffic),
    )
    mine = other.klass == 0
    for name in COLUMNS:
        assert np.array_equal(getattr(other, name)[mine], getattr(alone, name))
    assert not set(other.start_ns[other.klass == 2]) & set(alone.start_ns)


@given(count=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_strata_have_one_draw_each(count, seed):
    drawn = stratified(count, np.random.default_rng(seed))
    assert np.all((drawn >= 0) & (drawn < 1))
    assert sorted((drawn * count).astype(int).tolist()) == list(range(count))


@given(
    seed=st.integers(0, 2**63),
    load=st.floats(0, 1),
    start_ns=st.integers(0, 100_000),
    lasts_ns=st.integers(0, 100_000),
    warm_up_ns=st.integers(0, 150_000),
)
def test_flows_keep_their_bounds(seed, load, start_ns, lasts_ns, warm_up_ns):
    stop_ns = start_ns + lasts_ns
    spec = PoissonSpec("AliStorage2019", load, start_ns, stop_ns, draw=STRATA)
    flows = schedule(seed=seed, traffic=(spec,), warm_up_ns=warm_up_ns)
    assert np.all((flows.start_ns >= start_ns) & (flows.start_ns < max(stop_ns, start_ns)))
    assert np.all(np.diff(flows.start_ns) >= 0)
    assert np.all((flows.size_bytes >= 1) & (flows.size_bytes <= 2_000_000))
    asked = load * 24 * 25e9 / 8e9 * lasts_ns / load_workload("AliStorage2019").mean_bytes
    assert abs(len(flows) - asked) < 2  # each of two parts is rounded up or down


def test_a_window_is_cut_where_something_is_within():
    assert window_cuts(0, 10, 0, 10, 12) == (0, 10)
    assert window_cuts(2, 10, 5, 3, 5) == (2, 3, 5, 10)


def test_a_trial_of_0_1_has_independent_draws_and_keeps_its_id():
    new = dataclasses.replace(TRIAL, warm_up_ns=5)
    assert TrialSpec.from_json(new.to_json()) == new
    assert new.to_json()["traffic"][0]["draw"] == STRATA
    old = dataclasses.replace(
        TRIAL, traffic=(dataclasses.replace(TRIAL.traffic[0], draw=INDEPENDENT),)
    )
    told = old.to_json()
    assert "draw" not in told["traffic"][0]
    assert "warm_up_ns" not in told
    assert TrialSpec.from_json(told) == old
    assert len({old.id, TRIAL.id, new.id}) == 3


def test_incasts_of_earlier_versions_keep_their_ids():
    periodic = IncastSpec(8, 64_000, 10**6, 0, 10**7)
    random = dataclasses.replace(periodic, arrivals="poisson")
    old, new = (dataclasses.replace(TRIAL, traffic=(spec,)) for spec in (periodic, random))
    assert not {"load", "arrivals"} & old.to_json()["traffic"][0].keys()
    assert TrialSpec.from_json(new.to_json()) == new
    assert TrialSpec.from_json(old.to_json()) == old
    assert old.id != new.id
