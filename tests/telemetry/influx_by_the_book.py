"""InfluxDB's HTTP API as its documentation describes it, for the questions that closloop asks.

Writes are line protocol in gzip, answered by 204. Queries are Flux, answered in annotated CSV:
lines end in CR LF (also within a text), a table a series, its annotations and header before it,
an empty row after it; times are RFC 3339 without trailing zeros. Anything else is refused, as a
query that is no such question would be.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_QUERY = re.compile(
    r'from\(bucket: "runs"\)\n'
    r"  \|> range\(start: 1970-01-01T00:00:00Z, stop: 2200-01-01T00:00:00Z\)\n"
    r'  \|> filter\(fn: \(r\) => (?P<wanted>r\.\w+ == "[^"]*"(?: and r\.\w+ == "[^"]*")*)\)\n'
    r'  \|> pivot\(rowKey: \["_time"\], columnKey: \["_field"\], valueColumn: "_value"\)\n'
    r'  \|> keep\(columns: \[(?P<columns>"\w+"(?:, "\w+")*)\]\)\n'
)


class ByTheBook:
    """The server. `store` keeps the points; `spoil` may change an answer's text."""

    def __init__(self, store, token):
        self.store, self.queries = store, []
        self.spoil = lambda text: text
        book = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Authorization"] != f"Token {token}":
                    return self.reply(401, b'{"code":"unauthorized","message":"unauthorized"}')
                url = urlsplit(self.path)
                wanted = parse_qs(url.query)
                if url.path == "/api/v2/write":
                    assert wanted["bucket"] == ["runs"]
                    assert wanted["precision"] == ["ns"]
                    assert self.headers["Content-Encoding"] == "gzip"
                    book.store.write(_lines(gzip.decompress(body).decode()))
                    return self.reply(204, b"")
                assert url.path == "/api/v2/query"
                asked = json.loads(body)
                book.queries.append(asked["query"])
                assert set(asked["dialect"]["annotations"]) == {"datatype", "group", "default"}
                return self.reply(200, book.spoil(book.answer(asked["query"])).encode())

            def reply(self, status, body):
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Type", "text/csv; charset=utf-8")
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, flux):
        found = _QUERY.fullmatch(flux)
        assert found is not None, flux
        tags = dict(re.findall(r'r\.(\w+) == "([^"]*)"', found["wanted"]))
        columns = re.findall(r'"(\w+)"', found["columns"])
        measurement = tags.pop("_measurement")
        tables = {}
        for (name, theirs, time_ns), fields in sorted(self.store.points.items()):
            if name == measurement and tags.items() <= dict(theirs).items():
                tables.setdefault(theirs, []).append((time_ns, fields))
        text = "".join(
            _table(number, dict(series), rows, columns)
            for number, (series, rows) in enumerate(tables.items())
        )
        return text or "\r\n"


def _lines(text):
    """Split at ends of lines that are not within a text field."""
    return re.findall(r'(?:"(?:\\.|[^"\\])*"|\\.|[^"\\\n])+', text, re.DOTALL)


def _table(number, series, rows, columns):
    there = [c for c in columns if c == "_time" or c in series or any(c in r for _, r in rows)]
    # Columns of the group key, time, fields: in no order that a reader may rely on.
    there.sort(key=lambda c: (c not in series, c == "_time", c))
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\r\n").writerow
    kinds = ["string" if c in series else "dateTime:RFC3339" if c == "_time" else _kind(c, rows)
             for c in there]  # fmt: skip
    write(["#datatype", "string", "long", *kinds])
    write(["#group", "false", "false", *("true" if c in series else "false" for c in there)])
    write(["#default", "_result", "", *("" for _ in there)])
    write(["", "result", "table", *there])
    for time_ns, fields in rows:
        values = {"_time": _time(time_ns), **series, **fields}
        shown = [values.get(c, "").replace("\r", "").replace("\n", "\r\n") for c in there]
        write(["", "", number, *shown])
    return out.getvalue() + "\r\n"


def _kind(column, rows):
    value = next(fields[column] for _, fields in rows if column in fields)
    return "long" if re.fullmatch(r"-?\d+", value) else "string"


def _time(time_ns):
    seconds, rest = divmod(time_ns, 10**9)
    digits = f".{rest:09}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{digits}Z"
