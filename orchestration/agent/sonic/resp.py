"""A Redis client: pipelined commands over a Unix socket, and keyspace events.

Each command has the number of its Redis database. The protocol is RESP2.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

from ..main import OperationError

# SONiC's numbers (database_config.json of docker-database).
APPL_DB, ASIC_DB, COUNTERS_DB, CONFIG_DB, STATE_DB = 0, 1, 2, 4, 6
SOCKET = "/var/run/redis/redis.sock"

# How long a restart of Redis may take before commands fail.
RESTART_TIMEOUT_S = 5.0
# Redis counts as gone if it accepts a connection but does not answer for this long.
ANSWER_TIMEOUT_S = 10.0
_RETRY_S = 0.05
_READ_BYTES = 1 << 18
_CRLF = b"\r\n"
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_MAX_DEPTH = 32  # arrays in arrays

# Devices may run Python 3.9, which has no `|` between types at run time.
Word = Union[str, bytes, int]  # noqa: UP007
Command = tuple[int, Sequence[Word]]


class RedisError(OperationError):
    """The error if Redis refuses a command or cannot be reached."""


class RedisGone(RedisError):  # noqa: N818 (names a state)
    """The error if Redis cannot be reached, or does not come back in time."""


class _ClosedError(Exception):
    """The connection has ended, or Redis is still loading its data."""


class _Refusal(str):
    pass


class Redis:
    """One connection, opened on first use and reopened after Redis has restarted.

    Commands are sent again after a restart, so they must be safe to repeat. `restarts` counts the
    reconnections. `restart_timeout_s` is how long a command waits for Redis, and `timeout_s` how
    long for an answer.
    """

    def __init__(
        self,
        path: str = SOCKET,
        restart_timeout_s: float = RESTART_TIMEOUT_S,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.path = path
        self.restarts = 0
        self._restart_timeout_s = restart_timeout_s
        self._timeout_s = timeout_s
        self._stream: _Stream | None = None
        self._db = -1
        self._connected_once = False

    def call(self, db: int, *words: Word) -> Any:
        """Run one command and return its reply. Raises RedisError."""
        return self.run([(db, words)])[0]

    def hash(self, db: int, key: str) -> dict[str, str]:
        """Return a hash, {} if it does not exist."""
        return pairs(self.call(db, "HGETALL", key))

    def hashes(self, db: int, keys: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return hashes by key, {} for each that does not exist."""
        keys = list(keys)
        replies = self.run([(db, ("HGETALL", key)) for key in keys])
        return {key: pairs(flat) for key, flat in zip(keys, replies)}

    def rows(self, db: int, pattern: str) -> dict[str, dict[str, str]]:
        """Return the hashes whose keys match a pattern, in the order of their keys."""
        return self.hashes(db, sorted(self.call(db, "KEYS", pattern)))

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and return their replies: str, int, None or lists of them.

        Raises RedisError if one is refused, RedisGone if Redis is not back in time.
        """
        if not commands:
            return []
        deadline = time.monotonic() + self._restart_timeout_s
        while True:
            try:
                replies = self._exchange(commands)
                break
            except (OSError, _ClosedError) as error:
                self.close()
                # no retry without the right to open the socket, since waiting does not change that
                if isinstance(error, PermissionError) or time.monotonic() >= deadline:
                    raise self._unreachable_error(error) from error
                time.sleep(_RETRY_S)
        for (_, words), reply in zip(commands, replies):
            if isinstance(reply, _Refusal):
                raise RedisError(
                    f"Redis at {self.path} refuses {_shown(words)}: {reply}",
                    "check that the switch is as SONiC sets it up",
                )
        return replies

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        stream = self._stream or self._connect()
        request = bytearray()
        select_indices: list[int] = []
        for index, (db, words) in enumerate(commands):
            if db != self._db:
                request += encode(("SELECT", db))
                select_indices.append(index + len(select_indices))
                self._db = db
            request += encode(words)
        stream.send(bytes(request))
        replies = [stream.reply() for _ in range(len(commands) + len(select_indices))]
        for reply in replies:
            # Redis is still reading its data after a restart
            if isinstance(reply, _Refusal) and reply.startswith("LOADING"):
                raise _ClosedError(str(reply))
        for index in reversed(select_indices):
            selected = replies.pop(index)
            if isinstance(selected, _Refusal):
                self.close()
                raise RedisError(
                    f"Redis at {self.path} does not have SONiC's databases: {selected}",
                    "check that the device is a SONiC switch",
                )
        return replies

    def _connect(self) -> _Stream:
        stream = _Stream(self.path, self._timeout_s)
        if self._connected_once:
            self.restarts += 1
        self._connected_once = True
        self._stream, self._db = stream, 0
        return stream

    def _unreachable_error(self, error: Exception) -> RedisGone:
        if isinstance(error, PermissionError):
            return RedisGone(
                f"Redis at {self.path} may not be opened by this user",
                "put the user into group redis, or use sudo",
            )
        return RedisGone(
            f"Redis at {self.path} does not answer ({error or 'the connection was closed'})",
            "check that the switch's database runs: docker ps --filter name=database",
        )

    def close(self) -> None:
        """Close the connection; the next command opens a new one."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


class Events:
    """Keyspace events of one database: which keys were written or removed, and by which command.

    Redis must run with notify-keyspace-events AKE, as SONiC's does. Wait for `fileno` to be
    readable, then call `take`. A lost connection raises RedisGone; events may then have been
    missed, so subscribe again and read all keys.
    """

    def __init__(self, path: str, db: int, pattern: str = "*") -> None:
        self._prefix = f"__keyspace@{db}__:"
        try:
            self._stream = _Stream(path, ANSWER_TIMEOUT_S)
            self._stream.send(encode(("PSUBSCRIBE", self._prefix + pattern)))
            self._stream.reply()
        except (OSError, _ClosedError) as error:
            raise RedisGone(f"Redis at {path} does not answer ({error})") from error

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._stream.fileno()

    def take(self) -> list[tuple[str, str]]:
        """Return (key, command) of all events that have arrived, in order. Does not wait."""
        try:
            self._stream.fill()
            return [
                (reply[2][len(self._prefix) :], reply[3])
                for reply in self._stream.ready()
                if isinstance(reply, list) and reply[0] == "pmessage"
            ]
        except (OSError, _ClosedError) as error:
            raise RedisGone(f"Redis has ended the connection ({error})") from error

    def close(self) -> None:
        """End the subscription."""
        self._stream.close()


class _Stream:
    """The protocol (RESP2) on one connection."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._pending = bytearray()
        self._at = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def fill(self) -> None:
        piece = self._socket.recv(_READ_BYTES)
        if not piece:
            raise _ClosedError("the connection was closed")
        self._pending += piece

    def reply(self) -> Any:
        while not (found := self._next()):
            self.fill()
        return found[0]

    def ready(self) -> Iterator[Any]:
        while found := self._next():
            yield found[0]

    def _next(self) -> tuple[Any, ...]:
        """Return the next reply in a tuple, or an empty tuple if it is not complete yet."""
        start = self._at
        try:
            return (self._parse(),)
        except IndexError:
            self._at = start
            return ()
        finally:
            self._drop_parsed()

    def _drop_parsed(self) -> None:
        if self._at > _READ_BYTES or self._at == len(self._pending):
            del self._pending[: self._at]
            self._at = 0

    def _parse(self, depth: int = 0) -> Any:
        """Take one reply from the received bytes. Raises IndexError if it is incomplete."""
        end = self._pending.find(_CRLF, self._at)
        if end < 0:
            raise IndexError
        kind, text = self._pending[self._at], bytes(self._pending[self._at + 1 : end])
        self._at = end + 2
        if kind == ord("+"):
            return text.decode(errors="replace")
        if kind == ord("-"):
            return _Refusal(text.decode(errors="replace"))
        if kind in b":$*" and depth < _MAX_DEPTH and _INTEGER.fullmatch(text):
            number = int(text)
            if kind == ord(":"):
                return number
            if kind == ord("$"):
                return self._bulk(number)
            return None if number < 0 else [self._parse(depth + 1) for _ in range(number)]
        raise _ClosedError(f"this is not Redis: it answers {bytes([kind]) + text[:40]!r}")

    def _bulk(self, length: int) -> str | None:
        if length < 0:
            return None
        end = self._at + length
        if len(self._pending) < end + 2:
            raise IndexError
        # values may be binary, as IPFIX templates are; this encoding can be reversed exactly
        value = self._pending[self._at : end].decode(errors="surrogateescape")
        self._at = end + 2
        return value


def encode(words: Sequence[Word]) -> bytes:
    """Return the RESP encoding of a command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """Return a reply of alternating keys and values, such as HGETALL's, as a dict."""
    return dict(zip(flat[::2], flat[1::2]))


def _shown(words: Sequence[Word]) -> str:
    return " ".join(str(word) for word in words[:2])
