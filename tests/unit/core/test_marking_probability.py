"""The marking law against the kernel's own arithmetic, step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.marking_probability import MarkingProbability, read_back_pmax, red_max_p

SECN1 = MarkingProbability(5_000, 200_000, 0.01)
SECN2 = MarkingProbability(100_000, 400_000, 0.2)


def linux_red(law, queue, packets, rng):
    """Marks among `packets` at a steady queue: red_action() of include/net/red.h."""
    delta = law.kmax_bytes - law.kmin_bytes
    draw = int(2**32 // (red_max_p(law.pmax) // delta))
    count, drawn, marks = -1, 0, 0
    for _ in range(packets):
        count += 1
        if not count:
            drawn = int(rng.integers(0, draw))
        elif (queue - law.kmin_bytes) * count >= drawn:
            count, drawn = 0, int(rng.integers(0, draw))
            marks += 1
    return marks


@pytest.mark.parametrize("queue", [120_000, 250_000, 399_000])
def test_the_share_is_what_the_kernels_loop_marks(queue):
    packets = 200_000
    marks = linux_red(SECN2, queue, packets, np.random.default_rng(1))
    assert marks / packets == pytest.approx(SECN2.share(np.array([queue]))[0], rel=0.02)


def test_pmax_is_met_at_kmax_and_the_ramp_ends_there():
    for law in (SECN1, SECN2):
        queue = np.array([law.kmin_bytes - 1, law.kmin_bytes, law.kmax_bytes - 1, law.kmax_bytes])
        below, at_kmin, top, above = law.share(queue)
        assert (below, at_kmin, above) == (0.0, 0.0, 1.0)
        assert top == pytest.approx(law.pmax, rel=0.01)


def test_a_step_marks_nothing_below_and_all_above():
    law = MarkingProbability(65_000, 65_000, 1.0)
    assert law.share(np.array([64_999, 65_000])).tolist() == [0.0, 1.0]
    assert law.worst_departure() == 0.0


def test_how_far_the_law_is_from_the_line():
    assert SECN1.worst_departure() == pytest.approx(0.006, abs=0.001)
    assert SECN2.worst_departure() == pytest.approx(0.026, abs=0.001)


@pytest.mark.slow
def test_the_band_holds_what_the_kernels_loop_marks():
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(60):
        low, high = SECN2.marks_band(250_000, 2_000, 0.99, rng)
        inside += low <= linux_red(SECN2, 250_000, 2_000, rng) <= high
    assert inside >= 57
    low, high = SECN2.marks_band(250_000, 2_000, 0.99, rng)
    assert high - low < 120


@given(st.floats(0.0001, 1.0))
def test_pmax_survives_the_kernels_fixed_point(pmax):
    read = read_back_pmax(np.array([red_max_p(pmax)]))
    assert float(read[0]) == pytest.approx(pmax, rel=1e-4)


@given(st.integers(0, 10**6), st.integers(2, 10**7), st.floats(0.001, 1.0))
def test_the_share_never_falls_with_the_queue(kmin, width, pmax):
    law = MarkingProbability(kmin, kmin + width, pmax)
    share = law.share(np.linspace(0, kmin + width + 1, 20).astype(np.int64))
    assert (np.diff(share) >= -1e-12).all()
    assert share[0] == 0.0
    assert share[-1] == 1.0
