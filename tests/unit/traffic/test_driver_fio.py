"""fio's output, recorded from the real program (tests/hardware/recorded/fio)."""

import dataclasses
import json
from pathlib import Path

import pytest

from orchestration.core.status import DONE, FAILED, UNFINISHED
from traffic.drivers.fio import Fio, Job, parse_json
from traffic.drivers.output import OutputError
from traffic.drivers.programs import Flow, Output

RECORDED = Path(__file__).parents[2] / "hardware" / "recorded" / "fio"
VERSIONS = ("3.33", "3.39", "3.41")
ALL = pytest.mark.parametrize("version", VERSIONS)
SIZE = 8 << 20
FLOW = Flow(3, 1_000, "h1", "h2", SIZE, "10.1.0.1", "10.2.0.1", 20_003)


def read(name):
    return (RECORDED / name).read_text()


def output(stdout="", stderr="", exit_code=0, **changes):
    values = Output(exit_code, stdout, stderr, started_ns=5_000, ended_ns=300_000_000)
    return dataclasses.replace(values, **changes)


@ALL
def test_json_of_a_sender(version):
    job = parse_json(read(f"{version}-net-json.txt"))
    assert (job.error, job.written_bytes, job.reading_ns) == (0, SIZE, 0)


@ALL
def test_json_of_a_receiver(version):
    text = read(f"{version}-net-json-receiver.txt")
    # other lines come before it
    assert text.startswith("fio: waiting for connection\n")
    job = parse_json(text)
    assert (job.error, job.written_bytes) == (0, 0)
    assert 1_000_000 <= job.reading_ns < 1_000_000_000


@ALL
def test_a_job_that_failed_has_its_error(version):
    assert parse_json(read(f"{version}-error-refused.txt")) == Job(111, 0, 0)


@ALL
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("error-client-refused.err", "failed to connect to 127.0.0.1:1"),
        ("error-engine.err", "failed to load engine"),
        ("error-engine.txt", "nosuch: cannot open shared object file: No such file"),
        ("error-option.err", "unrecognized option '--nonsense=1'"),
    ],
)
def test_errors_in_words(version, name, said):
    with pytest.raises(OutputError, match=f"^fio: {said}"):
        parse_json(read(f"{version}-{name}"))


@ALL
def test_cut_json_is_an_error_wherever_it_is_cut(version):
    text = read(f"{version}-net-json.txt")
    for end in range(0, len(text.rstrip()) - 1, 97):
        with pytest.raises(OutputError):
            parse_json(text[:end])


@pytest.mark.parametrize(
    "text",
    ["", "hello", "{}", '{"jobs": []}', '{"jobs": [1]}', '{"jobs": [{}]}', '{"jobs": [{}, {}]}'],
)
def test_foreign_output_is_an_error(text):
    with pytest.raises(OutputError, match=r"^fio: "):
        parse_json(text)


def test_commands_of_a_flow():
    flow = dataclasses.replace(FLOW, size_bytes=100_001)
    server, client = Fio().launches(flow, {"block": 65536, "rate": 8_000_000_000})
    common = (
        "fio --name=flow3 --thread --output-format=json --verify_state_save=0 "
        "--clocksource=clock_gettime --ioengine=net --protocol=tcp --port=20003 --bs=65536"
    )
    assert " ".join(server.argv) == f"{common} --size={1 << 40} --rw=read --listen"
    assert " ".join(client.argv) == (
        f"{common} --size=131072 --rw=write --hostname=10.2.0.1 --nodelay=1 --rate=1000000000"
    )
    assert (server.listens, client.at_ns) == ((("tcp", 20003),), 1_000)


def test_a_flow_smaller_than_a_block_is_one():
    small = dataclasses.replace(FLOW, size_bytes=1000)
    _, client = Fio().launches(small, {"nodelay": False})
    assert {"--bs=1000", "--size=1000"} <= set(client.argv)
    assert "--nodelay=1" not in client.argv


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block": 0}, "at least 1"),
        ({"rate": 4}, "at least 8"),
        ({"verb": "read"}, "unknown option"),
    ],
)
def test_wrong_options_are_named(options, said):
    assert any(said in problem.in_one_sentence for problem in Fio().check(options))
    assert Fio().check({"block": 4096, "rate": 10**9}) == []


@ALL
def test_a_flow_ends_with_its_receiver(version):
    client = output(read(f"{version}-net-json.txt"))
    server = output(read(f"{version}-net-json-receiver.txt"), ended_ns=310_000_000)
    outcome = Fio().outcome(FLOW, server, client)
    assert outcome.status == DONE, outcome.detail
    assert outcome.end_ns == 310_000_000
    assert outcome.end_ns - outcome.sent_ns == parse_json(server.stdout).reading_ns
    assert outcome.retransmits == -1


def _changed(name, **changes):
    text = read(name)
    start = text.index("{")
    document = json.loads(text[start:])
    document["jobs"][0].update(changes)
    return json.dumps(document)


GOOD = {name: output(read(f"3.41-net-json{name}.txt")) for name in ("", "-receiver")}


@pytest.mark.parametrize(
    ("client", "server", "status", "said"),
    [
        (output(exit_code=-15, stopped=True), output(stopped=True), UNFINISHED, ""),
        (GOOD[""], output(exit_code=-15, stopped=True), UNFINISHED, ""),
        (
            output(read("3.33-error-refused.txt"), exit_code=1),
            output(),
            FAILED,
            "fio sender: Connection refused",
        ),
        (output(exit_code=-13), GOOD["-receiver"], FAILED, "ended by signal 13"),
        (GOOD[""], output(exit_code=-9), FAILED, "fio receiver was ended by signal 9"),
        (GOOD[""], output(""), FAILED, "it printed nothing"),
        (output(_changed("3.41-net-json.txt", error=32)), GOOD["-receiver"], FAILED, "it sent"),
        (output('{"jobs": [{}, {}]}'), GOOD["-receiver"], FAILED, "reports 2 jobs"),
    ],
)
def test_flows_of_pairs_that_do_not_end_well(client, server, status, said):
    outcome = Fio().outcome(FLOW, server, client)
    assert (outcome.status, outcome.end_ns) == (status, -1)
    assert said in outcome.detail
