"""InfluxDB 2 through influxdb-client: single requests, and what their answers mean.

Requests are not retried here. Only this module imports influxdb-client, when a connection is made.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

from orchestration.core.errors import NotReadyError, TrialError, needs
from orchestration.core.problems import Code, Problem

# ok: everything was stored. later: the fault may pass, so the request is worth another try.
# refused: it will not work with these settings. too-large: it may work in smaller parts.
Meaning = Literal["ok", "later", "refused", "too-large"]

_TIMEOUT_MS = 20_000
_GZIP_LEVEL = 1  # four times as fast as the highest level, for a fifth more bytes
_SHOWN_CHARACTERS = 200
_NO_CONTENT = 204
# HTTP statuses of faults that may pass. Another try does not change the others (RFC 9110, section
# 15; InfluxDB's manual recommends to try again after 429 and 503).
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_BUSY = (429, 503)
_MOVED = (301, 302, 303, 307, 308)
# TLS errors that stay the same: the certificate is of another server, or the server has no TLS.
_TLS_ERRORS = (
    "CERTIFICATE_VERIFY_FAILED",
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
)


@dataclass(frozen=True)
class Server:
    """Address of an InfluxDB 2 and the account there. `str` and `repr` do not show the token."""

    url: str
    org: str
    bucket: str
    token: str = field(repr=False)

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} of organisation {self.org!r} at {self.url}"


@dataclass(frozen=True)
class Answer:
    """The result of a request. `wait_s` is how long the server asks to wait before the next one."""

    meaning: Meaning
    text: str = ""
    remedy: str = ""
    wait_s: float = 0.0

    @property
    def problem(self) -> Problem:
        """What is wrong, and the remedy."""
        return Problem("", self.text, self.remedy, Code.NOT_READY)


class InfluxConnection:
    """A connection to one server. Call `close` at the end."""

    def __init__(self, server: Server, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Prepare the connection; nothing is sent. Raises NotReadyError without influxdb-client."""
        with needs("InfluxDB", "influx"):
            from influxdb_client.client.influxdb_client import InfluxDBClient
            from influxdb_client.service.write_service import WriteService
        self.server = server
        self._client: Any = InfluxDBClient(
            server.url, server.token, org=server.org, timeout=timeout_ms
        )
        writes: Any = WriteService
        self._writes = writes(self._client.api_client)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def write(self, lines: Sequence[str]) -> Answer:
        """Send lines of line protocol, compressed, with times in ns; return the answer."""
        from influxdb_client.rest import ApiException
        from urllib3.exceptions import HTTPError

        body = gzip.compress("\n".join(lines).encode(), _GZIP_LEVEL)
        try:
            _, status, _ = self._writes.post_write_with_http_info(
                self.server.org,
                self.server.bucket,
                body,
                precision="ns",
                content_encoding="gzip",
                content_type="text/plain; charset=utf-8",
                _return_http_data_only=False,
            )
        except (ApiException, HTTPError, OSError) as error:
            return self._failure(error, "the records")
        except UnicodeDecodeError:
            return self._not_influxdb("an answer that is not text")
        if status != _NO_CONTENT:
            return self._not_influxdb(f"status {status}, where InfluxDB has {_NO_CONTENT}")
        return Answer("ok")

    def query(self, flux: str) -> Iterator[list[str]]:
        """Yield the rows of a Flux query's annotated CSV, headings included, as lists of text.

        Raises NotReadyError, with the server's message, if the server refuses the query or its
        answer is not annotated CSV, and TrialError if a later try may work.
        """
        from influxdb_client.rest import ApiException
        from urllib3.exceptions import HTTPError

        try:
            rows: Iterator[list[str]] = self._client.query_api().query_csv(flux)
            for number, row in enumerate(rows):
                # annotated CSV begins with an annotation, which starts with #, or an empty cell
                if number == 0 and row and row[0] and not row[0].startswith("#"):
                    text = _short(",".join(row))
                    answer = self._not_influxdb(f"{text!r}, where InfluxDB has annotated CSV")
                    raise NotReadyError([answer.problem])
                yield row
        except (ApiException, HTTPError, OSError) as error:
            answer = self._failure(error, "the query")
            failed = TrialError if answer.meaning == "later" else NotReadyError
            raise failed([answer.problem]) from error

    def _failure(self, error: Any, what: str) -> Answer:
        where = self.server.url
        status = getattr(error, "status", None) or 0
        if not status:
            return self._without_response(error)
        message = _message(error)
        if status in (401, 403):
            return Answer(
                "refused",
                f"{where} does not accept the token ({status}{message})",
                "set CLOSLOOP_INFLUX_TOKEN to a token that may read and write "
                f"the bucket {self.server.bucket!r}",
            )
        if status == 404:
            return Answer(
                "refused",
                f"there is no {self.server} (404{message})",
                "make the bucket (influx bucket create), or correct CLOSLOOP_INFLUX_BUCKET, "
                "CLOSLOOP_INFLUX_ORG or the path in CLOSLOOP_INFLUX_URL",
            )
        if status == 413:
            return Answer("too-large", f"{where} accepts no request of this size (413)")
        if status in _TEMPORARY:
            busy = "is busy" if status in _BUSY else "is in trouble"
            return Answer(
                "later",
                f"{where} {busy} ({status}{message})",
                "wait; see the server's log if it stays so",
                _retry_after_s(error),
            )
        if status in _MOVED:
            return self._moved(status, error)
        if 400 <= status < 500:
            return Answer(
                "refused",
                f"{where} refuses {what} ({status}{message})",
                "if the bucket has other data under the same names, or deletes data of that time, "
                "choose another bucket; queries need InfluxDB 2 with Flux",
            )
        return self._not_influxdb(f"status {status}{message}")

    def _without_response(self, error: Exception) -> Answer:
        """Return the answer for a connection that failed, or that delivered something but HTTP."""
        from urllib3.exceptions import LocationValueError

        where, cause = self.server.url, _cause(error)
        if isinstance(error, LocationValueError):
            return self._not_influxdb("a redirect without an address")
        causes = list(_chain(error))
        if any(isinstance(each, BadStatusLine) for each in causes) and not any(
            isinstance(each, RemoteDisconnected) for each in causes
        ):
            return self._not_influxdb(f"no HTTP, but {_short(cause)}")
        message = f"{getattr(error, 'reason', '')} {error}"
        if any(name in message for name in _TLS_ERRORS):
            return Answer(
                "refused",
                f"{where} cannot be trusted by TLS: {_short(cause)}",
                "correct CLOSLOOP_INFLUX_URL: http:// or https://, and the name in the server's "
                "certificate; the certificate of a private authority goes into SSL_CERT_FILE",
            )
        return Answer(
            "later",
            f"{where} cannot be reached: {_short(cause)}",
            "start the server, or correct CLOSLOOP_INFLUX_URL",
        )

    def _moved(self, status: int, error: Any) -> Answer:
        """Return the answer for a redirect, which is not followed: the token is for this server."""
        where = self.server.url
        location = str((error.headers or {}).get("Location", ""))
        new_url = _base(urljoin(f"{where}/", location)) if location else ""
        if new_url in ("", where):
            return self._not_influxdb(f"status {status}, a redirect without another address")
        return Answer(
            "refused",
            f"{where} redirects to {new_url} ({status})",
            f"set CLOSLOOP_INFLUX_URL={new_url} if that is the database; the token is not sent to "
            "an address that you have not given",
        )

    def _not_influxdb(self, what: str) -> Answer:
        return Answer(
            "refused",
            f"{self.server.url} does not answer as InfluxDB does: {what}",
            "find out what answers there: a proxy, or another service?",
        )


def _message(error: Any) -> str:
    """Return `: ` and the server's message, "" if it sent none."""
    body = error.body or ""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.strip()
    return f": {_short(message)}" if message else ""


def _base(location: str) -> str:
    """Return a server's address from the address of its write or query API.

    User name, password and query are left out. It is "" if the location is not an HTTP address.
    """
    parts = urlsplit(location)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not host or not location.isprintable():
        return ""
    name = f"[{host}]" if ":" in host else host
    path = parts.path.partition("/api/v2/")[0].rstrip("/")
    return _short(f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}")


def _short(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + " ..."


def _chain(error: Exception) -> Iterator[BaseException]:
    """Yield an error and its causes: urllib3 keeps a cause as `reason`, or as an argument."""
    reason: object = error
    while isinstance(reason, BaseException):
        yield reason
        inner = getattr(reason, "reason", None)
        arguments = (value for value in reason.args if isinstance(value, BaseException))
        reason = inner if isinstance(inner, BaseException) else next(arguments, None)


def _cause(error: Exception) -> str:
    """Return the reason of an error in a few words, without urllib3's names of objects."""
    *_, last = _chain(error)
    text = getattr(last, "reason", None) or last
    words = str(text).rsplit(": ", 1)[-1]
    return words.partition("] ")[2] or words  # without the [SSL: NAME] of TLS errors


def _retry_after_s(error: Any) -> float:
    """Return the seconds until the time in the header Retry-After (RFC 9110, section 10.2.3).

    The header is a number or a date. The result is 0 if it is missing, invalid or in the past.
    """
    text = str((error.headers or {}).get("Retry-After", "")).strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
