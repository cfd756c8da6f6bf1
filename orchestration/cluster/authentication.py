"""Who may use a Ray cluster: a token that its processes ask each other for.

Without one, whoever reaches a port of a cluster runs code on all of its nodes. Ray has a process
ask for one where RAY_AUTH_MODE is `token`, and takes it from RAY_AUTH_TOKEN, else from the file
that RAY_AUTH_TOKEN_PATH names, else from ~/.ray/auth_token (authentication_token_loader.cc). All
processes of a cluster must have the same mode, and who joins one must set it: `ray start --address`
and `ray.init(address=…)` never do by themselves (Ray 2.60, scripts.py and worker.py).
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestration.core.errors import NotReadyError

TOKEN_FILE = "token"

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# Has Kubernetes judge tokens instead.
_KUBERNETES = "RAY_ENABLE_K8S_TOKEN_AUTH"
_TOKEN_BYTES = 32
_ANSWER_S = 120.0
_REFUSED = "InvalidAuthToken"
_SHOWN = 300
_REMEDY = (
    "`ray get-auth-token` on its head prints it: put it in ~/.ray/auth_token here, or in a file "
    "that RAY_AUTH_TOKEN_PATH names, readable by you alone"
)


def new_token() -> str:
    """Return a new token: one line of 256 random bits."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def with_token(file: str) -> dict[str, str | None]:
    """Return the environment variables of a process that asks for the token in a file.

    Those that would come before the file are None: they are to be unset.
    """
    return {_MODE: "token", _PATH: file, _TOKEN: None, _KUBERNETES: None}


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or unset those that are None, for Ray in this process and its children."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def own_token() -> Iterator[None]:
    """Have clusters that this process starts ask for a token that no other process knows."""
    with tempfile.TemporaryDirectory(prefix="closloop-ray-") as folder:  # for this user alone
        file = Path(folder) / TOKEN_FILE
        file.touch(0o600)
        file.write_text(new_token())
        with environment(with_token(str(file))):
            yield


@contextmanager
def admitted(address: str, say: Callable[[str], None]) -> Iterator[None]:
    """Use a cluster of the user's own, by its HOST:PORT or `auto`, with a token if it wants one.

    A token goes to no cluster that does not ask for it: of such a one `say` is told. Raises
    NotReadyError if no cluster answers, or the user's token is missing or not the cluster's.
    """
    if _answers(address, "disabled"):
        say(
            f"warning: the Ray cluster at {address} asks for no token: whoever reaches its ports "
            "can run code on its nodes. Stop it, put the output of `ray get-auth-token --generate` "
            "in ~/.ray/auth_token of every node, and start it with RAY_AUTH_MODE=token on all"
        )
        mode = "disabled"
    else:
        source = _source(address)
        if not _answers(address, "token"):
            what = f"the Ray cluster at {address} refuses the token of {source}"
            raise NotReadyError(what, _REMEDY)
        mode = "token"
    with environment({_MODE: mode}):
        yield


def _answers(address: str, mode: str) -> bool:
    """Return whether a cluster answers a process that has this RAY_AUTH_MODE.

    In a process of its own, since Ray reads its settings once, and aborts where it misses a token.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    try:
        done = subprocess.run(
            [*command, f"--address={address}", "--skip-version-check"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, _MODE: mode},
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_ANSWER_S:.0f} s"
    else:
        if done.returncode == 0:
            return True
        text = done.stdout.decode(errors="replace").strip()
        if _REFUSED in text:
            return False
        reason = text.splitlines()[-1][:_SHOWN] if text else f"exit code {done.returncode}"
    raise no_cluster(address, reason)


def no_cluster(address: str, reason: str) -> NotReadyError:
    """Return the error for an address where no cluster is."""
    return NotReadyError(
        f"there is no Ray cluster at {address}: {reason}",
        "start one: ray start --head; or give the inventory of machines to start one on",
    )


def _source(address: str) -> str:
    """Return where Ray finds the user's token. Raises NotReadyError if there is none."""
    if os.environ.get(_TOKEN):
        return _TOKEN
    named = os.environ.get(_PATH)
    if not named and os.environ.get(_KUBERNETES):
        return "Kubernetes"
    file = Path(named or Path.home() / ".ray" / "auth_token")
    try:
        if file.read_text(errors="replace").strip():
            return str(file)
        problem = "is empty"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    what = f"the Ray cluster at {address} wants a token, and {file} {problem}"
    raise NotReadyError(what, _REMEDY)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray reads them when it is imported. The mode comes first: threads of it that still run look
    # for a token while the mode is `token`, and abort the process if there is none
    raylet: Any = sys.modules.get("ray._raylet")
    if raylet is not None:
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
