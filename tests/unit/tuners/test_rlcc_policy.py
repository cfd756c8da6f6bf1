"""RL-CC's observation and rate in C, against the paper's equation 4 worked apart; its trees."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tuners
from orchestration.core.congestion import congestion_control
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import compile_model
from tests.unit.policy_library import ACK, CNP, HEADERS, RTT, START, TX, US, Flow, compiled

LINE_BPS = 100_000_000_000
# What the built-in policy is compiled from.
PACKAGED = Path(tuners.__file__).parent / "pretrained" / "rl-cc-trees.json"
TREES = read_model(PACKAGED)
# Seven words before it: struct rlcc in rlcc.h.
WINDOW_AT, HISTORY = 7, TREES.settings.history
MIN_SHARE = 64 / 2**20


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return compiled("rlcc", tmp_path_factory.mktemp("policy"))


def begin(policy, **own):
    values = {**congestion_control("rlcc").defaults, "base_rtt": 10 * US, **own}
    flow = Flow(policy, list(values.values()), LINE_BPS)
    flow.tell(START, 0)
    return flow


def window(flow):
    """Return delta[0], action[0], delta[1], ..., as fractions."""
    words = np.frombuffer(bytes(flow.state.own), dtype=np.int32)
    return words[WINDOW_AT : WINDOW_AT + 2 * HISTORY] / 65536


def test_the_built_in_trees_are_the_packaged_ones_compiled(tmp_path):
    """`make built-in-trees` makes them so."""
    compile_model(PACKAGED, "c", tmp_path / "policy_rlcc.c")
    made = (tmp_path / "policy_rlcc.c").read_bytes()
    assert (HEADERS / "policy_rlcc.c").read_bytes() == made


def test_a_new_flow_has_the_share_of_the_line_that_the_parameter_says(policy):
    assert begin(policy).state.rate_bps == LINE_BPS
    assert begin(policy, new_flow_rate=4).state.rate_bps == pytest.approx(0.004 * LINE_BPS)
    # a program that is given three parameters only
    assert begin(policy, new_flow_rate=0).state.rate_bps == LINE_BPS


@settings(deadline=None, max_examples=60)
@given(
    rtts=st.lists(st.integers(1, 2_000 * US), min_size=1, max_size=40),
    base_us=st.sampled_from([0, 1, 10, 100]),
)
def test_a_window_is_of_the_last_deltas_and_of_the_actions_before_them(policy, rtts, base_us):
    flow = begin(policy, base_rtt=base_us * US)
    # before the first: no delta, and an action of 1
    now_ns, minimum = 0, math.inf
    deltas, actions = [0.0] * HISTORY, [1.0] * HISTORY
    for rtt_ns in rtts:
        share = flow.state.rate_bps / LINE_BPS
        now_ns += rtt_ns
        minimum = min(minimum, rtt_ns)
        flow.tell(RTT, now_ns, rtt_ns=rtt_ns)
        inflation = rtt_ns / (base_us * US or minimum)
        delta = max(-32, 0.064 - max(inflation - 1.5, 0) * math.sqrt(share))
        seen = window(flow)
        assert seen[0] == pytest.approx(delta, abs=2**-14 + 2**-15 * inflation)
        assert seen[2::2].tolist() == deltas[:-HISTORY:-1]
        assert seen[1::2].tolist() == actions[: -HISTORY - 1 : -1]
        deltas.append(seen[0])
        action = flow.state.rate_bps / LINE_BPS / share
        rate = flow.state.rate_bps / LINE_BPS
        # the action itself shows in the rate unless that is bounded
        taken = np.frombuffer(bytes(flow.state.own), dtype=np.int32)[6] / 65536
        if MIN_SHARE * 1.01 < rate < 0.99:
            assert action == pytest.approx(taken, rel=1e-4)
        assert rate == pytest.approx(min(1, max(MIN_SHARE, share * taken)), rel=1e-4)
        actions.append(taken)


def test_a_flow_decides_once_a_round_trip_and_keeps_its_rate_without_one(policy):
    flow = begin(policy)
    for event in (ACK, CNP, TX):
        assert flow.tell(event, 100 * US, 1_000, rtt_ns=0) == LINE_BPS
    # five times the base round trip: what the trees say of 1.5 + 0.064 - 5, first of all
    first = flow.tell(ACK, 150 * US, 1_000, rtt_ns=50 * US)
    seen = np.array([[round(65536 * value) for value in window(flow)]], dtype=np.int32)
    assert seen[0, :3].tolist() == [pytest.approx(-3.436 * 65536, abs=9), 65536, 0]
    assert first == pytest.approx(TREES.act(seen)[0] / 65536 * LINE_BPS, rel=1e-6)
    assert first < LINE_BPS
    # sent before that decision
    assert flow.tell(ACK, 199 * US, 1_000, rtt_ns=50 * US) == first
    assert flow.tell(ACK, 200 * US, 1_000, rtt_ns=50 * US) < first


def test_a_rate_stays_above_the_nics_least_and_comes_back(policy):
    flow = begin(policy)
    for step in range(200):
        flow.tell(RTT, step * 1_000 * US, rtt_ns=900 * US)
        assert flow.state.rate_bps >= LINE_BPS * 64 // 2**20
    assert flow.state.rate_bps < 2 * LINE_BPS * 64 // 2**20
    for step in range(200, 600):
        flow.tell(RTT, step * 1_000 * US, rtt_ns=8 * US)
    assert flow.state.rate_bps == LINE_BPS
