"""The frames that Scapy builds, what is asked of hosts, and what becomes of flows."""

import base64
import dataclasses
import json
import struct
import zlib

import pytest

from inventory.files import load_testbed
from orchestration.agent.senders import frames as incast
from orchestration.agent.senders.frames import MARK
from orchestration.core.status import DONE, FAILED, UNFINISHED
from traffic.drivers.programs import Flow, Output
from traffic.drivers.scapy_incast import ScapyIncast, build, queue_pair

FLOW = Flow(9, 1_000, "h1", "h2", 2_500, "10.1.0.1", "10.2.0.1", 20_003, tos=104)


def output(result=None, exit_code=0, **changes):
    stdout = json.dumps(result) if result is not None else ""
    return dataclasses.replace(Output(exit_code, stdout, "", 5_000, 900_000), **changes)


def test_a_flow_is_cut_into_frames_whose_payloads_have_its_bytes():
    frames = build(FLOW, {"payload": 1000})
    assert frames.packets == 3
    assert [len(frame) for frame in (*frames.cycle, frames.last)] == [1042, 1042, 542]


def test_a_udp_frame_has_the_right_headers():
    frame = build(FLOW, {"payload": 1000}).cycle[1]
    assert frame[:14] == bytes(12) + b"\x08\x00"
    version, tos, length, number = struct.unpack_from(">BBHH", frame, 14)
    assert (version, tos, length, number) == (0x45, 104 | 2, 1028, 1)
    assert frame[26:34] == bytes([10, 1, 0, 1, 10, 2, 0, 1])
    assert struct.unpack_from(">HHH", frame, 34) == (0xC000 + 9, 20_003, 1008)
    assert frame[42:47] == MARK + b"\0"


@pytest.mark.parametrize(("ecn", "bits"), [("none", 0), ("ect1", 1), ("ect0", 2)])
@pytest.mark.parametrize("shape", ["udp", "roce"])
def test_ecn_bits(shape, ecn, bits):
    frames = build(FLOW, {"shape": shape, "ecn": ecn})
    assert {frame[15] for frame in (*frames.cycle, frames.last)} == {104 | bits}


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize("shape", ["udp", "roce"])
def test_headers_sum_up(shape):
    for frame in build(FLOW, {"shape": shape}).cycle:
        assert checksum(frame[14:34]) == 0xFFFF


def test_a_roce_frame_has_the_right_headers_and_icrc():
    flow = dataclasses.replace(FLOW, size_bytes=2_501)
    frames = build(flow, {"shape": "roce", "payload": 1000})
    assert [len(frame) for frame in (*frames.cycle, frames.last)] == [1058, 1058, 562]
    for psn, frame in enumerate((*frames.cycle, frames.last)):
        assert struct.unpack_from(">HHHH", frame, 34) == (0xC000 + 9, 4791, len(frame) - 34, 0)
        opcode, flags, pkey, pair, acked, number = struct.unpack_from(">BBHIB3s", frame, 42)
        pads = 3 if psn == 2 else 0
        assert (opcode, flags, pkey, pair) == (0x04, pads << 4, 0xFFFF, queue_pair(flow))
        assert (acked >> 7, int.from_bytes(number, "big")) == (int(psn == 2), psn)
        assert frame[54:59] == MARK + bytes([psn == 2])
        assert frame[-4:] == struct.pack("<I", icrc(frame))


def icrc(frame):
    """The invariant CRC by the letter: fields that routers change count as ones."""
    packet = bytearray(b"\xff" * 8 + frame[14:-4])
    for at in (1, 8, 10, 11, 26, 27, 32):  # type of service, TTL, checksums, FECN and BECN
        packet[8 + at] = 0xFF
    return zlib.crc32(packet)


def test_distinct_frames_are_sent_in_turn():
    long = dataclasses.replace(FLOW, size_bytes=1_000_000)
    frames = build(long, {"payload": 1000, "distinct": 8})
    assert (len(set(frames.cycle)), frames.packets) == (8, 1000)


@pytest.mark.parametrize("size", [1, 8, 1000])
def test_a_flow_of_one_frame_sends_its_last(size):
    frames = build(dataclasses.replace(FLOW, size_bytes=size), {"payload": 1000})
    assert frames.packets == 1
    assert len(frames.last) == 42 + max(8, size)
    assert frames.last[46] == 1


@pytest.mark.parametrize("shape", ["udp", "roce"])
def test_what_is_asked_of_hosts(shape):
    server, client = ScapyIncast().launches(FLOW, {"shape": shape, "rate": 10**9})
    assert (server.host, server.operation, server.listens) == (
        "h2",
        "incast.receive",
        (("udp", 20_003),),
    )
    assert (client.host, client.operation, client.at_ns) == ("h1", "incast.send", 1_000)
    frames = build(FLOW, {"shape": shape})
    assert base64.b64decode(client.extra["last"]) == frames.last
    assert (client.extra["packets"], client.extra["rate"]) == (3, 10**9)
    assert server.extra["queue_pair"] == (queue_pair(FLOW) if shape == "roce" else None)
    json.dumps([dict(server.extra), dict(client.extra)])


def passes(code, frame):
    """Run a classic BPF program as the kernel does."""
    at = accumulator = 0
    while True:
        step, true, false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if step == 0x06:
            return bool(value)
        if step == 0x15:
            at += true if accumulator == value else false
        elif step == 0x54:
            accumulator &= value
        else:
            size = {0x20: 4, 0x28: 2, 0x30: 1}[step]
            if value + size > len(frame):
                return False
            accumulator = int.from_bytes(frame[value : value + size], "big")


@pytest.mark.parametrize("shape", ["udp", "roce"])
def test_receivers_count_the_frames_of_their_flow_only(shape):
    server, _ = ScapyIncast().launches(FLOW, {"shape": shape})
    frames = build(FLOW, {"shape": shape})
    sent = (*frames.cycle, frames.last)
    other = dataclasses.replace(FLOW, number=10, port=20_004)
    foreign = [*build(other, {"shape": shape}).cycle, bytes(60), b"", sent[0][:44]]
    foreign += build(dataclasses.replace(FLOW, src_address="10.1.0.2"), {"shape": shape}).cycle
    marked = [frame[:15] + bytes([frame[15] | 3]) + frame[16:] for frame in sent]
    codes = {
        name: incast._filter(dict(server.extra), marked=name == "marked", last=name == "last")
        for name in ("all", "marked", "last")
    }
    assert [passes(codes["all"], frame) for frame in (*sent, *marked)] == [True] * 6
    assert [passes(codes["marked"], frame) for frame in (*sent, *marked)] == [False] * 3 + [
        True
    ] * 3
    assert [passes(codes["last"], frame) for frame in sent] == [False, False, True]
    assert not any(passes(code, frame) for code in codes.values() for frame in foreign)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": "tcp"}, "give one of udp, roce"),
        ({"payload": 7}, "at least 8"),
        ({"ecn": "ce"}, "give one of none, ect1, ect0"),
        ({"burst": 3}, "unknown option"),
    ],
)
def test_wrong_options_are_named(options, said):
    assert any(said in problem.in_one_sentence for problem in ScapyIncast().check(options))
    assert ScapyIncast().check({"shape": "roce", "payload": 1024}) == []


@pytest.mark.parametrize("shape", ["udp", "roce"])
def test_the_largest_payload_that_is_taken_fills_the_testbeds_mtu(shape):
    testbed, driver = load_testbed("graphcc"), ScapyIncast()
    sizes = range(1400, testbed.mtu_bytes)
    taken = [n for n in sizes if not driver.check({"shape": shape, "payload": n}, testbed)]
    flow = dataclasses.replace(FLOW, size_bytes=100_000)
    frame = build(flow, {"shape": shape, "payload": taken[-1]}).cycle[0]
    assert len(frame) == 14 + testbed.mtu_bytes
    assert driver.check({"shape": shape, "payload": taken[-1] + 1}) == []


def test_a_flow_is_done_when_all_its_frames_came():
    server = output({"packets": 3, "ce_packets": 2, "last_after_ns": 400_000}, started_ns=1_000)
    outcome = ScapyIncast().outcome(FLOW, server, output({"packets": 3}))
    assert (outcome.status, outcome.sent_ns, outcome.end_ns) == (DONE, 5_000, 401_000)
    assert (outcome.retransmits, outcome.detail) == (0, "3 of 3 frames arrived, 2 marked CE")


@pytest.mark.parametrize(("came", "last_ns"), [(2, 400_000), (3, -1), (0, -1)])
def test_a_flow_with_lost_frames_is_not(came, last_ns):
    server = output({"packets": came, "ce_packets": 0, "last_after_ns": last_ns}, stopped=True)
    outcome = ScapyIncast().outcome(FLOW, server, output({"packets": 3}))
    assert (outcome.status, outcome.end_ns) == (UNFINISHED, -1)
    assert outcome.detail == f"{came} of 3 frames arrived, 0 marked CE"


@pytest.mark.parametrize(
    ("server", "client", "status", "said"),
    [
        (output({}), output({}, stopped=True), UNFINISHED, ""),
        (output({}), output(error="OSError: Message too long", exit_code=127), FAILED, "too long"),
        (
            output(error="PermissionError: no"),
            output({"packets": 3}),
            FAILED,
            "receiver: Permission",
        ),
        (output({"packets": 3}), output({"packets": 3}), FAILED, "no number ce_packets"),
        (output(), output({"packets": 3}), FAILED, "it printed nothing"),
    ],
)
def test_flows_of_ends_that_fail(server, client, status, said):
    outcome = ScapyIncast().outcome(FLOW, server, client)
    assert (outcome.status, outcome.end_ns) == (status, -1)
    assert said in outcome.detail
