"""What becomes of changes: read back from Linux, requested of SONiC's ASICs."""

import numpy as np

from orchestration.backends.hardware.switches import ReadBack
from orchestration.core.knobs import ECN


def asked(kmin, kmax, pmax):
    return ECN.change(np.array([0, 1]), *(np.array([one, one]) for one in (kmin, kmax, pmax)))


def found(*queues):
    return np.array(queues, dtype=np.float64).T


def test_an_asic_is_never_counted_as_read_back():
    back = ReadBack(["linux", "asic"], np.array([True, False]))
    back.compare(asked(5000, 50_000, 0.2), found((5000, 50_000, 0.2), (5000, 50_000, 0.2)))
    assert back.facts() == {"equal": 1, "requested": 1, "wrong": 0}
    assert back.findings() == []


def test_sonics_whole_percent_and_one_byte_are_requests_and_for_linux_are_wrong():
    back = ReadBack(["linux", "asic"], np.array([True, False]))
    back.compare(asked(0, 0, 0.014), found((1, 1, 0.01), (1, 1, 0.01)))
    assert back.facts() == {"equal": 0, "requested": 1, "wrong": 1}
    assert "linux was asked for kmin 0" in back.findings()[0]["text"]


def test_a_request_that_is_not_the_one_asked_for_is_wrong_however_near():
    """What an ASIC would round to is not what ASIC_DB may hold."""
    back = ReadBack(["linux", "asic"], np.array([True, False]))
    back.compare(asked(5000, 50_000, 0.2), found((5000, 50_000, 0.2), (5120, 50_176, 0.2)))
    assert back.facts()["wrong"] == 1
    (finding,) = back.findings()
    assert finding["text"].endswith("and was requested to have 5120, 50176, 0.2")
