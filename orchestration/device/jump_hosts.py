"""Jump hosts and ProxyCommand of `~/.ssh/config`, which lead to a device, as OpenSSH reads them.

Jump hosts are visited in the order of ProxyJump (ssh_config(5): "sequentially"). Each has its own
`Host` block; only the first one's own ProxyJump or ProxyCommand counts. The first of ProxyJump and
ProxyCommand that applies to a host wins, and `none` is neither.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.rack import Access
from orchestration.device.errors import LoginRefused, printable

if TYPE_CHECKING:
    from paramiko import SSHConfig

# They are removed from the environment of programs that are started here.
SECRET_VARIABLES = ("CLOSLOOP_SSH_PASSWORD", "CLOSLOOP_BECOME_PASSWORD")
_CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_HOP = re.compile(r"(?:ssh://)?(?:(.*)@)?(\[[^\]]+\]|[^\s:@/]+)(?::(\d+))?/?")
_END_S = 1.0


@dataclass(frozen=True)
class Hop:
    """A host to log in to, by its name in `~/.ssh/config`; `command` is its ProxyCommand, or ""."""

    name: str
    user: str
    port: int
    command: str = ""


def ssh_config(name: str = "", user: str = "", port: int = 0) -> SSHConfig:
    """Return the user's and the system's SSH configuration.

    `user` and `port` take precedence for the host `name`, if they are given.
    """
    from paramiko import SSHConfig

    given = [f"User {user}"] if user else []
    given += [f"Port {port}"] if port else []
    config = SSHConfig.from_text("\n".join([f"Host {name}", *given]) if given else "")
    for path in (Path(item).expanduser() for item in _CONFIGS):
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                config.parse(file)
    return config


def hops_to(access: Access) -> list[Hop]:
    """Return the hops to a device in order; the device is the last. Raises LoginRefused."""
    from paramiko import SSHException

    try:
        return _hops(access, Hop(access.address, access.user, access.port), ())
    except (SSHException, ValueError) as error:
        raise LoginRefused(
            access.device,
            f"~/.ssh/config cannot be read: {printable(str(error))}",
            "correct it; `ssh -G` shows what OpenSSH reads in it",
        ) from error


def _hops(access: Access, host: Hop, seen: tuple[str, ...]) -> list[Hop]:
    """Return the hops to `host`; `seen` are the jump hosts that lead here, to find circles."""
    options = ssh_config(host.name, host.user, host.port).lookup(host.name)
    kind = next((key for key in options if key in ("proxyjump", "proxycommand")), "")
    value = options.get(kind) or "none"
    if value.lower() == "none":
        return [host]
    if kind == "proxycommand":
        return [replace(host, command=value)]
    first, *others = [_hop(access, item.strip()) for item in value.split(",")]
    if first.name == host.name:  # `Host *` with ProxyJump applies to the jump host as well
        return [host]
    if first.name in seen:
        raise LoginRefused(
            access.device,
            f"its jump hosts lead in a circle: {', '.join((*seen, first.name))}",
            "correct ProxyJump in ~/.ssh/config",
        )
    return [*_hops(access, first, (*seen, first.name)), *others, host]


def _hop(access: Access, text: str) -> Hop:
    """Return the hop that an item of ProxyJump means. Raises LoginRefused."""
    match = _HOP.fullmatch(text)
    if match is None:
        raise LoginRefused(
            access.device,
            f"ProxyJump {text!r} is not a host",
            "write [user@]host[:port] in ~/.ssh/config",
        )
    user, name, port = match[1] or "", match[2].strip("[]"), int(match[3] or 0)
    options = ssh_config(name, user, port).lookup(name)
    return Hop(name, options.get("user") or getpass.getuser(), int(options.get("port", 22)))


class Proxy:
    """A running ProxyCommand, and the socket that leads through it.

    Paramiko's own class loops for ever when its command ends (paramiko/paramiko issue 1277), and
    does not read its error messages. The command runs in a session of its own, so that it cannot
    ask questions on the terminal.
    """

    def __init__(self, command: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`errors` reads it after the end)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                env={k: v for k, v in os.environ.items() if k not in SECRET_VARIABLES},
                start_new_session=True,
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def errors(self) -> bytes:
        """Return the last 2,000 bytes that the command wrote to its standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        return os.pread(self._errors.fileno(), 2000, max(0, size - 2000))

    def close(self) -> None:
        """Close the socket, which ends the command."""
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


PROGRAM, PACKAGE = "ssh-keygen", "openssh-client"


def new_key(file: Path, comment: str) -> None:
    """Write a private key without a passphrase to `file`, and its public key to `file`.pub.

    Raises FileNotFoundError if there is no ssh-keygen, and CalledProcessError if it cannot write.
    """
    argv = [PROGRAM, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def public_words(file: Path) -> str:
    """Return the public key beside a private one as `ssh-ed25519 AAAA...`, without its comment."""
    return " ".join(file.with_name(f"{file.name}.pub").read_text(encoding="ascii").split()[:2])
