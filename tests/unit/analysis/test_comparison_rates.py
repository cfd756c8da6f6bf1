"""How often verdicts are wrong, over many made-up comparisons."""

import dataclasses

import numpy as np
import pytest

from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT, Margins
from orchestration.analysis.comparison.estimates import CellEstimates
from orchestration.analysis.comparison.flows import (
    BLOCKS,
    QUEUE_EDGES_BYTES,
    TrialFlows,
    histogram,
    pair_flows,
    reduce_flows,
)
from orchestration.analysis.comparison.hypothesis_tests import assess_metrics
from orchestration.analysis.comparison.ports import PortBlocks, Timeline, TrialPorts
from orchestration.analysis.comparison.trials import PairMetrics, TrialFigures
from orchestration.analysis.flow_metrics import flow_scalars

COMPARISONS, FLOWS, DURATION_NS = 40, 400, 1_000_000
EDGES = np.array([np.inf])


def make_flows(draws, rng, slower):
    """A trial's flows: bursts (what blocks share), heavy tails, and noise of its own."""
    start, size, burst = draws
    own = rng.gamma(2.0, 0.25, FLOWS) * (1 + burst) + np.where(rng.random(FLOWS) < 0.02, 6, 0)
    fct = 1_000 * (1 + slower * own)
    zeros = np.zeros(FLOWS, dtype=np.int64)
    return TrialFlows(
        np.arange(FLOWS), start, zeros, zeros + 1, size, fct.astype(np.int64), zeros + 1_000,
        np.ones(FLOWS, dtype=bool),
    )  # fmt: skip


def make_draws(rng):
    start = np.sort(rng.integers(0, DURATION_NS, FLOWS))
    size = np.clip(np.exp(rng.normal(11, 2.2, FLOWS)), 300, 3e7).astype(np.int64)
    return start, size, np.repeat(rng.gamma(1.0, 0.4, 40), FLOWS // 40)


def make_ports(rng):
    queue = rng.gamma(0.4, 40_000 * rng.lognormal(0, 0.05), (BLOCKS, 100))
    rows = np.repeat(np.arange(BLOCKS), 100)
    packets = np.full(BLOCKS, 10_000.0)
    nothing = np.zeros(2)
    blocks = PortBlocks(
        histogram(rows, queue.ravel(), QUEUE_EDGES_BYTES, (BLOCKS,)),
        queue.sum(axis=1), np.full(BLOCKS, 100.0),
        rng.binomial(10_000, 0.02, BLOCKS).astype(float), packets, packets, 0 * packets,
        rng.uniform(0.3, 0.5, (BLOCKS, 2)), np.ones((BLOCKS, 2)),
    )  # fmt: skip
    scalars = {
        "queue_mean_bytes": queue.mean(),
        "queue_p99_bytes": np.quantile(queue, 0.99),
        "marked_share": blocks.marked.sum() / packets.sum(),
        "utilisation_hosts": blocks.busy[:, 0].mean(),
        "utilisation_fabric": blocks.busy[:, 1].mean(),
    }
    line = Timeline(np.arange(2), nothing, nothing, nothing)
    return TrialPorts(blocks, line, nothing, nothing), scalars


def make_trial(flows, rng):
    ports, scalars = make_ports(rng)
    slowdown = flows.fct_ns / flows.ideal_ns
    scalars |= flow_scalars(flows.size_bytes, flows.fct_ns.astype(float), slowdown)
    return TrialFigures(None, scalars, reduce_flows(flows, (0, DURATION_NS), EDGES), ports)


def make_pair(rng, slower=1.0, same_seed=True):
    draws = make_draws(rng)
    a = make_flows(draws, rng, 1.0)
    b = make_flows(draws if same_seed else make_draws(rng), rng, slower)
    paired = pair_flows(a, b, (0, DURATION_NS))
    return PairMetrics(make_trial(a, rng), make_trial(b, rng), paired, None, ())


def verdicts(pairs):
    return {
        item.metric.key: item.verdict
        for item in assess_metrics([("", CellEstimates(pairs))], Margins())
    }


@pytest.mark.slow
def test_a_backend_against_itself_differs_in_at_most_two_of_forty():
    wrong = 0
    for number in range(COMPARISONS):
        rng = np.random.default_rng([number, 5, False])
        pairs = [make_pair(rng, same_seed=False) for _ in range(5)]
        wrong += DIFFERENT in verdicts(pairs).values()
    assert wrong <= 2


@pytest.mark.slow
def test_one_pair_against_itself_differs_in_at_most_two_of_forty():
    wrong = 0
    for number in range(COMPARISONS):
        pair = make_pair(np.random.default_rng([number, 1]))
        wrong += DIFFERENT in verdicts([pair]).values()
    assert wrong <= 2


@pytest.mark.slow
def test_a_real_difference_is_found():
    found = 0
    for number in range(20):
        rng = np.random.default_rng([number, 99])
        found += verdicts([make_pair(rng, 1.8) for _ in range(5)])["slowdown_mean_all"] == DIFFERENT
    assert found >= 16


def test_what_is_the_same_is_equivalent_and_never_different():
    rng = np.random.default_rng(3)
    pairs = [make_pair(rng) for _ in range(3)]
    alike = [
        dataclasses.replace(
            pair, b=pair.a, paired=dataclasses.replace(pair.paired, identical=True,
                                                       log_ratio_sum=0 * pair.paired.count)
        )
        for pair in pairs
    ]  # fmt: skip
    found = verdicts(alike)
    assert len(found) >= 20
    assert set(found.values()) == {EQUIVALENT}


def shifted(pairs, factor):
    """The same pairs with all of B's slowdowns `factor` times A's, all of them alike."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(pairs):
        draws = make_draws(rng)
        a = make_flows(draws, rng, 0.0)
        b = dataclasses.replace(a, fct_ns=(a.fct_ns * factor).astype(np.int64))
        made.append(
            PairMetrics(
                make_trial(a, rng), make_trial(b, rng), pair_flows(a, b, (0, DURATION_NS)), None, ()
            )
        )
    return made


def test_flows_that_are_all_alike_are_apart_only_if_they_differ_by_the_margin():
    assert verdicts(shifted(3, 1.02))["slowdown_ks"] == EQUIVALENT
    assert verdicts(shifted(3, 1.3))["slowdown_ks"] == DIFFERENT
