"""iperf3's output, recorded from the real program (tests/hardware/recorded/iperf3)."""

import dataclasses
import json
from pathlib import Path

import pytest

from orchestration.core.status import DONE, FAILED, UNFINISHED
from traffic.drivers.iperf3 import Iperf3, Transfer, explain, parse_json
from traffic.drivers.output import OutputError
from traffic.drivers.programs import Flow, Output

RECORDED = Path(__file__).parents[2] / "hardware" / "recorded" / "iperf3"
VERSIONS = ("3.12", "3.18", "3.22")
ALL = pytest.mark.parametrize("version", VERSIONS)
SIZE = 20 << 20
FLOW = Flow(3, 1_000, "h1", "h2", SIZE, "10.1.0.1", "10.2.0.1", 20_003, 104, "dctcp")


def read(name):
    return (RECORDED / name).read_text()


def output(stdout="", stderr="", exit_code=0, **changes):
    values = Output(exit_code, stdout, stderr, started_ns=5_000, ended_ns=3_000_000_000)
    return dataclasses.replace(values, **changes)


def test_json_in_numbers():
    assert parse_json(read("3.12-json-tcp.txt")) == Transfer(
        version="3.12",
        protocol="TCP",
        sent_bytes=SIZE,
        sender_ns=7_707_000,
        received_bytes=20_578_304,
        receiver_ns=11_270_000,
        retransmits=0,
        in_flight_bytes=3 * 2_226_422 + 2_690_048,
    )


@ALL
@pytest.mark.parametrize(("what", "size"), [("tcp", SIZE), ("tcp-parallel", 8 << 20)])
def test_json_of_tcp(version, what, size):
    moved = parse_json(read(f"{version}-json-{what}.txt"))
    assert (moved.version, moved.protocol) == (version, "TCP")
    assert size <= moved.sent_bytes < 1.1 * size
    assert 0 < moved.received_bytes <= moved.sent_bytes
    assert moved.duration_ns == moved.receiver_ns >= moved.sender_ns
    assert moved.retransmits >= 0
    assert moved.packets is None


@ALL
def test_json_of_udp(version):
    moved = parse_json(read(f"{version}-json-udp.txt"))
    assert moved.protocol == "UDP"
    assert (moved.retransmits, moved.lost_packets) == (None, 0)
    # before 3.16 the test ends with its bytes, then with its interval
    assert moved.packets == (16 if version == "3.12" else 191)
    assert moved.sent_bytes == moved.packets * 32768


@ALL
def test_json_in_reverse_counts_what_the_server_sent(version):
    assert parse_json(read(f"{version}-json-reverse.txt")).sent_bytes >= 8 << 20


@ALL
@pytest.mark.parametrize(
    ("what", "said", "remedy"),
    [
        ("refused", "unable to connect to server", "nothing listens"),
        ("busy", "the server is busy", "another flow"),
        ("cut", "control socket has closed unexpectedly", "server went away"),
        ("interrupted", "interrupt - the client has terminated", "client"),
        ("client-gone-server", "the client has terminated", "client"),
        ("unknown-host", "unable to connect", ""),
    ],
)
def test_errors_in_json(version, what, said, remedy):
    with pytest.raises(OutputError) as caught:
        parse_json(read(f"{version}-json-{what}.txt"))
    assert str(caught.value).startswith(f"iperf3: {said}")
    assert remedy in caught.value.remedy


@ALL
def test_errors_of_the_command_line(version):
    assert "unrecognized option '--nonsense'" in str(
        explain(read(f"{version}-json-bad-option.err"))
    )


@ALL
def test_cut_json_is_an_error_wherever_it_is_cut(version):
    text = read(f"{version}-json-tcp.txt")
    for end in range(0, len(text.rstrip()) - 1, 41):
        with pytest.raises(OutputError):
            parse_json(text[:end])


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", '{"end": 3}', '{"end": {"sum_sent": {}}}', "{"]
)
def test_foreign_output_is_an_error(text):
    with pytest.raises(OutputError, match=r"^iperf3: "):
        parse_json(text)


def test_a_number_that_is_none_is_an_error():
    text = read("3.22-json-tcp.txt")
    for wrong in ("NaN", "Infinity", '"many"', "null", "true"):
        with pytest.raises(OutputError):
            parse_json(text.replace('"bytes":\t20971520', f'"bytes":\t{wrong}'))


def test_commands_of_a_flow():
    server, client = Iperf3().launches(FLOW, {"streams": 2, "rate": 5_000_000_000})
    assert (server.host, server.listens, server.at_ns) == ("h2", (("tcp", 20003),), None)
    assert " ".join(server.argv) == (
        "iperf3 --server --one-off --bind 10.2.0.1 --port 20003 --json"
    )
    assert (client.host, client.at_ns) == ("h1", 1_000)
    assert " ".join(client.argv) == (
        "iperf3 --client 10.2.0.1 --bind 10.1.0.1 --port 20003 --bytes 20971520 --json "
        "--interval 0.1 --connect-timeout 5000 --bitrate 5000000000 --parallel 2 --tos 104 "
        "--congestion dctcp"
    )


def test_udp_takes_no_congestion_control():
    _, client = Iperf3().launches(FLOW, {"protocol": "udp", "rate": 10**9, "block": 1400})
    assert "--udp" in client.argv
    assert "--congestion" not in client.argv
    assert client.argv[-2:] == ("--length", "1400")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocol": "sctp"}, "give one of tcp, udp"),
        ({"protocol": "udp"}, "UDP needs a rate"),
        ({"protocol": "udp", "rate": 1, "congestion_control": "bbr"}, "leave it out"),
        ({"streams": 129}, "give at most 128"),
        ({"congestion_control": "a b"}, "letters"),
        ({"protocol": "udp", "rate": 10**9, "block": 65_508}, "16 to 65507 bytes"),
    ],
)
def test_wrong_options_are_named(options, said):
    assert any(said in problem.in_one_sentence for problem in Iperf3().check(options))
    assert Iperf3().check({"rate": 10**9, "streams": 4, "zerocopy": True}) == []


def test_a_flow_is_placed_before_the_end_of_its_client():
    outcome = Iperf3().outcome(FLOW, output(), output(read("3.12-json-tcp.txt")))
    assert (outcome.status, outcome.retransmits) == (DONE, 0)
    assert (outcome.sent_ns, outcome.end_ns) == (3_000_000_000 - 11_270_000, 3_000_000_000)
    assert outcome.detail == "its receiver stopped counting 393216 bytes before the end"


def edited(name, **values):
    """Return a recorded report with other numbers: `sum_received__bytes=1`."""
    report = json.loads(read(name))
    for path, value in values.items():
        part, _, key = path.partition("__")
        report["end"][part][key] = value
    return report


def outcome_of(report, size=SIZE):
    flow = dataclasses.replace(FLOW, size_bytes=size)
    return Iperf3().outcome(flow, output(), output(json.dumps(report)))


def test_what_the_buffers_cannot_have_held_at_the_end_has_failed():
    short = SIZE - (3 * 2_226_422 + 2_690_048)
    at_most = outcome_of(edited("3.12-json-tcp.txt", sum_received__bytes=short))
    assert (at_most.status, "stopped counting" in at_most.detail) == (DONE, True)
    beyond = outcome_of(edited("3.12-json-tcp.txt", sum_received__bytes=short - 1))
    assert beyond.status == FAILED
    assert f"{short - 1} of {SIZE} bytes arrived" in beyond.detail


def test_what_cannot_be_bounded_is_not_put_down_to_the_end():
    report = edited("3.12-json-tcp.txt")
    del report["end"]["streams"][0]["sender"]["max_snd_wnd"]  # before 3.10
    outcome = outcome_of(report)
    assert outcome.detail.endswith("393216 bytes too few: in flight when it ended, or lost")


def test_what_a_threaded_version_sends_beyond_the_flow_is_not_missing():
    report = edited("3.22-json-tcp.txt", sum_sent__bytes=SIZE + 1_000_000)
    assert outcome_of(report).detail == "its end may be noticed up to 0.1 s late"


@ALL
def test_datagrams_of_which_none_came_are_a_failed_flow(version):
    outcome = outcome_of(edited(f"{version}-json-udp.txt", sum_received__bytes=0), 512_000)
    assert (outcome.status, outcome.end_ns) == (FAILED, -1)
    assert outcome.detail == "iperf3: none of 512000 bytes arrived"


LOSSES = [
    (  # gaps
        {"sum_received__bytes": 13 * 32_768, "sum_received__lost_packets": 3},
        "3 of 16 datagrams were lost (18.75%)",
    ),
    (  # none that came shows a loss of the last
        {"sum_received__bytes": 12 * 32_768, "sum_received__packets": 12},
        "the last 4 of 16 datagrams did not arrive: lost, or in flight when it ended",
    ),
    (
        {
            "sum_received__bytes": 10 * 32_768,
            "sum_received__packets": 12,
            "sum_received__lost_packets": 2,
        },
        "2 of 16 datagrams were lost (12.50%); "
        "the last 4 of 16 datagrams did not arrive: lost, or in flight when it ended",
    ),
    (  # a late datagram counts as none lost, and so does one that came twice
        {"sum_received__bytes": 15 * 32_768},
        "32768 of 524288 bytes did not arrive: lost",
    ),
    ({}, ""),
]


@pytest.mark.parametrize(("values", "detail"), LOSSES)
def test_datagrams_that_did_not_come_are_told_as_lost(values, detail):
    outcome = outcome_of(edited("3.12-json-udp.txt", **values), 512_000)
    assert (outcome.status, outcome.detail) == (DONE, detail)


def test_versions_that_see_the_end_late_are_said_to():
    outcome = Iperf3().outcome(FLOW, output(), output(read("3.22-json-tcp.txt")))
    assert outcome.detail == "its end may be noticed up to 0.1 s late"


def test_a_flow_that_moved_too_little_has_failed():
    large = dataclasses.replace(FLOW, size_bytes=SIZE + 1)
    outcome = Iperf3().outcome(large, output(), output(read("3.22-json-tcp.txt")))
    assert (outcome.status, outcome.end_ns) == (FAILED, -1)
    assert "sent 20971520 of 20971521 bytes" in outcome.detail


@ALL
@pytest.mark.parametrize("what", ["refused", "busy", "cut"])
@pytest.mark.parametrize("exit_code", [0, 1])  # 3.12 ends with 0 even so
def test_flows_of_clients_with_an_error(version, what, exit_code):
    client = output(read(f"{version}-json-{what}.txt"), exit_code=exit_code)
    outcome = Iperf3().outcome(FLOW, output(), client)
    assert (outcome.status, outcome.end_ns) == (FAILED, -1)
    assert outcome.detail.startswith("iperf3: ")


def test_flows_that_the_trials_end_cut_off():
    client = output(read("3.12-json-interrupted.txt"), exit_code=1, stopped=True)
    assert Iperf3().outcome(FLOW, output(), client).status == UNFINISHED


def test_words_on_standard_error_are_told_where_there_is_no_report():
    client = output("", read("3.18-json-bad-option.err"), exit_code=1)
    assert "unrecognized option" in Iperf3().outcome(FLOW, output(), client).detail
