"""perftest's output, recorded from the real program (tests/hardware/recorded/perftest)."""

import dataclasses
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.core.status import DONE, FAILED, UNFINISHED
from traffic.drivers.output import OutputError
from traffic.drivers.perftest import (
    NoClockRate,
    Perftest,
    duration_ns,
    explain,
)
from traffic.drivers.programs import Flow, Output, load_driver

RECORDED = Path(__file__).parents[2] / "hardware" / "recorded" / "perftest"
BOTH = pytest.mark.parametrize("version", ["4.5", "25.01"])
FLOW = Flow(
    7, 1_000, "h1", "h2", 1_000_000, "10.1.0.1", "10.2.0.1", 20_003,
    src_rdma_device="mlx5_0", dst_rdma_device="mlx5_1", src_gid_index=3, dst_gid_index=5,
)  # fmt: skip


def read(name):
    return (RECORDED / name).read_text()


def output(stdout="", stderr="", exit_code=0, **changes):
    values = Output(exit_code, stdout, stderr, started_ns=5_000, ended_ns=100_005_000)
    return dataclasses.replace(values, **changes)


@BOTH
@pytest.mark.parametrize(
    ("what", "iterations"),
    [
        ("write-bw", 300),
        ("read-bw", 300),
        ("send-bw-events", 300),
        ("write-bw-server", 300),
        ("write-bw-qps", 800),  # of all queue pairs
        ("write-bw-duration", None),  # its peak was not measured
    ],
)
def test_a_bandwidth_test_took_its_iterations_at_their_rate(version, what, iterations):
    text = read(f"{version}-text-{what}.txt")
    row = [line.split() for line in text.splitlines() if line.startswith((" 4096 ", " 65536 "))]
    ((_, count, _, mean_gbps, _),) = row
    assert iterations in (int(count), None)
    bits = int(row[0][0]) * 8 * int(count)
    # perftest rounds to two decimals of Gb/s
    low, high = (bits / ((float(mean_gbps) + off) * 1e9) * 1e9 for off in (0.006, -0.006))
    assert low <= duration_ns(text) <= high


@BOTH
@pytest.mark.parametrize("verb", ["write", "send", "read"])
def test_a_latency_test_took_its_round_trips(version, verb):
    text = read(f"{version}-text-{verb}-lat.txt")
    (row,) = (line.split() for line in text.splitlines() if line.startswith(" 64 "))
    assert duration_ns(text) == round(float(row[5]) * 1e3 * 300 * (1 if verb == "read" else 2))


def test_durations_in_numbers():
    assert duration_ns(read("25.01-text-write-bw.txt")) == pytest.approx(300 / 7511 * 1e9)
    assert duration_ns(read("25.01-text-read-lat.txt")) == 300 * 20_100
    # by duration, a latency test has a mean and a rate only
    assert duration_ns(read("4.5-text-write-lat-duration.txt")) == 2 * 926 * 1_113_510


@pytest.mark.parametrize(
    "name", sorted(path.name for path in RECORDED.glob("*-no-clock-rate-text-*"))
)
def test_figures_without_a_clock_rate_are_refused(name):
    with pytest.raises(NoClockRate) as caught:
        duration_ns(read(name))
    assert caught.value.iterations == 300


@BOTH
@pytest.mark.parametrize(
    ("what", "said", "remedy"),
    [
        ("refused", "Couldn't connect to 10.0.0.2:18515", "server"),
        ("no-device", "IB device mlx5_9 not found", "rdma link"),
        ("unknown-host", "name resolution", "address"),
        ("gid", "Gid index should be between 0 and 64", "show_gids"),
        ("bad-option", "unrecognized option", "too old or too new"),
        ("port-taken-server", "Couldn't listen to port 18515", "earlier run"),
        ("mismatch", "Couldn't read remote address", "other end"),
        ("server-gone", "Couldn't read remote address", "other end"),
    ],
)
def test_failures_are_explained(version, what, said, remedy):
    error = explain(read(f"{version}-error-{what}.err"))
    assert said in str(error)
    assert remedy in error.remedy


@BOTH
@pytest.mark.parametrize("what", ["bad-option", "mismatch", "port-taken-server"])
def test_output_without_a_row_is_an_error(version, what):
    with pytest.raises(OutputError, match="perftest: its output is cut short or not its own"):
        duration_ns(read(f"{version}-error-{what}.txt"))


def test_cut_text_is_an_error_wherever_it_is_cut():
    text = read("25.01-text-write-lat.txt")
    row = text.index("\n 64 ") + 1
    for end in range(row, text.index("\n", row) - 8, 5):
        with pytest.raises(OutputError):
            duration_ns(text[:end])


@pytest.mark.parametrize("text", ["", "hello", "{}", " #bytes     #iterations\n"])
def test_foreign_output_is_an_error(text):
    with pytest.raises(OutputError):
        duration_ns(text)


def test_a_test_that_never_began_is_an_error():
    text = read("25.01-text-write-bw.txt").replace(" 4096       300 ", " 4096       0 ")
    with pytest.raises(OutputError, match="before its first message"):
        duration_ns(text)


def test_commands_of_a_flow():
    server, client = Perftest().launches(FLOW, {"verb": "send", "size": 4096, "qps": 2})
    common = (
        "ib_send_bw", "--port", "20003", "--size", "4096", "-F", "--ib-dev", "mlx5_1", "--ib-port",
        "1", "--gid-index", "5", "--tclass", "106", "--iters", "123", "--report_gbits", "--qp", "2",
        "--tx-depth", "128",
    )  # fmt: skip
    assert (server.host, server.role, server.argv) == ("h2", "server", common)
    assert server.listens == (("tcp", 20003),)
    mine = tuple({"mlx5_1": "mlx5_0", "5": "3"}.get(word, word) for word in common)
    assert (client.host, client.at_ns, client.argv) == ("h1", 1_000, (*mine, "10.2.0.1"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"duration": 3_000_000_000}, ["--duration", "3"]),
        ({"events": True, "verb": "read"}, ["--events"]),
        ({"gid_index": 7}, ["--gid-index", "7"]),
        ({"traffic_class": 40}, ["--tclass", "40"]),
        ({"traffic_class": 0}, ["--tclass", "0"]),
        ({"mtu": 1024}, ["--mtu", "1024"]),
        ({"rate_limit": 2_500_000_000}, ["--rate_limit", "2.500000", "--rate_units", "g"]),
        ({"device": "rxe0"}, ["--ib-dev", "rxe0"]),
        ({"test": "latency", "size": 64}, ["--size", "64"]),
    ],
)
def test_options_reach_both_commands(options, words):
    assert Perftest().check(options) == []
    for launch in Perftest().launches(FLOW, options):
        assert " ".join(words) in " ".join(launch.argv)


def test_small_flows_have_the_fewest_iterations_that_perftest_takes():
    small = dataclasses.replace(FLOW, size_bytes=10)
    assert "--iters 5" in " ".join(Perftest().launches(small, {})[0].argv)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"verb": "atomic"}, "verb is 'atomic': give one of write, send, read"),
        ({"size": 0}, "size is 0: give at least 1"),
        ({"qps": "4"}, "qps is '4': give a whole number"),
        ({"events": 1}, "events is 1: give a true or false"),
        ({"device": "--nonsense"}, "device is '--nonsense': give letters, digits and ._- only"),
        ({"flows": 3}, "unknown option 'flows'"),
        ({"duration": 1_500_000_000}, "duration is not whole seconds"),
        ({"mtu": 1500}, "mtu is 1500: give 256"),
        ({"events": True}, "write tests only poll"),
        ({"test": "latency", "size": 2, "qps": 2}, "latency tests take neither"),
        ({"test": "latency"}, "latency tests need a size"),
        ({"verb": "send", "events": True, "duration": 10**9}, "no duration with events"),
        ({"rate_limit": 999}, "give at least 1000"),
    ],
)
def test_wrong_options_are_named(options, said):
    assert any(said in problem.in_one_sentence for problem in Perftest().check(options))


def test_an_mtu_must_fit_the_testbeds():
    testbed = load_testbed("graphcc")
    (problem,) = Perftest().check({"mtu": 2048}, testbed)
    assert (problem.where, problem.remedy) == ("mtu", "give at most 1024, or leave it out")
    assert Perftest().check({"mtu": 1024}, testbed) == []
    assert Perftest().check({"mtu": 2048}) == []


def test_a_flow_is_placed_before_the_end_of_its_client():
    text = read("25.01-text-write-bw.txt")
    outcome = Perftest().outcome(FLOW, output(), output(text))
    took = duration_ns(text)
    assert outcome.status == DONE
    assert (outcome.sent_ns, outcome.end_ns) == (100_005_000 - took, 100_005_000)
    assert outcome.retransmits == -1


@pytest.mark.parametrize("verb", ["read", "send"])
def test_round_trips_of_a_latency_test_are_a_flows_time(verb):
    text = read(f"25.01-text-{verb}-lat.txt")
    outcome = Perftest().outcome(FLOW, output(), output(text, ended_ns=10_000_000_000))
    assert outcome.end_ns - outcome.sent_ns == duration_ns(text)


def test_without_figures_a_flow_has_its_clients_times():
    text = read("4.5-no-clock-rate-text-write-bw.txt")
    outcome = Perftest().outcome(FLOW, output(), output(text))
    assert (outcome.status, outcome.sent_ns, outcome.end_ns) == (DONE, 5_000, 100_005_000)
    assert "clock rate" in outcome.detail


@pytest.mark.parametrize(
    ("client", "status", "said"),
    [
        (output(exit_code=-15, stopped=True), UNFINISHED, ""),
        (output(exit_code=-11), FAILED, "perftest client was ended by signal 11"),
        (output(exit_code=-9, timed_out=True), FAILED, "ran out of time"),
        (output(exit_code=127, error="cannot be started"), FAILED, "cannot be started"),
        (output("", exit_code=0), FAILED, "perftest: it printed nothing"),
        (output("rubbish"), FAILED, "not its own: rubbish"),
    ],
)
def test_flows_of_clients_that_do_not_end_well(client, status, said):
    outcome = Perftest().outcome(FLOW, output(), client)
    assert (outcome.status, outcome.end_ns) == (status, -1)
    assert said in outcome.detail


def test_a_figure_printed_by_a_failed_client_is_not_taken():
    text, said = read("25.01-error-server-gone.txt"), read("25.01-error-server-gone.err")
    outcome = Perftest().outcome(FLOW, output(), output(text, said, exit_code=1))
    assert outcome.status == FAILED
    assert "Couldn't read remote address; the other end failed" in outcome.detail


def test_drivers_are_found_by_name():
    assert load_driver("perftest").needs({"verb": "read", "test": "latency"}) == ("ib_read_lat",)
    with pytest.raises(ValueError, match="there are sockets, fio, iperf3, perftest, scapy"):
        load_driver("netperf")
