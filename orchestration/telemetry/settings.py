"""Settings of InfluxDB: address and token, from the environment or a file, never a campaign."""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from collectors.sinks.influx import Server
from orchestration.core.errors import InputError, NotReadyError, unreadable
from orchestration.core.units import UnitError, format_size, parse_size_bytes

FILE_VARIABLE = "CLOSLOOP_INFLUX_FILE"
_VARIABLES = {
    "url": "CLOSLOOP_INFLUX_URL",
    "org": "CLOSLOOP_INFLUX_ORG",
    "bucket": "CLOSLOOP_INFLUX_BUCKET",
    "token": "CLOSLOOP_INFLUX_TOKEN",
    "spool": "CLOSLOOP_INFLUX_SPOOL",
}
_NEEDED = ("url", "org", "bucket", "token")
_DEFAULT_SPOOL = "256MB"
_MIN_SPOOL_BYTES = 1_000_000
_FOLDER = ".telemetry"


@dataclass(frozen=True)
class Settings:
    """A server, and the number of bytes that a campaign may spool for it."""

    server: Server
    spool_bytes: int

    def home(self, campaign_folder: Path) -> Path:
        """Return the folder of a campaign's spool and ledger for this server."""
        server = self.server
        text = "\n".join((server.url, server.org, server.bucket))
        return campaign_folder / _FOLDER / hashlib.sha256(text.encode()).hexdigest()[:12]


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from the environment, or from the file where the environment has none.

    The file is `CLOSLOOP_INFLUX_FILE`, or influx.toml in ~/.config/closloop: TOML with the keys
    url, org, bucket, token and, optionally, spool. Raises InputError for missing or wrong settings,
    NotReadyError if other users can read the file.
    """
    given = os.environ if environment is None else environment
    values = _from_file(given)
    values |= {key: given[name] for key, name in _VARIABLES.items() if given.get(name)}
    missing = [key for key in _NEEDED if not values.get(key)]
    if missing:
        remedy = (
            f"set {', '.join(_VARIABLES[key] for key in missing)}, or write "
            f"{', '.join(missing)} into {_file(given)} (mode 600)"
        )
        raise InputError.single("InfluxDB", f"no {', no '.join(missing)} is given", remedy)
    return Settings(
        Server(_url(values["url"]), values["org"], values["bucket"], values["token"]),
        _spool(values.get("spool", _DEFAULT_SPOOL)),
    )


def _file(environment: Mapping[str, str]) -> Path:
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    config = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "closloop" / "influx.toml"


def _from_file(environment: Mapping[str, str]) -> dict[str, str]:
    path = _file(environment)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                what = f"{path} holds a token, and others may read it (mode {mode & 0o777:o})"
                raise NotReadyError(what, f"chmod 600 {path}")
            data = tomllib.load(file)
    except FileNotFoundError as error:
        if environment.get(FILE_VARIABLE):
            remedy = "write the file, or unset the variable"
            raise InputError.single(FILE_VARIABLE, f"{path} does not exist", remedy) from error
        return {}
    except OSError as error:
        raise unreadable(path, error, "make yourself its owner, with mode 600") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The parser's message is not shown, because it may quote the token.
        remedy = 'write lines such as url = "http://127.0.0.1:8086"'
        raise InputError.single(str(path), "is not TOML", remedy) from error
    wrong = [key for key, value in data.items() if key not in _VARIABLES or type(value) is not str]
    if wrong:
        what = f"{wrong[0]!r} is not one of its keys, or its value is not a text"
        raise InputError.single(str(path), what, f"keys: {[*_VARIABLES]}")
    return data


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError.single(
            _VARIABLES["url"], f"{text!r} is not an address", "write it like http://127.0.0.1:8086"
        )
    if parts.username or parts.password or parts.query:
        raise InputError.single(
            _VARIABLES["url"],
            "the address contains a password or a query, which would be printed and logged",
            f"give only the server's address here, and the token in {_VARIABLES['token']}",
        )
    return text.rstrip("/")


def _spool(text: str) -> int:
    try:
        size = parse_size_bytes(text)
    except UnitError as error:
        raise InputError([error.problem.relocated(_VARIABLES["spool"])]) from error
    if size < _MIN_SPOOL_BYTES:
        raise InputError.single(
            _VARIABLES["spool"],
            f"a spool of {format_size(size)} is too small for the samples of a fabric",
            f"give it at least {format_size(_MIN_SPOOL_BYTES)}",
        )
    return size
