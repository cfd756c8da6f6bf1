import numpy as np
import pytest

from orchestration.model.bounds import check_thresholds
from orchestration.model.records import SetThresholds


def action(queue=0, kmin=5_000, kmax=200_000, pmax=0.1):
    whole = [np.array([value], dtype=np.int64) for value in (queue, kmin, kmax)]
    return SetThresholds(*whole, np.array([pmax]))


@pytest.mark.parametrize("good", [action(), action(kmin=0, kmax=0), action(pmax=1.0)])
def test_valid_thresholds_pass(good):
    check_thresholds(good, 1)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (action(queue=1), "not in 0..0"),
        (action(queue=-1), "not in 0..0"),
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
