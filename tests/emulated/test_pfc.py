"""Shared buffers and PFC: nothing lost, who waits for whom, frames as they are on the wire."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.l2 import Ether
from scapy.packet import Padding

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.bench.outcome import SECN1, run_trial
from orchestration.bench.red import run_probe
from orchestration.bench.repeatable import differing_values
from orchestration.core.engines import KERNEL
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import TCP, FabricSpec, FaultSpec, HostSpec
from tests.testbeds import RING_SWITCHES, leaf_spine, ring, single_switch
from traffic.patterns.single_flow import SingleFlowSpec

MS = 1_000_000
OURS = FabricSpec("closloop")
# Hosts that hear no CNP send at line rate, and wait for a second before they send again.
DEAF = HostSpec(
    "dcqcn", roce=RoceSpec(dcqcn=(("min_time_between_cnps", MS),), timeout_ns=1_000 * MS)
)
ROCE = HostSpec("dcqcn", roce=RoceSpec())
ONE_SWITCH = single_switch("one", 22, "25Gbps")
CLASSES = """
classes:
  - {name: rdma, weight: 50}
  - {name: other, weight: 50}
"""
LOSSLESS = "switch: {buffer: 2MB, alpha: ALPHA, pfc: [3]}"
# 20:1 onto h1, and a flow that shares only its sender's cable with one of them
INCAST = (
    *(SingleFlowSpec(f"h{n + 2}", "h1", 500_000, 0) for n in range(20)),
    SingleFlowSpec("h2", "h22", 1_000_000, 0),
)


class Place(NamedTuple):
    """A folder for a trial's testbed, and the engine."""

    folder: Path
    engine: str


def trial(
    place,
    more,
    flows=INCAST,
    *,
    base=ONE_SWITCH,
    host=DEAF,
    drain_ns=30 * MS,
    period_ns=100_000,
    faults=(),
):
    path = place.folder / "testbed.yml"
    path.write_text(base + more)
    return run_trial(
        str(path),
        flows,
        SECN1,
        duration_ns=2 * MS,
        drain_ns=drain_ns,
        sample_period_ns=period_ns,
        faults=faults,
        host=host,
        fabric=OURS,
        engine=place.engine,
    )


@cache
def incast(place, more):
    return trial(place, more)


@pytest.fixture(scope="module")
def place(tmp_path_factory, engine):
    return Place(tmp_path_factory.mktemp("pfc"), engine)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("pfc"), KERNEL)


@pytest.fixture(scope="module")
def folder(kernel):
    return kernel.folder


def queue_to(run, host):
    queues = run.testbed.queues
    return next(i for i, q in enumerate(queues) if run.testbed.peer_device(q.port).name == host)


def reasons(run):
    """Return the stamp's texts, by code."""
    found = stamp(run.trial, run.testbed, run.schedule, run.record).reasons
    return {
        code: " | ".join(reason.text for reason in found if reason.code == code)
        for code in {reason.code for reason in found}
    }


@pytest.mark.parametrize("alpha", ["1/8", "1", "8"])
def test_nothing_of_a_lossless_class_is_dropped_and_the_switch_is_empty_after(place, alpha):
    run = incast(place, LOSSLESS.replace("ALPHA", alpha))
    record = run.record
    assert (record.flows.status == DONE).all()
    assert record.ports.dropped_packets[-1].sum() == 0
    assert record.facts["resent"] == 0
    assert record.facts["pfc"] == {"incidents": [], "lossless_drops": {}}
    whole, by_port = record.samples["switch"], record.samples["priority"]
    (reserved,) = {
        run.testbed.switch.port_headroom_bytes(port.rate_bps, port.delay_ns, 1538)
        for port in run.testbed.switch_ports
    }
    assert 0 < by_port.headroom_bytes.max() <= reserved
    assert by_port.pauses_sent[-1].sum() > 0
    assert whole.buffer_bytes.max() <= 2_000_000
    # what is in the buffer is what waits, and what came in by all ports; all of it has left
    assert (whole.buffer_bytes[:, 0] == record.ports.qlen_bytes.sum(axis=1)).all()
    assert (whole.buffer_bytes[:, 0] == by_port.held_bytes.sum(axis=1)).all()
    assert whole.buffer_bytes[-1, 0] == 0
    # the bottleneck never pauses, so the last flow ends when 20 * 500 KB have gone through it
    assert record.flows.end_ns[:20].max() == pytest.approx(3.46 * MS, rel=0.02)


def test_a_flow_beside_the_incast_is_held_up_by_pauses_and_not_by_drops(place):
    lossy = incast(place, "switch: {buffer: 2MB, alpha: 1/8}")
    assert lossy.record.ports.dropped_packets[-1].sum() > 1_000
    assert list(lossy.record.samples) == ["queue", "switch", "host"]
    alone = trial(place, LOSSLESS.replace("ALPHA", "1"), INCAST[-1:]).record.flows.end_ns[0]
    shares_cable = lossy.record.flows.end_ns[-1]
    small, large = (
        incast(place, LOSSLESS.replace("ALPHA", alpha)).record for alpha in ("1/8", "8")
    )
    # two flows of one sender, 1.5 MB together
    assert shares_cable < 2 * alone
    # it is stopped with its sender: it ends about when the incast does
    assert small.flows.end_ns[-1] > 4 * alone
    assert small.flows.end_ns[-1] >= large.flows.end_ns[-1] > 2 * alone
    paused = small.samples["priority"].pausing_ns[-1]
    assert paused[queue_to(lossy, "h2")] > 2 * MS
    # h22 sends nothing, and is not stopped
    assert paused[queue_to(lossy, "h22")] == 0


def test_how_often_a_buffer_is_read_changes_nothing(place):
    # ports work out their past when somebody looks: who is let go must not depend on that
    more = LOSSLESS.replace("ALPHA", "1/8")
    often, seldom = trial(place, more, period_ns=4_700).record, incast(place, more).record
    assert len(often.ports.t_ns) > 10 * len(seldom.ports.t_ns)
    assert (often.flows.end_ns == seldom.flows.end_ns).all()
    sent = [one.samples["priority"].pauses_sent[-1] for one in (often, seldom)]
    assert (sent[0] == sent[1]).all()


def test_dynamic_thresholds_let_one_queue_take_its_share_of_what_is_free(place):
    # Choudhury and Hahne, equation 2: one queue gets alpha / (1 + alpha) of the buffer
    for alpha, share in (("1/4", 1 / 5), ("2", 2 / 3)):
        run = incast(place, f"switch: {{buffer: 1MB, alpha: {alpha}}}")
        longest = run.record.ports.qlen_bytes.max()
        assert longest == pytest.approx(share * 1_000_000, rel=0.01)


def test_what_has_left_by_other_ports_is_free_although_nobody_looked(place):
    # on cables of 100 us, 271 KB leave the port to h1 before the first of them arrives anywhere
    base = ONE_SWITCH.replace("1us", "100us")
    flows = tuple(
        SingleFlowSpec(f"h{n + 2}", to, size_bytes, start_ns)
        for n in range(16)
        for to, size_bytes, start_ns in (("h1", 16_000, 0), ("h22", 14_000, 85_000))
    )
    run = trial(place, "switch: {buffer: 600KB, alpha: 1}", flows, base=base)
    assert (run.record.flows.status == DONE).all()
    assert run.record.ports.dropped_packets[-1].sum() == 0


def test_too_little_headroom_drops_and_says_so(place):
    run = incast(place, "switch: {buffer: 2MB, alpha: 1/8, headroom: 3KB, pfc: [3]}")
    dropped = int(run.record.ports.dropped_packets[-1].sum())
    assert dropped > 0
    assert run.record.facts["pfc"]["lossless_drops"] == {"switch1": dropped}
    assert (
        f"{dropped} packets of lossless classes found no headroom"
        in reasons(run)["headroom-exceeded"]
    )


LEAF_SPINE = leaf_spine("small", 3, 2, 4, "25Gbps", "25Gbps")


def test_a_link_that_was_stopped_is_not_called_slow(place):
    flows = tuple(SingleFlowSpec(f"h{n}", "h1", 500_000, 0) for n in range(5, 13))
    more = "switch: {buffer: 2MB, alpha: 1/8, pfc: [3]}"
    run = trial(place, more, flows, base=LEAF_SPINE, period_ns=20_000)
    stopped = run.record.samples["priority"].paused_ns[-1]
    down = [q for q, queue in enumerate(run.testbed.queues) if queue.device.startswith("spine")]
    assert stopped[down].max() > 200_000
    assert reasons(run) == {}


def test_the_same_seed_gives_the_same_tables_to_the_bit(kernel):
    more = CLASSES + "switch: {buffer: 400KB, alpha: 1/8, pfc: [rdma]}"
    flows = tuple(
        SingleFlowSpec(f"h{n + 1}", f"h{m}", 200_000, n * 100, queue_class=("rdma", "other")[n % 2])
        for n in range(3, 12)
        for m in (1, 2)
    )
    # what pauses and what lets go is lost on the cut cable
    cut = (FaultSpec(200_000, 600_000, 100_000, ("leaf1-spine1",)),)
    one, other = (
        trial(kernel, more, flows, base=LEAF_SPINE, host=ROCE, drain_ns=100 * MS, faults=cut)
        for _ in range(2)
    )
    differ, values = differing_values(one, other)
    assert values > 5_000
    assert differ == 0
    assert one.record.samples["priority"].pauses_sent[-1].sum() > 0
    assert (one.record.flows.status == DONE).all()
    assert one.record.samples["switch"].buffer_bytes[-1].sum() == 0


def test_tcp_shares_a_buffer_too(kernel):
    run = trial(kernel, "switch: {buffer: 1MB, alpha: 1/2}", host=TCP, drain_ns=1_000 * MS)
    assert (run.record.flows.status == DONE).all()
    whole, ports = run.record.samples["switch"], run.record.ports
    assert 0 < ports.qlen_bytes.max() < 0.34 * 1_000_000
    assert (whole.buffer_bytes[:, 0] == ports.qlen_bytes.sum(axis=1)).all()
    assert ports.dropped_packets[-1].sum() > 0


def test_only_the_priority_that_is_paused_stops(place):
    more = CLASSES + "switch: {buffer: 2MB, alpha: 1/8, pfc: [rdma]}"
    flows = (
        *(SingleFlowSpec(f"h{n + 2}", "h1", 500_000, 0, queue_class="rdma") for n in range(20)),
        SingleFlowSpec("h2", "h22", 1_000_000, 0, queue_class="other"),
        SingleFlowSpec("h3", "h22", 1_000_000, 0, queue_class="rdma"),
    )
    run = trial(place, more, flows)
    other, rdma = run.record.flows.end_ns[-2:]
    assert run.record.ports.dropped_packets[-1].sum() == 0
    assert other < 0.9 * MS
    assert rdma > 2 * MS


@pytest.mark.parametrize("action", ["alert", "drop"])
def test_a_deadlock_is_found_and_named(place, action):
    pairs = (("l1", "l2"), ("s1", "s2"), ("l2", "l1"), ("s2", "s1"))
    flows = tuple(
        SingleFlowSpec(f"{a}h{n}", f"{b}h{n}", 200_000, 0)
        for a, b in pairs
        for n in (1, 2)
        for _ in range(8)
    )
    # eventually they send again what the watchdog dropped
    host = HostSpec("dcqcn", roce=RoceSpec(DEAF.roce.payload_bytes, dcqcn=DEAF.roce.dcqcn))
    run = trial(place, "", flows, base=ring(action), host=host, drain_ns=200 * MS)
    found = [event for event in run.record.events if event.kind == "pfc-deadlock"]
    around = found[0].detail.removesuffix(" wait for each other").split(" > ")
    assert around[0] == around[-1]
    assert {label.split(":")[0] for label in around} == set(RING_SWITCHES)
    assert found[0].t_ns > 3 * MS
    assert found[0].detail in reasons(run)["pfc-deadlock"]
    done = run.record.flows.status == DONE
    if action == "alert":
        assert not done.all()
        # the circle is found from each of its queues, and told once
        assert len(run.record.facts["findings"]) == 1
    else:
        assert done.all()
        assert run.record.ports.dropped_packets[-1].sum() > 0


def pause_frame(quanta, priorities=(3,)):
    """A frame as an independent implementation makes it."""
    fields = {f"c{i}_enabled": int(i in priorities) for i in range(8)}
    times = {f"c{i}_pause_time": quanta for i in priorities}
    frame = Ether(dst="01:80:c2:00:00:01", src="02:00:00:00:00:99") / (
        MACControlClassBasedFlowControl(**fields, **times)
    )
    return bytes(frame / Padding(bytes(60 - len(frame)))).hex()


def probe(folder, more, flows=INCAST, **what):
    path = folder / "testbed.yml"
    path.write_text(ONE_SWITCH + more)
    asked = {"kind": "pauses", "capture": [], "send": [], "sample_ns": 10_000, **what}
    found = run_probe(str(path), asked, traffic=flows, duration_ns=5 * MS, host=DEAF, fabric=OURS)
    return load_testbed(str(path)), found


def test_pause_frames_on_the_wire_are_valid_and_renewed_until_they_let_go(folder):
    # 500 quanta of 512 bits last 10.24 us
    more = (
        "switch: {buffer: 1MB, alpha: 1/8, pfc: [3], quanta: 500, "
        "watchdog: {detect: 1ms, restore: 1ms}}"
    )
    testbed, found = probe(folder, more, capture=["h2:eth0", "h22:eth0"], until_ns=5 * MS)
    assert found["frames"]["h22:eth0"] == []
    frames = [Ether(bytes.fromhex(frame)) for frame in found["frames"]["h2:eth0"]]
    assert {len(bytes.fromhex(frame)) for frame in found["frames"]["h2:eth0"]} == {60}
    assert {frame.dst for frame in frames} == {"01:80:c2:00:00:01"}
    assert {frame.type for frame in frames} == {0x8808}
    about = [frame[MACControlClassBasedFlowControl] for frame in frames]
    assert {one._op_code for one in about} == {0x0101}
    for one in about:
        assert [one.getfieldval(f"c{i}_enabled") for i in range(8)] == [i == 3 for i in range(8)]
        assert all(one.getfieldval(f"c{i}_pause_time") == 0 for i in range(8) if i != 3)
    times = [one.c3_pause_time for one in about]
    assert set(times) == {500, 0}
    assert times[-1] == 0
    # some pauses last longer than 500 quanta
    assert any(a == b == 500 for a, b in pairwise(times))
    place = [q.label for q in testbed.lossless_queues].index(queue_label(testbed, "h2"))
    assert found["samples"][-1]["priority.pauses_sent"][place] == times.count(500)
    assert max(one["dropped_packets"][place] for one in found["samples"]) == 0


def queue_label(testbed, host):
    return next(q.label for q in testbed.queues if testbed.peer_device(q.port).name == host)


def test_quanta_run_out_and_an_earlier_end_lets_go(folder):
    # 1000 quanta are 20.48 us at 25 Gbit/s; a second pause is ended after 10 us by a time of 0
    more = "switch: {buffer: 2MB, alpha: 8, pfc: [3]}"
    send = [
        (200_000, "h22", pause_frame(1000)),
        (300_000, "h22", pause_frame(1000)),
        (310_000, "h22", pause_frame(0)),
        (400_000, "h22", pause_frame(1000, priorities=(2, 4))),
    ]
    flow = (SingleFlowSpec("h2", "h22", 2_000_000, 0),)
    testbed, found = probe(folder, more, flow, send=send, sample_ns=5_000, until_ns=2 * MS)
    place = [q.label for q in testbed.queues].index(queue_label(testbed, "h22"))
    at = {5_000 * (n + 1): one for n, one in enumerate(found["samples"])}
    paused = {t_ns: one["priority.paused_ns"][place] for t_ns, one in at.items()}
    assert paused[200_000] == 0
    assert paused[250_000] == pytest.approx(20_480, abs=5)
    assert paused[395_000] == paused[2 * MS] == pytest.approx(30_480, abs=10)
    sent = {t_ns: one["tx_packets"][place] for t_ns, one in at.items()}
    assert sent[220_000] == sent[205_000]
    assert sent[230_000] > sent[220_000]
    # the flow is later by what it stood still
    lone = 4_000 + (2_000_000 / 1024) * (1024 + 58 + 24) * 8 / 25
    assert found["end_ns"][0] == pytest.approx(lone + 30_480, rel=0.003)


# A queue that gets packets after it was looked at for the first time is looked at again.
@pytest.mark.parametrize(("action", "start_ms", "found_ms"), [("drop", 0, 3), ("forward", 4, 5)])
def test_the_watchdog_ends_a_storm_of_pauses_and_restores_the_queue(
    folder, action, start_ms, found_ms
):
    more = (
        "switch: {buffer: 2MB, alpha: 1/8, pfc: [3], quanta: 60000, "
        f"watchdog: {{detect: 2ms, restore: 3ms, action: {action}}}}}"
    )
    # h22 never lets its switch send, for 6 ms
    storm = [(n * MS, "h22", pause_frame(65_535)) for n in range(1, 7)]
    flows = (
        SingleFlowSpec("h2", "h22", 20_000_000, start_ms * MS),
        SingleFlowSpec("h2", "h3", 10_000_000, 2 * MS),
    )
    testbed, found = probe(folder, more, flows, send=storm, sample_ns=500_000, until_ns=20 * MS)
    label = queue_label(testbed, "h22")
    place = [q.label for q in testbed.queues].index(label)
    incidents = found["facts"]["pfc"]["incidents"]
    assert [one["kind"] for one in incidents] == ["storm", "restored"]
    assert incidents[0]["queues"] == [label]
    assert incidents[0]["peer"] == "h22:eth0"
    assert incidents[0]["t_ns"] == pytest.approx(found_ms * MS, abs=2_000)
    # three milliseconds after the last pause came
    assert incidents[1]["t_ns"] == pytest.approx(9 * MS, abs=2_000)
    sent = [one["tx_packets"][place] for one in found["samples"]]
    dropped = [one["dropped_packets"][place] for one in found["samples"]]
    assert sent[3] == sent[4]
    if action == "drop":
        assert dropped[-1] > 0
    else:
        assert sent[-1] > sent[6]
        assert dropped[-1] == 0
    # what goes elsewhere is let go by the watchdog
    assert 0 < found["end_ns"][1] < 15 * MS


def test_without_a_shared_buffer_there_are_no_such_tables(place):
    run = trial(place, "buffer: 16MB", INCAST[-1:])
    assert list(run.record.samples) == ["queue", "host"]
    assert "findings" not in run.record.facts
    assert np.asarray(run.record.ports.dropped_packets).sum() == 0
