"""Authentication in a Ray cluster: a token that its processes require of each other.

Without a token, whoever reaches a port of a cluster can run code on all of its nodes. A Ray process
requires a token if RAY_AUTH_MODE is `token`. It takes its own token from RAY_AUTH_TOKEN, else from
the file that RAY_AUTH_TOKEN_PATH names, else from ~/.ray/auth_token
(authentication_token_loader.cc). All processes of a cluster must have the same mode, and a process
that joins must set it: `ray start --address` and `ray.init(address=…)` do not set it by themselves
(Ray 2.60, scripts.py and worker.py).
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
# If it is set, Kubernetes checks tokens instead.
_KUBERNETES = "RAY_ENABLE_K8S_TOKEN_AUTH"
_TOKEN_BYTES = 32
_ANSWER_S = 120.0
_REFUSED = "InvalidAuthToken"
_MAX_SHOWN = 300
_REMEDY = (
    "`ray get-auth-token` on its head prints it: put it in ~/.ray/auth_token here, or in a file "
    "that RAY_AUTH_TOKEN_PATH names, readable by you alone"
)


def new_token() -> str:
    """Return a new token: one line of 256 random bits."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def token_environment(file: str) -> dict[str, str | None]:
    """Return the environment variables of a process that requires the token in a file.

    Variables that Ray would prefer to the file are None: they must be unset.
    """
    return {_MODE: "token", _PATH: file, _TOKEN: None, _KUBERNETES: None}


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for Ray in this process and its children; those that are None are unset."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def own_token() -> Iterator[None]:
    """Make clusters that this process starts require a token that no other process knows."""
    with tempfile.TemporaryDirectory(
        prefix="closloop-ray-"
    ) as folder:  # only this user can enter it
        file = Path(folder) / TOKEN_FILE
        file.touch(0o600)
        file.write_text(new_token())
        with environment(token_environment(str(file))):
            yield


@contextmanager
def authenticated(address: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Set this process up to use a cluster, by its HOST:PORT or `auto`, with the user's token.

    The token is sent only to a cluster that requires one; for any other cluster `warn` is called
    with a warning. Raises NotReadyError if no cluster answers, or if the user's token is missing or
    wrong.
    """
    if _accepts(address, "disabled"):
        warn(
            f"warning: the Ray cluster at {address} requires no token: whoever reaches its ports "
            "can run code on its nodes. Stop it, put the output of `ray get-auth-token --generate` "
            "in ~/.ray/auth_token of every node, and start it with RAY_AUTH_MODE=token on all"
        )
        mode = "disabled"
    else:
        source = _token_source(address)
        if not _accepts(address, "token"):
            problem = f"the Ray cluster at {address} refuses the token of {source}"
            raise NotReadyError(problem, _REMEDY)
        mode = "token"
    with environment({_MODE: mode}):
        yield


def _accepts(address: str, mode: str) -> bool:
    """Return whether a cluster accepts a process with this RAY_AUTH_MODE.

    This is tried in another process, because Ray reads its settings once, and aborts without a
    token. Raises NotReadyError if no cluster answers.
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
        reason = text.splitlines()[-1][:_MAX_SHOWN] if text else f"exit code {done.returncode}"
    raise no_cluster(address, reason)


def no_cluster(address: str, reason: str) -> NotReadyError:
    """Return the error for an address where there is no cluster."""
    return NotReadyError(
        f"there is no Ray cluster at {address}: {reason}",
        "start one: ray start --head; or give the inventory of machines to start one on",
    )


def _token_source(address: str) -> str:
    """Return in words where Ray finds the user's token. Raises NotReadyError without one."""
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
    message = f"the Ray cluster at {address} requires a token, and {file} {problem}"
    raise NotReadyError(message, _REMEDY)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # Ray reads the variables when it is imported. The mode is reset first: Ray's threads that still
    # run look for a token while the mode is `token`, and abort the process if there is none
    raylet: Any = sys.modules.get("ray._raylet")
    if raylet is not None:
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
