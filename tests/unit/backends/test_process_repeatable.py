"""One seed is one result in the process: again, beside other work, however often it is read."""

import dataclasses

import numpy as np
import pytest

from orchestration.bench.outcome import busy_cpus
from tests.process_trials import NAMES, record_of, tables_of


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        np.testing.assert_array_equal(column, theirs[name], err_msg=name)


@pytest.mark.parametrize("name", ["pfc", "own-policy", "changes"])
def test_a_trial_beside_programs_that_keep_all_cpus_busy_has_the_same_tables(name, tmp_path):
    alone = record_of(name, tmp_path)
    with busy_cpus(2):
        beside = record_of(name, tmp_path)
    assert_same(tables_of(alone), tables_of(beside))
    assert alone.facts.keys() == beside.facts.keys()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "changes"])
def test_readings_change_nothing_of_what_happens(name, tmp_path):
    """What is worked out when somebody looks is what has happened by then, whoever looks.

    The one trial left out has a tuner that decides at its readings.
    """
    times = {"duration_ns": 30 * 111_000, "drain_ns": 300 * 111_000}
    often, seldom = (
        record_of(name, tmp_path, **times, sample_period_ns=period, action_period_ns=period)
        for period in (37_000, 111_000)
    )
    assert len(often.ports.t_ns) > 2 * len(seldom.ports.t_ns)
    for field in dataclasses.fields(often.flows):
        np.testing.assert_array_equal(
            getattr(often.flows, field.name), getattr(seldom.flows, field.name), err_msg=field.name
        )
    facts = [
        {key: value for key, value in one.facts.items() if key not in ("end_ns", "decisions")}
        for one in (often, seldom)
    ]
    assert facts[0] == facts[1]
    # where both were read, they were read alike
    both = np.intersect1d(often.ports.t_ns, seldom.ports.t_ns)
    assert len(both) > 0
    for samples in ("queue", "priority", "switch"):
        if samples not in often.samples:
            continue
        rows = [np.isin(one.samples[samples].t_ns, both) for one in (often, seldom)]
        for signal, values in often.samples[samples].values.items():
            other = seldom.samples[samples].values[signal]
            np.testing.assert_array_equal(values[rows[0]], other[rows[1]], err_msg=signal)


def test_another_seed_draws_otherwise(tmp_path):
    one, other = (record_of("quickstart", tmp_path, seed=seed) for seed in (7, 8))
    assert len(one.flows.end_ns) != len(other.flows.end_ns) or not np.array_equal(
        one.flows.end_ns, other.flows.end_ns
    )
