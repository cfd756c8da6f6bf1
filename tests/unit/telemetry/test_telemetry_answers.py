"""What a server's answers mean: states that pass are waited for, all others are said once."""

import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

pytest.importorskip("influxdb_client")

import closloop
from collectors.sinks.influx import InfluxConnection, Server
from orchestration.cli.verbs import load
from orchestration.core.errors import NotReadyError, TrialError

LINE = "closloop_event,kind=a t_ns=1i 1795287252426000000"


@contextmanager
def answering(status, body=b"", **headers):
    """Answer each request alike; yield the address, and the tokens of the requests."""
    tokens = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            tokens.append(self.headers["Authorization"])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *words):
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}", tokens


@contextmanager
def serving(server):
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def connected(url):
    connection = InfluxConnection(Server(url, "lab", "runs", "secret"), 5_000)
    yield connection
    connection.close()


def written(url):
    with connected(url) as connection:
        return connection.write([LINE])


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_states_that_pass_are_tried_again(status):
    with answering(status, Retry_After="7") as (url, tokens):
        answer = written(url)
        with connected(url) as connection, pytest.raises(TrialError):
            list(connection.query("x"))
    assert (answer.meaning, answer.wait_s) == ("later", 7.0)
    assert len(tokens) == 2


@pytest.mark.parametrize("status", [200, 202, 300, 304, 400, 405, 410, 418, 501, 505, 507, 511])
def test_what_stays_as_it_is_is_asked_once(status):
    with answering(status, b"<html>Welcome</html>" if status < 300 else b"") as (url, tokens):
        answer = written(url)
        with connected(url) as connection, pytest.raises(NotReadyError):
            list(connection.query("x"))
    assert answer.meaning == "refused"
    assert str(status) in answer.text
    assert answer.remedy
    assert len(tokens) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_told_and_not_followed(status):
    with answering(204) as (other, there):
        where = f"{other.replace('http://', 'http://account:word@')}/api/v2/write?token=of-theirs"
        with answering(status, Location=where) as (url, tokens):
            answer = written(url)
            with connected(url) as connection, pytest.raises(NotReadyError, match=other):
                list(connection.query("x"))
    assert answer.meaning == "refused"
    assert answer.text == f"{url} redirects to {other} ({status})"
    assert answer.remedy.startswith(f"set CLOSLOOP_INFLUX_URL={other} if ")
    assert len(tokens) == 2
    assert there == []


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("https://db.example.org/influx/api/v2/write", "https://db.example.org/influx"),
        ("/influx/api/v2/write?org=lab", "URL/influx"),
        ("//[2001:db8::1]:8086/api/v2/write", "http://[2001:db8::1]:8086"),
        ("/api/v2/write", ""),  # to itself
        ("ftp://127.0.0.1/", ""),
        ("http://a:port/", "-"),
        ("http://a/\x1b[31m", ""),
        ("", ""),
    ],
)
def test_where_a_redirect_leads(location, place):
    with answering(307, Location=location) as (url, _):
        answer = written(url)
    assert answer.meaning == "refused"
    if place == "-":
        assert answer.text.endswith("a redirect without an address")
    elif place:
        assert answer.text.endswith(f" redirects to {place.replace('URL', url)} (307)")
    else:
        assert answer.text.endswith("status 307, a redirect without another address")


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [("12", 12), ("date", 30), ("past", 0), ("soon", 0), ("-3", 0), ("nan", 0), ("1e9", 0)],
)
def test_retry_after_is_a_number_or_a_date(header, wait_s):
    now = datetime.now(UTC)
    dates = {"date": now + timedelta(seconds=30), "past": now - timedelta(hours=1)}
    text = format_datetime(dates[header], usegmt=True) if header in dates else header
    with answering(503, Retry_After=text) as (url, _):
        found = written(url).wait_s
    assert found == pytest.approx(wait_s, abs=29)
    assert (found > 0) == (wait_s > 0)


def test_another_protocol_is_no_passing_state():
    class Handler(BaseRequestHandler):
        def handle(self):
            self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            self.request.recv(1 << 16)

    with serving(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        plain, tls = written(f"http://127.0.0.1:{port}"), written(f"https://127.0.0.1:{port}")
    assert plain.meaning == tls.meaning == "refused"
    assert plain.text.endswith("does not answer as InfluxDB does: no HTTP, but SSH-2.0-OpenSSH_9.2")
    assert "cannot be trusted by TLS: wrong version number" in tls.text
    assert "http:// or https://" in tls.remedy


def test_no_answer_may_pass():
    class Handler(BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)

    with serving(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        plain, tls = written(f"http://127.0.0.1:{port}"), written(f"https://127.0.0.1:{port}")
    gone = written(f"http://127.0.0.1:{port}")
    assert {plain.meaning, tls.meaning, gone.meaning} == {"later"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one trial."""
    folder = tmp_path_factory.mktemp("push")
    (folder / "tiny.yml").write_text(
        "{campaign: tiny, testbed: graphcc, backend: fluid, tuners: [secn1], repeats: 1,\n"
        " traffic: [{kind: incast, fan_in: 4, size: 64KB, period: 1ms}], duration: 1ms}\n"
    )
    return closloop.run(folder / "tiny.yml", out=folder, jobs=1).folder


@pytest.mark.parametrize("status", [301, 200, 501, 505])
def test_push_ends_at_once_with_3(status, run, monkeypatch, capsys):
    with answering(status, Location="http://127.0.0.1:9") as (url, tokens):
        for name, value in {"URL": url, "ORG": "o", "BUCKET": "b", "TOKEN": "t"}.items():
            monkeypatch.setenv(f"CLOSLOOP_INFLUX_{name}", value)
        with pytest.raises(NotReadyError) as error:
            load("push").main([str(run)], "push", standalone_mode=False)
    assert error.value.exit_code == 3
    assert capsys.readouterr().err == ""  # the error says it, and nothing else did before
    assert len(tokens) == 1
    assert ("127.0.0.1:9 (301)" in error.value.message) == (status == 301)
