"""The reader of RED queues, on dumps laid out as the kernel lays them out."""

import struct

import pytest

from collectors.readers.tc import ReaderError, RedReader

HANDLE = 0x30000


def attribute(kind, payload):
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + b"\0" * (-length % 4)


def qdisc(ifindex, kind, handle, values=None):
    options = stats = b""
    if values:
        parms = struct.pack("=IIIBBBB", 0, values["kmin"], values["kmax"], 0, 0, 0, 0)
        options = attribute(1, parms) + attribute(3, struct.pack("=I", values["max_p"]))
        basic = struct.pack("=QI", values["bytes"], values["packets"])
        queue = struct.pack("=IIIII", 1, values["backlog"], values["drops"], 0, 0)
        stats = attribute(1, basic + b"\0" * 4) + attribute(3, queue)
    extra = struct.pack("=IIII", 0, 0, 0, values["marked"] if values else 0)
    body = struct.pack("=BxxxiIII", 0, ifindex, handle, 0x20001, 2)
    body += attribute(1, kind.encode() + b"\0") + attribute(2, options)
    body += attribute(7, stats) + attribute(4, extra)
    return struct.pack("=IHHII", 16 + len(body), 36, 2, 1, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def stamped(data, number):
    """The messages with the request's number."""
    made, at = bytearray(data), 0
    while at < len(made):
        struct.pack_into("=I", made, at + 8, number)
        at += (struct.unpack_from("=I", made, at)[0] + 3) & ~3
    return made


class Netlink:
    """Answers each request with the next of its dumps, in pieces."""

    def __init__(self, *dumps):
        self.dumps = list(dumps)
        self.pieces = []
        self.calls = self.number = 0

    def send(self, request):
        self.calls += 1
        (self.number,) = struct.unpack_from("=I", request, 8)
        self.pieces = list(self.dumps.pop(0) if len(self.dumps) > 1 else self.dumps[0])

    def recvmsg_into(self, buffers):
        self.calls += 1
        piece = stamped(self.pieces.pop(0), self.number)
        buffers[0][: len(piece)] = piece
        return len(piece), [], 0, None


def reader(places, *sockets):
    return RedReader(sockets, [place if len(place) == 3 else (*place, HANDLE) for place in places])


def values(**changes):
    base = {
        "kmin": 5_000, "kmax": 200_000, "max_p": 1 << 30, "bytes": 10**12, "packets": 100,
        "backlog": 3_028, "drops": 0, "marked": 7,
    }  # fmt: skip
    return {**base, **changes}


def dump(*queues):
    other = qdisc(99, "tbf", 0x20000)
    return other + b"".join(qdisc(index, "red", HANDLE, value) for index, value in queues)


def test_counters_of_all_queues_in_the_order_asked_for():
    one = Netlink([dump((5, values()), (6, values(backlog=0, marked=8))) + DONE])
    two = Netlink([dump((7, values(bytes=2**33 + 5))), DONE])
    reading = reader([(1, 7), (0, 6), (0, 5)], one, two).read()
    assert reading.tx_bytes.tolist() == [2**33 + 5, 10**12, 10**12]
    assert reading.qlen_bytes.tolist() == [3_028, 0, 3_028]
    assert reading.marked_packets.tolist() == [7, 8, 7]
    assert reading.kmin_bytes.tolist() == [5_000] * 3


def test_several_queues_of_a_port_are_told_apart_by_their_handles():
    second = HANDLE + 0x10000
    dump_of_both = qdisc(5, "red", second, values(backlog=2, kmin=7)) + dump((5, values(backlog=1)))
    netlink = Netlink([dump_of_both + DONE], [dump_of_both + DONE])
    queues = reader([(0, 5), (0, 5, second)], netlink)
    for _ in range(2):
        reading = queues.read()
        assert reading.qlen_bytes.tolist() == [1, 2]
        assert reading.kmin_bytes.tolist() == [5_000, 7]


def test_a_pass_takes_two_calls_a_namespace():
    netlink = Netlink([dump((5, values())) + DONE])
    queues = reader([(0, 5)], netlink)
    queues.read()
    netlink.calls = 0
    queues.read()
    assert netlink.calls == 2


def test_32_bit_counters_go_on_beyond_their_end():
    passes = [[dump((5, values(marked=m, packets=m))) + DONE] for m in (2**32 - 2, 3, 10)]
    counters = reader([(0, 5)], Netlink(passes[0], *passes))  # the first pass learns the places
    seen = [counters.read() for _ in passes]
    assert [int(r.marked_packets[0]) for r in seen] == [2**32 - 2, 2**32 + 3, 2**32 + 10]
    assert [int(r.tx_packets[0]) for r in seen] == [2**32 - 2, 2**32 + 3, 2**32 + 10]


def test_a_dump_that_changes_its_layout_is_read_anew():
    first = dump((5, values(backlog=1)), (6, values(backlog=2)))
    second = dump((6, values(backlog=4)), (5, values(backlog=3)))
    queues = reader([(0, 5), (0, 6)], Netlink([first + DONE], [first + DONE], [second + DONE]))
    assert queues.read().qlen_bytes.tolist() == [1, 2]
    assert queues.read().qlen_bytes.tolist() == [3, 4]


def test_a_missing_queue_and_a_refusal_are_errors():
    with pytest.raises(ReaderError, match="no red queue 0x30000 at interface 6 of namespace 0"):
        reader([(0, 6)], Netlink([dump((5, values())) + DONE])).read()
    refused = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)
    with pytest.raises(OSError, match="refused"):
        reader([(0, 5)], Netlink([refused])).read()
