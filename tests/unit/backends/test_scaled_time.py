"""Scaled time: bytes and ratios stay, times come back as they were written."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.ansible import load_rack, write_rack
from inventory.files import load_testbed
from inventory.rack import MAX_SCALE, Access, Rack, scaled
from inventory.routing import ideal_times_ns
from orchestration.backends.common.dilation import (
    dilated_rig,
    dilated_schedule,
    dilated_trial,
    dilation_findings,
)
from orchestration.backends.hardware.readiness import check_same_fabric, check_scale
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.scale import describe_scale, with_scale
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.ports import Outcome
from orchestration.core.records import (
    DONE,
    MISSING,
    Applied,
    Change,
    Event,
    FlowRecords,
    HostReading,
    Observation,
    Samples,
)
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

GRAPHCC = load_testbed("graphcc")
FACTORS = st.integers(1, MAX_SCALE)


def trial(scale=1, **more):
    fields = {
        "campaign": "c",
        "testbed": "graphcc",
        "backend": "hardware",
        "tuner": TunerSpec("step", {"at_ns": 5_000}),
        "traffic": (
            PoissonSpec("WebSearch", 0.5, 0, 1_000_000),
            IncastSpec(8, 64_000, 300_000, 100_000, 900_000),
        ),
        "seed": 7,
        "repeat": 1,
        "duration_ns": 1_000_000,
        "drain_ns": 2_000_000,
        "faults": (FaultSpec(100, None, 50, ("leaf1-spine1",)),),
        "scale": scale,
    }
    return TrialSpec(**{**fields, **more})


def numbers(spec, path=()):
    """Yield every number of a spec with the names of the fields that lead to it."""
    if dataclasses.is_dataclass(spec):
        for field in dataclasses.fields(spec):
            yield from numbers(getattr(spec, field.name), (*path, field.name))
    elif isinstance(spec, (tuple, list)):
        for place, item in enumerate(spec):
            yield from numbers(item, (*path, place))
    elif isinstance(spec, dict):
        for key, item in spec.items():
            yield from numbers(item, (*path, key))
    else:
        yield path, spec


@given(FACTORS)
def test_links_hold_as_many_bytes_and_buffers_stay(factor):
    slow = scaled(GRAPHCC, factor)
    assert [q.buffer_bytes for q in slow.queues] == [q.buffer_bytes for q in GRAPHCC.queues]
    assert (slow.mtu_bytes, slow.framing_bytes) == (GRAPHCC.mtu_bytes, GRAPHCC.framing_bytes)
    for before, after in zip(GRAPHCC.links, slow.links, strict=True):
        assert after.rate_bps * factor == pytest.approx(before.rate_bps, rel=1e-5)
        on_it = before.rate_bps * before.delay_ns
        assert after.rate_bps * after.delay_ns == pytest.approx(on_it, rel=1e-5)
    for port in slow.ports:
        link = slow.links[port.link]
        assert (port.rate_bps, port.delay_ns) == (link.rate_bps, link.delay_ns)
    assert dataclasses.replace(slow, links=GRAPHCC.links, ports=GRAPHCC.ports) == GRAPHCC


@given(FACTORS)
def test_what_lasts_lasts_longer_and_nothing_else_changes(factor):
    before, after = dict(numbers(trial(factor))), dict(numbers(dilated_trial(trial(factor))))
    assert before.keys() == after.keys()
    for path, value in before.items():
        # a tuner's own parameters are in the trial's time, in which it decides
        in_devices = str(path[-1]).endswith("_ns") and path[0] != "tuner"
        longer = value * factor if in_devices and value is not None else value
        assert after[path] == longer, path


@pytest.mark.slow
@given(st.integers(1, 5_000))
def test_the_same_flows_have_the_same_slowdown(factor):
    slow, spec = scaled(GRAPHCC, factor), trial(factor)
    schedule = make_schedule(spec, GRAPHCC)
    late = dilated_schedule(schedule, factor)
    assert (late.size_bytes == schedule.size_bytes).all()
    assert (late.start_ns == schedule.start_ns * factor).all()
    ideal, ideal_slow = ideal_times_ns(GRAPHCC, schedule), ideal_times_ns(slow, late)
    # whole ns, in either time
    assert np.allclose(ideal_slow / factor, ideal, rtol=1e-4, atol=1.1)


def test_a_scale_of_one_leaves_ids_as_they_were_and_another_makes_another_trial():
    assert "scale" not in trial().to_json()
    assert trial(2).id != trial().id
    assert TrialSpec.from_json(trial(120).to_json()) == trial(120)
    assert TrialSpec.from_json(trial().to_json()) == trial()


class SlowRig:
    """A rig in the clock's time, which is 1000 times the trial's."""

    def __init__(self):
        self.waited, self.asked = [], []

    def now_ns(self):
        return 5_000_999

    def wait_until(self, t_ns):
        self.waited.append(t_ns)
        return True

    def observe(self):
        queues = np.ones(3, dtype=np.int64)
        return Observation(
            t_ns=2_000_000,
            age_ns=np.array([3_000, MISSING, 0]),
            values={"qlen_bytes": queues * 7, "priority.paused_ns": queues * 4_000},
            settings={"flowlet_timeout": {"timeout_ns": queues * 9_000}},
            taken_ns=queues * 1_999_000,
            took_ns=np.array([1_500, MISSING, 0]),
        )

    def apply(self, action):
        self.asked.append(action)
        return Applied(6_000_000, tuple(action))

    def last_hosts(self):
        return HostReading(7_000, {"retransmits": np.array([2])})

    def finish(self, observer):
        observer.observed(self.observe())
        late = Applied(6_000_000, (FLOWLET_TIMEOUT.change([0], 200_000_000),))
        observer.applied(4_000_000, 5_000_000, late)
        ns = np.array([1_000_000, -1])
        flows = FlowRecords(ns, ns * 2, np.array([1, 2]), np.array([DONE, DONE]))
        flows.end_ns[1] = -1
        hosts = Samples.of("host", np.array([0, 4_000]), np.array([[5], [6]]))
        return Outcome(flows, hosts, [Event(3_000, "warning", "late")])


class Seen:
    def __init__(self):
        self.observations, self.changes = [], []

    def observed(self, observation):
        self.observations.append(observation)

    def applied(self, observed_ns, decided_ns, applied):
        self.changes.append((observed_ns, decided_ns, applied))


def test_the_loop_sees_the_trials_time():
    rig = SlowRig()
    assert dilated_rig(rig, 1) is rig
    slow = dilated_rig(rig, 1_000)
    assert slow.now_ns() == 5_000
    assert slow.wait_until(100_000)
    assert rig.waited == [100_000_000]
    seen = slow.observe()
    assert seen.t_ns == 2_000
    assert seen.age_ns.tolist() == [3, MISSING, 0]
    assert seen.taken_ns.tolist() == [1_999] * 3
    # never narrower than it was
    assert seen.took_ns.tolist() == [3, MISSING, 2]
    assert seen["qlen_bytes"].tolist() == [7, 7, 7]
    assert seen["priority.paused_ns"].tolist() == [4, 4, 4]
    assert seen.settings["flowlet_timeout"]["timeout_ns"].tolist() == [9, 9, 9]


def test_thresholds_stay_and_timeouts_follow():
    rig = SlowRig()
    thresholds = ECN.change([0, 1], 5_000, 200_000, 0.01)
    timeouts = FLOWLET_TIMEOUT.change([0], 200_000)
    applied = dilated_rig(rig, 1_000).apply((thresholds, timeouts))
    asked_ecn, asked_timeouts = rig.asked[0]
    assert asked_ecn.kmax_bytes.tolist() == [200_000, 200_000]
    assert asked_timeouts.timeout_ns.tolist() == [200_000_000]
    assert applied.t_ns == 6_000
    assert isinstance(applied.changes[1], Change)
    assert applied.changes[1].timeout_ns.tolist() == [200_000]


def test_records_are_in_the_trials_time():
    seen = Seen()
    outcome = dilated_rig(SlowRig(), 1_000).finish(seen)
    assert outcome.flows.sent_ns.tolist() == [1_000, -1]
    assert outcome.flows.end_ns.tolist() == [2_000, -1]
    assert outcome.flows.retransmits.tolist() == [1, 2]
    assert outcome.hosts.t_ns.tolist() == [0, 4]
    assert outcome.events == [Event(3, "warning", "late")]
    assert [one.t_ns for one in seen.observations] == [2_000]
    ((observed_ns, decided_ns, applied),) = seen.changes
    assert (observed_ns, decided_ns, applied.t_ns) == (4_000, 5_000, 6_000)
    assert applied.changes[0].timeout_ns.tolist() == [200_000]


def rack(testbed, scale):
    access = {
        device.name: Access(
            device.name,
            f"10.0.0.{place}",
            interfaces=tuple(port.name for port in testbed.ports_of[device.name]),
        )
        for place, device in enumerate(testbed.devices)
    }
    return Rack("graphcc", scaled(testbed, scale), access, scale=scale)


@pytest.mark.parametrize("scale", [1, 120, 3_700])
def test_an_inventory_has_the_scale(tmp_path, scale):
    made = rack(GRAPHCC, scale)
    write_rack(made, tmp_path / "inventory.yml")
    again = load_rack(tmp_path / "inventory.yml")
    assert again.scale == scale
    assert again.testbed.links == made.testbed.links
    check_same_fabric(again, GRAPHCC)
    check_scale(again, [trial(scale)])
    with pytest.raises(NotReadyError, match=f"scaled by {scale}, and the trials by 7"):
        check_scale(again, [trial(7)])


def test_an_unscaled_rack_is_not_the_scaled_one():
    with pytest.raises(NotReadyError, match="not wired like"):
        check_same_fabric(dataclasses.replace(rack(GRAPHCC, 10), scale=1), GRAPHCC)


CAMPAIGN = """
campaign: c
testbed: graphcc
tuners: [secn1]
traffic: [{kind: poisson, workload: WebSearch, load: 0.5}]
repeats: 2
duration: 1ms
"""


def test_a_campaign_on_a_scaled_rack(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text(CAMPAIGN)
    campaign = load_campaign(file, backend="hardware")
    assert with_scale(campaign, 1) == campaign
    assert describe_scale(campaign) == ""
    made = with_scale(campaign, 2_000)
    assert {one.scale for one in made.trials} == {2_000}
    assert [one.seed for one in made.trials] == [one.seed for one in campaign.trials]
    assert not {one.id for one in made.trials} & {one.id for one in campaign.trials}
    assert "a trial of 1ms takes 2s" in describe_scale(made)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("host: {congestion_control: dcqcn}\n", "RoCE NICs cannot be scaled"),
        ("load_balancing: flowlets\n", "switches take at most 1s"),
    ],
)
def test_what_cannot_be_scaled_is_refused(tmp_path, more, says):
    file = tmp_path / "c.yml"
    file.write_text(CAMPAIGN + more)
    campaign = load_campaign(file)
    with pytest.raises(InputError, match=says):
        with_scale(campaign, 10_000)
    with_scale(campaign, 1)


def test_controls_with_seconds_in_their_laws_are_named():
    for control, count in (("cubic", 1), ("bbr", 1), ("dctcp", 0), ("reno", 0)):
        host = HostSpec(congestion_control=control)
        assert len(dilation_findings(trial(10, host=host))) == count
        assert dilation_findings(trial(1, host=host)) == []


def test_path_choice_is_stretched_too():
    spec = trial(50, load_balancing=LoadBalancingSpec("flowlets", 200_000, 100_000))
    told = dilated_trial(spec).load_balancing
    assert (told.edge_timeout_ns, told.aggregation_timeout_ns) == (10_000_000, 5_000_000)
