"""InfluxDB 2 through influxdb-client: single requests and the meaning of answers, no retries.

Only this module imports influxdb-client, when a connection is opened.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestration.model.errors import NotReadyError, TrialError

# ok: all was stored. later: try again, the fault is not ours. refused: not with these settings.
Meaning = Literal["ok", "later", "refused", "too-large"]

_TIMEOUT_MS = 20_000
_FAST = 1  # gzip level: four times as fast as the best one, for a fifth more bytes
_SHOWN_CHARACTERS = 200
_NO_CONTENT = 204


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


class InfluxConnection:
    """A connection to one server. Close it."""

    def __init__(self, server: Server, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Prepare; nothing is sent yet. Raises NotReadyError without influxdb-client."""
        try:
            from influxdb_client.client.influxdb_client import InfluxDBClient
            from influxdb_client.service.write_service import WriteService
        except ModuleNotFoundError as error:
            raise NotReadyError(
                "InfluxDB needs influxdb-client, which is not installed",
                "pip install 'closloop[influx]'",
            ) from error
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

        Raises TrialError, with the server's message, if the query fails.
        """
        from influxdb_client.rest import ApiException
        from urllib3.exceptions import HTTPError

        try:
            rows: Iterator[list[str]] = self._client.query_api().query_csv(flux)
            yield from rows
        except (ApiException, HTTPError, OSError) as error:
            answer = self._failure(error, "the query")
            raise TrialError(answer.text, answer.remedy) from error

    def _failure(self, error: Any, what: str) -> Answer:
        """Return the answer that an exception stands for: a refusal, or no server at all."""
        where = self.server.url
        if not hasattr(error, "status"):
            return Answer(
                "later",
                f"{where} cannot be reached: {_short(_cause(error))}",
                "start the server, or correct CLOSLOOP_INFLUX_URL",
            )
        status = error.status or 0
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
        if status == 429 or status >= 500:
            busy = "is busy" if status in (429, 503) else "is in trouble"
            return Answer(
                "later",
                f"{where} {busy} ({status}{said})",
                "nothing to do if it passes; see the server's log if it does not",
                _retry_after_s(error),
            )
        if 400 <= status < 500:
            return Answer(
                "refused",
                f"{where} refuses {what} ({status}{said})",
                "if the bucket has other data under the same names, or deletes data of that time, "
                "choose another bucket; queries need InfluxDB 2 with Flux",
            )
        return self._rubbish(f"status {status}{said}")

    def _rubbish(self, what: str) -> Answer:
        return Answer(
            "later",
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


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + " ..."


def _cause(error: Exception) -> str:
    """Return the reason of an error in a few words, without urllib3's names of objects."""
    reason: object = error
    while True:
        inner = getattr(reason, "reason", None) or next(
            (one for one in getattr(reason, "args", ()) if isinstance(one, BaseException)), None
        )
        if inner is None:
            break
        reason = inner
    return str(reason).rsplit(": ", 1)[-1]


def _retry_after_s(error: Any) -> float:
    """Return the seconds of the header Retry-After, 0 if it is missing or is a date."""
    headers = error.headers or {}
    try:
        return max(0.0, float(headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0
