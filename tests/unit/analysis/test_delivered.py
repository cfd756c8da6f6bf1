"""What receivers accepted and discarded, from tables made by hand."""

import numpy as np
import pytest

from orchestration.analysis.load import FlowEnds, measure_delivered
from orchestration.core.records import DONE, LONG_LIVED, MISSING, UNFINISHED, Samples, Schedule
from orchestration.core.roce import HEADER_BYTES as ROCE_HEADER_BYTES
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec
from tests.testbeds import star
from tests.trials import trial_spec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec

MS = 10**6
STAR = star(*[10] * 3)
TCP_HEADER_BYTES = 66
FULL = 1024


def trial_of(*, roce=True, lasting=False, backend="emulated", warm_up_ns=0):
    pattern = ConcurrentSpec(2, 0, 0, "h2") if lasting else IncastSpec(2, 10**5, MS, 0, MS, "h2")
    return trial_spec(
        testbed="star",
        backend=backend,
        traffic=(pattern,),
        duration_ns=2 * MS,
        drain_ns=8 * MS,
        sample_period_ns=MS,
        host=HostSpec("dcqcn", roce=RoceSpec()) if roce else HostSpec(),
        fabric=FabricSpec("closloop"),
        warm_up_ns=warm_up_ns,
    )


def two_to_h2(*sizes):
    both = np.arange(2)
    return Schedule(both * 0, both, both * 0 + 2, np.array(sizes), both * 0, ("flows",))


def ends_of(*ends_ns, status=DONE, resent=(0, 0), acked=None):
    read = None
    if acked is not None:
        t_ns, rows = zip(*acked.items(), strict=True)
        read = Samples(np.array(t_ns), {"acked_bytes": np.array(rows)})
    return FlowEnds(np.array(ends_ns), np.full(2, status), np.array(resent), read)


def carried(payload, packets, header=ROCE_HEADER_BYTES, *, acks=0):
    """Samples every ms of ports of which the one to h2 carries so much payload by each."""
    rows = len(payload)
    tx_bytes, tx_packets = (np.zeros((rows, 3), dtype=np.int64) for _ in range(2))
    tx_packets[:, 2] = np.array(packets) + acks
    tx_bytes[:, 2] = np.array(payload) + header * tx_packets[:, 2] + 4 * acks
    t_ns = MS * np.arange(1, rows + 1)
    zeros = np.zeros_like(tx_bytes)
    return Samples.of("queue", t_ns, zeros, tx_bytes, tx_packets, zeros, zeros)


@pytest.mark.parametrize("acks", [0, 50])
def test_readings_say_what_was_accepted_and_ports_what_was_thrown_away(acks):
    trial, schedule = trial_of(lasting=True), two_to_h2(10**7, 10**7)
    read = {MS: (50 * FULL, 100 * FULL), 2 * MS: (60 * FULL, 240 * FULL)}
    ends = ends_of(-1, -1, status=LONG_LIVED, resent=(300, 100), acked=read)
    ports = carried([200 * FULL, 400 * FULL], [200, 400], acks=acks)
    found = measure_delivered(trial, STAR, schedule, ends, ports)
    assert found.accepted.tolist() == [60 * FULL, 240 * FULL]
    # by what they sent again
    assert found.discarded == pytest.approx([75 * FULL, 25 * FULL])
    later = measure_delivered(trial_of(lasting=True, warm_up_ns=MS), STAR, schedule, ends, ports)
    assert later.accepted.tolist() == [10 * FULL, 140 * FULL]
    assert later.discarded.sum() == pytest.approx(50 * FULL, rel=0.01 if acks else 1e-9)


def test_what_is_on_its_way_to_be_acknowledged_is_not_discarded():
    ends = ends_of(-1, -1, status=LONG_LIVED, acked={2 * MS: (100 * FULL, 100 * FULL)})
    trial, schedule = trial_of(lasting=True), two_to_h2(10**7, 10**7)
    found = measure_delivered(trial, STAR, schedule, ends, carried([0, 216 * FULL], [0, 216]))
    assert found.accepted.sum() == 200 * FULL
    assert found.discarded.tolist() == [0, 0]


@pytest.mark.parametrize("roce", [True, False])
def test_flows_that_end_in_time_deliver_their_size_whatever_ports_carried(roce):
    header = ROCE_HEADER_BYTES if roce else TCP_HEADER_BYTES
    ends = ends_of(MS, 2 * MS, resent=(0, 1000))
    ports = carried([100 * FULL, 150 * FULL], [100, 150], header)
    found = measure_delivered(trial_of(roce=roce), STAR, two_to_h2(50_000, 60_000), ends, ports)
    assert found.accepted.tolist() == [50_000, 60_000]
    assert found.discarded == pytest.approx([0, 150 * FULL - 110_000])


@pytest.mark.parametrize(
    ("resent", "second"),
    [
        (0, 70_000 / 2),  # by 2 ms ports carried 80,000, of which the first flow had 45,000
        (100, (80_000 / 1.25 - 45_000)),  # a fifth of all that arrived was repetition
    ],
)
def test_a_flow_over_the_end_has_the_rest_of_what_was_kept(resent, second):
    trial, schedule = trial_of(roce=False), two_to_h2(45_000, 75_000)
    total = 150_000 if resent else 120_000
    ports = carried([50_000, 80_000, total], [40, 60, 110], TCP_HEADER_BYTES)
    ends = ends_of(MS, 3 * MS, resent=(0, resent))
    found = measure_delivered(trial, STAR, schedule, ends, ports)
    assert found.accepted == pytest.approx([45_000, second])
    assert found.accepted.sum() + found.discarded.sum() == pytest.approx(80_000)


@pytest.mark.parametrize(
    ("backend", "resent", "known"),
    [
        ("emulated", 0, True),
        ("emulated", 1, False),
        ("fluid", 1, True),
        ("emulated", MISSING, False),
    ],
)
def test_what_receivers_kept_of_unfinished_flows_may_be_unknown(backend, resent, known):
    trial = trial_of(roce=False, backend=backend)
    ends = ends_of(-1, -1, status=UNFINISHED, resent=(0, resent))
    ports = carried([50_000, 80_000], [40, 60], TCP_HEADER_BYTES)
    found = measure_delivered(trial, STAR, two_to_h2(10**6, 10**6), ends, ports)
    assert np.isfinite(found.accepted).all() == np.isfinite(found.discarded).all() == known
    if known:
        assert found.accepted.sum() == pytest.approx(80_000)
        assert found.discarded.sum() == 0
