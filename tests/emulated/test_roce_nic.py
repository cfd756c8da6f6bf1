"""RoCE NICs: recovery of losses, probes, windows, and TCP beside RoCE on one fabric."""



from orchestration.analysis.stamp import stamp
from orchestration.model.records import DONE
from orchestration.model.roce import BDP_WINDOW, DCQCN_SETS, RoceSpec
from orchestration.model.trial import (
    FabricSpec,
    FaultSpec,
    HostSpec,
    IncastSpec,
    PoissonSpec,
    SingleFlowSpec,
)
from orchestration.studies.bench.outcome import SECN1, run_trial
from orchestration.studies.bench.repeatable import differing_values
from traffic.schedule import ideal_times_ns, roce_flows, window_bytes

MS = 1_000_000
OURS = FabricSpec("closloop")
SWITCH = """
kind: single-switch
name: one-switch
mtu: 1500B
buffer: BUFFER
hosts: 17
host_link: {rate: 25Gbps, delay: 1us}
"""
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


def one_switch(tmp_path, traffic, roce, *, buffer="64MB", **more):
    path = tmp_path / "one-switch.yml"
    path.write_text(SWITCH.replace("BUFFER", buffer))
    given = {"duration_ns": 20 * MS, "host": HostSpec("dcqcn", roce=roce), "fabric": OURS, **more}
    return run_trial(str(path), traffic, SECN1, **given)


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


def test_a_bdp_window_and_probes(tmp_path):
    fixed = nics(window_bytes=BDP_WINDOW, ack_every=1, rtt_probe_interval_ns=50_000)
    run = one_switch(tmp_path, (SingleFlowSpec("h2", "h1", 10_000_000, 0),), fixed)
    # 25 Gbit/s over 4 us are 12.5 KB: twelve packets of 1106 bytes on the wire
    assert window_bytes(run.testbed, fixed) == 12 * 1024
    print(run.record.facts, run.record.flows.end_ns)


def mixed(tmp_path, seed=1):
    path = tmp_path / "mixed.yml"
    path.write_text(MIXED)
    return run_trial(
        str(path),
        (
            PoissonSpec("WebSearch", 0.3, 0, 4 * MS, "rdma"),
            PoissonSpec("WebSearch", 0.3, 0, 4 * MS, "tcp"),
            IncastSpec(6, 64_000, 2 * MS, 0, 4 * MS, "h3", "rdma"),
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
    assert roce.tolist() == (one.schedule.klass != 1).tolist()
    verdict = stamp(one.trial, one.testbed, one.schedule, one.record)
    assert verdict.valid, verdict.reasons
    assert {"bytes delivered", "ideal times"} <= set(verdict.checked)
    ideal_ns = ideal_times_ns(one.testbed, one.schedule, one.trial)
    slowdown = (flows.end_ns - one.schedule.start_ns) / ideal_ns
    print(slowdown[roce].min(), slowdown[~roce].min(), slowdown.mean(), one.record.facts, verdict)
    assert slowdown.min() > 0.98
