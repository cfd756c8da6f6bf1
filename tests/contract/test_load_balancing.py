"""Load balancing on every backend that has it: what it changes, what it leaves, what is counted."""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.core.codec import flattened, record_tables
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, Setup
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from tests.testbeds import leaf_spine
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

MS, US = 1_000_000, 1_000
ROCE = HostSpec("dcqcn", roce=RoceSpec(recovery="selective-repeat"))
TESTBED = leaf_spine("four-spines", 3, 4, 4, "10Gbps", "10Gbps", buffer="4MB")
LEAVES, UPLINKS = 3, 4


class Plan(BaseTuner):
    """Sets the timeouts that `plan` has for the time of a reading, and keeps the readings."""

    knobs = ("ecn", "flowlet_timeout")
    observes = ("qlen_bytes", "tx_packets", "switch.flowlets", "switch.reroutes")

    def __init__(self, plan):
        self.plan, self.seen = plan, {}

    def reset(self, testbed, seed):
        return Setup((ECN.change(np.arange(len(testbed.queues)), 60_000, 90_000, 0.1),))

    def act(self, observation):
        self.seen[observation.t_ns] = observation
        return self.plan.get(observation.t_ns, ())


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=pytest.mark.kernel),
        pytest.param("simulated", marks=pytest.mark.ns3),
    ]
)
def run(request, tmp_path):
    path = tmp_path / "four-spines.yml"
    path.write_text(TESTBED)

    own = request.param == "emulated"

    def run_trial(balancing, tuner=None, host=ROCE, **more):
        trial = TrialSpec(
            "c", str(path), request.param, TunerSpec("secn1"),
            (PoissonSpec("WebSearch", 0.5, 0, 2 * MS),), 3, 1, 2 * MS, 200 * MS, host=host,
            fabric=FabricSpec("closloop" if own or host.is_roce else "linux"),
            load_balancing=balancing, **more,
        )  # fmt: skip
        testbed = load_testbed(trial.testbed)
        schedule = make_schedule(trial, testbed)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        backend = backend_factory.backend(request.param)
        record = backend.run(TrialRun(trial, testbed, schedule, folder, tuner=tuner))
        assert (record.flows.status == DONE).all(), "no flow may be lost"
        return record, stamp(trial, testbed, schedule, record)

    return run_trial


def by_uplink(record):
    """Return the packets of each leaf's uplinks, (leaves, uplinks), and of the spines' ports."""
    sent = record.ports.tx_packets.max(axis=0)
    leaves = sent[: LEAVES * (4 + UPLINKS)].reshape(LEAVES, 4 + UPLINKS)
    return leaves[:, 4:], sent[LEAVES * (4 + UPLINKS) :]


def differing(one, other):
    tables = [flattened(record_tables(record)) for record in (one, other)]
    return [
        name
        for name in tables[0]
        if not name.startswith("samples/switch")
        and not np.array_equal(tables[0][name], tables[1][name])
    ]


def test_a_timeout_that_no_gap_exceeds_is_ecmp_to_the_bit(run):
    plain, _ = run(ECMP)
    never, _ = run(LoadBalancingSpec("flowlets", 10**9, 10**9))
    assert differing(plain, never) == []
    assert "switch" not in plain.samples
    assert never.samples["switch"].flowlets[-1].sum() > 0
    assert never.samples["switch"].reroutes.max() == 0


@pytest.mark.parametrize(
    ("route_by", "host"),
    [("random", HostSpec()), ("round-robin", ROCE), ("drill", HostSpec()), ("conga", ROCE)],
    ids=["random-tcp", "round-robin-roce", "drill-tcp", "conga-roce"],
)
def test_spraying_spreads_packets_and_repeats_to_the_bit(run, host, route_by):
    record, found = run(LoadBalancingSpec("spray", route_by=route_by), host=host)
    again, _ = run(LoadBalancingSpec("spray", route_by=route_by), host=host)
    assert differing(record, again) == []
    assert found.valid
    ups, downs = by_uplink(record)
    switches, hosts = record.samples["switch"], record.samples["host"]
    # each packet that goes up comes down once: none is lost, none goes in circles
    assert ups.sum() == downs.sum()
    # of TCP, connections are made before time 0
    before = ups.sum(axis=1) - switches.flowlets[-1][:LEAVES]
    assert ((before >= 0) & (before <= (0 if host.is_roce else 3 * len(record.flows.status)))).all()
    assert switches.flowlets[-1][LEAVES:].sum() == 0, "spines have no choice"
    if route_by == "round-robin":
        assert (np.ptp(ups, axis=1) <= 1).all()
    elif route_by != "conga":  # that one avoids a path for long that was full once
        assert (ups.min(axis=1) > 0.15 * ups.sum(axis=1)).all()
    if route_by == "random":
        assert 0 < hosts.out_of_order_packets[-1].sum() < hosts.received_packets[-1].sum()
    assert (ups > 0).all()


def test_a_timeout_is_set_at_one_switch_from_then_on(run):
    change = FLOWLET_TIMEOUT.change([1], 1_000)
    tuner = Plan({500 * US: (change,)})
    record, _ = run(LoadBalancingSpec("flowlets", 10**9, 10**9), tuner)
    late = max(tuner.seen)
    reroutes = {t: one["switch.reroutes"].tolist() for t, one in tuner.seen.items()}
    assert sum(reroutes[500 * US]) == 0
    assert reroutes[late][1] > 100
    assert sum(reroutes[late]) == reroutes[late][1]
    known = tuner.seen[late].settings["flowlet_timeout"]["timeout_ns"].tolist()
    assert known == [10**9, 1_000, *[10**9] * 5]
    changes = record.changes["flowlet_timeout"]
    assert (changes.targets.tolist(), changes.timeout_ns.tolist()) == ([1], [1_000])


def test_a_port_whose_link_fails_is_left_at_once(run):
    # long before routes change, which they need for what comes down that way
    fault = FaultSpec(500 * US, None, 300 * US, ("leaf1-spine2",))
    tuner = Plan({})
    spec = LoadBalancingSpec("flowlets", 10**9, 10**9)
    record, _ = run(spec, tuner, faults=(fault,), action_period_ns=100 * US)
    first = 4 + 1  # leaf1's second uplink
    sent = {t: int(one["tx_packets"][first]) for t, one in tuner.seen.items()}
    # what was queued when it failed is sent yet
    assert sent[400 * US] > 0
    assert sent[max(sent)] == sent[700 * US] <= sent[500 * US] + 100
    assert record.samples["switch"].reroutes[-1][0] > 0


def test_a_full_table_is_a_finding_and_its_packets_take_their_ecmp_path(run):
    plain, _ = run(ECMP)
    full, found = run(LoadBalancingSpec("flowlets", 10**9, 10**9, entries=4))
    assert differing(plain, full) == []
    (reason,) = [one for one in found.reasons if one.code == "flowlet-overflows"]
    overflows = full.samples["switch"].flowlet_overflows[-1]
    assert str(overflows.sum()) in reason.text
    assert full.samples["switch"].flowlet_entries.max() == 4
    roomy, found = run(dataclasses.replace(ECMP, kind="flowlets"))
    assert roomy.samples["switch"].flowlet_overflows.max() == 0
    assert not [one for one in found.reasons if one.code == "flowlet-overflows"]
