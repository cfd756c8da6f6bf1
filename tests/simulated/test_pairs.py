"""The traffic matrix of edge switches in ns-3: against its flows, the emulated twin, and DRLet."""

import math
import random

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.signals import PAIRS, targets
from orchestration.core.trial import CLOSLOOP, LINUX, TCP, HostSpec, TunerSpec
from orchestration.run import backend_factory
from tests.trials import Watching, trial_spec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.flowlet.settings import timeout_of
from tuners.learning import checkpoint
from tuners.training.drlet import DrletLearner

pytestmark = pytest.mark.ns3

MS = 1_000_000
TESTBED = load_testbed("drlet-k4")
ETHERNET, PAYLOAD = 14, 1024
# at 8 Gbit/s a byte takes a nanosecond
TREE = """
kind: fat-tree
name: tree
mtu: 1500B
buffer: 4MB
k: 4
host_link: {rate: 8Gbps, delay: 1us}
aggregation_link: {rate: 8Gbps, delay: 1us}
core_link: {rate: 8Gbps, delay: 1us}
"""


def run(folder, traffic, host, backend="simulated", testbed="drlet-k4", balancing=None):
    """Return the bytes of every pair at each reading, shape (readings, pairs), and the record."""
    trial = trial_spec(
        campaign="pairs",
        testbed=testbed,
        backend=backend,
        traffic=traffic,
        seed=5,
        duration_ns=3 * MS,
        drain_ns=20 * MS,
        host=host,
        fabric=LINUX if host.roce is None and backend == "simulated" else CLOSLOOP,
        load_balancing=balancing or LoadBalancingSpec(),
    )
    tuner, loaded = Watching(PAIRS), load_testbed(testbed)
    schedule = make_schedule(trial, loaded)
    folder.mkdir()
    record = backend_factory.backend(backend).run(
        TrialRun(trial, loaded, schedule, folder, tuner=tuner)
    )
    assert (record.flows.status == DONE).all()
    return np.array([one[PAIRS] for one in tuner.seen]), record


def by_name(testbed, numbers):
    return {
        name: count
        for name, count in zip(targets(testbed, "pair"), numbers.tolist(), strict=True)
        if count
    }


FLOWS = (
    SingleFlowSpec("h1", "h9", 1_000_000, MS),
    SingleFlowSpec("h3", "h9", 500_000, MS),
    # below one edge switch, so of no pair; it ends last
    SingleFlowSpec("h5", "h6", 6_000_000, MS),
)
BACK = {"edge5>edge1", "edge5>edge2"}


def test_each_pair_has_the_bytes_of_its_hosts_tcp(tmp_path):
    seen, _ = run(tmp_path / "tcp", FLOWS, TCP)
    pairs = by_name(TESTBED, seen[-1] - seen[0])
    headers = 52  # of IP and of TCP with time stamps
    there = {
        name: size + headers * (1 + math.ceil(size / (TESTBED.mtu_bytes - headers)))
        for name, size in (("edge1>edge5", 1_000_000), ("edge2>edge5", 500_000))
    }
    # packets as large as the MTU allows, and a FIN, which ns-3 may send with the last of them
    assert {name: pairs[name] for name in there} == pytest.approx(there, abs=headers)
    assert all(0 < pairs[name] < 100_000 for name in BACK), "acknowledgements"
    assert set(pairs) == {*there, *BACK}
    assert (np.diff(seen, axis=0) >= 0).all()


def test_each_pair_has_the_bytes_of_its_hosts_roce(tmp_path):
    roce = RoceSpec(control="fixed", values=(("rate", 3_000),), timeout_ns=1_000 * MS)
    seen, record = run(tmp_path / "roce", FLOWS, HostSpec("fixed", roce=roce))
    assert record.facts["resent"] == 0
    assert not seen[0].any()
    pairs = by_name(TESTBED, seen[-1])
    there = {
        name: size + (HEADER_BYTES - ETHERNET) * math.ceil(size / PAYLOAD)
        for name, size in (("edge1>edge5", 1_000_000), ("edge2>edge5", 500_000))
    }
    assert {name: pairs[name] for name in there} == there
    assert all(0 < pairs[name] < 100_000 for name in BACK), "acknowledgements"
    assert set(pairs) == {*there, *BACK}


def irregular(count):
    """Return flows between all hosts, begun at times that no two packets meet at."""
    draw = random.Random(1)
    return tuple(
        SingleFlowSpec(f"h{a}", f"h{b}", PAYLOAD * draw.randrange(40, 99),
                       n * 9_973 + draw.randrange(4_000))
        for n, (a, b) in ((n, draw.sample(range(1, 17), 2)) for n in range(count))
    )  # fmt: skip


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ecmp", "spray"])
def test_the_emulated_switches_count_the_same_to_the_byte(tmp_path, kind):
    path = tmp_path / "tree.yml"
    path.write_text(TREE)
    roce = RoceSpec(
        control="fixed", values=(("rate", 700),), timeout_ns=1_000 * MS,
        recovery="selective-repeat", ack_every=5,
    )  # fmt: skip
    (ours, record), (theirs, _) = (
        run(tmp_path / backend, irregular(40), HostSpec("fixed", roce=roce), backend, str(path),
            LoadBalancingSpec(kind))
        for backend in ("simulated", "emulated")
    )  # fmt: skip
    assert record.ports.dropped_packets[-1].sum() == record.facts["resent"] == 0
    assert np.count_nonzero(ours[-1]) > 30
    assert len(ours) > 10
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.kernel
def test_tcps_packets_are_counted_as_the_emulated_switches_count_them(tmp_path):
    """The data's packets are the same; how many acknowledge them is each TCP's own affair."""
    (ours, _), (theirs, _) = (
        run(tmp_path / backend, FLOWS, TCP, backend) for backend in ("simulated", "emulated")
    )
    here, there = (by_name(TESTBED, seen[-1] - seen[0]) for seen in (ours, theirs))
    assert set(here) == set(there)
    for name in set(here) - BACK:
        assert here[name] == pytest.approx(there[name], abs=52)


def test_drlet_decides_from_the_pairs(tmp_path):
    path = tmp_path / "untrained.safetensors"
    untrained = DrletLearner(1, TESTBED)
    card = {"tuner": "drlet", "architecture": untrained.architecture()}
    checkpoint.save(path, untrained.parameters(), card)
    trial = trial_spec(
        campaign="drlet",
        testbed="drlet-k4",
        backend="simulated",
        tuner=TunerSpec("drlet", {"checkpoint": str(path), "explore": 0.3, "collect": True}),
        traffic=(PoissonSpec("WebSearch", 0.6, 0, 4 * MS),),
        duration_ns=4 * MS,
        drain_ns=MS,
        sample_period_ns=500_000,
        action_period_ns=MS,
        decision_latency_ns=50_000,
        fabric=LINUX,
        load_balancing=LoadBalancingSpec("flowlets"),
    )
    schedule = make_schedule(trial, TESTBED)
    record = backend_factory.backend("simulated").run(TrialRun(trial, TESTBED, schedule, tmp_path))
    x, action, reward = (record.trace[part] for part in ("x", "action", "reward"))
    assert x.shape == (record.facts["decisions"], 1, 56)
    assert len(x) >= 4
    assert (x[1:].max(axis=(1, 2)) > 0.1).all(), "there is traffic"
    assert np.isfinite(reward).all()
    made = record.changes["flowlet_timeout"]
    later = made.observed_ns > 0
    chosen = timeout_of(action.reshape(len(x), 16))
    # a trace has 32 bits of an action
    np.testing.assert_allclose(made["timeout_ns"][later], chosen.ravel(), rtol=1e-6, atol=1)
