"""PFC in ns-3: nothing lost, who waits for whom, pauses that run out, and the emulated twin."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.simulated.program import Operation, Simulation, require_program
from orchestration.backends.simulated.rig import SimulatedRig
from orchestration.bench.outcome import SECN1, bench_trial, run_trial
from orchestration.bench.repeatable import differing_values
from orchestration.core.engines import KERNEL
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec
from orchestration.session import Observers
from tests.testbeds import leaf_spine, single_switch
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

pytestmark = pytest.mark.ns3

MS = 1_000_000
OURS = FabricSpec("closloop")
# Flows at line rate that hear no mark: no number is drawn for them.
FIXED = HostSpec("fixed", roce=RoceSpec(control="fixed"))
PATIENT = HostSpec("fixed", roce=RoceSpec(control="fixed", timeout_ns=1_000 * MS))
ONE_SWITCH = single_switch("one", 22, "RATE")
CLASSES = """
classes:
  - {name: rdma, weight: 50}
  - {name: other, weight: 50}
"""


def incast(senders, size_bytes=500_000):
    """Senders onto h1, a microsecond apart, and a flow that shares only h2's cable with one."""
    return (
        *(SingleFlowSpec(f"h{n + 2}", "h1", size_bytes, 1_009 * n) for n in range(senders)),
        SingleFlowSpec("h2", "h22", 1_000_000, 0),
    )


@pytest.fixture
def run(tmp_path):
    def run_one(more, flows, *, host=PATIENT, base=ONE_SWITCH, rate="25Gbps", **changes):
        path = tmp_path / "testbed.yml"
        path.write_text(base.replace("RATE", rate) + more)
        settings = {"duration_ns": 2 * MS, "drain_ns": 100 * MS, "backend": "simulated", **changes}
        return run_trial(str(path), flows, SECN1, host=host, fabric=OURS, **settings)

    return run_one


@pytest.mark.parametrize("alpha", ["1/8", "1", "8"])
def test_nothing_of_a_lossless_class_is_dropped_and_the_switch_is_empty_after(run, alpha):
    one = run(f"switch: {{buffer: 2MB, alpha: {alpha}, pfc: [3]}}", incast(20))
    record, spec = one.record, one.testbed.switch
    assert (record.flows.status == DONE).all()
    assert record.ports.dropped_packets[-1].sum() == 0
    assert record.facts["resent"] == 0
    assert record.facts["pfc"] == {"incidents": [], "lossless_drops": {}}
    whole, by_port = record.samples["switch"], record.samples["priority"]
    port = one.testbed.switch_ports[0]
    reserved = spec.port_headroom_bytes(port.rate_bps, port.delay_ns, one.testbed.frame_bytes)
    assert 0 < by_port.headroom_bytes.max() <= reserved
    # h1 sends nothing but acknowledgements; who sends to it is stopped
    assert (by_port.pauses_sent[-1] > 0).tolist() == [False, *[True] * 20, False]
    assert whole.buffer_bytes.max() <= 2_000_000
    assert (whole.buffer_bytes[:, 0] == record.ports.qlen_bytes.sum(axis=1)).all()
    assert (whole.buffer_bytes[:, 0] == by_port.held_bytes.sum(axis=1)).all()
    assert whole.buffer_bytes[-1, 0] == 0
    # the bottleneck never pauses, so the last flow ends when 20 * 500 KB have gone through it
    assert record.flows.end_ns[:20].max() == pytest.approx(3.46 * MS, rel=0.005)


def test_without_pfc_a_queue_takes_its_share_of_what_is_free_and_drops_the_rest(run):
    # Choudhury and Hahne, equation 2: one queue gets alpha / (1 + alpha) of the buffer
    one = run("switch: {buffer: 1MB, alpha: 2}", incast(20), host=FIXED, drain_ns=1 * MS)
    assert one.record.ports.dropped_packets[-1].sum() > 0
    assert one.record.ports.qlen_bytes.max() == pytest.approx(2 / 3 * 1_000_000, rel=0.01)
    assert list(one.record.samples) == ["queue", "switch", "host"]


def test_too_little_headroom_drops_and_is_said(run):
    one = run("switch: {buffer: 2MB, alpha: 1/8, headroom: 1.6KB, pfc: [3]}", incast(20))
    dropped = int(one.record.ports.dropped_packets[-1].sum())
    assert dropped > 0
    assert one.record.facts["pfc"]["lossless_drops"] == {"switch1": dropped}
    assert one.record.facts["findings"][0]["code"] == "headroom-exceeded"


# Four switches in a ring, with hosts at each: flows to the switch after the next turn up and down,
# and wait for each other all around.
RING = """
kind: custom
name: ring
mtu: 1500B
switch: {buffer: 400KB, alpha: 1, pfc: [0], watchdog: {detect: 3ms, restore: 3ms, action: ACTION}}
"""
_SWITCHES = {"l1": 1, "s1": 2, "l2": 1, "s2": 2}


def ring():
    cable = "rate: 25Gbps, delay: 1us"
    hosts = [f"{name}h{n}" for name in _SWITCHES for n in (1, 2)]
    links = [(host, host[:2]) for host in hosts]
    links += [("l1", "s1"), ("l2", "s1"), ("l2", "s2"), ("l1", "s2")]
    return "\n".join(
        [
            f"hosts: [{', '.join(hosts)}]",
            "switches:",
            *(f"  - {{name: {name}, tier: {tier}}}" for name, tier in _SWITCHES.items()),
            "links:",
            *(f"  - {{a: {a}, b: {b}, {cable}}}" for a, b in links),
        ]
    )


@pytest.mark.parametrize("action", ["alert", "drop"])
def test_a_deadlock_is_found_and_named(run, action):
    pairs = (("l1", "l2"), ("s1", "s2"), ("l2", "l1"), ("s2", "s1"))
    flows = tuple(
        SingleFlowSpec(f"{a}h{n}", f"{b}h{n}", 200_000, 0)
        for a, b in pairs
        for n in (1, 2)
        for _ in range(8)
    )
    record = run(ring(), flows, base=RING.replace("ACTION", action), host=FIXED).record
    found = [event for event in record.events if event.kind == "pfc-deadlock"]
    around = found[0].detail.removesuffix(" wait for each other").split(" > ")
    assert around[0] == around[-1]
    assert {label.split(":")[0] for label in around} == set(_SWITCHES)
    assert found[0].t_ns > 3 * MS
    done = record.flows.status == DONE
    if action == "alert":
        assert not done.any()
        # the circle is found from each of its queues, and told once
        assert len(found) == 4
        assert [one["code"] for one in record.facts["findings"]] == ["pfc-deadlock"]
    else:
        assert done.all()
        assert record.ports.dropped_packets[-1].sum() > 0


@pytest.fixture
def rig(tmp_path):
    """Return a function that makes a rig, and one that lets a host send a pause frame."""
    with Simulation(require_program(), tmp_path) as simulation:

        def make(more, flows):
            path = tmp_path / "testbed.yml"
            path.write_text(ONE_SWITCH.replace("RATE", "25Gbps") + more)
            testbed = load_testbed(str(path))
            trial = bench_trial(
                flows, 5 * MS, testbed=str(path), backend="simulated", host=FIXED, fabric=OURS
            )
            made = SimulatedRig(simulation, trial, testbed, make_schedule(trial, testbed))
            made.start()

            def pause(t_ns, host, quanta, priority=3):
                made.wait_until(t_ns)
                (port,) = testbed.ports_of[host]
                simulation.ask(Operation.PAUSE, [port.index, 1 << priority, quanta])

            queues = testbed.lossless_queues
            place = {testbed.peer_device(q.port).name: n for n, q in enumerate(queues)}
            return made, place, pause

        yield make


def test_quanta_run_out_and_an_earlier_end_lets_go(rig):
    flow = (SingleFlowSpec("h2", "h22", 2_000_000, 0),)
    made, place, pause = rig("switch: {buffer: 2MB, alpha: 8, pfc: [3]}", flow)
    # 1000 quanta are 20.48 us at 25 Gbit/s; a second pause is ended after 10 us by a time of 0
    pause(200_000, "h22", 1000)
    pause(300_000, "h22", 1000)
    pause(310_000, "h22", 0)
    pause(400_000, "h22", 1000, priority=2)
    made.wait_until(500_000)
    paused = made.observe()["priority.paused_ns"]
    assert paused[place["h22"]] == 30_480
    assert paused.sum() == 30_480
    assert made.observe()["priority.pauses_received"][place["h22"]] == 2
    made.wait_until(5 * MS)
    # the flow is later by what it stood still, but for packets that it had begun
    packets = -(-2_000_000 // 1024)
    lone_ns = 4_000 + (packets - 1) * (1024 + 58 + 24) * 8 / 25
    (end_ns,) = made.finish(Observers()).flows.end_ns
    assert end_ns == pytest.approx(lone_ns + 30_480, abs=2 * 354)


@pytest.mark.parametrize("action", ["drop", "forward"])
def test_the_watchdog_ends_a_storm_of_pauses_and_restores_the_queue(rig, action):
    watchdog = f"watchdog: {{detect: 2ms, restore: 3ms, action: {action}}}"
    more = f"switch: {{buffer: 2MB, alpha: 1/8, pfc: [3], quanta: 60000, {watchdog}}}"
    # the queue that is stopped first gets packets when the watchdog has already looked at it
    flow = (SingleFlowSpec("h2", "h22", 20_000_000, 4 * MS),)
    made, place, pause = rig(more, flow)
    for t_ns in range(MS, 9 * MS, MS):
        pause(t_ns, "h22", 65_535)
    dropped = made.observe()["dropped_packets"][place["h22"]]
    made.wait_until(20 * MS)
    sent = made.observe()["tx_packets"][place["h22"]]
    found = made.finish(Observers()).facts["pfc"]["incidents"]
    assert [one["kind"] for one in found] == ["storm", "restored"]
    assert found[0]["peer"] == "h22:eth0"
    # stopped at 1 ms: looked at each 2 ms
    assert found[0]["t_ns"] == pytest.approx(5 * MS, abs=2_000)
    # three milliseconds after the last pause came
    assert found[1]["t_ns"] == pytest.approx(11 * MS, abs=2_000)
    assert (dropped > 0) == (action == "drop")
    assert sent > 0


LEAF_SPINE = leaf_spine("small", 3, 2, 4, "RATE", "RATE")


def test_the_same_seed_gives_the_same_tables_to_the_bit(run):
    more = CLASSES + "switch: {buffer: 400KB, alpha: 1/8, pfc: [rdma]}"
    flows = tuple(
        SingleFlowSpec(f"h{n + 1}", f"h{m}", 200_000, n * 100, queue_class=("rdma", "other")[n % 2])
        for n in range(3, 12)
        for m in (1, 2)
    )
    # what pauses and what lets go is lost on the cut cable
    cut = (FaultSpec(200_000, 600_000, 100_000, ("leaf1-spine1",)),)
    dcqcn = HostSpec("dcqcn", roce=RoceSpec())
    one, other = (run(more, flows, base=LEAF_SPINE, host=dcqcn, faults=cut) for _ in range(2))
    differ, values = differing_values(one, other)
    assert values > 5_000
    assert differ == 0
    assert one.record.samples["priority"].pauses_sent[-1].sum() > 0
    assert (one.record.flows.status == DONE).all()
    assert one.record.samples["switch"].buffer_bytes[-1].sum() == 0


def twins(run, more, flows, **settings):
    """Return the records of the same trial in ns-3 and in the kernel.

    NICs that were let go together may send together. ns-3 and the kernel then go by what was
    scheduled first, the process by the number of the port (docs/order-of-events.md).
    """
    engines = {"simulated": "", "emulated": KERNEL}
    return (
        run(more, flows, backend=backend, engine=engine, **settings).record
        for backend, engine in engines.items()
    )


SELECTIVE = RoceSpec(control="fixed", recovery="selective-repeat")
PROBING = RoceSpec(control="swift", rtt_probe_interval_ns=20_000)
WINDOW = RoceSpec(control="fixed", window_bytes=32 * 1024, timeout_ns=1_000 * MS)
PFC = "switch: {buffer: 2MB, xoff: 30KB, pfc: [3]}"
LOSSY = "switch: {buffer: 600KB, alpha: 1/2}"
# h2 is stopped in one class, and acknowledges what it gets in both
TWO_CLASSES = (
    *(SingleFlowSpec(f"h{n + 2}", "h1", 500_000, 1_009 * n, queue_class="rdma") for n in range(12)),
    SingleFlowSpec("h15", "h2", 900_000, 501, queue_class="rdma"),
    SingleFlowSpec("h16", "h2", 900_000, 777, queue_class="other"),
)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("more", "flows", "host", "happens"),
    [
        (PFC, incast(12), PATIENT, "pauses"),
        # quanta of 19 us: renewed again and again
        (
            PFC.replace("}", ", quanta: 300, watchdog: {detect: 1ms, restore: 1ms}}"),
            incast(12),
            PATIENT,
            "pauses",
        ),
        (PFC.replace("}", ", headroom: 1.6KB}"), incast(12), FIXED, "drops"),
        (
            CLASSES + PFC.replace("[3]", "[rdma]"),
            TWO_CLASSES,
            HostSpec("fixed", roce=WINDOW),
            "pauses",
        ),
        (LOSSY, incast(12), HostSpec("fixed", roce=SELECTIVE), "drops"),
        (LOSSY, incast(12), HostSpec("swift", roce=PROBING), "probes"),
    ],
    ids=["XOFF", "renewed", "headroom", "two classes", "selective repeat", "probes"],
)
def test_the_emulated_fabric_does_the_same_to_the_nanosecond(run, more, flows, host, happens):
    """At 8 Gbit/s a byte takes a nanosecond, so nothing is rounded."""
    ours, theirs = twins(run, more, flows, host=host, rate="8Gbps")
    np.testing.assert_array_equal(ours.flows.end_ns, theirs.flows.end_ns)
    scopes = sorted({"priority", "switch", "host"} & set(ours.samples))
    for scope in scopes:
        assert ours.samples[scope].values.keys() == theirs.samples[scope].values.keys()
        last = ["retransmits", "timeouts", "out_of_order", "tx_bytes"]
        for name, values in ours.samples[scope].values.items():
            if scope != "host" or name not in last:  # these are TCP's there
                theirs_last = theirs.samples[scope].values[name][-1]
                np.testing.assert_array_equal(values[-1], theirs_last, err_msg=name)
    sums = ("packets", "resent", "naks", "timeouts", "probes")
    assert {name: ours.facts[name] for name in sums} == {name: theirs.facts[name] for name in sums}
    happened = {
        "pauses": lambda: ours.samples["priority"].pauses_sent[-1].sum(),
        "drops": lambda: ours.ports.dropped_packets[-1].sum(),
        "probes": lambda: ours.facts["probes"],
    }
    assert happened[happens]() > 100


@pytest.mark.kernel
def test_the_emulated_fabric_pauses_as_often_under_dynamic_thresholds(run):
    """What rises lets several peers go at once: who of them is first, the two order differently."""
    ours, theirs = twins(run, "switch: {buffer: 2MB, alpha: 1/8, pfc: [3]}", incast(20))
    here, there = (one.samples["priority"] for one in (ours, theirs))
    assert here.pauses_sent[-1].sum() == pytest.approx(there.pauses_sent[-1].sum(), rel=0.1)
    assert here.pausing_ns[-1].sum() == pytest.approx(there.pausing_ns[-1].sum(), rel=0.02)
    assert ours.flows.end_ns.mean() == pytest.approx(theirs.flows.end_ns.mean(), rel=0.02)
    maximum = [one.samples["switch"].buffer_bytes.max() for one in (ours, theirs)]
    assert maximum[0] == pytest.approx(maximum[1], rel=0.01)
