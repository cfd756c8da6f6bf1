"""Flow tables in the guest: bounded memory, traffic classes."""

from collectors.bpf.compile import flow_table_object
from inventory.topology import Device, LinkSpec, Testbed, TrafficClass
from orchestration.backends.emulated import backend as emulated
from orchestration.model.records import DONE
from orchestration.model.signals import FLOW_TABLE
from orchestration.model.trial import AllToAllSpec, SingleFlowSpec, TrialSpec, TunerSpec
from orchestration.studies.bench.outcome import run_trial
from traffic.schedule import make_schedule
from tuners.base import BaseTuner
from tuners.ecn.static import Secn1

MS = 1_000_000


def test_a_table_that_is_full_keeps_working(monkeypatch):
    """552 flows through tables of 64 entries."""
    monkeypatch.setattr(emulated, "flow_table_object", lambda: flow_table_object(6))
    traffic = (AllToAllSpec(40_000, 100 * MS, 0, MS),)
    run = run_trial("graphcc", traffic, TunerSpec("secn1"), duration_ns=2 * MS, flow_table=True)
    assert (run.record.flows.status == DONE).all()
    facts = run.record.facts["flow_table"]
    assert facts["entries_per_switch"] == 64
    assert 48 < facts["most_entries_used"] <= 64
    assert facts["packets_not_counted"] > 0
    assert facts["threshold_cleanups"] > 0
    # by whom an expired entry is removed is a matter of which packet comes first
    removed = ("removed_on_schedule", "removed_at_threshold", "expired_taken_over")
    assert sum(facts[name] for name in removed) > 0
    assert facts["bytes_per_switch"] == 64 + 64 * 36


def test_a_table_of_the_usual_size_loses_nothing():
    traffic = (AllToAllSpec(40_000, 100 * MS, 0, MS),)
    run = run_trial("graphcc", traffic, TunerSpec("secn1"), duration_ns=2 * MS, flow_table=True)
    facts = run.record.facts["flow_table"]
    assert facts["packets_not_counted"] == 0
    # the fullest switch is a leaf: what its 6 hosts send and get, but only once what stays inside
    assert facts["most_entries_used"] <= 2 * 6 * 23 - 6 * 5


class Watcher(BaseTuner):
    observes = (*BaseTuner.observes, *FLOW_TABLE)

    def __init__(self):
        self.seen = []

    def reset(self, testbed, seed):
        return Secn1().reset(testbed, seed)

    def act(self, observation):
        self.seen.append(observation)
        return ()


def test_flows_are_counted_at_the_queue_of_their_class(tmp_path):
    devices = [Device(f"h{n}", "host", 0) for n in (1, 2, 3)] + [Device("s1", "switch", 1)]
    links = [LinkSpec(f"h{n}", "s1", 25 * 10**9, 1000) for n in (1, 2, 3)]
    classes = (TrafficClass("a", 70), TrafficClass("b", 30))
    testbed = Testbed.build(
        "two", devices, links, mtu_bytes=1500, buffer_bytes=4_000_000, classes=classes
    )
    traffic = (
        SingleFlowSpec("h1", "h3", 200_000, 0, "a"),
        SingleFlowSpec("h2", "h3", 2_000_000, 0, "b"),
    )
    trial = TrialSpec("c", "two", "emulated", TunerSpec("secn1"), traffic, 1, 1, MS, 20 * MS)
    watcher = Watcher()
    emulated.EmulatedBackend().run(
        trial, testbed, make_schedule(trial, testbed), tmp_path, lambda *_: None, watcher
    )
    a, b = (n for n, q in enumerate(testbed.queues) if testbed.peer_device(q).name == "h3")
    assert watcher.seen[0].mice_flows[[a, b]].tolist() == [1, 1]
    last = watcher.seen[-1]
    assert last.mice_flows[[a, b]].tolist() == [0, 0]
    assert last.elephant_flows[[a, b]].tolist() == [0, 1]
