"""Flows out of captures, nfdump's CSV, sflowtool's lines and CSV files."""

import csv
import gzip
import struct

import pytest

from inventory.files import load_testbed
from orchestration.core.errors import InputError
from orchestration.exchange.replay_file import kind_of, read_hosts, read_records, write_replay
from traffic.patterns.replay import read_flows

MS = 1_000_000
BASE_NS = 1_700_000_000 * 10**9
SYN, ACK = 0x02, 0x10


def segment(src, dst, sport, payload, sequence, flags=ACK, options=12):
    """An Ethernet frame of TCP from 10.0.0.src to 10.0.0.dst, its payload as zeros."""
    tcp = struct.pack(
        "!HHIIBBHHH", sport, 5001, sequence % 2**32, 0, (20 + options) << 2, flags, 0, 0, 0
    ) + bytes(options)
    return ip4(src, dst, 6, tcp + bytes(payload))


def datagram(src, dst, sport, payload, dport=5001):
    return ip4(src, dst, 17, struct.pack("!HHHH", sport, dport, 8 + payload, 0) + bytes(payload))


def ip4(src, dst, protocol, rest, ethertype=b"\x08\x00"):
    addresses = bytes((10, 0, 0, src, 10, 0, 0, dst))
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(rest), 0, 0, 64, protocol, 0)
    return bytes(12) + ethertype + head + addresses + rest


def pcap(packets, cut=65535, link=1, nano=True, order="<"):
    """A capture of (ns, frame)s, each cut to so many bytes."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, cut, link)
    for t_ns, frame in packets:
        sub = t_ns % 10**9 if nano else t_ns % 10**9 // 1000
        data += struct.pack(order + "IIII", t_ns // 10**9, sub, len(frame[:cut]), len(frame))
        data += frame[:cut]
    return data


def pcapng(packets):
    """The same with blocks, times in ns (if_tsresol 9)."""

    def block(kind, body):
        body += bytes(-len(body) % 4)
        length = len(body) + 12
        return struct.pack("<II", kind, length) + body + struct.pack("<I", length)

    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    options = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)
    data += block(1, struct.pack("<HHI", 1, 0, 65535) + options)
    for t_ns, frame in packets:
        head = struct.pack("<IIIII", 0, t_ns >> 32, t_ns & 0xFFFFFFFF, len(frame), len(frame))
        data += block(6, head + frame)
    return data


@pytest.fixture
def replay(tmp_path):
    def run(data, name="a.pcap", kind="", idle_ns=None, hosts=None, mapping=None, **more):
        path, out = tmp_path / name, tmp_path / "flows.csv"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        if mapping is not None:
            (tmp_path / "map.yml").write_text(mapping)
            mapping = tmp_path / "map.yml"
        found, named = read_records(path, kind or kind_of(path), idle_ns, mapping, **more)
        done = write_replay(out, found, load_testbed("graphcc"), hosts or named or None)
        with out.open() as file:
            rows = [tuple(row.values()) for row in csv.DictReader(file)]
        return done, rows

    return run


def stream(src, dst, sport, start_ns, payloads, first=1000, gap_ns=1000):
    """A connection's segments in one direction, one a gap."""
    sequence, found = first, [(start_ns, segment(src, dst, sport, 0, first - 1, SYN))]
    for number, payload in enumerate(payloads):
        t_ns = start_ns + (number + 1) * gap_ns
        found.append((t_ns, segment(src, dst, sport, payload, sequence)))
        sequence += payload
    return found


TWO = sorted(
    stream(1, 2, 7000, BASE_NS, [1448, 1448, 104])
    + stream(2, 1, 5001, BASE_NS + 500, [0, 0])
    + stream(3, 4, 7001, BASE_NS + 50_000, [10]),
    key=lambda item: item[0],
)
WANTED = [("0", "h1", "h2", "3000", "tcp"), ("50000", "h3", "h4", "10", "tcp")]


@pytest.mark.parametrize(
    "data",
    [
        pcap(TWO),
        pcap(TWO, cut=68),
        pcap(TWO, nano=False),
        pcap(TWO, order=">"),
        pcapng(TWO),
        gzip.compress(pcap(TWO)),
        pcap([(t, frame[:12] + b"\x81\x00\x00\x05" + frame[12:]) for t, frame in TWO]),
        pcap([(t, frame[14:]) for t, frame in TWO], link=101),
        pcap([(t, bytes(14) + frame[12:]) for t, frame in TWO], link=113),
    ],
    ids=["ns", "cut", "us", "big-endian", "pcapng", "gzip", "vlan", "raw", "cooked"],
)
def test_a_capture_becomes_flows_of_payload(replay, data):
    done, rows = replay(data)
    assert rows == WANTED
    assert any("1 flows carry no payload" in note for note in done.notes)


def test_what_is_sent_or_seen_twice_counts_once(replay):
    again = [TWO[2], *TWO, (TWO[-1][0] + 5, TWO[2][1])]
    assert replay(pcap(sorted(again, key=lambda item: item[0])))[1] == WANTED


def test_sequence_numbers_wrap(replay):
    packets = stream(1, 2, 7000, BASE_NS, [1448] * 10, first=2**32 - 5000)
    assert replay(pcap(packets))[1] == [("0", "h1", "h2", "14480", "tcp")]


def test_silence_ends_a_flow(replay):
    packets = stream(1, 2, 7000, BASE_NS, [100] * 4, gap_ns=20 * MS)
    assert len(replay(pcap(packets))[1]) == 1


def test_a_shorter_silence_if_asked_for(replay):
    packets = stream(1, 2, 7000, BASE_NS, [100] * 4, gap_ns=20 * MS)
    rows = replay(pcap(packets), idle_ns=10 * MS)[1]
    assert [row[0] for row in rows] == ["0", "20000000", "40000000", "60000000"]


def test_datagrams_are_added_up_and_others_counted(replay):
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    fragment = bytearray(datagram(1, 2, 9, 500))
    fragment[20:22] = b"\x00\x10"
    packets = [(BASE_NS, datagram(1, 2, 9, 500)), (BASE_NS + 1, datagram(1, 2, 9, 700))]
    packets += [(BASE_NS + 2, arp), (BASE_NS + 3, bytes(fragment))]
    done, rows = replay(pcap(packets))
    assert rows == [("0", "h1", "h2", "1200", "udp")]
    assert any(note.startswith("1 packets are not IP") for note in done.notes)
    assert any(note.startswith("1 packets are later fragments") for note in done.notes)


def test_ip_version_6(replay):
    udp = struct.pack("!HHHH", 9, 9, 108, 0) + bytes(100)
    head = struct.pack("!IHBB", 6 << 28, len(udp), 17, 64)
    ends = bytes(15) + b"\x01" + bytes(15) + b"\x02"
    done, rows = replay(pcap([(BASE_NS, bytes(12) + b"\x86\xdd" + head + ends + udp)]))
    assert rows == [("0", "h1", "h2", "100", "udp")]
    assert done.hosts == {"::1": "h1", "::2": "h2"}


def test_hosts_by_a_file_and_flows_from_elsewhere_are_counted(replay, tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text("10.0.0.1: h7\n10.0.0.2: h8\n")
    hosts = read_hosts(path, load_testbed("graphcc"))
    done, rows = replay(pcap(TWO), hosts=hosts)
    assert rows == [("0", "h7", "h8", "3000", "tcp")]
    assert (done.dropped_flows, done.assigned) == (1, False)
    assert done.dropped == {"10.0.0.3": 1, "10.0.0.4": 1}


def test_more_addresses_than_hosts(replay):
    packets = [p for n in range(1, 31) for p in stream(n, n + 1, 7000, BASE_NS + n * 10**5, [10])]
    done, rows = replay(pcap(packets))
    assert (len(rows), done.dropped_flows) == (23, 7)
    assert done.hosts["10.0.0.24"] == "h24"


def test_the_file_is_one_that_replays_read(replay, tmp_path):
    replay(pcap(TWO))
    assert len(read_flows(str(tmp_path / "flows.csv"))) == 2


def record(ts, duration, ends, protocol, packets, size, back="0,0"):
    """A line of `nfdump -o csv`."""
    start = f"{ts},2026-09-01 10:00:10,{duration},{ends},{protocol},.AP.SF"
    return f"{start},0,0,{packets},{size},{back},1,2\n"


NFDUMP = (
    "ts,te,td,sa,da,sp,dp,pr,flg,fwd,stos,ipkt,ibyt,opkt,obyt,in,out\n"
    + record("2026-09-01 10:00:00.250", "5.000", "10.0.0.1,10.0.0.2,5,80", "TCP", 10, 12000)
    + record(
        "2026-09-01 10:00:07.000", "2.0", "10.0.0.1,10.0.0.2,5,80", "TCP", 10, 12000, "8,64000"
    )
    + record("2026-09-01 10:00:08", "0.000", "10.0.0.3,10.0.0.4,4000,4792", "UDP", 1, 1028)
    + record("2026-09-01 10:00:08", "0.000", "10.0.0.3,10.0.0.4,0,8.0", "ICMP", 1, 84)
    + record("2026-09-01 10:00:08.5", "0.000", "10.0.0.2,10.0.0.9,80,4000", "TCP", 2, 104)
    + "Summary\nflows,bytes,packets,avg_bps,avg_pps,avg_bpp\n5,89216,32,0,0,0\n"
)
SHORT = """\
firstSeen,duration,proto,srcAddr,srcPort,dstAddr,dstPort,packets,bytes,flows
2026-09-01 10:00:00.250,5.000,TCP,10.0.0.1,51514,10.0.0.2,80,10,12000,1
"""


def test_nfdumps_csv(replay):
    done, rows = replay(NFDUMP, "a.csv")
    assert rows == [
        ("0", "h1", "h2", str(24_000 - 20 * 52), "tcp"),
        ("6750000000", "h2", "h1", str(64_000 - 8 * 52), "tcp"),
        ("7750000000", "h3", "h4", "1000", "udp"),
    ]
    notes = " ".join(done.notes)
    for said in ("payload is estimated", "1 records continue", "1 records are neither", "1 starts"):
        assert said in notes
    assert "1 flows carry no payload" in notes


def test_nfdumps_shorter_csv(replay):
    assert replay(SHORT, "a.csv")[1] == [("0", "h1", "h2", str(12_000 - 520), "tcp")]


def sample(agent, second, frame, rate=10):
    text = "-".join(f"{byte:02X}" for byte in frame[:128])
    return (
        f"startDatagram =================================\nunixSecondsUTC {second}\n"
        f"datagramVersion 5\nagent {agent}\nstartSample ----------------------\n"
        f"sampleType FLOWSAMPLE\nmeanSkipCount {rate}\nheaderProtocol 1\n"
        f"sampledPacketSize {len(frame) + 4}\nstrippedBytes 4\nheaderBytes {text}\n"
        "endSample   ----------------------\nendDatagram   =================================\n"
    )


def test_sflow_samples_are_scaled_and_counted_at_one_switch(replay):
    big = segment(1, 2, 7000, 1448, 1)
    text = sample("10.9.0.1", 100, big) + sample("10.9.0.2", 100, big)
    text += sample("10.9.0.1", 101, big) + sample("10.9.0.1", 102, segment(2, 1, 5001, 0, 1))
    text += sample("10.9.0.1", 200, big, rate=20)
    done, rows = replay(text, "a.txt")
    assert rows == [
        ("0", "h1", "h2", str(2 * 1448 * 10), "tcp"),
        ("100000000000", "h1", "h2", str(1448 * 20), "tcp"),
    ]
    assert any("1 in 10, 20" in note for note in done.notes)
    assert any("to a second only" in note for note in done.notes)


def test_a_csv_of_flows(replay):
    mapping = (
        "testbed: graphcc\nhosts: {a: h1, b: h2}\ncolumns:\n  src: from\n  dst: to\n"
        "  bytes: {column: size, unit: KB}\n  start: {column: at, unit: ms}\n"
    )
    table = "from,to,size,at\nb,a,2,7\na,b,1.5,5\na,x,1,5\n"
    done, rows = replay(table, "a.csv", kind="csv", mapping=mapping)
    assert rows == [("0", "h1", "h2", "1500", "all"), ("2000000", "h2", "h1", "2000", "all")]
    assert done.dropped == {"x": 1}


CUT = pcap(TWO)
BACK = [*TWO, (BASE_NS - 2 * 10**9, TWO[0][1])]
BAD = {
    "cut-packet": (CUT[:-5], "a.pcap", "", "packet 9: the capture is cut off"),
    "cut-header": (CUT + b"\0" * 7, "a.pcap", "", "packet 9: .* cut off"),
    "cut-block": (pcapng(TWO)[:-5], "a.pcap", "", "packet 8: the capture is cut off"),
    "clock": (pcap(BACK), "a.pcap", "", "packet 10: the clock jumps back by 2"),
    "link": (pcap(TWO, link=105), "a.pcap", "", "link type 105"),
    "magic-only": (CUT[:10], "a.pcap", "", "is not a capture"),
    "text": ("hello\n", "a.txt", "", "is neither a capture, nfdump's CSV nor"),
    "kind": (CUT, "a.pcap", "pcap", "unknown kind 'pcap'"),
    "no-mapping": ("a,b\n", "a.csv", "csv", "says which column"),
    "nothing": (pcap([]), "a.pcap", "", "no flow is left"),
    "nfdump-row": (NFDUMP.replace(",12000,0,0,1,2", "", 1), "a.csv", "", "a.csv:2: has 12 cells"),
    "nfdump-time": (NFDUMP.replace("10:00:07.000", "noon"), "a.csv", "", "a.csv:3: .* not a time"),
    "nfdump-bytes": (NFDUMP.replace("12000", "1.2 K"), "a.csv", "", "a.csv:2: '1.2 K' is not"),
    "nfdump-header": ("ts,te\n", "a.csv", "", "a.csv:1: is not the header"),
    "sflow-back": (
        sample("s", 9, TWO[1][1]) + sample("s", 8, TWO[1][1]),
        "a.txt",
        "",
        "jumps back by 1 s",
    ),
    "sflow-line": ("unixSecondsUTC 5\nFLOW,1.2.3.4,1,2\n", "a.txt", "", "not sflowtool's plain"),
    "sflow-hex": (
        sample("s", 9, b"").replace("headerBytes ", "headerBytes zz"),
        "a.txt",
        "",
        "not a packet in hex",
    ),
    "sflow-none": ("unixSecondsUTC 5\nifIndex 7\n", "a.txt", "", "has no sampled packets"),
    "sflow-cut": (sample("s", 9, TWO[1][1])[:-1], "a.txt", "", "the last line has no line break"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_leaves_nothing(replay, tmp_path, name):
    data, file, kind, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        replay(data, file, kind=kind)
    assert all(problem.remedy for problem in caught.value.problems)
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.1: h77\n", "10.0.0.1 is 'h77'"),
        ("10.0.0.1: h1\n10.0.0.1: h2\n", "hosts.yml:2: "),
    ],
)
def test_a_bad_file_of_hosts(tmp_path, text, message):
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_hosts(path, load_testbed("graphcc"))


def test_a_file_that_is_there_is_not_written_over(replay):
    replay(pcap(TWO))
    with pytest.raises(InputError, match="is there already"):
        replay(pcap(TWO))
