"""What the recorder keeps is what it was told, over however many blocks."""

import numpy as np
import pytest

from collectors.recorder import Recorder
from orchestration.model.records import MISSING, Observation

QUEUES = 3
COUNTERS = ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets")


def reading(number, taken_ns=None):
    columns = [np.arange(QUEUES) + 10 * place + 100 * number for place in range(8)]
    return Observation(number, *columns, np.zeros(QUEUES), taken_ns=taken_ns)


@pytest.mark.parametrize("readings", [0, 1, 63, 64, 65, 200])
def test_every_reading_is_there_in_its_order(readings):
    recorder, told = Recorder(), [reading(number) for number in range(readings)]
    for one in told:
        recorder.observed(one)
    ports = recorder.ports(QUEUES)
    assert ports.t_ns.tolist() == list(range(readings))
    for name in COUNTERS:
        column = getattr(ports, name)
        assert column.shape == (readings, QUEUES)
        assert column.dtype == np.int64
        assert column.tolist() == [getattr(one, name).tolist() for one in told]


def test_what_changes_after_it_was_told_does_not_change_what_is_kept():
    recorder, one = Recorder(), reading(1)
    recorder.observed(one)
    kept = one.tx_bytes.tolist()
    one.tx_bytes[:] = 0
    assert recorder.ports(QUEUES).tx_bytes.tolist() == [kept]


def test_a_queue_that_shows_an_earlier_poll_again_has_nothing_new():
    recorder = Recorder()
    taken = [[-1, 5, 5], [7, 5, 6], [7, 8, 4]]
    for number, row in enumerate(taken):
        recorder.observed(reading(number, np.array(row)))
    gone = recorder.ports(QUEUES).qlen_bytes == MISSING
    assert gone.tolist() == [[True, False, False], [False, True, False], [True, False, True]]
