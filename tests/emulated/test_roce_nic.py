"""RoCE NICs: recovery of losses, probes, windows, and TCP beside RoCE on one fabric."""

import dataclasses

import numpy as np
import pytest
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from inventory.routing import ideal_times_ns, roce_flows, window_bytes
from orchestration.analysis.stamp import stamp
from orchestration.bench.outcome import SECN1, run_trial
from orchestration.bench.red import run_probe
from orchestration.bench.repeatable import differing_values
from orchestration.core.engines import KERNEL
from orchestration.core.records import DONE, MISSING
from orchestration.core.roce import BDP_WINDOW, RoceSpec
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.testbeds import single_switch
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec

MS = 1_000_000
ECT0, CE = 2, 3
OURS = FabricSpec("closloop")
SWITCH = single_switch("one-switch", 17, "25Gbps", buffer="BUFFER")
MIXED = """
kind: leaf-spine
name: mixed
mtu: 1500B
buffer: 16MB
leaves: 2
spines: 2
hosts_per_leaf: 4
host_link: {rate: 25Gbps, delay: 1us}
uplinks_per_spine: 1
uplink: {rate: 50Gbps, delay: 1us}
classes:
  - {name: rdma, weight: 70, congestion_control: dcqcn}
  - {name: tcp, weight: 30, congestion_control: dctcp}
"""


def nics(name="mlx5", **more):
    return RoceSpec(dcqcn=tuple(DCQCN_SETS[name].items()), **more)


def one_switch(tmp_path, traffic, roce, *, buffer="64MB", engine=KERNEL, **more):
    path = tmp_path / "one-switch.yml"
    path.write_text(SWITCH.replace("BUFFER", buffer))
    given = {"duration_ns": 20 * MS, "host": HostSpec("dcqcn", roce=roce), "fabric": OURS, **more}
    return run_trial(str(path), traffic, SECN1, engine=engine, **given)


def incast(size_bytes, senders=16):
    return tuple(SingleFlowSpec(f"h{n + 2}", "h1", size_bytes, 0) for n in range(senders))


def test_selective_repeat_sends_again_what_was_dropped_and_no_more(tmp_path):
    runs = [
        one_switch(tmp_path, incast(1_000_000), nics("paper", recovery=recovery), buffer="300KB")
        for recovery in ("selective-repeat", "go-back-n")
    ]
    dropped, resent = (
        [f(run.record) for run in runs]
        for f in (lambda r: r.ports.dropped_packets[-1].sum(), lambda r: r.facts["resent"])
    )
    for run in runs:
        assert (run.record.flows.status == DONE).all()
        assert run.record.facts["naks"] > 0
    assert resent[0] == dropped[0] > 1_000
    assert resent[1] > 10 * resent[0]
    assert runs[0].record.facts["packets"] == 16 * 977 + resent[0]
    assert runs[0].record.flows.end_ns.max() < runs[1].record.flows.end_ns.max()


def captured(tmp_path, buffer, roce, kmin_bytes, size_bytes=200_001):
    """Return the frames that arrive at the receiver and at two senders, by scapy."""
    path = tmp_path / "one-switch.yml"
    path.write_text(SWITCH.replace("BUFFER", buffer))
    asked = {
        "kind": "frames",
        "capture": ["h1", "h2", "h3"],
        "kmin_bytes": kmin_bytes,
        "kmax_bytes": max(kmin_bytes, 400_000),
        "pmax": 0.2,
    }
    more = {"duration_ns": 200 * MS, "host": HostSpec("dcqcn", roce=roce), "fabric": OURS}
    found = run_probe(str(path), asked, traffic=incast(size_bytes, 2), **more)
    assert found["done"] == 2
    return {
        host: [Ether(bytes.fromhex(frame)) for frame in frames]
        for host, frames in found["frames"].items()
    }


def of_flow(frames, number, *opcodes):
    """Return the packets of the flow from `h<number + 2>`, but for ARP and the like."""
    found = [f for f in frames if BTH in f and (not opcodes or f[BTH].opcode in opcodes)]
    return [f for f in found if f[BTH].dqpn == number + 2]


DATA = (0x00, 0x01, 0x02)  # send first, middle, last
ACK, CNP, PROBE, PROBE_ANSWER = 0x11, 0x81, 0xC0, 0xC1


def test_frames_are_valid_to_an_independent_parser(tmp_path):
    frames = captured(tmp_path, "8MB", nics("paper", rtt_probe_interval_ns=20_000), 20_000)
    packets = -(-200_001 // 1024)
    for number, sender in enumerate(("h2", "h3")):
        data = of_flow(frames["h1"], number, *DATA)
        assert [f[BTH].psn for f in data] == list(range(packets))
        assert [f[BTH].opcode for f in data] == [0, *[1] * (packets - 2), 2]
        # 321 bytes are left for the last packet, and 3 fill them up
        assert [f[BTH].padcount for f in data] == [*[0] * (packets - 1), 3]
        assert len(data[-1][BTH].payload) == 324
        assert {f[UDP].sport for f in data} == {data[0][UDP].sport}
        assert all(f[IP].tos & 3 in (ECT0, CE) for f in data)
        assert [f[BTH].psn for f in data if f[BTH].ackreq] == [*range(15, packets, 16), packets - 1]
        acks = of_flow(frames[sender], number, ACK)
        assert [f[BTH].psn for f in acks] == [*range(15, packets, 16), packets - 1]
        assert {f[AETH].syndrome for f in acks} == {0x1F}
        assert [f[AETH].msn for f in acks] == [*[0] * (len(acks) - 1), 1]
        # one in 50 us for as long as marks come
        marked = [f for f in data if f[IP].tos & 3 == CE]
        cnps = of_flow(frames[sender], number, CNP)
        assert marked
        assert 1 <= len(cnps) <= len(marked)
        for f in cnps:
            assert f[BTH].becn == 1
            assert bytes(f[CNPPadding])[:16] == bytes(16)
            assert len(f[IP]) == 20 + 8 + 12 + 16 + 4
            assert f[IP].tos & 3 == 0
        probes, answers = (
            of_flow(frames["h1"], number, PROBE),
            of_flow(frames[sender], number, PROBE_ANSWER),
        )
        assert 1 < len(probes) == len(answers)
        assert [bytes(f[BTH].payload) for f in probes] == [bytes(f[BTH].payload) for f in answers]
    roce = [f for host in frames.values() for f in host if BTH in f]
    assert len(roce) > 2 * packets
    for f in roce:
        again = f[IP].copy()
        del again.chksum
        assert f[IP].chksum == IP(bytes(again)).chksum
        assert f[BTH].pack_icrc(f[BTH].icrc)[::-1] == f[BTH].compute_icrc(b"")
        assert f[IP].len == len(f) - 14 == f[UDP].len + 20


@pytest.mark.parametrize("recovery", ["selective-repeat", "go-back-n"])
def test_what_is_sent_again_is_what_naks_tell_of(tmp_path, recovery):
    frames = captured(tmp_path, "40KB", nics("paper", recovery=recovery), 40_000)
    counts = []
    for number, sender in enumerate(("h2", "h3")):
        arrived = [f[BTH].psn for f in of_flow(frames["h1"], number, *DATA)]
        assert set(arrived) == set(range(196))
        naks = [f for f in of_flow(frames[sender], number, ACK) if f[AETH].syndrome == 0x60]
        counts.append((len(naks), len(arrived)))
        if recovery == "go-back-n":
            continue
        # by hand: each packet that comes too early makes a NAK with its number
        held, expected, wanted = set(), 0, []
        for psn in arrived:
            held.add(psn)
            if psn != expected:
                wanted.append((expected, psn))
            while expected in held:
                expected += 1
        told = [(f[BTH].psn, int.from_bytes(bytes(f[AETH].payload)[:4], "big")) for f in naks]
        assert told == wanted
        # nothing comes twice: what was lost was sent again, and nothing else
        assert len(arrived) == 196
    assert max(naks for naks, _ in counts) > 0
    assert recovery == "selective-repeat" or max(packets for _, packets in counts) > 196


def test_probes_a_window_and_the_signals_of_nics(tmp_path):
    roce = nics("paper", window_bytes=BDP_WINDOW, ack_every=1, rtt_probe_interval_ns=50_000)
    (lone,) = alone = (SingleFlowSpec("h3", "h2", 10_000_000, 0),)
    run = one_switch(tmp_path, alone, roce)
    # 25 Gbit/s over 4 us are 12.5 KB: twelve packets of 1106 bytes on the wire
    assert window_bytes(run.testbed, roce) == 12 * 1024
    # that fills the line but for a probe of 90 bytes in 50 us, and each has its answer
    ideal_ns = ideal_times_ns(run.testbed, run.schedule, run.trial)[0]
    assert run.record.flows.end_ns[0] == pytest.approx(ideal_ns, rel=2e-3)
    assert run.record.facts["probes"] == pytest.approx(ideal_ns / 50_000, abs=2)
    h3 = run.testbed.hosts.index("h3")
    # a probe's answer comes after 4 us, and at most one acknowledgement's time
    assert set(np.unique(run.record.hosts.rtt_ns[:, h3])) <= {0, *range(4_000, 4_100)}
    assert run.record.hosts.rtt_ns[-1, h3] >= 4_000
    assert run.record.hosts.rate_bps[1, h3] == 25_000_000_000
    assert run.record.hosts.rate_bps[-1].sum() == 0
    half = dataclasses.replace(roce, window_bytes=6 * 1024)
    slower = one_switch(tmp_path, alone, half)
    # six packets in each round trip of 4 us
    assert slower.record.flows.end_ns[0] == pytest.approx(1_628 * 4_000, rel=2e-3)
    tcp = one_switch(tmp_path, (lone,), None, host=HostSpec())
    assert (tcp.record.hosts.cnps == MISSING).all()


def test_nics_count_what_they_send_again_and_the_cnps_that_they_get(tmp_path, engine):
    many = one_switch(tmp_path, incast(200_000), nics("paper"), buffer="300KB", engine=engine)
    hosts, facts = many.record.hosts, many.record.facts
    assert hosts.cnps[-1].sum() == facts["cnps"] > 0
    assert hosts.roce_resent[-1].sum() == facts["resent"] > 0
    assert (np.diff(hosts.cnps, axis=0) >= 0).all()
    assert facts["naks"] + facts["timeouts"] > 0
    assert many.record.ports.dropped_packets[-1].sum() > 0


@pytest.mark.parametrize("window_packets", [1, 6, 12])
def test_a_window_lets_so_much_be_on_its_way(tmp_path, engine, window_packets):
    roce = nics("paper", window_bytes=window_packets * 1024, ack_every=1)
    alone = (SingleFlowSpec("h3", "h2", 2_000_000, 0),)
    run = one_switch(tmp_path, alone, roce, engine=engine)
    # a round trip of 4 us for each, until twelve packets of 1106 bytes fill it at 25 Gbit/s
    ideal_ns = ideal_times_ns(run.testbed, run.schedule, run.trial)[0]
    packets = -(-2_000_000 // 1024)
    wanted_ns = max(ideal_ns, packets / window_packets * 4_000)
    assert run.record.flows.end_ns[0] == pytest.approx(wanted_ns, rel=5e-3)


def mixed(tmp_path, seed=1):
    path = tmp_path / "mixed.yml"
    path.write_text(MIXED)
    return run_trial(
        str(path),
        (
            PoissonSpec("WebSearch", 0.3, 0, 4 * MS, queue_class="rdma"),
            PoissonSpec("WebSearch", 0.3, 0, 4 * MS, queue_class="tcp"),
            IncastSpec(6, 64_000, 2 * MS, 0, 4 * MS, "h3", queue_class="rdma"),
            # TCP in the class of RoCE, whose packets it shares queues with
            IncastSpec(
                4, 64_000, 2 * MS, 0, 4 * MS, "h3", queue_class="rdma", congestion_control="reno"
            ),
        ),
        SECN1,
        duration_ns=4 * MS,
        seed=seed,
        faults=(FaultSpec(1 * MS, 2 * MS, 100_000, ("leaf1-spine2",)),),
        host=HostSpec("dctcp", roce=nics()),
        fabric=OURS,
    )


def test_tcp_and_roce_share_a_fabric_and_repeat_to_the_bit(tmp_path):
    one, other = (mixed(tmp_path) for _ in range(2))
    differ, values = differing_values(one, other)
    assert values > 10_000
    assert differ == 0
    flows = one.record.flows
    assert (flows.status == DONE).all()
    roce = roce_flows(one.testbed, one.trial, one.schedule)
    assert roce.tolist() == np.isin(one.schedule.klass, (0, 2)).tolist()
    verdict = stamp(one.trial, one.testbed, one.schedule, one.record)
    assert verdict.valid, verdict.reasons
    assert {"bytes delivered", "ideal times"} <= set(verdict.checked)
    ideal_ns = ideal_times_ns(one.testbed, one.schedule, one.trial)
    slowdown = (flows.end_ns - one.schedule.start_ns) / ideal_ns
    assert slowdown.min() > 0.98
