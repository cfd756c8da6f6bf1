"""What a running trial shows of itself, and that showing it changes nothing."""

import dataclasses
import os

import numpy as np
import pytest

from collectors.snapshot import (
    SNAPSHOT_FILE,
    LiveObserver,
    SnapshotError,
    decode_snapshot,
    encode_snapshot,
)
from inventory.files import load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.core.codec import flattened
from orchestration.core.files import write_whole
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import Applied, HostReading, Observation
from orchestration.core.trial import TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule

PERIOD_NS = 100_000
TRIAL = TrialSpec(
    "c", "t", "fluid", TunerSpec("secn1"), (), 1, 1, 100 * PERIOD_NS, 0, sample_period_ns=PERIOD_NS
)


def reading(tick, queue=(0, 0), late_ns=0):
    zero = np.zeros(2, dtype=np.int64)
    return Observation(
        t_ns=tick * PERIOD_NS + late_ns,
        age_ns=zero,
        values={
            "qlen_bytes": np.array(queue),
            "tx_bytes": zero + 1000 * tick,
            "tx_packets": zero + tick,
            "marked_packets": zero + tick // 2,
            "dropped_packets": zero,
        },
        settings={"ecn": ECN.named(zero + 5_000, zero + 10_000, np.array([0.5, 1.0]))},
    )


class Wall:
    now_s = 50.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def shown(tmp_path):
    return lambda: decode_snapshot((tmp_path / SNAPSHOT_FILE).read_bytes())


def test_a_snapshot_is_read_back_as_it_was_written(tmp_path, shown):
    observer = LiveObserver(tmp_path, TRIAL, lambda: 7)
    three = np.arange(3)
    change = ECN.change(three, three * 100, three * 200, three / 4)
    observer.applied(0, 0, Applied(10, (change,)))
    observer.observed(reading(1, (300, 400)))
    found = shown()
    assert (found.t_ns, found.samples, found.flows_done, found.changes) == (PERIOD_NS, 1, 7, 1)
    assert found.qlen_bytes.tolist() == [300, 400]
    assert found.settings["ecn"]["pmax"].tolist() == [0.5, 1.0]
    (turned,) = found.recent
    assert (turned.t_ns, turned.applied_ns, turned.knob, turned.targets) == (0, 10, "ecn", 3)
    assert turned.ranges == {"kmin_bytes": (0, 200), "kmax_bytes": (0, 400), "pmax": (0.0, 0.5)}
    again = decode_snapshot(encode_snapshot(found))
    assert again.recent == found.recent
    for field in dataclasses.fields(found):
        before, after = (getattr(one, field.name) for one in (found, again))
        if field.name in ("values", "before", "settings"):
            before, after = flattened(before), flattened(after)
            assert before.keys() == after.keys()
            assert before, field.name
            for name in before:
                assert np.array_equal(after[name], before[name]), name
        else:
            assert np.array_equal(after, before), field.name


def test_a_snapshot_sums_up_what_was_read_since_the_one_before(tmp_path, wall, shown):
    observer = LiveObserver(tmp_path, TRIAL, lambda: 0, clock=wall)
    observer.observed(reading(1))
    observer.observed(reading(2, (100, 0)))
    observer.observed(reading(3, (500, 0)))
    assert shown().t_ns == PERIOD_NS  # the wall's clock stands: nothing new is written
    wall.now_s += 1
    observer.observed(reading(4, (300, 30)))
    found = shown()
    assert (found.before_ns, found.t_ns, found.samples) == (PERIOD_NS, 4 * PERIOD_NS, 4)
    assert found.peak_bytes.tolist() == [500, 30]
    assert found.mean_bytes.tolist() == [300, 10]
    assert (found.tx_bytes - found.before["tx_bytes"]).tolist() == [3000, 3000]


def test_a_snapshot_has_the_hosts_last_two_readings_and_what_buffers_held(tmp_path, wall, shown):
    hosts = [None]
    observer = LiveObserver(tmp_path, TRIAL, lambda: 0, lambda: hosts[0], clock=wall)
    for tick, held, cnps in ((1, 10, None), (2, 900, 3), (3, 50, 3), (4, 40, 8)):
        if cnps is not None:
            hosts[0] = HostReading(10 * cnps, {"cnps": np.array([cnps])})
        read = reading(tick)
        buffers = {"switch.buffer_bytes": np.array([held]), "priority.pausing_ns": np.array([tick])}
        wall.now_s += 1 if tick != 2 else 0
        observer.observed(dataclasses.replace(read, values={**read.values, **buffers}))
        if tick == 1:
            assert (shown().hosts, shown().hosts_before) == ({}, {})
        if tick == 3:
            # that of the second reading was between two snapshots
            assert shown().peak_buffer_bytes.tolist() == [900]
            assert shown().values["switch.buffer_bytes"].tolist() == [50]
            assert (shown().hosts_ns, shown().hosts_before_ns) == (30, 30)
    found = shown()
    assert found.peak_buffer_bytes.tolist() == [40]
    assert (found.hosts_before_ns, found.hosts_ns) == (30, 80)
    assert (found.hosts["cnps"] - found.hosts_before["cnps"]).tolist() == [5]
    grown = found.values["priority.pausing_ns"] - found.before["priority.pausing_ns"]
    assert grown.tolist() == [1]


def test_readings_off_their_time_are_counted(tmp_path, wall, shown):
    observer = LiveObserver(tmp_path, TRIAL, lambda: 0, clock=wall)
    for tick, late_ns in ((1, 0), (2, 40_000), (3, 60_000), (4, -60_000)):
        wall.now_s += 1
        observer.observed(reading(tick, late_ns=late_ns))
    assert shown().late_samples == 2


def test_where_no_wall_clock_can_be_read_samples_are_counted(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("collectors.snapshot.write_whole", lambda path, data: written.append(data))
    long = dataclasses.replace(TRIAL, duration_ns=5_000 * PERIOD_NS)

    def no_clock():
        raise AssertionError("the wall's clock was read")

    observer = LiveObserver(tmp_path, long, lambda: 0, by_samples=True, clock=no_clock)
    for tick in range(1, 2 * 5_000):  # as long a drain as the traffic was
        observer.observed(reading(tick))
    assert 50 <= len(written) <= 200
    assert decode_snapshot(written[0]).samples == 1


def test_a_trial_goes_on_where_no_snapshot_can_be_written(tmp_path):
    observer = LiveObserver(tmp_path / "gone", TRIAL, lambda: 0, by_samples=True)
    for tick in range(1, 100):
        observer.observed(reading(tick))
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "x"
    write_whole(path, b"old")
    with path.open("rb") as before:
        write_whole(path, b"newer")
        assert before.read() == b"old"
    assert path.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("damage", [b"", b"CLOSLIVE", b"PAR1" * 40])
def test_what_is_no_snapshot_is_refused(damage):
    with pytest.raises(SnapshotError):
        decode_snapshot(damage)


def test_a_truncated_or_newer_snapshot_is_refused(tmp_path, shown):
    LiveObserver(tmp_path, TRIAL, lambda: 0).observed(reading(1))
    data = (tmp_path / SNAPSHOT_FILE).read_bytes()
    for bad in (data[:-8], data + b"12345678", data.replace(b'"format":3', b'"format":4')):
        with pytest.raises(SnapshotError):
            decode_snapshot(bad)


def test_watching_changes_no_result(tmp_path, monkeypatch):
    testbed = load_testbed("rlcc-7")
    incast = IncastSpec(6, 500_000, 100 * PERIOD_NS, 0, PERIOD_NS)
    spec = dataclasses.replace(TRIAL, testbed="rlcc-7", tuner=TunerSpec("amt"), traffic=(incast,))
    spec = dataclasses.replace(spec, drain_ns=100 * PERIOD_NS)
    schedule = make_schedule(spec, testbed)

    def outcome():
        record = FluidBackend().run(TrialRun(spec, testbed, schedule, tmp_path))
        tables = {"flows": record.flows, **record.samples, **record.changes}
        return flattened({name: vars(table) for name, table in tables.items()})

    monkeypatch.setattr("collectors.snapshot.EVERY_S", 0.0)
    watched = outcome()
    assert (tmp_path / SNAPSHOT_FILE).exists()
    monkeypatch.setattr(LiveObserver, "observed", lambda *_: None)
    monkeypatch.setattr(LiveObserver, "applied", lambda *_: None)
    for key, values in outcome().items():
        assert np.array_equal(values, watched[key]), key
