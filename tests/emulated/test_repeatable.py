"""One seed, one result: real TCP through real RED gives the same tables to the bit."""

import pytest

from orchestration.bench.repeatable import differing_values, faulty_trial
from orchestration.core.trial import HostSpec


@pytest.mark.parametrize("tuner", ["secn2", "graphcc"])
def test_the_same_trial_gives_the_same_tables_to_the_bit(tuner):
    one, other = faulty_trial(tuner), faulty_trial(tuner)
    differ, values = differing_values(one, other)
    assert values > 10_000
    assert differ == 0
    assert one.record.ports.marked_packets[-1].sum() > 0


def test_bbr_begins_to_probe_in_phases_that_the_seed_draws():
    """Found by soak: they came from the kernel's random numbers, and trials differed."""
    bbr = HostSpec("bbr")
    differ, values = differing_values(*(faulty_trial("secn2", host=bbr) for _ in range(2)))
    assert (differ, values > 10_000) == (0, True)


def test_another_seed_draws_otherwise():
    differ, _ = differing_values(faulty_trial("secn2"), faulty_trial("secn2", seed=2))
    assert differ > 0
