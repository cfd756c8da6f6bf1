"""The slow model of the packet engine against what is known without it."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.unit.datapath.model import Model
from tests.unit.datapath.model_paths import siphash
from tests.unit.datapath.model_policies import Dcqcn
from tests.unit.policy_library import CNP, START, TX, compiled
from tests.unit.policy_library import Flow as PolicyFlow

RATE_BPS, DELAY_NS = 25 * 10**9, 1_000
FULL_BYTES, FRAMING_BYTES = 1_000 + 58, 24
EIGHT = [0] * 8


def star(hosts, *, lossless=False, headroom_bytes=0, limit_bytes=10**6):
    """Return a model of hosts at one switch. With `lossless`, pauses begin at 20 KB a port."""
    fabric = SimpleNamespace(
        framing_bytes=FRAMING_BYTES, marks_departures=0, shared_buffer=lossless, xoff_bytes=20_000,
        xon_offset_bytes=2_000, quanta=2_000, lossless=1, classes=1, alpha=EIGHT, priority=EIGHT,
        quantum_bytes=[1_500] * 8,
    )  # fmt: skip
    devices = [SimpleNamespace(is_switch=n == 0, pool_bytes=10**6) for n in range(hosts + 1)]
    ports = [
        SimpleNamespace(
            rate_bps=RATE_BPS, delay_ns=DELAY_NS, seed=1, device=max(0, number + 1 - hosts),
            peer=(number + hosts) % (2 * hosts), first_queue=number, address=number,
            headroom_bytes=headroom_bytes,
        )
        for number in range(2 * hosts)
    ]  # fmt: skip
    return Model(fabric, devices, ports, [limit_bytes] * hosts)


def post(model, pairs, size_bytes):
    """Post flows between hosts, all at 0."""
    hosts = len(model.ports) // 2
    nics = SimpleNamespace(
        cnp_interval_ns=0, timeout_ns=10**7, payload_bytes=1_000, ack_every=16, window_bytes=0,
        parameters=[0] * 24,
    )  # fmt: skip
    flows = [
        SimpleNamespace(
            start_ns=0, bytes=size_bytes, src_port=hosts + src, dst_port=hosts + dst, klass=0,
            udp_source=0xC000 + src, is_ecn_capable=1,
        )
        for src, dst in pairs
    ]  # fmt: skip
    model.post("fixed", nics, flows)


def sending_ps(packets):
    return packets * (FULL_BYTES + FRAMING_BYTES) * 8 * 1000 // 25


@pytest.mark.parametrize("packets", [1, 2, 100])
def test_a_lone_flow_takes_what_its_framing_and_its_cables_take(packets):
    model = star(2)
    post(model, [(0, 1)], packets * 1_000)
    model.run(10**6)
    (flow,) = model.flows
    # switches cut through: the last packet's first bit needs two cables, and so does its answer;
    # at the switch it waits for less than the ns to which an earlier one was rounded up
    received_ns = -(-sending_ps(packets - 1) // 1000) + 2 * DELAY_NS
    assert 0 <= flow.received_ns - received_ns <= (packets > 2)
    assert flow.done_ns == flow.received_ns + 2 * DELAY_NS
    assert flow.rtts == -(-packets // 16)
    assert 0 <= flow.rtt_ns - 4 * DELAY_NS <= (packets > 2)


def test_two_senders_fill_the_queue_of_one_receiver_at_its_rate():
    model = star(3)
    post(model, [(0, 2), (1, 2)], 100_000)
    for sent in (10, 50):
        # at the switch as the senders' next packets arrive: both have come since the first did
        model.run(DELAY_NS + sending_ps(sent) // 1000)
        assert model.queues()[2].backlog_bytes == pytest.approx(sent * FULL_BYTES, abs=FULL_BYTES)
    model.run(10**6)
    assert model.packets == {"sent": 200, "received": 200, "dropped": 0}
    # the receiver's line never rests: the last of 200 packets begins as 199 have been sent
    assert max(flow.received_ns for flow in model.flows) == -(-sending_ps(199) // 1000) + 2_000


@pytest.mark.parametrize("headroom_bytes", [0, 60_000])
def test_pauses_with_headroom_drop_nothing_and_hold_little(headroom_bytes):
    model = star(5, lossless=True, headroom_bytes=headroom_bytes)
    post(model, [(n, 4) for n in range(4)], 300_000)
    most = 0
    for now in range(0, 400_000, 500):
        model.run(now)
        most = max(most, model.queues()[4].backlog_bytes)
    assert model.pauses > 0
    assert (model.packets["dropped"] > 0) == (headroom_bytes == 0)
    if headroom_bytes:
        # each sender may exceed the threshold by what a pause of two cables lets come
        assert most <= 4 * (20_000 + 3 * DELAY_NS * 25 // 8 + 2 * FULL_BYTES)
        model.run(10**6)
        assert model.packets == {"sent": 1_200, "received": 1_200, "dropped": 0}
        assert not any(port.stopping for port in model.devices[0].ports)


def test_siphash_has_the_value_of_its_authors():
    """SipHash-2-4 of the bytes 0 to 7 in vectors.h of the reference implementation."""
    key = bytes(range(16))
    words = [int.from_bytes(key[at : at + 8], "little") for at in (0, 8)]
    assert siphash(bytes(range(8)), *words) == 0x93F5F5799A932462


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled("dcqcn", tmp_path_factory.mktemp("policy"))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_dcqcn_is_that_of_the_compiled_policy(library, seed):
    dice = random.Random(seed)
    numbers = [DCQCN_SETS["mlx5"][name] for name in PARAMETER_ORDER]
    flow, model = PolicyFlow(library, numbers, RATE_BPS), Dcqcn(RATE_BPS)
    now = 0
    flow.tell(START, now)
    model.happen("start", now, 0, numbers)
    for _ in range(60):
        now += dice.choice([0, 300, 4_000, 60_000])
        number, event = dice.choice([(TX, "tx"), (CNP, "cnp")])
        size_bytes = dice.choice([1_058, 40_000]) if event == "tx" else 0
        if dice.random() < 0.1:
            model.happen("settle", now, 0, numbers)
            values = DCQCN_SETS[dice.choice(["mlx5", "hpcc", "paper"])]
            numbers = [values[name] for name in PARAMETER_ORDER]
            numbers[dice.choice([1, 6, 9])] = dice.randrange(100)
            model.happen("changed", now, 0, numbers)
            assert flow.change(numbers, now) == model.rate_bps
        model.happen(event, now, size_bytes, numbers)
        assert flow.tell(number, now, size_bytes) == model.rate_bps
