import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuners.learning.replay_buffer import ReplayBuffer


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    values = np.arange(first, first + count)
    return {"x": np.stack([values, -values], axis=1), "r": values.astype(np.float32)}


@pytest.mark.slow
@given(st.integers(1, 20), st.lists(st.integers(1, 30), max_size=8))
def test_a_ring_holds_the_newest(capacity, counts):
    ring, total = ReplayBuffer(capacity), 0
    for count in counts:
        ring.add(rows(total, count))
        total += count
        held = min(total, capacity)
        assert len(ring) == held
        assert sorted(ring.field("r")) == list(range(total - held, total))
        np.testing.assert_array_equal(ring.field("x")[:, 0], ring.field("r"))


def test_state_goes_on_where_it_was():
    one, other = ReplayBuffer(8), ReplayBuffer(8)
    one.add(rows(0, 11))
    other.load(one.state())
    for ring in (one, other):
        ring.add(rows(11, 3))
    np.testing.assert_array_equal(one.field("r"), other.field("r"))


def test_every_transition_is_drawn_alike():
    ring = ReplayBuffer(4)
    ring.add(rows(0, 6))
    drawn = ring.sample(np.random.default_rng(0), 20_000)["r"]
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, [2, 3, 4, 5])
    np.testing.assert_allclose(counts / len(drawn), 0.25, atol=0.02)
