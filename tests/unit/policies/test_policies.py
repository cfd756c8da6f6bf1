"""Swift, TIMELY and HPCC, compiled from the guest's sources, against their papers' algorithms.

Sequences worked by hand, and models in fractions and floating point that were written apart.
"""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestration.core.congestion import PROGRAM, congestion_control, roce_controls
from tests.unit.policy_library import (
    ACK,
    CNP,
    NACK,
    RTT,
    START,
    TIMEOUT,
    TX,
    US,
    Flow,
    Hop,
    compiled,
)

GBPS = 1_000_000_000
LINE_BPS = 100 * GBPS
PACKET = 1_000


# DCQCN has its own tests (test_dcqcn.py).
CONTROLS = [name for name in roce_controls() if name not in ("dcqcn", PROGRAM)]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return {name: compiled(name, folder) for name in CONTROLS}


def begin(policies, name, line_bps=LINE_BPS, **own):
    values = {**congestion_control(name).defaults, **own}
    flow = Flow(policies[name], list(values.values()), line_bps, PACKET)
    flow.tell(START, 0)
    return flow


def cwnd(flow):
    """Swift's window, in packets."""
    return flow.state.own[0] / 2**20


def test_a_fixed_rate_stays_whatever_happens(policies):
    flow = begin(policies, "fixed", rate=7_000)
    for event in (TX, ACK, NACK, CNP, TIMEOUT, RTT):
        assert flow.tell(event, 5, PACKET, rtt_ns=900 * US) == 7 * GBPS
    assert begin(policies, "fixed").state.rate_bps == LINE_BPS


def test_swift_adds_a_packet_a_round_trip_and_cuts_once_a_round_trip(policies):
    flow = begin(policies, "swift", init_cwnd=10_000, fs_range=0, hop_scale=0)
    assert flow.state.window_bytes == 10 * PACKET
    # below the target of 20 us: ai / cwnd for each acknowledged packet
    flow.tell(ACK, 10 * US, 10 * PACKET, rtt_ns=10 * US)
    assert cwnd(flow) == pytest.approx(11, rel=1e-5)
    # untimed acknowledgements count at the next timed one
    flow.tell(ACK, 11 * US, 5 * PACKET, rtt_ns=0)
    assert cwnd(flow) == pytest.approx(11, rel=1e-5)
    flow.tell(ACK, 12 * US, 6 * PACKET, rtt_ns=10 * US)
    assert cwnd(flow) == pytest.approx(12, rel=1e-5)
    # 25 us where 20 are the target: 1 - 0.8 * 5 / 25
    flow.tell(ACK, 40 * US, PACKET, rtt_ns=25 * US)
    assert cwnd(flow) == pytest.approx(12 * 0.84, rel=1e-5)
    # not again within that round trip
    flow.tell(ACK, 64 * US, PACKET, rtt_ns=25 * US)
    assert cwnd(flow) == pytest.approx(12 * 0.84, rel=1e-5)
    # and never more than by max_mdf
    flow.tell(ACK, 4_000 * US, PACKET, rtt_ns=2_000 * US)
    assert cwnd(flow) == pytest.approx(12 * 0.84 / 2, rel=1e-5)
    assert flow.state.window_bytes == 5 * PACKET
    assert flow.state.rate_bps == LINE_BPS


def test_swift_below_a_packet_paces_one_in_rtt_over_cwnd(policies):
    flow = begin(policies, "swift", init_cwnd=500)
    flow.tell(TX, 1, 1_100)
    flow.tell(ACK, 10 * US, PACKET, rtt_ns=400 * US)
    assert cwnd(flow) == pytest.approx(0.25, rel=1e-4)
    assert flow.state.window_bytes == PACKET
    # a packet of 1100 bytes in 1600 us
    assert flow.state.rate_bps == pytest.approx(1_100 * 8 / 1_600e-6, rel=1e-4)


def test_swifts_target_grows_with_the_path_and_shrinks_with_the_window(policies):
    def grows_at(delay_ns, init_cwnd, switches):
        flow = begin(policies, "swift", init_cwnd=init_cwnd)
        flow.tell(ACK, 10 * US, PACKET, rtt_ns=delay_ns, switches=switches)
        return cwnd(flow) > init_cwnd / 1000

    # alpha / sqrt(fcwnd) + beta, section 3.5
    alpha = 100_000 / (1 / math.sqrt(0.1) - 1 / math.sqrt(100))
    for window in (0.05, 0.1, 1, 4, 30, 100, 400):
        scaling = min(100_000, max(0, alpha / math.sqrt(window) - alpha / math.sqrt(100)))
        for switches in (0, 1, 5):
            target = 20_000 + 3_053 * switches + scaling
            packets = round(window * 1000)
            assert grows_at(int(target) - 3, packets, switches), (window, switches)
            assert not grows_at(int(target) + 3, packets, switches), (window, switches)


def test_swift_starts_anew_after_five_timeouts_in_a_row(policies):
    flow = begin(policies, "swift", init_cwnd=64_000)
    now_ns = 0
    for left in (32, 16, 8, 4, 0.01):
        now_ns += 16_000 * US
        flow.tell(TIMEOUT, now_ns)
        assert cwnd(flow) == pytest.approx(left, rel=1e-3)


class SwiftModel:
    def __init__(self, p):
        self.p, self.cwnd, self.last, self.rtt, self.timeouts = p, p["init_cwnd"] / 1e3, None, 0, 0
        self.acked = 0

    def cut(self, now, share):
        if self.last is None or now - self.last >= self.rtt:
            self.cwnd *= 1 - share
            self.last = now

    def target(self, switches):
        p = self.p
        low, high = math.sqrt(1e3 / p["fs_min_cwnd"]), math.sqrt(1e3 / p["fs_max_cwnd"])
        share = (1 / math.sqrt(self.cwnd) - high) / (low - high)
        scaling = p["fs_range"] * min(1, max(0, share))
        return p["base_target"] + switches * p["hop_scale"] + scaling

    def tell(self, event, now, packets, rtt, switches):
        p = self.p
        if event == ACK:
            self.acked += packets
        if event in (ACK, RTT) and rtt:
            target = self.target(switches)
            self.rtt, self.timeouts = rtt, 0
            if rtt < target:
                self.cwnd += p["ai"] / 1e3 / max(1, self.cwnd) * self.acked
            else:
                self.cut(now, min(p["beta"] / 1e3 * (rtt - target) / rtt, p["max_mdf"] / 1e3))
            self.acked = 0
        elif event == NACK:
            self.timeouts = 0
            self.cut(now, p["max_mdf"] / 1e3)
        elif event == TIMEOUT:
            self.timeouts += 1
            if self.timeouts >= p["retx_reset_threshold"]:
                self.cwnd = 0
            else:
                self.cut(now, p["max_mdf"] / 1e3)
        self.cwnd = min(p["max_cwnd"] / 1e3, max(p["min_cwnd"] / 1e3, self.cwnd))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**9))
@example(seed=7325696)  # a delay of the target, to the nanosecond
def test_swift_follows_a_model_of_its_own(policies, seed):
    draw = random.Random(seed)
    flow, model, now_ns = (
        begin(policies, "swift"),
        SwiftModel(congestion_control("swift").defaults),
        0,
    )
    for _ in range(300):
        now_ns += draw.randrange(1, 60 * US)
        event = draw.choices((ACK, RTT, NACK, TIMEOUT), (20, 5, 1, 1))[0]
        rtt_ns = draw.choice((0, 0, draw.randrange(4 * US, 200 * US)))
        packets, switches = draw.randrange(1, 16), draw.randrange(1, 6)
        # where a delay meets the target within rounding, one may grow and the other not
        if abs(rtt_ns - model.target(switches)) < 3:
            rtt_ns += 6
        flow.tell(event, now_ns, packets * PACKET, rtt_ns=rtt_ns, switches=switches)
        model.tell(event, now_ns, packets, rtt_ns, switches)
        # roundings do not add up
        if cwnd(flow) != pytest.approx(model.cwnd, rel=2e-3):
            raise AssertionError((seed, cwnd(flow), model.cwnd))
        model.cwnd = cwnd(flow)


def test_timely_by_hand(policies):
    flow = begin(policies, "timely", 10 * GBPS, t_low=50 * US, alpha=875, hai_after=3)

    def completed(rtt_us):
        return flow.tell(ACK, 0, 16 * PACKET, rtt_ns=round(rtt_us * US)) / 1e6

    # a gradient: 0.875 * 4 us over 20 us is 0.175, and the cut 0.8 of it
    assert completed(60) == 10_000
    assert completed(64) == pytest.approx(10_000 * (1 - 0.8 * 0.175), rel=1e-5)
    rate = 8_600
    # above t_high, whatever the gradient: 1 - 0.8 (1 - 500 / 1000)
    rate *= 0.6
    assert completed(1_000) == pytest.approx(rate, rel=1e-5)
    # falling: delta, and five times that from the third completion on
    for step in (10, 10, 50, 50):
        rate += step
        assert completed(70) == pytest.approx(rate, rel=1e-5)
    # below t_low delta is added once
    assert completed(40) == pytest.approx(rate + 10, rel=1e-5)
    # a steep rise cuts to the least rate
    assert completed(400) == pytest.approx(100, rel=1e-5)
    # what is not timed is no completion
    assert completed(0) == pytest.approx(100, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(rtts=st.lists(st.integers(4 * US, 700 * US), min_size=1, max_size=60))
def test_timely_follows_a_model_of_its_own(policies, rtts):
    flow = begin(policies, "timely")
    line, previous, smooth, falling = Fraction(LINE_BPS), rtts[0], Fraction(0), 0
    rate, alpha, beta = line, Fraction(7, 8), Fraction(4, 5)
    for rtt in rtts:
        smooth = (1 - alpha) * smooth + alpha * (rtt - previous)
        previous = rtt
        falling = falling + 1 if smooth <= 0 else 0
        if rtt < 50 * US:
            rate += line / 1000
        elif rtt > 500 * US:
            rate *= 1 - beta * (1 - Fraction(500 * US, rtt))
        elif smooth <= 0:
            rate += (5 if falling >= 5 else 1) * line / 1000
        else:
            rate *= max(0, 1 - beta * smooth / (20 * US))
        rate = min(line, max(line / 100, rate))
        answered = flow.tell(RTT, 0, 0, rtt_ns=rtt)
        assert answered == pytest.approx(float(rate), rel=1e-3)
        rate = Fraction(answered)


def hop(at_ns, tx_bytes, queue_bytes, path=7):
    return Hop(at_ns & 0xFFFFFF, tx_bytes & 0x7FFFFFF, queue_bytes, 100_000, path)


def test_hpcc_by_hand(policies):
    # a base round trip of 10 us at 100 Gbit/s holds 125 kB
    flow = begin(policies, "hpcc", t=10 * US, w_ai=80, max_stage=2)
    assert (flow.state.window_bytes, flow.state.rate_bps) == (125_000, LINE_BPS)

    def ack(hops, acked, sent):
        flow.tell(ACK, 0, PACKET, hops, acked_bytes=acked, sent_bytes=sent)
        return flow.state.window_bytes

    # the first one is remembered
    assert ack([hop(0, 0, 0)], 1_000, 100_000) == 125_000
    # the full line for a round trip, and the smaller of both queues is none: U = 1
    assert ack([hop(10 * US, 125_000, 25_000)], 2_000, 110_000) == pytest.approx(
        125_000 * 0.95 + 80, abs=2
    )
    # 25 kB are a fifth of what the path holds; between updates the reference stays
    assert ack([hop(20 * US, 250_000, 25_000)], 3_000, 110_000) == pytest.approx(
        125_000 * 0.95 / 1.2 + 80, abs=2
    )
    # 125 kB in 5 us: U is half of 1.2, and half of 2.2
    assert ack([hop(25 * US, 375_000, 25_000)], 100_000, 120_000) == pytest.approx(
        125_000 * 0.95 / 1.7 + 80, abs=2
    )
    # what was sent at the first is acknowledged: now the reference follows
    reference = 125_000 * 0.95 / 2.2 + 80
    assert ack([hop(35 * US, 625_000, 25_000)], 100_001, 130_000) == pytest.approx(reference, abs=2)
    # a tenth of the line: raised from there, and counted at the next update only
    for _ in range(2):
        last = ack([hop(45 * US, 637_500, 0)], 120_000, 140_000)
        assert last == pytest.approx(reference + 80, abs=3)
    assert flow.state.rate_bps == pytest.approx(last * 8e9 / (10 * US), rel=1e-6)
    # after two stages of increase (max_stage) it is scaled to the line, from 10 % at once
    for stage in (1, 2):
        now_us = 45 + 10 * stage
        last = ack([hop(now_us * US, 637_500 + 12_500 * stage, 0)], 140_000 + stage, 140_000)
        assert last == pytest.approx(reference + 80 * stage, abs=3)
    assert ack([hop(75 * US, 675_000, 0)], 200_000, 300_000) == 125_000


class HpccModel:
    def __init__(self, rtt_ns, w_ai, eta, stages):
        self.T, self.ai, self.eta, self.stages = rtt_ns, w_ai, eta, stages
        self.maximum = Fraction(rtt_ns * 100, 8)
        self.Wc, self.U, self.stage, self.last_update, self.L = (
            self.maximum,
            Fraction(0),
            0,
            0,
            None,
        )
        self.window = self.maximum

    def ack(self, acked, sent, hops):
        update = acked > self.last_update
        if self.L is not None:
            u = tau = Fraction(0)
            for new, old in zip(hops, self.L, strict=True):
                passed = new[0] - old[0]
                if not passed:
                    continue
                rate = Fraction((new[1] - old[1]) * 8, passed) / 100
                found = rate + Fraction(min(new[2], old[2]) * 8, 100 * self.T)
                if found > u:
                    u, tau = found, passed
            tau = min(tau, self.T)
            self.U = ((self.T - tau) * self.U + tau * u) / self.T
            if self.eta <= self.U or self.stage >= self.stages:
                scaled = self.Wc * self.eta / self.U if self.U else self.maximum
                wide, stage = scaled + self.ai, 0
            else:
                wide, stage = self.Wc + self.ai, self.stage + 1
            self.window = min(self.maximum, wide)
            if update:
                self.Wc, self.stage = self.window, stage
        self.L = hops
        if update:
            self.last_update = sent


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_hpcc_follows_a_model_of_its_own(policies, seed):
    draw = random.Random(seed)
    flow = begin(policies, "hpcc", t=12 * US)
    model = HpccModel(12 * US, 80, Fraction(95, 100), 5)
    count, acked, sent = draw.randrange(1, 6), 0, 50 * PACKET
    ports = [[draw.randrange(2**30), draw.randrange(2**30), 0] for _ in range(count)]
    for _ in range(200):
        acked += draw.randrange(0, 4) * PACKET
        sent = max(sent, acked + draw.randrange(0, 40) * PACKET)
        for port in ports:
            passed = draw.choice((0, draw.randrange(1, 30 * US)))
            port[0] += passed
            port[1] += int(passed * 12.5 * draw.random())
            port[2] = draw.choice((0, draw.randrange(200_000)))
        flow.tell(
            ACK, 0, PACKET, [hop(*port) for port in ports], acked_bytes=acked, sent_bytes=sent
        )
        model.ack(acked, sent, [tuple(port) for port in ports])
        assert flow.state.window_bytes == pytest.approx(float(model.window), rel=2e-3, abs=2)
        assert flow.state.rate_bps == pytest.approx(
            float(model.window) * 8e9 / (12 * US), rel=2e-3, abs=2e6
        )


def test_hpcc_forgets_another_path(policies):
    flow = begin(policies, "hpcc", t=10 * US)
    flow.tell(ACK, 0, PACKET, [hop(0, 0, 0)], acked_bytes=1, sent_bytes=10)
    # of the same path this would be far above the line
    far = hop(10, 1_000_000, 100_000, path=8)
    flow.tell(ACK, 0, PACKET, [far], acked_bytes=20, sent_bytes=30)
    assert flow.state.window_bytes == 125_000


@pytest.mark.parametrize("name", CONTROLS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**9))
def test_nothing_divides_by_zero_or_overflows_whatever_it_is_told(policies, name, seed):
    """The libraries trap on what C does not define; see `compiled`."""
    draw = random.Random(seed)
    values = {
        key: draw.choice((item.minimum, item.default, item.maximum, 0))
        for key, item in congestion_control(name).parameters.items()
    }
    flow = Flow(policies[name], list(values.values()), draw.choice((10**9, 4 * 10**11)), PACKET)
    for event in [START, *draw.choices(range(7), k=60)]:
        hops = [
            Hop(*(draw.choice((0, 1, draw.randrange(2**24))) for _ in range(5)))
            for _ in range(draw.randrange(9))
        ]
        flow.tell(
            event,
            draw.randrange(2**62),
            draw.choice((0, PACKET, 2**32 - 1)),
            hops,
            rtt_ns=draw.choice((0, 1, draw.randrange(2**34))),
            acked_bytes=draw.randrange(2**40),
            sent_bytes=draw.randrange(2**40),
            switches=draw.choice((0, 64)),
        )
        assert flow.state.rate_bps <= flow.state.line_bps
