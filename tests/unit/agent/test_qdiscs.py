"""The encoding of qdisc requests, against the bytes that earlier versions sent."""

import hashlib

import pytest

from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.qdiscs import Red

THRESHOLDS = (20_000, 80_000, 42_949_672)
OLD_KERNEL = Red(0, *THRESHOLDS[:2], 0, 0, 0, THRESHOLDS[2], 9, 0)
AVERAGED = Red(1_000_000, *THRESHOLDS[:2], 9, 3, 10, THRESHOLDS[2], 9, 15)


# The beginning of each request's SHA-256, recorded before requests had one encoder.
@pytest.mark.parametrize(
    ("request_", "recorded"),
    [
        (qdiscs.netem(7, 0x10000, qdiscs.TC_H_ROOT, 1_500), "82394de51084f56ce4372973"),
        (qdiscs.tbf(7, 0x20000, 0x10001, 25 * 10**9, 1614, 24), "c8096967d3d8bcd3c1dbfa14"),
        (qdiscs.tbf(7, 0x20000, 0x10001, 400 * 10**9, 9114, 24), "c14d4b583a868b84ff85a914"),
        (qdiscs.fair_queue(7, 0x30000, 0x20001), "0c7396eaa1d4032f5104185c"),
        (qdiscs.ets(7, 0x80000, 0x20001, (4, 2, 1), 1514), "2085719daaf8c62e778aefc6"),
        (qdiscs.red(7, 0x30000, 0x20001, *THRESHOLDS, 10**6), "423f1d81f2285060732eb56c"),
        (qdiscs.red_change(7, 0x30000, 0x20001, *THRESHOLDS), "1a6af56f69d25f68219bf625"),
        (qdiscs.red_request(7, 0x30000, 0x20001, OLD_KERNEL), "ca00f1bfc09a1f00cee99a3b"),
        (qdiscs.red_request(7, 0x30000, 0x20001, AVERAGED), "02c1e6bea670e8a24738f090"),
        (qdiscs.clsact(7), "9f8c98256d57584ce4d0010f"),
        (qdiscs.drop_arrivals(7), "e49b86835678ff3409b2077d"),
        (qdiscs.accept_arrivals(7), "943be6e3b6edb5773507e20c"),
    ],
)
def test_requests_are_what_they_were_to_the_byte(request_, recorded):
    assert hashlib.sha256(request_).hexdigest()[: len(recorded)] == recorded


def test_what_a_request_asks_for_is_decoded_as_it_was_meant():
    found = qdiscs.qdisc_of(qdiscs.red(7, 0x30000, 0x20001, *THRESHOLDS, 10**6)[16:])
    assert found[:4] == (7, 0x30000, 0x20001, "red")
    red = qdiscs.red_parameters(found.options)
    assert (red.kmin_bytes, red.kmax_bytes, red.max_p) == THRESHOLDS
    assert red.limit_bytes == 10**6
