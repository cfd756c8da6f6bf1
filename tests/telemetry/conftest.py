"""A proxy before a real server (`victoria`) that can fail, and who is told of them."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from victoria import TOKEN, Victoria


class Proxy:
    """Forwards to a server, for real; `mode` says what it does instead of it, or besides.

    pass, slow (a request a second), drop (no answer), rubbish, or a status with its text. With a
    `plan`, each request takes the next mode from it.
    """

    def __init__(self, port: int) -> None:
        self.mode = "pass"
        self.plan: Iterator[str] | None = None
        self.forwarded = self.requests = 0
        self.tokens: set[str] = set()
        self.bodies: list[bytes] = []
        self._server_port = port
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy.requests += 1
                proxy.tokens.add(self.headers["Authorization"])
                proxy.answer(self, body)

            def log_message(self, *words: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self._slow = threading.Lock()
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        mode = next(self.plan) if self.plan else self.mode
        if mode == "drop":
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif mode == "rubbish":
            _reply(handler, 200, b"<html>Welcome to the hotel's network</html>")
        elif mode == "busy":
            _reply(handler, 429, b'{"code":"too many requests","message":"slow down"}', "1")
        elif mode[0].isdigit():
            status, _, text = mode.partition(" ")
            _reply(handler, int(status), json.dumps({"message": text}).encode())
        else:
            if mode == "slow":
                with self._slow:
                    time.sleep(1.0)
            self._forward(handler, body)

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            server = http.client.HTTPConnection("127.0.0.1", self._server_port, timeout=20)
            headers = {k: v for k, v in handler.headers.items() if k.lower() != "host"}
            server.request("POST", handler.path, body, headers)
            answer = server.getresponse()
            data = answer.read()
            server.close()
        except OSError:
            _reply(handler, 502, b"")
            return
        self.forwarded += answer.status == 204
        _reply(handler, answer.status, data)


def _reply(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, retry_after: str = ""
) -> None:
    try:
        handler.send_response(status)
        if retry_after:
            handler.send_header("Retry-After", retry_after)
        if status != 204:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if status != 204:
            handler.wfile.write(body)
    except OSError:
        pass  # the sender was killed


@pytest.fixture
def server(tmp_path_factory):
    victoria = Victoria(tmp_path_factory.mktemp("victoria"))
    victoria.start()
    yield victoria
    victoria.stop()


@pytest.fixture
def proxy(server):
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def environment(proxy, monkeypatch):
    values = {
        "CLOSLOOP_INFLUX_URL": proxy.url,
        "CLOSLOOP_INFLUX_ORG": "lab",
        "CLOSLOOP_INFLUX_BUCKET": "runs",
        "CLOSLOOP_INFLUX_TOKEN": TOKEN,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values
