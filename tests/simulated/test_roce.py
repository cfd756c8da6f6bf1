"""RoCE in ns-3: exact times and marks, DCQCN's steps, losses, and the emulated fabric's twin."""

import dataclasses
import tempfile

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import ideal_times_ns
from orchestration.analysis.load import load_facts
from orchestration.backends.simulated.program import POLICIES
from orchestration.core.codec import flattened, record_tables
from orchestration.core.errors import InputError, TrialError
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.roce import DECISIONS, HEADER_BYTES, RoceSpec
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from orchestration.results.reader import LOAD_FACT
from orchestration.run import backend_factory
from tests.testbeds import single_switch
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

pytestmark = pytest.mark.ns3

MS = 1_000_000
# A full packet of 1024 B on a wire of 25 Gbit/s, with 24 bytes of framing.
PACKET_NS = (1024 + HEADER_BYTES + 24) * 8 / 25
STAR = single_switch("star", 17, "25Gbps", buffer="BUFFER")
ALWAYS = TunerSpec("static", {"kmin_bytes": 0, "kmax_bytes": 0, "pmax": 1.0})
STEP = TunerSpec("static", {"kmin_bytes": 50_000, "kmax_bytes": 50_000, "pmax": 1.0})


def roce(name="mlx5", *, own=(), **more):
    return HostSpec("dcqcn", roce=RoceSpec(dcqcn=(*DCQCN_SETS[name].items(), *own), **more))


def marking(kmin_bytes, kmax_bytes, pmax):
    return TunerSpec("static", {"kmin_bytes": kmin_bytes, "kmax_bytes": kmax_bytes, "pmax": pmax})


@pytest.fixture
def run(tmp_path):
    def run_trial(traffic, *, testbed="graphcc", buffer="64MB", marks="arrivals", **changes):
        if testbed == "star":
            path = tmp_path / "star.yml"
            path.write_text(STAR.replace("BUFFER", buffer))
            testbed = str(path)
        trial = TrialSpec(
            "c", testbed, "simulated", TunerSpec("secn1"), traffic, 3, 1, 2 * MS, 100 * MS,
            host=roce(), fabric=FabricSpec("closloop", marks),
        )  # fmt: skip
        trial = dataclasses.replace(trial, **changes)
        built = load_testbed(testbed)
        schedule = make_schedule(trial, built)
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        work.mkdir()
        backend = backend_factory.backend(trial.backend)
        record = backend.run(TrialRun(trial, built, schedule, work))
        return trial, built, schedule, record

    return run_trial


def times(schedule, record):
    assert (record.flows.status == DONE).all()
    return record.flows.end_ns - schedule.start_ns


def jain(rates):
    return rates.sum() ** 2 / (len(rates) * (rates**2).sum())


@pytest.mark.parametrize(("payload", "size"), [(1024, 10_000_000), (1024, 1), (1000, 999_999)])
def test_a_lone_flow_takes_the_computed_time(run, payload, size):
    flow = (SingleFlowSpec("h1", "h24", size, 0),)
    trial, testbed, schedule, record = run(flow, host=roce(payload_bytes=payload))
    packets = -(-size // payload)
    before_bytes = (packets - 1) * (payload + HEADER_BYTES + testbed.framing_bytes)
    # both ways over four cables of a microsecond, and the packets before the last at 25 Gbit/s
    wanted_ns = 8_000 + before_bytes * 8 / 25
    assert times(schedule, record)[0] == pytest.approx(wanted_ns, rel=1e-5, abs=1)
    assert ideal_times_ns(testbed, schedule, trial)[0] == pytest.approx(wanted_ns, abs=1)
    # data and acknowledgements, each over a NIC and three switches
    hops = 4 * (packets + packets // 16 + (packets % 16 > 0))
    assert record.facts["packet_hops"] == hops
    assert record.facts["packets"] == packets


@pytest.mark.kernel
@pytest.mark.parametrize("latency_ns", [0, 50_000])
@pytest.mark.parametrize("backend", ["simulated", "emulated"])
def test_one_cnp_halves_the_rate_at_the_next_period(run, backend, latency_ns):
    """By hand: every packet is marked, one CNP comes, and nothing raises the rate again."""
    never = (
        ("min_time_between_cnps", 1_000_000),
        ("rate_reduce_monitor_period", 100),
        ("dce_tcp_rtt", 131_071),
        ("rpg_time_reset", 131_071),
        ("rpg_byte_reset", 0),
    )
    flow = (SingleFlowSpec("h2", "h1", 1_024_000, 0),)
    host = roce(own=never, decision_latency_ns=latency_ns)
    _, _, schedule, record = run(flow, testbed="star", tuner=ALWAYS, host=host, backend=backend)
    # the CNP is back after four cables, and the rate is cut 100 us later, at a packet's start
    first_slow = int(np.ceil(104_000 / PACKET_NS) + np.ceil(latency_ns / PACKET_NS))
    # alpha is 1023/1024 at first, and half of it is taken off
    slower = 1 / (1 - 1023 / 2048)
    last_ns = first_slow * PACKET_NS + (999 - first_slow) * PACKET_NS * slower
    assert times(schedule, record)[0] == pytest.approx(4_000 + last_ns, rel=1e-5)
    assert record.facts["cnps"] == 1
    assert record.facts["marked"] == 1000


@pytest.mark.parametrize(("senders", "name"), [(2, "paper"), (16, "hpcc")])
def test_senders_share_a_port_fairly_and_nothing_is_dropped(run, senders, name):
    flows = tuple(SingleFlowSpec(f"h{n + 2}", "h1", 4_000_000, 0) for n in range(senders))
    _, _, schedule, record = run(flows, testbed="star", host=roce(name))
    assert jain(1 / times(schedule, record)) > 0.98
    assert record.ports.dropped_packets[-1].sum() == 0
    assert record.facts["resent"] == 0
    assert record.facts["cnps"] > 0


@pytest.mark.parametrize("marks", ["arrivals", "departures"])
def test_packets_are_marked_by_the_straight_line(run, marks):
    kmin, kmax, pmax = 100_000, 16_000_000, 0.5
    # hosts that hear no CNP fill the queue, and it drains afterwards
    deaf = roce(own=(("min_time_between_cnps", 1_000_000),))
    flows = tuple(SingleFlowSpec(f"h{n}", "h1", 8_000_000, 0) for n in (2, 3))
    _, testbed, _, record = run(
        flows, testbed="star", marks=marks, host=deaf, tuner=marking(kmin, kmax, pmax),
        sample_period_ns=10_000, action_period_ns=10_000,
    )  # fmt: skip
    (queue,) = (i for i, q in enumerate(testbed.queues) if testbed.peer_device(q.port).name == "h1")
    backlog = record.ports.qlen_bytes[:, queue]
    sent = np.diff(record.ports.tx_packets[:, queue])
    marked = np.diff(record.ports.marked_packets[:, queue])
    share = np.clip(pmax * ((backlog[1:] + backlog[:-1]) / 2 - kmin) / (kmax - kmin), 0, 1)
    # those that arrived are those sent, and what the queue has grown by
    arrived = sent + np.diff(backlog) / (1024 + HEADER_BYTES)
    packets = arrived if marks == "arrivals" else sent
    expected, variance = (packets * share).sum(), (packets * share * (1 - share)).sum()
    assert expected > 1_000
    assert abs(marked.sum() - expected) < 2.58 * variance**0.5


def test_the_same_seed_gives_the_same_tables(run):
    traffic = (PoissonSpec("WebSearch", 0.4, 0, MS), IncastSpec(8, 64_000, MS, 0, MS))
    first, again = (run(traffic, tuner=TunerSpec("random")) for _ in range(2))
    assert first[-1].ports.marked_packets[-1].sum() > 0
    one, other = (flattened(record_tables(record)) for *_, record in (first, again))
    assert one.keys() == other.keys()
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)


def test_what_is_dropped_is_sent_again(run):
    flows = tuple(SingleFlowSpec(f"h{n + 2}", "h1", 1_000_000, 0) for n in range(16))
    _, _, schedule, record = run(flows, testbed="star", buffer="300KB", drain_ns=900 * MS)
    times(schedule, record)
    facts = record.facts
    assert record.ports.dropped_packets[-1].sum() > 0
    assert facts["naks"] > 0
    # go-back-N sends again at most what it was told to go back by
    packets = 16 * -(-1_000_000 // 1024)
    assert packets < facts["packets"] <= packets + facts["resent"]
    assert record.hosts.retransmits[-1].sum() == facts["resent"]


def test_selective_repeat_sends_again_what_was_dropped_and_no_more(run):
    flows = tuple(SingleFlowSpec(f"h{n + 2}", "h1", 1_000_000, 0) for n in range(16))
    host = roce("paper", recovery="selective-repeat")
    _, _, schedule, record = run(flows, testbed="star", buffer="300KB", host=host)
    times(schedule, record)
    resent = record.facts["resent"]
    assert resent == record.ports.dropped_packets[-1].sum() > 1_000
    assert record.facts["packets"] == 16 * 977 + resent


def test_probes_and_the_signals_of_nics(run):
    flow = (SingleFlowSpec("h2", "h1", 5_000_000, 0),)
    host = roce(ack_every=100_000, rtt_probe_interval_ns=50_000)
    trial, testbed, schedule, record = run(flow, testbed="star", host=host)
    # a probe of 66 bytes and its framing takes the flow's turn
    ideal_ns = ideal_times_ns(testbed, schedule, trial)[0]
    probes = record.facts["probes"]
    assert probes == pytest.approx(ideal_ns / 50_000, abs=1)
    assert times(schedule, record)[0] == pytest.approx(ideal_ns + probes * 90 * 8 / 25, abs=2)
    # the answer comes after four cables: nothing waits, and nothing is before it on the line
    hosts, h2 = record.hosts, testbed.hosts.index("h2")
    assert set(np.unique(hosts.rtt_ns[:, h2])) == {0, 4_000}
    assert hosts.rate_bps[:, h2].tolist() == [25_000_000_000, 25_000_000_000, 0]
    assert hosts.rate_bps.sum() == hosts.rate_bps[:, h2].sum()
    assert hosts.roce_resent.sum() == hosts.cnps.sum() == 0


def test_what_a_cut_link_loses_is_asked_for_or_found_by_a_timeout(run):
    long = tuple(SingleFlowSpec(f"h{n}", f"h{n + 18}", 3_000_000, 0) for n in range(1, 4))
    # all sent before routes follow: nothing that comes later tells of the loss
    short = tuple(SingleFlowSpec(f"h{n}", f"h{n + 18}", 300_000, 280_000) for n in range(4, 7))
    fault = FaultSpec(300_000, None, 400_000, links=("leaf1-spine1",))
    _, testbed, schedule, record = run((*long, *short), faults=(fault,))
    took_ns = times(schedule, record)
    late = took_ns[schedule.size_bytes == 300_000] > 16 * MS
    assert late.sum() == record.facts["timeouts"] > 0
    assert record.hosts.timeouts[-1].sum() == record.facts["timeouts"]
    assert record.facts["naks"] > 0
    cut = next(
        n for n, q in enumerate(testbed.queues)
        if q.device == "leaf1" and testbed.peer_device(q).name == "spine1"
    )  # fmt: skip
    sent = record.ports.tx_bytes[:, cut]
    assert sent[2] > 0
    assert sent[-1] == sent[np.searchsorted(record.ports.t_ns, 800_000)]


def test_classes_share_a_port_by_their_weights(run, tmp_path):
    path = tmp_path / "two.yml"
    classes = "classes: [{name: a, weight: 70}, {name: b, weight: 30}]\n"
    path.write_text(STAR.replace("BUFFER", "64MB") + classes)
    deaf = roce(own=(("min_time_between_cnps", 1_000_000),))
    flows = tuple(
        SingleFlowSpec(f"h{n}", "h1", 6_000_000, 0, queue_class=name)
        for n, name in enumerate("aabb", start=2)
    )
    _, testbed, _, record = run(flows, testbed=str(path), host=deaf)
    ours = [n for n, q in enumerate(testbed.queues) if testbed.peer_device(q.port).name == "h1"]
    sent = np.diff(record.ports.tx_bytes[[5, 30]][:, ours], axis=0)[0]
    assert sent[0] / sent.sum() == pytest.approx(0.7, abs=0.01)


def test_a_window_limits_what_is_on_its_way(run):
    flow = (SingleFlowSpec("h1", "h24", 1_024_000, 0),)
    _, _, schedule, record = run(flow, host=roce(window_bytes=16 * 1024))
    # sixteen packets a round of both ways and their own time
    round_ns = 8_000 + 15 * PACKET_NS
    rounds = 1000 / 16
    assert times(schedule, record)[0] == pytest.approx(rounds * round_ns, rel=0.02)


def test_policies_take_dcqcns_parameters_in_one_order():
    assert tuple(RoceSpec().parameters)[: len(PARAMETER_ORDER)] == PARAMETER_ORDER


def test_hpcc_keeps_a_port_below_its_line_rate_without_a_queue(run):
    hpcc = HostSpec("hpcc", roce=RoceSpec(control="hpcc", ack_every=1))
    flows = tuple(SingleFlowSpec(f"h{n}", "h1", 4_000_000, 0) for n in (2, 3))
    _, testbed, schedule, record = run(flows, testbed="star", host=hpcc)
    rates = 1 / times(schedule, record)
    assert jain(rates) > 0.98
    (queue,) = (i for i, q in enumerate(testbed.queues) if testbed.peer_device(q.port).name == "h1")
    late = slice(10, 20)
    assert record.ports.qlen_bytes[late, queue].max() < 10_000
    sent = np.diff(record.ports.tx_bytes[[10, 20], queue])[0]
    assert 0.8 < sent / (1e6 * 25 / 8) < 0.97


def program(path, numbers, **more):
    values = tuple((f"{n:02}", value) for n, value in enumerate(numbers))
    return HostSpec(
        "program", roce=RoceSpec(control="program", program=str(path), values=values, **more)
    )


TO_H1 = tuple(SingleFlowSpec(f"h{n + 2}", "h1", 1_000_000, 20_000 * n) for n in range(8))


def test_a_trial_leaves_nothing_elsewhere_even_if_it_is_killed(run, monkeypatch):
    """Found by soak: a SIGKILL left a folder for policies in /tmp, of each trial side by side."""
    numbers = [DCQCN_SETS["mlx5"][name] for name in PARAMETER_ORDER]
    theirs = program(POLICIES / "policy_dcqcn.c", numbers)
    monkeypatch.setattr(tempfile, "tempdir", "/there/is/no/such/folder")
    for host in (roce(), theirs):
        run(TO_H1[:1], testbed="star", host=host)


def test_dcqcn_as_a_program_gives_the_tables_of_the_one_built_in(run):
    own = DCQCN_SETS["mlx5"]
    numbers = [own[name] for name in PARAMETER_ORDER]
    theirs = program(POLICIES / "policy_dcqcn.c", numbers, dcqcn=tuple(own.items()))
    built_in, as_program = (
        run(TO_H1, testbed="star", tuner=STEP, host=host)[-1] for host in (roce(), theirs)
    )
    one, other = (flattened(record_tables(record)) for record in (built_in, as_program))
    assert one.keys() == other.keys()
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)
    assert built_in.facts["cnps"] > 0


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("mine.c", "flow->rate_bps = flow->line_bps / p[0];", TrialError, "divides by 0, .* BPF"),
        ("mine.c", "flow->rate_bps = *(u64 *)flow->own[0];", TrialError, "past its state"),
        ("mine.c", "flow->rate_bps = nonsense;", InputError, "refuses it: .nonsense. undeclared"),
        ("mine.o", "", InputError, "needs a policy's C source"),
    ],
)
def test_a_program_that_does_what_bpf_allows_or_refuses_ends_its_trial_alone(
    run, tmp_path, name, text, error, words
):
    happen = "CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p,"
    (tmp_path / name).write_text(
        f'#include "policy.h"\n{happen} const struct cl_hop *hop) {{ {text} }}\n'
        "CL_POLICY(mine, 1, 0);\n"
    )
    with pytest.raises(error, match=words):
        run(TO_H1[:1], testbed="star", host=program(tmp_path / name, [0]))


@pytest.mark.kernel
@pytest.mark.parametrize(
    "host",
    [
        roce("mlx5"),
        roce("paper"),
        HostSpec("swift", roce=RoceSpec(control="swift", ack_every=1)),
        HostSpec("timely", roce=RoceSpec(control="timely")),
        HostSpec("hpcc", roce=RoceSpec(control="hpcc", ack_every=1)),
        HostSpec("rlcc", roce=RoceSpec(control="rlcc")),
        *(
            HostSpec(
                "rlcc", roce=RoceSpec(control="rlcc", decision_latency_ns=17_000, decisions=how)
            )
            for how in DECISIONS
        ),
        HostSpec("swift", roce=RoceSpec(control="swift", ack_every=1, decision_latency_ns=900)),
        program(POLICIES / "policy_rlcc.c", [64, 1_500, 12_000, 1_000]),
    ],
    ids=[
        *("dcqcn, mlx5", "dcqcn, paper", "swift", "timely", "hpcc", "rlcc"),
        *(f"rlcc, {how}" for how in DECISIONS),
        "swift, late",
        "a program",
    ],
)
def test_the_emulated_fabric_does_the_same(run, host):
    """With marks by a step nothing is drawn: the two part by the rounding to ns alone."""
    to_h3 = (
        SingleFlowSpec("h1", "h3", 4_000_000, 0),
        SingleFlowSpec("h8", "h3", 4_000_000, 13_000),
        SingleFlowSpec("h20", "h3", 1_000_000, 203_000),
    )
    elsewhere = tuple(SingleFlowSpec(f"h{n}", f"h{26 - n}", 300_000, 0) for n in range(4, 8))
    found = [
        run((*to_h3, *elsewhere), backend=backend, tuner=STEP, host=host)[2:]
        for backend in ("simulated", "emulated")
    ]
    ours, theirs = (times(*one) for one in found)
    # HPCC acts on each nanosecond between two packets; trees that decide late swing
    late = host.congestion_control == "rlcc" and host.roce.decision_latency_ns
    within = 0.04 if late or host.congestion_control == "hpcc" else 0.01
    np.testing.assert_allclose(ours, theirs, rtol=within)
    assert np.median(ours / theirs) == pytest.approx(1, abs=2e-3)
    here, there = (record for _, record in found)
    # the same paths, but for a CNP or two
    np.testing.assert_allclose(here.ports.tx_packets[-1], there.ports.tx_packets[-1], atol=3)
    assert here.facts["marked"] == pytest.approx(there.facts["marked"], rel=0.02)
    assert here.facts["cnps"] == pytest.approx(there.facts["cnps"], abs=2)
    # who does not hear marks is not marked; a program is taken to hear them
    assert (here.facts["cnps"] > 10) == (host.congestion_control in ("dcqcn", "program"))


RLCC = HostSpec("rlcc", roce=RoceSpec(control="rlcc"))


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["simulated", "emulated"])
def test_a_flow_without_a_round_trip_is_counted(run, backend):
    flows = tuple(SingleFlowSpec(f"h{n}", "h1", 100_000, 0) for n in (2, 3))
    cut = FaultSpec(down_ns=2_000, up_ns=None, convergence_ns=1_000, links=("h2-switch1",))
    _, _, _, record = run(
        flows, testbed="star", host=RLCC, backend=backend, faults=(cut,), drain_ns=2 * MS
    )
    assert (record.flows.status == DONE).tolist() == [False, True]
    assert record.facts["untimed_flows"] == 1


def test_the_later_and_rarer_a_policy_decides_the_longer_the_queue(run):
    flows = tuple(SingleFlowSpec(f"h{2 + n % 4}", "h1", 2_000_000, 9_000 * n) for n in range(8))

    def queue_bytes(latency_ns, how):
        late = {"decision_latency_ns": latency_ns, "decisions": how}
        host = HostSpec("rlcc", roce=RoceSpec(control="rlcc", window_bytes=32_000, **late))
        _, _, schedule, record = run(flows, testbed="star", host=host)
        assert (times(schedule, record) > 0).all()
        return record.ports.qlen_bytes[:30].max(axis=1).mean()

    # a decision takes longer than a round trip of some 80 us; without a latency there is no while
    found = [queue_bytes(0, "serial"), *(queue_bytes(100_000, how) for how in DECISIONS)]
    assert found == sorted(set(found))
    assert found[0] == queue_bytes(0, "pipelined")


def test_delivered_is_what_receivers_kept_of_what_arrived(run):
    """A receiver under go-back-N keeps nothing that is out of order."""
    incast = (IncastSpec(8, 256_000, 2 * MS, 0, 2 * MS, "h1"),)
    given = {"testbed": "star", "buffer": "60KB", "sample_period_ns": 100_000}
    given |= {"host": roce(timeout_ns=MS), "tuner": marking(60_000, 60_000, 0.01)}
    plain = run(incast, **given)
    *_, sampled = run(incast, flow_sample_period_ns=100_000, **given)
    flows = sampled.samples["flow"]
    (kept,) = flows["acked_bytes"][flows.t_ns == 2 * MS].sum(axis=1)
    load = load_facts(*plain)[LOAD_FACT]
    assert load["delivered_bytes"] == kept
    _, testbed, _, record = plain
    (port,) = (
        place
        for place, queue in enumerate(testbed.queues)
        if testbed.peer_device(queue).name == "h1"
    )
    arrived = 1024 * record.ports.tx_packets[record.ports.t_ns == 2 * MS, port].sum()
    assert load["delivered_bytes"] + load["discarded_bytes"] == pytest.approx(arrived, abs=2)
    assert load["discarded_bytes"] > 0.1 * kept
