"""What a backend says that it can do, each in a trial in which it is seen to work.

Modes in real time, a rack and the machine's own kernel, are tried in
`tests/hardware/test_trials_in_real_time.py` and `test_paths_on_rack.py`.
"""

import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.emulated.engines import needs_kernel
from orchestration.core.capabilities import Mode, backends, capabilities
from orchestration.core.congestion import roce_controls
from orchestration.core.engines import PROCESS, engine_of
from orchestration.core.knobs import KNOBS
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, LONG_LIVED, MISSING, Setup
from orchestration.core.roce import RoceSpec
from orchestration.core.signals import BY_KEY, DERIVED, targets
from orchestration.core.trial import FabricSpec, FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

US, MS = 1_000, 1_000_000
TESTBED = """
name: {name}
kind: leaf-spine
leaves: 2
spines: 2
hosts_per_leaf: 3
host_link: {{rate: 25Gbps, delay: 1us}}
uplink: {{rate: 25Gbps, delay: 1us}}
mtu: 1500B
{more}
"""
TESTBEDS = {
    "plain": "buffer: 1MB",
    "lossless": "switch: {buffer: 1MB, pfc: [3]}",
    "classes": "buffer: 1MB\nclasses: [{name: gold, weight: 3}, {name: bronze, weight: 1}]",
}
MARKS = {"emulated": pytest.mark.kernel, "simulated": pytest.mark.ns3}
MODES = [
    pytest.param(one, mode, "", marks=MARKS.get(one.name, ()), id=f"{one.name}-{mode.fabric}")
    for one in backends()
    for mode in one.modes
    if not mode.real_time
] + [
    pytest.param(one, one.in_process, PROCESS, id=f"{one.name}-in-process")
    for one in backends()
    if one.in_process is not None
]
INCAST = IncastSpec(5, 300_000, 100 * MS, 0, MS, receiver="h1")


def spec(control):
    """Return hosts under a control."""
    roce = control in roce_controls()
    return HostSpec(control, roce=RoceSpec(control=control) if roce else None)


@pytest.fixture
def run(request, tmp_path):
    backend, mode, engine = request.param
    for name, more in TESTBEDS.items():
        (tmp_path / f"{name}.yml").write_text(TESTBED.format(name=name, more=more))

    def run_trial(testbed="plain", tuner=None, **changes):
        trial = TrialSpec(
            "c", str(tmp_path / f"{testbed}.yml"), backend.name, TunerSpec("secn1"), (INCAST,),
            3, 1, MS, 300 * MS, fabric=FabricSpec(mode.fabric), host=spec(mode.controls[0]),
        )  # fmt: skip
        trial = dataclasses.replace(trial, **changes)
        bed = load_testbed(trial.testbed)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        runs = backend_factory.backend(backend.name, engine=engine)
        if engine:
            assert not needs_kernel(trial, bed, tuner)
        runs.check(bed, 1, [trial])
        record = runs.run(TrialRun(trial, bed, make_schedule(trial, bed), folder, tuner=tuner))
        assert engine_of(record.facts)[0] == (engine or ("kernel" if mode.is_linux else ""))
        assert set(record.flows.status) <= {DONE, LONG_LIVED}
        return bed, record

    run_trial.mode = mode
    return run_trial


every_mode = pytest.mark.parametrize(
    "run", [pytest.param(one.values, id=one.id, marks=one.marks) for one in MODES], indirect=True
)


class Everything(BaseTuner):
    """Observes all that a mode offers, and sets each of its knobs, halfway between the bounds."""

    def __init__(self, mode, bed):
        self.observes, self.knobs = tuple(mode.signals), tuple(mode.knobs)
        self.bed, self.seen = bed, []

    def reset(self, testbed, seed):
        return Setup()

    def act(self, observation):
        self.seen.append(observation)
        return self.halfway() if len(self.seen) == 2 else ()

    def halfway(self):
        return tuple(
            knob.change(
                np.arange(len(targets(self.bed, knob.scope))),
                *(
                    np.array((column.minimum + (column.maximum or 10_000)) / 2).astype(column.dtype)
                    for column in knob.columns
                ),
            )
            for knob in (KNOBS[name] for name in self.knobs)
        )


@every_mode
def test_each_signal_is_measured_and_each_knob_set_and_read_back(run, tmp_path):
    mode = run.mode
    bed = "lossless" if mode.shared_buffers else "plain"
    control = "dcqcn" if mode.has_roce else mode.controls[0]
    more = {"load_balancing": LoadBalancingSpec("flowlets")} if mode.load_balancing else {}
    tuner = Everything(mode, load_testbed(str(tmp_path / f"{bed}.yml")))
    tuned, record = run(bed, tuner, host=spec(control), **more)
    last = tuner.seen[-1]
    assert set(last.values) >= set(mode.signals)
    for key, array in last.values.items():
        signal = BY_KEY[key]
        if key not in mode.signals:
            assert (array == MISSING).all(), f"{key} is measured, and not offered"
            continue
        assert array.shape == (len(targets(tuned, signal.scope)),), key
        assert array.dtype == signal.dtype, key
        assert (array != MISSING).all(), key
    above_0 = {"tx_bytes", "tx_packets", "marked_packets", "incast_degree"}
    for key in above_0 & set(mode.signals):
        assert max(seen[key].max() for seen in tuner.seen) > 0, key
    if mode.shared_buffers:
        assert last["priority.pauses_sent"].sum() > 0
    assert set(last.settings) == set(mode.knobs) == set(record.changes)
    for change in tuner.halfway():
        for column, wanted in change.values.items():
            for found in (record.changes[change.knob][column], last.settings[change.knob][column]):
                np.testing.assert_allclose(found, wanted, rtol=1e-6)
    kept = {key.partition(".")[2] for key in (*mode.signals, *mode.recorded) if "host." in key}
    for name in kept:
        assert (record.hosts[name] != MISSING).all(), name
    assert record.facts["clock"] == "virtual"
    assert set(mode.recorded).isdisjoint(mode.signals)
    assert set(DERIVED) <= set(mode.signals)


@every_mode
def test_flows_are_sent_under_each_congestion_control(run):
    tcp = [control for control in run.mode.controls if control not in roce_controls()]
    if tcp:
        pairs = [
            SingleFlowSpec(f"h{1 + n % 3}", f"h{4 + n % 3}", 200_000, 0, congestion_control=one)
            for n, one in enumerate(tcp)
        ]
        run(traffic=tuple(pairs), host=spec(tcp[0]))
    for control in set(run.mode.controls) & (set(roce_controls()) - {"program"}):
        _, record = run(host=spec(control))
        assert (record.flows.status == DONE).all()


@every_mode
def test_losses_are_detected_and_ports_mark_in_each_way(run):
    mode = run.mode
    for detection in mode.loss_detections:
        run(host=dataclasses.replace(spec("dctcp"), loss_detection=detection))
    for marks in mode.marks:
        fabric = FabricSpec(mode.fabric, marks)
        _, record = run(fabric=fabric)
        assert record.ports.marked_packets[-1].sum() > 0, marks


@every_mode
def test_switches_choose_paths_in_each_way(run):
    """Packets of one flow take both ways up."""
    for by in run.mode.load_balancing:
        flow = SingleFlowSpec("h1", "h4", 300_000, 0)
        bed, record = run(traffic=(flow,), load_balancing=LoadBalancingSpec("spray", route_by=by))
        up = [
            n
            for n, port in enumerate(bed.queues)
            if port.device == "leaf1" and bed.peer_device(port).kind == "switch"
        ]
        assert (record.ports.tx_packets[-1, up] > 50).all(), by


@every_mode
def test_classes_have_queues_of_their_own_and_links_break(run):
    mode = run.mode
    if mode.classes:
        flows = [
            dataclasses.replace(INCAST, queue_class=name, receiver=host)
            for name, host in (("gold", "h1"), ("bronze", "h4"))
        ]
        bed, record = run("classes", traffic=tuple(flows))
        for klass in (0, 1):
            queues = [n for n, queue in enumerate(bed.queues) if queue.klass == klass]
            assert record.ports.tx_bytes[-1, queues].sum() > 0
    if mode.faults:
        fault = FaultSpec(50 * US, 100 * MS, 10 * US, ("leaf1-spine1",))
        _, record = run(faults=(fault,))
        assert [event.kind for event in record.events][:2] == ["links", "routes"]


@every_mode
def test_flows_of_roce_nics_last_and_are_sampled(run):
    if not run.mode.has_roce:
        return
    lasting = ConcurrentSpec(2, 0, 0, "h1", senders=2)
    _, record = run(traffic=(lasting,), host=spec("dcqcn"), flow_sample_period_ns=500 * US)
    assert (record.flows.status == LONG_LIVED).all()
    assert record.samples["flow"]["acked_bytes"][-1].min() > 0


@every_mode
def test_the_same_trial_is_the_same_again(run):
    assert run.mode.deterministic
    (_, first), (_, again) = run(), run()
    for name, values in first.ports.values.items():
        np.testing.assert_array_equal(values, again.ports[name])
    np.testing.assert_array_equal(first.flows.end_ns, again.flows.end_ns)


def test_every_capability_has_its_trial_or_its_reason():
    """A capability that is added here is added to a trial as well."""
    tried = {"signals", "recorded", "knobs", "loss_detections", "marks", "classes"}
    tried |= {"tcp_controls", "has_roce", "load_balancing", "shared_buffers", "faults"}
    tried |= {"deterministic", "fabric"}
    elsewhere = {
        "clock": "tests/hardware: test_trials_in_real_time.py, test_paths_on_rack.py",
        "real_time": "tests/hardware: test_trials_in_real_time.py, test_paths_on_rack.py",
        "programs_send": "tests/hardware/test_programs.py",
        "nic_controls": "each is tried, as tcp_controls are",
        "policies": "test_policies.py",
        "known_senders": "tests/unit/campaign/test_unresponsive.py",
        "negotiates_ecn": "tests/unit/campaign/test_unresponsive.py",
        "counters_late_ns": "tests/unit/campaign/test_unresponsive.py",
        "is_linux": "tests/unit/replay/test_replay_substitutions.py",
        "has_packets": "tests/contract/test_backends.py, packet-hops",
        "pace": "an estimate",
        "why": "words",
        "programs": "no backend has any",
    }
    assert {field.name for field in dataclasses.fields(Mode)} == tried | set(elsewhere)
    assert not any(mode.programs for one in backends() for mode in one.modes)


def test_results_of_other_programs_have_no_capability():
    (mode,) = capabilities("imported").modes
    assert not capabilities("imported").runs
    assert not (*mode.signals, *mode.knobs, *mode.controls)
