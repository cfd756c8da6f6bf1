"""Archive and server agree, count and sum, whatever became of server, run and sender."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.sinks.influx import InfluxConnection, Server
from orchestration.results.reader import finished_trials

sys.path.insert(0, str(Path(__file__).parent))
from agreement import agree

pytestmark = pytest.mark.influx

PATIENCE_S = 60.0
TROUBLES = (
    *("pass", "busy", "500 the disk is full", "408 too slow", "drop", "pass"),
    *("503 full", "413 too large", "502 nobody there"),
)
ROOT = Path(__file__).resolve().parents[2]
# Flows a few ms apart: the server keeps milliseconds.
CAMPAIGN = """\
campaign: tele
testbed: {testbed}
backend: fluid
tuners: [secn1, amt]
traffic:
  - {{kind: incast, fan_in: 3, size: 9MB, period: 9ms, receiver: h1, stop: {duration}}}
{flows}
repeats: {repeats}
duration: {duration}
drain: 100ms
sample_period: 1ms
"""


def write_campaign(tmp_path, repeats, duration_ms, testbed="rlcc-7"):
    places = [(1 + n % 3, 4 + n % 3, 2 * n + 1) for n in range(duration_ms // 3)]
    flows = "\n".join(
        f"  - {{kind: flow, src: h{src}, dst: h{dst}, size: 200KB, start: {start}ms}}"
        for src, dst, start in places
    )
    path = tmp_path / "tele.yml"
    path.write_text(
        CAMPAIGN.format(flows=flows, repeats=repeats, duration=f"{duration_ms}ms", testbed=testbed)
    )
    return path


def closloop(*words, cwd, **options):
    return subprocess.run(
        [sys.executable, "-c", "from orchestration.cli.main import main; main()", *map(str, words)],
        cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


def begin(*words, cwd):
    return subprocess.Popen(
        [sys.executable, "-c", "from orchestration.cli.main import main; main()", *map(str, words)],
        cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def is_quiet(proxy):
    """Return whether nothing is sent for longer than a sender waits before it tries again."""
    requests = proxy.requests
    time.sleep(1.5)
    return proxy.requests == requests


def until(true, what, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.02)


def test_a_run_is_in_the_server_when_it_ends(server, proxy, environment, tmp_path):
    file = write_campaign(tmp_path, repeats=1, duration_ms=30)
    done = closloop("run", file, "--sink", "influx", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "points sent to bucket 'runs'" in done.stderr
    agree(server, tmp_path / "runs" / "tele", 2)
    assert proxy.tokens == {"Token t0k3n-of-mine"}
    # Pushing it again sends nothing, pushing it --again changes nothing.
    before = proxy.forwarded
    assert closloop("push", "runs/tele", cwd=tmp_path).returncode == 0
    assert proxy.forwarded == before
    assert closloop("push", "runs/tele", "--again", cwd=tmp_path).returncode == 0
    assert proxy.forwarded > before
    agree(server, tmp_path / "runs" / "tele", 2)
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()
    )
    assert environment["CLOSLOOP_INFLUX_TOKEN"].encode() not in written + done.stderr.encode()


LOSSLESS = """\
{kind: single-switch, name: one, mtu: 1500B, hosts: 10, host_link: {rate: 25Gbps, delay: 1us},
 switch: {buffer: 1MB, alpha: 1/8, pfc: [3]}}
"""
STOPPED = """\
campaign: stopped
testbed: TESTBED
host: {congestion_control: dcqcn}
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 9, size: 1MB, period: 5ms}
repeats: 1
duration: 15ms
drain: 100ms
sample_period: 1ms
"""


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("emulated", marks=pytest.mark.kernel),
        pytest.param("simulated", marks=pytest.mark.ns3),
    ],
)
def test_pauses_buffers_and_cnps_are_in_the_server_too(
    server, proxy, environment, tmp_path, backend
):
    (tmp_path / "one.yml").write_text(LOSSLESS)
    file = tmp_path / "stopped.yml"
    file.write_text(STOPPED.replace("TESTBED", str(tmp_path / "one.yml")))
    done = closloop("run", file, "--on", backend, "--sink", "influx", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    agree(server, tmp_path / "runs" / "stopped", 1)
    kept = server.export(campaign="stopped")
    for name in ("pause_pausing_ns", "switch_buffer_bytes", "host_cnps", "host_rate_bps"):
        assert any(max(one["values"]) > 0 for one in kept[f"closloop_{name}"]), name


@pytest.mark.slow
def test_a_run_that_meets_every_trouble_and_is_killed(server, proxy, environment, tmp_path):
    file = write_campaign(tmp_path, repeats=16, duration_ms=120, testbed="graphcc")
    command = ("run", file, "--sink", "influx", "--no-report", "-j", "1")
    campaign = tmp_path / "runs" / "tele"
    proxy.plan = itertools.chain(TROUBLES, itertools.repeat("pass"))
    run = begin(*command, cwd=tmp_path)
    until(lambda: proxy.forwarded > 2, "something has arrived")
    server.stop()
    finished = len(finished_trials(campaign))
    until(lambda: len(finished_trials(campaign)) > finished, "a trial ends without the server")
    server.start()
    arrived = proxy.forwarded
    until(lambda: proxy.forwarded > arrived + 2, "it goes on")
    assert run.poll() is None
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert len(finished_trials(campaign)) < 32
    until(lambda: is_quiet(proxy), "the sender ends with the run that it belongs to")
    proxy.plan = itertools.chain(["slow"] * 6, TROUBLES, itertools.repeat("pass"))
    done = closloop(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pushed = closloop("push", campaign, cwd=tmp_path)
    assert pushed.returncode == 0, pushed.stderr
    agree(server, campaign, 32)


@pytest.mark.slow
def test_a_run_without_a_server_ends_as_ever_and_is_sent_later(
    server, proxy, environment, tmp_path
):
    server.stop()
    proxy.mode = "drop"
    file = write_campaign(tmp_path, repeats=1, duration_ms=30)
    done = closloop("run", file, "--sink", "influx", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be reached") == 1
    assert "2 trials have not been sent" in done.stderr
    assert "closloop push runs/tele" in done.stderr
    server.start()
    proxy.mode = "pass"
    pushed = closloop("push", "runs/tele", "--json", cwd=tmp_path)
    assert pushed.returncode == 0, pushed.stderr
    agree(server, tmp_path / "runs" / "tele", 2)


@pytest.mark.parametrize(
    ("mode", "words", "remedy"),
    [
        ("401 unauthorized access", "does not accept the token (401", "CLOSLOOP_INFLUX_TOKEN"),
        ("404 bucket not found", "there is no bucket 'runs'", "influx bucket create"),
        ("422 field type conflict", "refuses the records (422", "choose another bucket"),
        (
            "505 version",
            "does not answer as InfluxDB does: status 505",
            "find out what answers there",
        ),
        ("rubbish", "does not answer as InfluxDB does: status 200", "find out what answers there"),
    ],
)
def test_a_refusal_is_said_once_with_its_remedy_and_the_run_goes_on(
    proxy, environment, tmp_path, mode, words, remedy
):
    proxy.mode = mode
    file = write_campaign(tmp_path, repeats=1, duration_ms=10)
    done = closloop("run", file, "--sink", "influx", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(words) == 1
    assert done.stderr.count(remedy) == 1
    assert proxy.requests == 1
    pushed = closloop("push", "runs/tele", cwd=tmp_path)
    assert pushed.returncode == 3
    assert words in pushed.stderr


@pytest.mark.parametrize(
    ("mode", "meaning", "words"),
    [
        ("pass", "ok", ""),
        ("busy", "later", "is busy (429: slow down)"),
        ("500 engine is closed", "later", "is in trouble (500: engine is closed)"),
        ("504 nobody answers", "later", "is in trouble (504: nobody answers)"),
        ("rubbish", "refused", "does not answer as InfluxDB does: status 200"),
        ("drop", "later", "cannot be reached"),
        ("413 too large", "too-large", "413"),
        ("400 bad line", "refused", "refuses the records (400: bad line)"),
        ("403 no", "refused", "does not accept the token"),
    ],
)
def test_what_each_answer_means(proxy, mode, meaning, words):
    proxy.mode = mode
    connection = InfluxConnection(Server(proxy.url, "lab", "runs", "secret"))
    answer = connection.write(["closloop_event,kind=a t_ns=1i 1795287252426000000"])
    connection.close()
    assert answer.meaning == meaning
    assert words in answer.text
    assert answer.wait_s == (1.0 if mode == "busy" else 0.0)
    assert "secret" not in repr(answer)
    if meaning != "ok" and meaning != "too-large":
        assert answer.remedy


def test_a_server_that_is_not_there(server):
    server.stop()
    connection = InfluxConnection(Server(server.url, "lab", "runs", "secret"))
    answer = connection.write(["closloop_event t_ns=1i 1"])
    connection.close()
    assert answer.meaning == "later"
    assert "refused" in answer.text
