"""What the recorder keeps is what it was told, over however many blocks."""

import dataclasses

import numpy as np
import pytest

from collectors.recorder import Recorder
from inventory.files import load_testbed
from orchestration.core.knobs import ECN
from orchestration.core.records import MISSING, Applied, Observation

TESTBED = load_testbed("rlcc-7")
QUEUES = len(TESTBED.queues)
COUNTERS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")


def reading(number, taken_ns=None):
    values = {
        name: np.arange(QUEUES) + 100 * place + 1_000 * number
        for place, name in enumerate(COUNTERS)
    }
    return Observation(number, np.zeros(QUEUES, dtype=np.int64), values, taken_ns=taken_ns)


@pytest.mark.parametrize("readings", [0, 1, 63, 64, 65, 200])
def test_every_reading_is_there_in_its_order(readings):
    recorder, told = Recorder(TESTBED), [reading(number) for number in range(readings)]
    for one in told:
        recorder.observed(one)
    ports = recorder.samples()["queue"]
    assert ports.t_ns.tolist() == list(range(readings))
    for name in COUNTERS:
        column = getattr(ports, name)
        assert column.shape == (readings, QUEUES)
        assert column.dtype == np.int64
        assert column.tolist() == [getattr(one, name).tolist() for one in told]


def test_what_changes_after_it_was_told_does_not_change_what_is_kept():
    recorder, one = Recorder(TESTBED), reading(1)
    recorder.observed(one)
    kept = one.tx_bytes.tolist()
    one.tx_bytes[:] = 0
    assert recorder.samples()["queue"].tx_bytes.tolist() == [kept]


def test_a_queue_that_shows_an_earlier_poll_again_has_nothing_new():
    recorder = Recorder(TESTBED)
    taken = [[-1, 5, 5], [7, 5, 6], [7, 8, 4]]
    others = [9] * (QUEUES - 3)
    for number, row in enumerate(taken):
        recorder.observed(reading(number, np.array([*row, *others])))
    gone = recorder.samples()["queue"].qlen_bytes == MISSING
    assert gone[:, :3].tolist() == [[True, False, False], [False, True, False], [True, False, True]]
    assert gone[:, 3:].all(axis=1).tolist() == [False, True, True]


def test_a_signal_with_times_of_its_own_is_new_when_the_others_repeat():
    """A streamed depth beside counters that are polled every 100 ms, and one of unknown age."""
    recorder = Recorder(TESTBED)
    polled = np.full(QUEUES, 5)
    unknown = np.full(QUEUES, -(2**62))
    for number in range(3):
        one = reading(number, polled)
        depths = {"qlen_bytes": polled + number, "marked_packets": unknown}
        recorder.observed(dataclasses.replace(one, taken_by=depths))
    samples = recorder.samples()["queue"]
    gone = {name: (samples.values[name] == MISSING).all(axis=1).tolist() for name in COUNTERS}
    assert gone["qlen_bytes"] == [False, False, False]
    assert gone["tx_bytes"] == gone["dropped_packets"] == [False, True, True]
    assert gone["marked_packets"] == [True, True, True]


def test_what_a_backend_lacks_is_recorded_as_missing():
    recorder = Recorder(TESTBED)
    one = reading(1)
    less = {name: array for name, array in one.values.items() if name != "dropped_packets"}
    recorder.observed(dataclasses.replace(one, values=less))
    samples = recorder.samples()["queue"]
    assert set(samples.dropped_packets.ravel()) == {MISSING}
    assert samples.tx_bytes.tolist() == [one.tx_bytes.tolist()]


def test_changes_are_kept_target_by_target_in_their_order():
    recorder = Recorder(TESTBED)
    first = ECN.change([2, 0], [10, 20], [30, 40], [0.5, 1])
    recorder.applied(0, 0, Applied(7, (first,)))
    recorder.applied(100, 120, Applied(130))
    recorder.applied(200, 220, Applied(230, (ECN.change([1], 11, 12, 0.25),)))
    kept = recorder.changes()["ecn"]
    assert kept.observed_ns.tolist() == [0, 0, 200]
    assert kept.decided_ns.tolist() == [0, 0, 220]
    assert kept.applied_ns.tolist() == [7, 7, 230]
    assert kept.targets.tolist() == [2, 0, 1]
    assert kept.kmin_bytes.tolist() == [10, 20, 11]
    assert kept.kmax_bytes.tolist() == [30, 40, 12]
    assert kept.pmax.tolist() == [0.5, 1, 0.25]
    assert (kept.kmin_bytes.dtype, kept.pmax.dtype) == (np.int64, np.float64)


def test_without_changes_every_knob_has_an_empty_table():
    kept = Recorder(TESTBED).changes()["ecn"]
    assert len(kept.targets) == len(kept.kmin_bytes) == len(kept.pmax) == 0
    assert kept.kmin_bytes.dtype == np.int64
