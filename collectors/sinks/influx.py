"""InfluxDB 2 through influxdb-client: single requests and the meaning of answers, no retries.

Only this module imports influxdb-client, when a connection is opened.
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

# ok: all was stored. later: try again, the fault may pass. refused: not with these settings.
Meaning = Literal["ok", "later", "refused", "too-large"]

_TIMEOUT_MS = 20_000
_FAST = 1  # gzip level: four times as fast as the best one, for a fifth more bytes
_SHOWN_CHARACTERS = 200
_NO_CONTENT = 204
# Statuses of states that pass; all others say the same however often they are asked (RFC 9110,
# section 15; InfluxDB itself says to try 429 and 503 again).
_PASSING = (408, 429, 500, 502, 503, 504)
_BUSY = (429, 503)
_MOVED = (301, 302, 303, 307, 308)
# What TLS says of a server that will not change: another's certificate, or no TLS at all.
_NO_TLS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")


@dataclass(frozen=True)
class Server:
    """Address of an InfluxDB 2 and our account there. No text made from it has the token."""

    url: str
    org: str
    bucket: str
    token: str = field(repr=False)

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} of organisation {self.org!r} at {self.url}"


@dataclass(frozen=True)
class Answer:
    """The result of a request. `wait_s` is how long the server asks us to wait, else 0."""

    meaning: Meaning
    text: str = ""
    remedy: str = ""
    wait_s: float = 0.0

    @property
    def problem(self) -> Problem:
        """What is wrong, and the remedy."""
        return Problem("", self.text, self.remedy, Code.NOT_READY)


class InfluxConnection:
    """A connection to one server. Close it."""

    def __init__(self, server: Server, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Prepare; nothing is sent yet. Raises NotReadyError without influxdb-client."""
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

        body = gzip.compress("\n".join(lines).encode(), _FAST)
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
            return self._rubbish("an answer that is no text")
        if status != _NO_CONTENT:
            return self._rubbish(f"status {status} where InfluxDB says {_NO_CONTENT}")
        return Answer("ok")

    def query(self, flux: str) -> Iterator[list[str]]:
        """Yield the rows of a Flux query's annotated CSV, headings included, as lists of text.

        Raises NotReadyError, with the server's message, if it refuses the query or answers with
        something else than annotated CSV, and TrialError if it may answer later.
        """
        from influxdb_client.rest import ApiException
        from urllib3.exceptions import HTTPError

        try:
            rows: Iterator[list[str]] = self._client.query_api().query_csv(flux)
            for number, row in enumerate(rows):
                # the first of its columns are annotations, which begin with # or are empty
                if number == 0 and row and row[0] and not row[0].startswith("#"):
                    answer = self._rubbish(f"{_short(','.join(row))!r} where it says CSV")
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
            return self._unreached(error)
        said = _said(error)
        if status in (401, 403):
            return Answer(
                "refused",
                f"{where} does not take the token ({status}{said})",
                "set CLOSLOOP_INFLUX_TOKEN to a token that may read and write "
                f"the bucket {self.server.bucket!r}",
            )
        if status == 404:
            return Answer(
                "refused",
                f"there is no {self.server} (404{said})",
                "make the bucket (influx bucket create), or correct CLOSLOOP_INFLUX_BUCKET, "
                "CLOSLOOP_INFLUX_ORG or the path in CLOSLOOP_INFLUX_URL",
            )
        if status == 413:
            return Answer("too-large", f"{where} takes no request of this size (413)")
        if status in _PASSING:
            busy = "is busy" if status in _BUSY else "is in trouble"
            return Answer(
                "later",
                f"{where} {busy} ({status}{said})",
                "nothing to do if it passes; see the server's log if it does not",
                _retry_after_s(error),
            )
        if status in _MOVED:
            return self._moved(status, error)
        if 400 <= status < 500:
            return Answer(
                "refused",
                f"{where} refuses {what} ({status}{said})",
                "if the bucket has other data under the same names, or deletes data of that time, "
                "choose another bucket; queries need InfluxDB 2 with Flux",
            )
        return self._rubbish(f"status {status}{said}")

    def _unreached(self, error: Exception) -> Answer:
        """Return the answer for a connection that failed, or of which what came is no HTTP."""
        from urllib3.exceptions import LocationValueError

        where, cause = self.server.url, _cause(error)
        if isinstance(error, LocationValueError):
            return self._rubbish("a redirect to no address")
        if any(isinstance(one, BadStatusLine) for one in _chain(error)) and not any(
            isinstance(one, RemoteDisconnected) for one in _chain(error)
        ):
            return self._rubbish(f"no HTTP, but {_short(cause)}")
        told = f"{getattr(error, 'reason', '')} {error}"
        if any(word in told for word in _NO_TLS):
            return Answer(
                "refused",
                f"{where} cannot be trusted by TLS: {_short(cause)}",
                "correct CLOSLOOP_INFLUX_URL: http:// or https://, the name in the server's "
                "certificate; a private authority's goes into SSL_CERT_FILE",
            )
        return Answer(
            "later",
            f"{where} cannot be reached: {_short(cause)}",
            "start the server, or correct CLOSLOOP_INFLUX_URL",
        )

    def _moved(self, status: int, error: Any) -> Answer:
        """Return the answer for a redirect, which is not followed: the token is for one server."""
        where = self.server.url
        location = str((error.headers or {}).get("Location", ""))
        place = _base(urljoin(f"{where}/", location)) if location else ""
        if place in ("", where):
            return self._rubbish(f"status {status}, and no address where else to ask")
        return Answer(
            "refused",
            f"{where} is somewhere else: {place} ({status})",
            f"set CLOSLOOP_INFLUX_URL={place} if that is the database; the token goes to no "
            "address that was not given",
        )

    def _rubbish(self, what: str) -> Answer:
        return Answer(
            "refused",
            f"{self.server.url} does not answer as InfluxDB does: {what}",
            "see what answers there: a proxy, or another service?",
        )


def _said(error: Any) -> str:
    body = error.body or ""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.strip()
    return f": {_short(message)}" if message else ""


def _base(location: str) -> str:
    """Return a server's address from that of its write or query API, "" if it is none.

    Without account, query and whatever does not belong into an address.
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
    """Yield an error and what it was made of: urllib3 keeps that as `reason`, or an argument."""
    reason: object = error
    while isinstance(reason, BaseException):
        yield reason
        inner = getattr(reason, "reason", None)
        arguments = (one for one in reason.args if isinstance(one, BaseException))
        reason = inner if isinstance(inner, BaseException) else next(arguments, None)


def _cause(error: Exception) -> str:
    """Return the reason of an error in a few words, without urllib3's names of objects."""
    *_, last = _chain(error)
    text = getattr(last, "reason", None) or last
    words = str(text).rsplit(": ", 1)[-1]
    return words.partition("] ")[2] or words  # [SSL: NAME] what it is


def _retry_after_s(error: Any) -> float:
    """Return the seconds of the header Retry-After, a number or a date (RFC 9110, 10.2.3), else 0.

    It is 0 as well if the date is over or the header is none.
    """
    text = str((error.headers or {}).get("Retry-After", "")).strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
