import numpy as np
import pytest
from orchestration.model.bounds import ImpossibleThresholds, check_thresholds, clamp_thresholds

from orchestration.model.records import SetThresholds


def action(queue=0, kmin=5_000, kmax=200_000, pmax=0.1):
    return SetThresholds(*(np.array([value]) for value in (queue, kmin, kmax, pmax)))


@pytest.mark.parametrize("good", [action(), action(kmin=0, kmax=0), action(pmax=1.0)])
def test_valid_thresholds_pass(good):
    check_thresholds(good, 1)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (action(queue=1), "not in 0..0"),
        (action(queue=-1), "not in 0..0"),
        (action(kmin=float("nan")), "got nan and 200000.*B"),
        (action(kmin=300_000), "got 300000 and 200000 B"),
        (action(kmin=-1), "got -1 and 200000 B"),
        (action(pmax=1.1), "pmax 1.1"),
        (action(pmax=float("nan")), "pmax nan"),
    ],
)
def test_others_are_refused_with_their_values(bad, says):
    with pytest.raises(ValueError, match=says):
        check_thresholds(bad, 1)


def test_arrays_of_different_lengths_are_refused():
    good = action()
    with pytest.raises(ValueError, match="one length"):
        check_thresholds(
            SetThresholds(good.queues, good.kmin_bytes, good.kmax_bytes, np.zeros(2)), 1
        )


BUFFERS = np.array([100_000, 300_000])


@pytest.mark.parametrize(
    ("wide", "kmin", "kmax", "pmax"),
    [
        (action(queue=1, kmin=-1), 0, 200_000, 0.1),
        (action(queue=1, kmax=300_001), 5_000, 300_000, 0.1),
        (action(queue=0, kmin=150_000), 100_000, 100_000, 0.1),
        (action(queue=1, kmin=250_000), 200_000, 200_000, 0.1),
        (action(queue=1, pmax=1.5), 5_000, 200_000, 1.0),
        (action(queue=1, pmax=-0.5), 5_000, 200_000, 0.0),
    ],
)
def test_thresholds_are_brought_into_their_queues_bounds(wide, kmin, kmax, pmax):
    clamped, count = clamp_thresholds(wide, BUFFERS)
    assert count == 1
    check_thresholds(clamped, 2)
    assert (clamped.kmin_bytes[0], clamped.kmax_bytes[0], clamped.pmax[0]) == (kmin, kmax, pmax)


def test_thresholds_within_bounds_are_the_same_object():
    good = action(queue=1)
    assert clamp_thresholds(good, BUFFERS) == (good, 0)


def test_what_is_no_number_is_not_clamped_but_refused():
    for bad in (action(queue=1, pmax=float("nan")), action(queue=1, kmin=float("nan"))):
        clamped, count = clamp_thresholds(bad, BUFFERS)
        assert count == 0
        with pytest.raises(ImpossibleThresholds) as caught:
            check_thresholds(clamped, 2)
        assert caught.value.queue == 1
        assert "nan" in caught.value.what
