import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tuners.experience import PrioritisedReplay, Replay


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    values = np.arange(first, first + count)
    return {"x": np.stack([values, -values], axis=1), "r": values.astype(np.float32)}


@given(st.integers(1, 20), st.lists(st.integers(1, 30), max_size=8))
def test_a_ring_holds_the_newest(capacity, counts):
    ring, total = Replay(capacity), 0
    for count in counts:
        ring.add(rows(total, count))
        total += count
        held = min(total, capacity)
        assert len(ring) == held
        assert sorted(ring.field("r")) == list(range(total - held, total))
        np.testing.assert_array_equal(ring.field("x")[:, 0], ring.field("r"))


def test_state_goes_on_where_it_was():
    for kind in (Replay, PrioritisedReplay):
        one, other = kind(8), kind(8)
        one.add(rows(0, 11))
        other.load(one.state())
        for ring in (one, other):
            ring.add(rows(11, 3))
        np.testing.assert_array_equal(one.field("r"), other.field("r"))


def test_priorities_decide_how_often_a_sample_is_drawn():
    ring = PrioritisedReplay(4, alpha=1.0)
    places = ring.add(rows(0, 4))
    ring.update(places, np.array([0.0, 1.0, 1.0, 2.0]))
    drawn, weights = ring.draw(np.random.default_rng(0), 20_000, beta=1.0)
    share = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(share, [0.0, 0.25, 0.25, 0.5], atol=0.02)
    # beta 1: the weight undoes the priority
    assert weights[drawn == 3].mean() / weights[drawn == 1].mean() - 0.5 < 0.01


def test_a_new_sample_is_as_urgent_as_the_most_urgent():
    ring = PrioritisedReplay(4, alpha=1.0)
    ring.update(ring.add(rows(0, 2)), np.array([5.0, 0.1]))
    ring.add(rows(2, 1))
    drawn, _ = ring.draw(np.random.default_rng(0), 5_000, beta=0.4)
    share = np.bincount(drawn, minlength=3) / len(drawn)
    assert abs(share[0] - share[2]) < 0.05
