"""Captures and flow records with more than plain TCP and UDP: read rightly, refused, or counted."""

import struct

import pytest

from orchestration.core.errors import InputError
from tests.unit.exchange.test_exchange_flows import (
    BASE_NS,
    MS,
    NFDUMP,
    SYN,
    datagram,
    ip4,
    pcap,
    pcapng,
    record,
    replay,
    sample,
    segment,
    stream,
)

__all__ = ["replay"]  # the fixture
PLAIN = stream(1, 2, 7000, BASE_NS, [1000, 500])
PLAIN_ROW = ("0", "h1", "h2", "1500", "tcp")


def ip6(kind, rest, length=None, extension=b""):
    """A frame of IPv6 from ::1 to ::2; `extension` are headers before the transport's `rest`."""
    body = extension + rest
    head = struct.pack("!IHBB", 6 << 28, len(body) if length is None else length, kind, 64)
    return bytes(12) + b"\x86\xdd" + head + bytes(15) + b"\x01" + bytes(15) + b"\x02" + body


def tcp(sequence, payload, flags=0x10):
    return struct.pack("!HHIIBBHHH", 7000, 5001, sequence, 0, 0x50, flags, 0, 0, 0) + bytes(payload)


def udp(dport, payload):
    return struct.pack("!HHHH", 50_000, dport, 8 + len(payload), 0) + payload


def of_ethertype(ethertype, rest):
    return bytes(12) + struct.pack("!H", ethertype) + rest


def without_length(frame):
    """The frame as a sender's capture has it where its NIC cuts segments: total length 0."""
    return frame[:16] + b"\0\0" + frame[18:]


def tagged(frame):
    return frame[:12] + b"\x81\x00\x00\x05" + frame[12:]


def cooked(frame):
    return bytes(14) + frame[12:]


def cooked2(frame):
    return frame[12:14] + bytes(18) + frame[14:]


def jumbo(length):
    """Hop-by-hop options with a jumbo payload's length."""
    return struct.pack("!BBBBI", 6, 0, 0xC2, 4, length)


BIG = 100_000
OFFLOADED = [
    (BASE_NS, segment(1, 2, 7000, 0, 99, SYN, options=0)),
    (BASE_NS + 1000, without_length(segment(1, 2, 7000, 60_000, 100, options=0))),
    (BASE_NS + 2000, without_length(segment(1, 2, 7000, 60_000, 60_100, options=0))),
    (BASE_NS + 3000, segment(1, 2, 7000, 1000, 120_100, options=0)),
]


@pytest.mark.parametrize(
    "data",
    [
        pcap(OFFLOADED),
        pcap(OFFLOADED, cut=128),
        pcapng(OFFLOADED),
        pcap([(t, tagged(frame)) for t, frame in OFFLOADED], cut=128),
        pcap([(t, tagged(tagged(frame))) for t, frame in OFFLOADED], cut=128),
        pcap([(t, cooked(frame)) for t, frame in OFFLOADED], cut=128, link=113),
        pcap([(t, cooked2(frame)) for t, frame in OFFLOADED], cut=128, link=276),
        pcap([(t, frame[14:]) for t, frame in OFFLOADED], cut=128, link=101),
    ],
    ids=["whole", "cut", "pcapng", "vlan", "two-vlans", "cooked", "cooked-2", "raw"],
)
def test_a_length_of_0_is_that_of_the_packet(replay, data):
    assert replay(data)[1] == [("0", "h1", "h2", "121000", "tcp")]


@pytest.mark.parametrize("cut", [65_535, 128])
@pytest.mark.parametrize(
    "frame",
    [
        ip6(6, tcp(100, BIG), length=0),
        ip6(0, tcp(100, BIG), length=0, extension=jumbo(8 + 20 + BIG)),
        # the jumbo option counts, even where the link adds a trailer
        ip6(0, tcp(100, BIG), length=0, extension=jumbo(8 + 20 + BIG)) + bytes(7),
        ip6(0, tcp(100, BIG), length=0, extension=b"\x06\x01\x00\x01\x01\x00" + b"\xc2\x04" +
            struct.pack("!I", 16 + 20 + BIG) + b"\x01\x02\x00\x00"),
        ip6(17, struct.pack("!HHHH", 9, 9, 0, 0) + bytes(BIG), length=0),
    ],
    ids=["without-option", "option", "trailer", "later-option", "datagram"],
)  # fmt: skip
def test_big_segments_of_ip_version_6(replay, frame, cut):
    ((*_, size, _),) = replay(pcap([(BASE_NS, frame)], cut=cut))[1]
    assert size == str(BIG)


def test_a_cooked_packet_with_a_vlan_is_read(replay):
    frames = [(t, b"\x81\x00" + bytes(18) + b"\x00\x05" + frame[12:]) for t, frame in PLAIN]
    assert replay(pcap(frames, link=276))[1] == [PLAIN_ROW]


INNER = segment(1, 2, 7000, 1000, 1)
BTH = bytes(16)
ROCE = ip4(1, 2, 17, udp(4791, BTH + bytes(1024)))
VXLAN = ip4(1, 2, 17, udp(4789, b"\x08" + bytes(7) + INNER))


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (ROCE, "roce"),
        (tagged(ROCE), "roce"),
        (ip6(17, udp(4791, BTH)), "roce"),
        (of_ethertype(0x8915, bytes(60)), "roce"),
        (tagged(of_ethertype(0x8915, bytes(60))), "roce"),
        (VXLAN, "tunnels"),
        (VXLAN[:42], "tunnels"),
        (ip4(1, 2, 17, udp(8472, b"\x08" + bytes(7) + INNER)), "tunnels"),
        (ip4(1, 2, 17, udp(6081, b"\0\0\x65\x58" + bytes(4) + INNER)), "tunnels"),
        (ip4(1, 2, 4, INNER[14:]), "tunnels"),
        (ip4(1, 2, 41, INNER[14:]), "tunnels"),
        (ip4(1, 2, 47, bytes(4) + INNER[14:]), "tunnels"),
        (ip4(1, 2, 50, bytes(80)), "tunnels"),
        (ip6(41, bytes(80)), "tunnels"),
        (of_ethertype(0x8847, b"\x00\x01\x01\x40" + INNER[14:]), "tunnels"),
        (of_ethertype(0x8864, b"\x11\0\0\1\0\0\0\x21" + INNER[14:]), "tunnels"),
    ],
    ids=[
        "v2",
        "v2-vlan",
        "v2-ip6",
        "v1",
        "v1-vlan",
        "vxlan",
        "vxlan-cut",
        "vxlan-linux",
        "geneve",
        "ip-in-ip",
        "ip6-in-ip",
        "gre",
        "esp",
        "ip6-in-ip6",
        "mpls",
        "pppoe",
    ],
)
@pytest.mark.parametrize("write", [pcap, pcapng])
def test_packets_whose_flows_would_be_wrong_are_refused_or_left_out(replay, write, frame, name):
    data = write([PLAIN[0], PLAIN[1], (BASE_NS + 1500, frame), *PLAIN[2:]])
    with pytest.raises(InputError, match=r"a\.pcap: packet 3: ") as caught:
        replay(data)
    (problem,) = caught.value.problems
    assert f"--without {name}" in problem.remedy
    done, rows = replay(data, without=[name])
    assert rows == [PLAIN_ROW]
    assert any(note.startswith("1 packets are") and "left out" in note for note in done.notes)


def test_another_use_of_a_tunnels_port_is_a_flow(replay):
    frame = ip4(1, 2, 17, udp(8472, b"\x01" + bytes(99)))
    assert replay(pcap([(BASE_NS, frame)]))[1] == [("0", "h1", "h2", "100", "udp")]


def test_ports_of_roces_answers_are_ordinary(replay):
    """It is sent to 4791 both ways; from 4791 comes what happens to have that port."""
    frame = ip4(1, 2, 17, struct.pack("!HHHH", 4791, 9, 108, 0) + bytes(100))
    assert replay(pcap([(BASE_NS, frame)]))[1] == [("0", "h1", "h2", "100", "udp")]


def test_nothing_but_what_is_left_out(replay):
    with pytest.raises(InputError, match=r"no flow is left of 1 packets: 1 packets are RoCE"):
        replay(pcap([(BASE_NS, ROCE)]), without=["roce"])


@pytest.mark.parametrize("name", ["rocee", "tcp"])
def test_a_kind_that_there_is_not_cannot_be_left_out(replay, name):
    with pytest.raises(InputError, match="--without: unknown"):
        replay(pcap(PLAIN), without=[name])


@pytest.mark.parametrize(
    ("frame", "note"),
    [
        (of_ethertype(0x0806, bytes(28)), "not IP"),
        (bytes(12) + b"\x00\x26\xaa\xaa\x03" + bytes(40), "not IP"),
        (ip4(1, 2, 1, bytes(40)), "neither TCP nor UDP"),
        (ip4(1, 2, 132, bytes(40)), "neither TCP nor UDP"),
        (INNER[:30], "cut off within their headers"),
        (INNER[:45], "cut off within their headers"),
        (INNER[:16] + b"\x00\x1e" + INNER[18:], "of an impossible length"),
        (ip4(1, 2, 17, struct.pack("!HHHH", 9, 9, 3, 0)), "of an impossible length"),
        (ip6(44, bytes((17, 0, 0, 8)) + bytes(40)), "later fragments"),
    ],
    ids=["arp", "llc", "icmp", "sctp", "cut-ip", "cut-tcp", "short-ip", "short-udp", "fragment"],
)
def test_what_is_no_flow_is_counted_by_its_kind(replay, frame, note):
    done, rows = replay(pcap([*PLAIN, (BASE_NS + 9000, frame)]))
    assert rows == [PLAIN_ROW]
    assert any(said.startswith(f"1 packets are {note}") for said in done.notes)


def test_the_first_fragment_of_a_datagram_counts_for_all(replay):
    whole = struct.pack("!HHHH", 9, 9, 3008, 0) + bytes(1400)
    first = ip6(44, bytes((17, 0, 0, 1)) + bytes(4) + whole)
    assert replay(pcap([(BASE_NS, first)]))[1] == [("0", "h1", "h2", "3000", "udp")]


def test_what_is_sent_again_after_a_silence_counts_once(replay):
    """A tail's retransmission comes after a timeout, which is longer than the silence."""
    again = [
        (BASE_NS + 250 * MS, segment(1, 2, 7000, 500, 2000)),
        # one byte that a keep-alive sends again, and what is new then
        (BASE_NS + 600 * MS, segment(1, 2, 7000, 1, 2499)),
        (BASE_NS + 900 * MS, segment(1, 2, 7000, 700, 2400)),
    ]
    done, rows = replay(pcap([*PLAIN, *again]))
    assert rows == [PLAIN_ROW, ("899999000", "h1", "h2", "600", "tcp")]
    assert not any("SYN" in note for note in done.notes)


def test_a_later_connection_of_the_same_ports_is_another_flow(replay):
    later = stream(1, 2, 7000, BASE_NS + 50 * MS, [300], first=3_000_000_000)
    assert replay(pcap([*PLAIN, *later]))[1] == [
        PLAIN_ROW,
        ("50000000", "h1", "h2", "300", "tcp"),
    ]


def test_a_later_connection_whose_syn_is_missing_is_another_flow_too(replay):
    later = stream(1, 2, 7000, BASE_NS + 50 * MS, [300], first=2_000_000_000)[1:]
    done, rows = replay(pcap([*PLAIN, *later]))
    assert [row[3] for row in rows] == ["1500", "300"]
    assert any("1 flows continue at a sequence number" in note for note in done.notes)


def test_ports_used_anew_after_minutes_are_a_flow_of_their_own(replay):
    later = stream(1, 2, 7000, BASE_NS + 200_000 * MS, [300], first=1100)[1:]
    assert [row[3] for row in replay(pcap([*PLAIN, *later]))[1]] == ["1500", "300"]


def test_bytes_that_the_capture_lost_count_where_more_follows(replay):
    packets = stream(1, 2, 7000, BASE_NS, [1000] * 5)
    assert replay(pcap([*packets[:2], *packets[4:]]))[1][0][3] == "5000"


def test_a_connection_that_began_earlier_is_told(replay):
    done, rows = replay(pcap(PLAIN[1:]))
    assert rows == [PLAIN_ROW]
    assert any(note.startswith("1 TCP flows begin without a SYN") for note in done.notes)


def test_a_flow_starts_at_its_first_packet_even_if_that_is_written_later(replay):
    first = datagram(1, 2, 9, 10)
    packets = [
        (BASE_NS, datagram(3, 4, 9, 10)),
        (BASE_NS + 5000, first),
        (BASE_NS + 2000, first),
    ]
    assert [row[0] for row in replay(pcap(packets))[1]] == ["0", "2000"]


def test_numbers_before_the_first_that_wrap(replay):
    packets = [
        (BASE_NS, segment(1, 2, 7000, 100, 50)),
        (BASE_NS + 9, segment(1, 2, 7000, 100, -50)),
    ]
    assert replay(pcap(packets))[1][0][3] == "200"


def test_datagrams_that_may_be_seen_twice_are_told(replay):
    done, rows = replay(pcap([(BASE_NS, datagram(1, 2, 9, 10))] * 2))
    assert rows[0][3] == "20"
    assert any(note.startswith("1 flows are UDP: datagrams that were") for note in done.notes)


def test_packets_without_a_time_are_refused(replay):
    frame = PLAIN[1][1]
    body = struct.pack("<I", len(frame)) + frame + bytes(-len(frame) % 4)
    block = struct.pack("<II", 3, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    with pytest.raises(InputError, match="packet 4: has no time"):
        replay(pcapng(PLAIN) + block)


@pytest.mark.parametrize(
    ("ports", "protocol", "name"),
    [("4000,4791", "UDP", "roce"), ("4000,4789", "UDP", "tunnels"), ("0,0", "GRE", "tunnels")],
)
def test_records_whose_flows_would_be_wrong_are_refused_or_left_out(replay, ports, protocol, name):
    ends = f"10.0.0.3,10.0.0.4,{ports}"
    row = record("2026-09-01 10:00:08", "0.0", ends, protocol, 1, 99)
    text = NFDUMP.replace("Summary", row + "Summary")
    with pytest.raises(InputError, match=r"a\.csv:7: is ") as caught:
        replay(text, "a.csv")
    assert f"--without {name}" in caught.value.problems[0].remedy
    done, rows = replay(text, "a.csv", without=[name])
    assert len(rows) == 3
    assert any("left out" in note for note in done.notes)


def test_records_of_one_flow_at_the_same_time_are_reported(replay, tmp_path):
    ends = "10.0.0.1,10.0.0.2,5,80"
    twice = [
        record("2026-09-01 10:00:00", "5.000", ends, "TCP", 10, 12000),
        record("2026-09-01 10:00:00.001", "5.000", ends, "TCP", 10, 12000),
    ]
    done, _ = replay(NFDUMP.split("\n")[0] + "\n" + "".join(twice), "a.csv")
    assert any("1 of them begin before that record ends" in note for note in done.notes)
    (tmp_path / "flows.csv").unlink()
    done, _ = replay(NFDUMP, "a.csv")
    assert not any("begin before that record ends" in note for note in done.notes)


def test_samples_of_roce_are_refused_or_left_out(replay):
    text = sample("10.9.0.1", 100, INNER) + sample("10.9.0.1", 100, ROCE)
    with pytest.raises(InputError, match=r"a\.txt:\d+: is RoCE"):
        replay(text, "a.txt")
    assert len(replay(text, "a.txt", without=["roce"])[1]) == 1


def test_samples_are_of_the_protocol_and_the_length_that_their_lines_say(replay):
    text = sample("10.9.0.1", 100, without_length(segment(1, 2, 7000, 60_000, 1, options=0)))
    text += sample("10.9.0.1", 300, INNER[14:]).replace("headerProtocol 1\n", "headerProtocol 11\n")
    rows = replay(text, "a.txt")[1]
    assert [row[3] for row in rows] == ["600000", "10000"]
    with pytest.raises(InputError, match="header protocol 7"):
        replay(text.replace("headerProtocol 11", "headerProtocol 7"), "a.txt")


def test_a_table_has_no_packets_to_leave_out(replay):
    with pytest.raises(InputError, match="--without"):
        replay("a,b\n", "a.csv", kind="csv", mapping="testbed: graphcc\n", without=["roce"])
