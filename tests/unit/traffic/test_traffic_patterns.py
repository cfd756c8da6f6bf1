"""Arrival patterns: loads, places, windows, and the independence of their random streams."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.files import load_testbed
from orchestration.core.pattern import Streams
from orchestration.core.topology import Device, LinkSpec, Testbed
from traffic.patterns.all_to_all import AllToAllSpec
from traffic.patterns.alternating import AlternatingSpec, phases
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.message_mix import MessageMixSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_flows
from traffic.workloads import load_workload

GBPS = 10**9
MS = 10**6


def star(*rates_gbps: int) -> Testbed:
    """Return hosts h0, h1, ... on one switch, each with its own line rate."""
    hosts = [Device(f"h{i}", "host", 0) for i in range(len(rates_gbps))]
    links = [
        LinkSpec(host.name, "s", rate * GBPS, 1000)
        for host, rate in zip(hosts, rates_gbps, strict=True)
    ]
    return Testbed.build(
        "star", [*hosts, Device("s", "switch", 1)], links, mtu_bytes=1500, buffer_bytes=1_000_000
    )


def offered_bytes(spec, testbed) -> float:
    """Payload that a pattern offers: expected where it is random."""
    hosts = len(testbed.hosts)
    if isinstance(spec, SingleFlowSpec):
        return spec.size_bytes
    window_ns = max(0, spec.stop_ns - spec.start_ns)
    if isinstance(spec, PoissonSpec | MessageMixSpec):
        line_bps = sum(map(testbed.host_rate_bps, testbed.hosts))
        return spec.load * line_bps / 8 * window_ns / 1e9
    flows = spec.fan_in if isinstance(spec, IncastSpec) else hosts * (hosts - 1)
    period_ns = spec.period_ns or round(spec.interval_ns(testbed))
    return -(-window_ns // period_ns) * flows * spec.size_bytes


EIGHT = star(*[25] * 8)
POISSON = PoissonSpec("FB_Hadoop", 0.6, 2 * MS, 42 * MS)
MIX = MessageMixSpec((1_000, 10_000, 100_000), 0.3, 0, 20 * MS)
INCAST = IncastSpec(4, 64_000, 5 * MS, 1 * MS, 101 * MS)
ALL_TO_ALL = AllToAllSpec(1_000, 5 * MS, 0, 12 * MS)
FLOW = SingleFlowSpec("h1", "h3", 5_000, 7)
RANDOM = IncastSpec(4, 500_000, 0, 1 * MS, 201 * MS, load=0.02, arrivals="poisson")
ALL = (POISSON, MIX, INCAST, RANDOM, ALL_TO_ALL, FLOW)


def flows_of(spec, testbed=EIGHT, seed=1):
    return make_flows(spec, testbed, Streams.spawn(seed, 0))


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.kind)
def test_flows_are_well_typed_in_their_window_and_never_to_oneself(spec):
    flows = flows_of(spec)
    for column in dataclasses.astuple(flows):
        assert column.dtype == np.int64
        assert column.shape == flows.start_ns.shape
    assert len(flows.start_ns) > 0
    assert flows.start_ns.min() >= spec.start_ns
    assert flows.start_ns.max() < getattr(spec, "stop_ns", spec.start_ns + 1)
    assert not np.any(flows.src == flows.dst)
    assert min(flows.src.min(), flows.dst.min()) >= 0
    assert max(flows.src.max(), flows.dst.max()) < len(EIGHT.hosts)
    assert flows.size_bytes.min() >= 1


@pytest.mark.parametrize("load", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("workload", ["AliStorage2019", "FB_Hadoop"])
def test_poisson_offers_the_load_asked_for(workload, load):
    testbed = star(*[400] * 8)
    spec = PoissonSpec(workload, load, 0, 200 * MS)
    sizes = flows_of(spec, testbed).size_bytes
    asked_bps = load * 8 * 400 * GBPS
    # Relative error of a compound Poisson sum: sqrt(E[S^2] / E[S]^2 / n), four of them.
    drawn = load_workload(workload).quantile((np.arange(100_000) + 0.5) / 100_000)
    error = 4 * np.sqrt(np.mean(drawn**2) / np.mean(drawn) ** 2 / len(sizes))
    assert error < 0.1
    assert sizes.sum() * 8 / 0.2 == pytest.approx(asked_bps, rel=error)
    assert offered_bytes(spec, testbed) == pytest.approx(asked_bps / 8 * 0.2)


def test_poisson_gaps_are_exponential():
    gaps = np.diff(flows_of(dataclasses.replace(POISSON, workload="AliStorage2019")).start_ns)
    assert len(gaps) > 5_000
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)
    assert np.mean(gaps > gaps.mean()) == pytest.approx(np.exp(-1), abs=0.03)


def test_poisson_sources_follow_line_rates_and_destinations_are_even():
    testbed = star(100, 25, 25, 50)
    flows = flows_of(PoissonSpec("AliStorage2019", 0.8, 0, 50 * MS), testbed)
    n = len(flows.src)
    assert n > 10_000
    sources = np.bincount(flows.src, minlength=4) / n
    assert sources == pytest.approx(np.array([0.5, 0.125, 0.125, 0.25]), abs=0.02)
    from_first = np.bincount(flows.dst[flows.src == 0], minlength=4) / np.sum(flows.src == 0)
    assert from_first == pytest.approx(np.array([0, 1 / 3, 1 / 3, 1 / 3]), abs=0.03)


def test_a_host_counts_with_all_its_nics():
    single, double = star(25, 25), star(25, 25)
    links = [LinkSpec("h0", "s", 25 * GBPS, 1000), LinkSpec("h0", "s", 25 * GBPS, 1000)]
    links.append(LinkSpec("h1", "s", 25 * GBPS, 1000))
    double = Testbed.build("d", single.devices, links, mtu_bytes=1500, buffer_bytes=1)
    spec = PoissonSpec("FB_Hadoop", 0.5, 0, MS)
    assert offered_bytes(spec, double) == pytest.approx(1.5 * offered_bytes(spec, single))


def test_a_higher_load_keeps_sizes_and_places():
    low, high = (flows_of(dataclasses.replace(POISSON, load=load)) for load in (0.3, 0.6))
    n = len(low.src)
    assert len(high.src) > 1.5 * n
    for name in ("src", "dst", "size_bytes"):
        assert np.array_equal(getattr(high, name)[:n], getattr(low, name))


def test_a_longer_window_only_adds_flows():
    short, long = (flows_of(dataclasses.replace(POISSON, stop_ns=t * MS)) for t in (10, 300))
    n = len(short.src)
    assert len(long.src) > 20 * n
    for name in ("start_ns", "src", "dst", "size_bytes"):
        assert np.array_equal(getattr(long, name)[:n], getattr(short, name))


def test_another_workload_keeps_places():
    first, second = (
        flows_of(dataclasses.replace(POISSON, workload=name)) for name in ("WebSearch", "FB_Hadoop")
    )
    n = len(first.src)
    assert np.array_equal(second.src[:n], first.src)


def test_message_mix_draws_each_size_equally_often_at_its_load():
    spec = dataclasses.replace(MIX, stop_ns=100 * MS)
    sizes = flows_of(spec).size_bytes
    values, counts = np.unique(sizes, return_counts=True)
    assert values.tolist() == list(spec.sizes_bytes)
    assert counts / len(sizes) == pytest.approx(np.full(3, 1 / 3), abs=0.02)
    assert sizes.sum() == pytest.approx(offered_bytes(spec, EIGHT), rel=0.05)


def test_incast_has_distinct_senders_that_start_together():
    flows = flows_of(INCAST)
    starts = np.unique(flows.start_ns)
    assert starts.tolist() == [MS + k * 5 * MS for k in range(20)]
    senders, receivers = set(), set()
    for start in starts:
        event = flows.start_ns == start
        assert len(set(flows.src[event])) == INCAST.fan_in == event.sum()
        assert len(set(flows.dst[event])) == 1
        senders.add(frozenset(flows.src[event].tolist()))
        receivers |= set(flows.dst[event])
    assert len(senders) > 10
    assert len(receivers) > 3
    assert set(flows.size_bytes) == {64_000}
    assert offered_bytes(INCAST, EIGHT) == flows.size_bytes.sum()


def test_periodic_incasts_stay_what_they_were():
    """A change here makes new results incomparable with those that users have."""
    digests = [
        hashlib.sha256(
            b"".join(column.astype("<i8").tobytes() for column in dataclasses.astuple(flows))
        ).hexdigest()[:16]
        for flows in (
            flows_of(IncastSpec(16, 64_000, MS, 0, 20 * MS), load_testbed("graphcc"), 2**52),
            flows_of(IncastSpec(5, 64_000, MS // 3, 7, 20 * MS, "h3"), EIGHT, 2**52),
        )
    ]
    assert digests == ["bb461184ffe40b57", "f2b5749fa318bd45"]


@pytest.mark.parametrize("receiver", ["", "h2"])
@pytest.mark.parametrize("by", [{"load": 0.02}, {"period_ns": 2 * MS, "load": 0.0}])
def test_random_incasts_are_a_poisson_process_with_their_load(by, receiver):
    """HPCC's figure 11a, by its author: the mean interval follows from the load."""
    spec = dataclasses.replace(RANDOM, **by, receiver=receiver)
    line_bps = 25e9 * (1 if receiver else 8)
    mean_ns = by.get("period_ns") or 4 * 500_000 * 8e9 / (0.02 * line_bps)
    seeds = round(10_000 * mean_ns / (200 * MS))
    starts, sizes, receivers = [], 0, set()
    for seed in range(seeds):
        flows = flows_of(spec, seed=seed)
        starts.append(flows.start_ns[::4])
        sizes += flows.size_bytes.sum()
        receivers |= set(flows.dst.tolist())
    counts = np.array([len(some) for some in starts])
    # 10,000 are expected, with a deviation of 100; counts of seeds have their mean as variance
    assert counts.sum() == pytest.approx(10_000, abs=400)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / seeds))
    expected = spec.expected(EIGHT)
    assert sizes / seeds == pytest.approx(expected.size_bytes, rel=0.04)
    assert expected.size_bytes == pytest.approx(200 * MS / mean_ns * 4 * 500_000)
    assert expected.flows == pytest.approx(expected.size_bytes / 500_000)
    assert receivers == ({2} if receiver else set(range(8)))


def test_times_between_random_incasts_are_exponential():
    gaps = np.diff(flows_of(dataclasses.replace(RANDOM, stop_ns=20_000 * MS)).start_ns[::4])
    assert gaps.mean() == pytest.approx(4 * MS, rel=0.06)  # 16 Mbit, at 2 % of 200 Gbit/s
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.06)
    assert np.mean(gaps > gaps.mean()) == pytest.approx(np.exp(-1), abs=0.03)


def test_a_seed_has_its_incasts_and_a_longer_window_only_adds_some():
    one, same = flows_of(RANDOM), flows_of(RANDOM)
    longer = flows_of(dataclasses.replace(RANDOM, stop_ns=401 * MS))
    n = len(one.src)
    assert len(longer.src) > n > 0
    for name in ("start_ns", "src", "dst"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
        assert np.array_equal(getattr(longer, name)[:n], getattr(one, name))


def test_a_load_makes_a_period_too():
    spec = dataclasses.replace(RANDOM, arrivals="periodic", start_ns=0)
    starts = np.unique(flows_of(spec).start_ns)
    assert set(np.diff(starts)) == {4 * MS}  # 16 Mbit, at 2 % of 200 Gbit/s
    assert offered_bytes(spec, EIGHT) == spec.expected(EIGHT).size_bytes


def test_incast_to_a_named_receiver_from_everyone_else():
    flows = flows_of(dataclasses.replace(INCAST, receiver="h2", fan_in=7, stop_ns=2 * MS))
    assert flows.dst.tolist() == [2] * 7
    assert sorted(flows.src.tolist()) == [0, 1, 3, 4, 5, 6, 7]


def test_a_narrower_incast_has_some_of_the_same_senders():
    wide, narrow = (flows_of(dataclasses.replace(INCAST, fan_in=n)) for n in (6, 3))
    assert np.array_equal(wide.src.reshape(-1, 6)[:, :3], narrow.src.reshape(-1, 3))
    assert np.array_equal(wide.dst[::6], narrow.dst[::3])


def test_all_to_all_is_every_ordered_pair_each_period():
    flows = flows_of(ALL_TO_ALL)
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    for start in (0, 5 * MS, 10 * MS):
        event = flows.start_ns == start
        found = zip(flows.src[event].tolist(), flows.dst[event].tolist(), strict=True)
        assert sorted(found) == pairs
    assert len(flows.src) == 3 * len(pairs)
    assert offered_bytes(ALL_TO_ALL, EIGHT) == flows.size_bytes.sum()


def test_a_single_flow():
    flows = flows_of(FLOW)
    assert [column.tolist() for column in dataclasses.astuple(flows)] == [[7], [1], [3], [5_000]]
    assert offered_bytes(FLOW, EIGHT) == 5_000


@pytest.mark.parametrize(
    "spec",
    [
        dataclasses.replace(POISSON, load=0.0),
        dataclasses.replace(POISSON, stop_ns=POISSON.start_ns),
        dataclasses.replace(INCAST, stop_ns=0),
    ],
)
def test_nothing_offered_is_no_flows(spec):
    assert len(flows_of(spec).start_ns) == 0
    assert offered_bytes(spec, EIGHT) == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (dataclasses.replace(POISSON, load=1.4), "load 1.4 is not a share of line rate"),
        (dataclasses.replace(MIX, sizes_bytes=()), "at least 1 byte"),
        (dataclasses.replace(MIX, load=-1.0), "load -1"),
        (dataclasses.replace(INCAST, fan_in=8), "fan-in 8 does not fit .* 8 hosts: use 1 to 7"),
        (dataclasses.replace(INCAST, fan_in=0), "fan-in 0"),
        (dataclasses.replace(INCAST, period_ns=0), "either a period or a load"),
        (dataclasses.replace(INCAST, load=0.1), "either a period or a load"),
        (dataclasses.replace(INCAST, period_ns=-1), "a period of -1 ns"),
        (dataclasses.replace(INCAST, receiver="h9"), "no host 'h9': its hosts are h0 to h7"),
        (dataclasses.replace(INCAST, size_bytes=0), "at least 1 byte"),
        (dataclasses.replace(ALL_TO_ALL, period_ns=-1), "a period of -1 ns"),
        (dataclasses.replace(FLOW, src="s"), "no host 's'"),
        (dataclasses.replace(FLOW, dst="h1"), "from h1 to itself"),
    ],
)
def test_what_cannot_be_is_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        flows_of(spec)


def test_one_host_has_nobody_to_send_to():
    assert "1 hosts" in POISSON.wrong(star(25))


@given(
    seed=st.integers(0, 2**63),
    hosts=st.integers(2, 12),
    load=st.floats(0, 1),
    window_ns=st.integers(0, 200_000),
    start_ns=st.integers(0, 10**9),
)
def test_poisson_flows_keep_their_bounds(seed, hosts, load, window_ns, start_ns):
    spec = PoissonSpec("AliStorage2019", load, start_ns, start_ns + window_ns)
    flows = flows_of(spec, star(*range(1, hosts + 1)), seed)
    assert np.all((flows.start_ns >= start_ns) & (flows.start_ns < start_ns + max(1, window_ns)))
    assert np.all(np.diff(flows.start_ns) >= 0)
    assert not np.any(flows.src == flows.dst)
    assert np.all((flows.dst >= 0) & (flows.dst < hosts))
    assert np.all((flows.size_bytes >= 1) & (flows.size_bytes <= 2_000_000))


@given(
    seed=st.integers(0, 2**63),
    hosts=st.integers(2, 40),
    data=st.data(),
)
def test_incast_senders_are_distinct_and_never_the_receiver(seed, hosts, data):
    fan_in = data.draw(st.integers(1, hosts - 1))
    spec = IncastSpec(fan_in, 1_000, 10, 0, data.draw(st.integers(1, 100)))
    flows = flows_of(spec, star(*[10] * hosts), seed)
    for senders, receivers in zip(
        flows.src.reshape(-1, fan_in), flows.dst.reshape(-1, fan_in), strict=True
    ):
        assert len(set(senders.tolist())) == fan_in
        assert len(set(receivers.tolist())) == 1
        assert receivers[0] not in senders


@pytest.mark.parametrize("receiver", ["h0", "h7"])
def test_a_message_mix_with_a_receiver_offers_its_load_to_it_alone(receiver):
    spec = MessageMixSpec((1_000, 10_000, 100_000), 0.6, 0, 200 * MS, receiver=receiver)
    flows = flows_of(spec)
    assert set(flows.dst.tolist()) == {EIGHT.hosts.index(receiver)}
    assert len(set(flows.src.tolist())) == len(EIGHT.hosts) - 1
    assert not np.any(flows.src == flows.dst)
    assert flows.size_bytes.sum() == pytest.approx(0.6 * 25e9 / 8 * 0.2, rel=0.05)
    assert "no host 'h9'" in dataclasses.replace(spec, receiver="h9").wrong(EIGHT)


def test_concurrent_flows_to_a_receiver_take_turns_among_senders():
    spec = ConcurrentSpec(10, 1_000, 5 * MS, "h2", senders=3, within_ns=2 * MS, spread_ns=1_000)
    flows = flows_of(spec)
    assert (flows.dst == 2).all()
    senders, counts = np.unique(flows.src, return_counts=True)
    assert 2 not in senders
    assert sorted(counts) == [3, 3, 4]
    # at one time of a window, each a little later
    first, last = flows.start_ns.min(), flows.start_ns.max()
    assert 5 * MS <= first <= last < first + 1_000
    assert last < 7 * MS + 1_000
    starts = {int(flows_of(spec, seed=seed).start_ns.min()) // 1_000 for seed in range(8)}
    assert len(starts) == 8
    more = flows_of(dataclasses.replace(spec, flows=14))
    assert (more.src[:10] == flows.src).all()


def test_concurrent_flows_from_all_to_all_load_every_host_alike():
    hosts = 8
    flows = flows_of(ConcurrentSpec(3 * hosts * (hosts - 1), 1_000, 0))
    assert (flows.src != flows.dst).all()
    pairs, counts = np.unique(np.stack([flows.src, flows.dst]), axis=1, return_counts=True)
    assert pairs.shape[1] == hosts * (hosts - 1)
    assert (counts == 3).all()
    # in each round, a host sends once and receives once
    for start in range(0, len(flows.src), hosts):
        for side in (flows.src, flows.dst):
            assert sorted(side[start : start + hosts]) == list(range(hosts))
    assert (flows.start_ns == 0).all()


def test_few_and_many_alternate_at_times_that_the_seed_draws():
    testbed = load_testbed("graphcc")
    spec = AlternatingSpec("h2", 2, 10, 500_000, 2 * MS, 0.8, MS // 2, 5_000, 0.02, 0, 40 * MS)
    found = list(phases(spec, Streams.spawn(1, 0).times))
    assert [one.start_ns for one in found[1:]] == [one.end_ns for one in found[:-1]]
    assert {one.crowded for one in found[::2]} != {one.crowded for one in found[1::2]}
    lengths = np.diff([one.start_ns for one in found])
    assert MS <= lengths.min() < 1.5 * MS < 2.5 * MS < lengths.max() <= 3 * MS
    begins = {next(phases(spec, Streams.spawn(seed, 0).times)).crowded for seed in range(9)}
    assert begins == {False, True}

    flows = make_flows(spec, testbed, Streams.spawn(1, 0))
    receiver = testbed.hosts.index("h2")
    assert set(flows.dst) == {receiver}
    assert receiver not in flows.src
    assert flows.start_ns.max() < spec.stop_ns
    rate = testbed.host_rate_bps("h2") / 8e9  # bytes per ns
    for phase in found[:-1]:
        inside = (flows.start_ns >= phase.start_ns) & (flows.start_ns < phase.end_ns)
        long = inside & (flows.size_bytes != spec.short_bytes)
        assert len(set(flows.src[long])) == (10 if phase.crowded else 2)
        lasts = phase.end_ns - phase.start_ns
        if phase.crowded:
            assert flows.size_bytes[long].sum() == pytest.approx(
                0.8 * rate * (lasts - MS // 2), 1e-4
            )
            short = inside & ~long
            assert flows.size_bytes[short].sum() == pytest.approx(
                0.02 * rate * (lasts - MS // 2), abs=2_500
            )
            assert flows.start_ns[short].min() >= phase.start_ns + MS // 2
        else:
            assert set(flows.size_bytes[inside]) == {500_000}
            # whole messages: half a pair more or less
            assert flows.size_bytes[inside].sum() == pytest.approx(0.8 * rate * lasts, abs=500_000)
