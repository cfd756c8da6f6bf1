"""Every tuner of the registry, on fabrics of several shapes and rates."""

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.topology import Device, LinkSpec, Testbed
from orchestration.model.knobs import ECN, KNOBS
from orchestration.model.records import Observation, Setup
from orchestration.model.trial import TunerSpec
from tuners import registry

# What a tuner needs that has no default; one entry a parameterised tuner.
PARAMS = {
    "static": {"kmin_bytes": 30_000, "kmax_bytes": 90_000},
    "step": {
        "at_ns": 400_000,
        "kmin_bytes": 30_000,
        "kmax_bytes": 90_000,
        "then_kmin_bytes": 5_000,
        "then_kmax_bytes": 200_000,
    },
}


def mixed_rates() -> Testbed:
    devices = [Device(f"h{n}", "host", 0) for n in range(4)] + [Device("s1", "switch", 1)]
    rates = (10, 25, 100, 400)
    links = [LinkSpec(f"h{n}", "s1", rate * 10**9, 1000) for n, rate in enumerate(rates)]
    return Testbed.build("mixed", devices, links, mtu_bytes=1500, buffer_bytes=4_000_000)


@pytest.fixture(params=["graphcc", "acc", "drlet-k4", "rlcc-7", "mixed"])
def testbed(request) -> Testbed:
    return mixed_rates() if request.param == "mixed" else load_testbed(request.param)


@pytest.fixture(params=registry.names())
def spec(request, testbed, tmp_path) -> TunerSpec:
    if request.param == registry.RECORDED:
        return TunerSpec(request.param, {"actions": recording(testbed, tmp_path)})
    return TunerSpec(request.param, dict(PARAMS.get(request.param, {})))


def recording(testbed: Testbed, folder) -> str:
    """Write actions on every queue at the start, and on some of them twice later on."""
    rows = ["t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax"]
    for t_ns, queues, kmin in (
        (0, testbed.queues, 10_000),
        (200_000, testbed.queues[:3], 20_000),
        (500_000, testbed.queues[::2], 30_000),
    ):
        rows += [f"{t_ns},{q.device},{q.name},{q.klass},{kmin},{3 * kmin},0.1" for q in queues]
    path = folder / "actions.csv"
    path.write_text("\n".join([*rows, ""]), encoding="utf-8")
    return str(path)


def observations(testbed: Testbed, start, count: int = 8) -> list[Observation]:
    """Readings of a fabric that gets busier and busier."""
    queues = len(testbed.queues)
    rng = np.random.default_rng(0)
    sent = np.cumsum(rng.integers(0, 400_000, (count, queues)), axis=0)
    thresholds = ECN.of(start.action)
    zeros = np.zeros(queues, dtype=np.int64)
    return [
        Observation(
            t_ns=100_000 * (n + 1),
            age_ns=zeros,
            values={
                "qlen_bytes": rng.integers(0, 1 + 100_000 * n, queues),
                "tx_bytes": sent[n],
                "tx_packets": sent[n] // 1514,
                "marked_packets": sent[n] // 15140,
                "dropped_packets": zeros,
                "incast_degree": rng.integers(0, 20, queues),
                "mice_flows": rng.integers(0, 50, queues),
                "elephant_flows": rng.integers(0, 5, queues),
            },
            settings={
                "ecn": ECN.named(zeros, zeros, np.zeros(queues))
                if thresholds is None
                else dict(thresholds.values)
            },
        )
        for n in range(count)
    ]


def run(spec: TunerSpec, testbed: Testbed) -> list:
    tuner = registry.create(spec)
    start = tuner.reset(testbed, 7)
    return [start.action, *(tuner.act(reading) for reading in observations(testbed, start))]


def test_every_action_is_within_bounds(spec, testbed):
    turns = set(registry.create(spec).knobs)
    for action in run(spec, testbed):
        assert len({change.knob for change in action}) == len(action), "one change a knob"
        for change in action:
            assert change.knob in turns
            KNOBS[change.knob].bounds(testbed).check(change)


def test_every_queue_has_thresholds_from_the_start(spec, testbed):
    start = registry.create(spec).reset(testbed, 7)
    assert isinstance(start, Setup)
    (change,) = start.action
    assert change.knob == "ecn"
    assert sorted(change.targets) == list(range(len(testbed.queues)))


def test_same_seed_and_readings_give_the_same_actions(spec, testbed):
    for one, other in zip(run(spec, testbed), run(spec, testbed), strict=True):
        assert [change.knob for change in one] == [change.knob for change in other]
        for before, after in zip(one, other, strict=True):
            for name in ("targets", "kmin_bytes", "kmax_bytes", "pmax"):
                np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_reset_forgets_the_trial_before(spec, testbed):
    tuner = registry.create(spec)
    first = tuner.reset(testbed, 7)
    for reading in observations(testbed, first):
        tuner.act(reading)
    again = tuner.reset(testbed, 7)
    for before, after in zip(first.action, again.action, strict=True):
        np.testing.assert_array_equal(before.kmin_bytes, after.kmin_bytes)
        np.testing.assert_array_equal(before.kmax_bytes, after.kmax_bytes)
