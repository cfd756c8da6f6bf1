"""Logs in to devices with Fabric, also through jump hosts. Errors name device, hop and remedy.

The user's `~/.ssh/config` and a running ssh-agent are used. The host key of every hop is verified.
Fabric's own gateways accept any key (fabric/fabric issue 2071), visit the hosts of `ProxyJump a,b`
in the wrong order, and take `ProxyJump none` for a host (issue 2354). Therefore `jump_hosts`
resolves them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.rack import Access
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused, printable
from orchestration.device.jump_hosts import Hop, Proxy, hops_to, ssh_config

if TYPE_CHECKING:
    from fabric import Connection

# Without a handler Python would print Paramiko's tracebacks on the terminal, beside the message.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 5
_SSH_PORT = 22
_MAX_SHOWN = 300
# sshd drops logins at random while 10 others are in progress (MaxStartups), and all devices of a
# rack may have the same jump host.
_THROUGH_HOPS = threading.BoundedSemaphore(8)
_PROHIBITED = 1  # RFC 4254, SSH_OPEN_ADMINISTRATIVELY_PROHIBITED


@dataclass(frozen=True)
class Secrets:
    """Login and sudo passwords of the devices. They are never shown or written to a file."""

    login: str = ""
    become: str = ""

    @classmethod
    def of_environment(cls) -> Secrets:
        """Return the passwords in CLOSLOOP_SSH_PASSWORD and CLOSLOOP_BECOME_PASSWORD, if any."""
        login = os.environ.get("CLOSLOOP_SSH_PASSWORD", "")
        return cls(login, os.environ.get("CLOSLOOP_BECOME_PASSWORD", ""))

    def __repr__(self) -> str:
        return "Secrets(…)"

    def hide(self, text: str | bytes) -> str:
        """Return the end of a device's output as one line, with passwords replaced by `…`."""
        if isinstance(text, bytes):
            text = text.decode(errors="surrogateescape")
        for word in filter(None, (self.login, self.become)):
            quoted = word.encode(errors="surrogateescape")
            for form in (word, repr(word)[1:-1], repr(quoted)[2:-1]):
                text = text.replace(form, "…")
        return printable(text[-_MAX_SHOWN:])


def connect(access: Access, known_hosts_file: str, secrets: Secrets | None = None) -> Connection:
    """Log in to a device and return the open connection; `disconnect` closes it.

    Raises LoginRefused if a hop's host key is not known or a login is refused, and DeviceGone if a
    hop does not answer.
    """
    *jumps, last = hops_to(access)
    login = _Login(access, known_hosts_file, secrets or Secrets())
    connection: Connection | None = None
    with _THROUGH_HOPS if jumps or last.command else nullcontext():
        for hop in (*jumps, last):
            connection = login.connection(hop, connection, is_device=hop is last)
            problem = login.opened(connection, hop)
            if problem is not None:
                disconnect(connection)
                # outside of any handler: no traceback shows what Paramiko was given
                raise problem
    assert connection is not None
    return connection


def disconnect(connection: Connection) -> None:
    """Close a connection, and those to its jump hosts."""
    current: Any = connection
    while current:
        with suppress(Exception):
            current.client.close()
        if "sock" in current.connect_kwargs:
            current.connect_kwargs["sock"].close()
        current = current.gateway


class _Login:
    """Opens the connections to a device's hops, one after the other."""

    def __init__(self, access: Access, known_hosts_file: str, secrets: Secrets) -> None:
        self._access, self._secrets = access, secrets
        self._files = [Path("~/.ssh/known_hosts").expanduser()]
        if known_hosts_file:
            self._files.append(Path(known_hosts_file).expanduser())
        self._key_file = Path(access.key_file).expanduser() if access.key_file else None
        if self._key_file is not None and not self._key_file.is_file():
            raise LoginRefused(
                access.device,
                f"there is no key file {self._key_file}",
                "correct ansible_ssh_private_key_file in the inventory",
            )

    def connection(self, hop: Hop, before: Connection | None, is_device: bool) -> Connection:
        """Return a connection to `hop` through `before`, not opened yet.

        The inventory's key and password are for the device only, not for jump hosts.
        """
        import paramiko
        from fabric import Config, Connection

        options: dict[str, Any] = {
            "auth_timeout": CONNECT_TIMEOUT_S,
            "banner_timeout": CONNECT_TIMEOUT_S,
            "channel_timeout": CONNECT_TIMEOUT_S,
            "transport_factory": _transport,
        }
        if is_device and self._key_file is not None:
            options["key_filename"] = str(self._key_file)
        made = Connection(
            hop.name,
            user=hop.user,
            port=hop.port,
            gateway=before or False,
            config=Config(ssh_config=ssh_config()),
            connect_timeout=CONNECT_TIMEOUT_S,
            connect_kwargs=options,
        )
        if is_device and self._secrets.login:
            # bytes: a password from the environment need not be UTF-8
            made.connect_kwargs["password"] = self._secrets.login.encode(errors="surrogateescape")
        made.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        name = made.host if made.port == _SSH_PORT else f"[{made.host}]:{made.port}"
        for key in self._known_keys(name):
            made.client.get_host_keys().add(name, key.get_name(), key)
        return made

    def _known_keys(self, name: str) -> list[Any]:
        """Return a host's keys in known_hosts, without those that are marked @revoked."""
        from paramiko.hostkeys import HostKeyEntry, HostKeys

        rows = [
            line.split()
            for file in self._files
            if file.exists()
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        revoked = {word for row in rows if row[:1] == ["@revoked"] for word in row}
        keys = []
        for row in rows:
            with suppress(Exception):  # like OpenSSH, ignore lines that cannot be read
                hosts = row[0].split(",")
                if name in hosts or HostKeys.hash_host(name, row[0]) in hosts:
                    entry = HostKeyEntry.from_line(" ".join(row))
                    if entry is not None and entry.key.get_base64() not in revoked:
                        keys.append(entry.key)
        return keys

    def opened(self, connection: Connection, hop: Hop) -> DeviceError | None:
        """Open a connection; return None, or an error that has no traceback with passwords."""
        import paramiko

        proxy = None
        try:
            if hop.command:
                connection.connect_kwargs["sock"] = proxy = Proxy(hop.command)
            connection.open()
        except (paramiko.SSHException, OSError, EOFError) as error:
            if proxy is not None and connection.client.get_transport().remote_version == "":
                return self._proxy_failed(hop, proxy.errors())
            return self._problem(connection, hop, error)
        finally:
            connection.connect_kwargs.pop("password", None)
        transport = connection.transport
        transport.set_keepalive(_KEEPALIVE_S)
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return None

    def _problem(self, connection: Connection, hop: Hop, error: Exception) -> DeviceError:
        """Return the error, with its remedy, for a hop whose connection cannot be opened."""
        import paramiko

        device, before = self._access.device, connection.gateway
        is_device = hop.name == self._access.address
        address = f"{connection.host} port {connection.port}"
        where = f"{hop.user}@{address}"
        if not is_device:
            where = f"jump host {hop.name} ({where})"
        text = self._secrets.hide(getattr(error, "text", "") or str(error))
        is_unknown_key = "not found in known_hosts" in text
        if isinstance(error, paramiko.BadHostKeyException) or (
            is_unknown_key and isinstance(error, paramiko.SSHException)
        ):
            host = connection.host if is_device else f"jump host {hop.name} ({address})"
            return self._host_key_refused(connection, host, is_device, is_unknown_key)
        transport = connection.client.get_transport()
        if isinstance(error, paramiko.AuthenticationException) or (
            type(error) is paramiko.SSHException
            and transport is not None
            and transport.initial_kex_done
        ):
            remedy = (
                "check the user and its key (ansible_user, ansible_ssh_private_key_file), or give "
                "its password with --ask-pass"
            )
            if not is_device:
                remedy = "see User and IdentityFile of its Host in ~/.ssh/config, or use ssh-agent"
            return LoginRefused(device, f"{where} refuses the login: {text}", remedy)
        if before and isinstance(error, paramiko.ChannelException):
            what = f"jump host {before.original_host} does not reach {where}: {text}"
            remedy = "see whether it runs, and whether its address in the inventory is right"
            if error.code == _PROHIBITED:
                what = f"jump host {before.original_host} does not forward to {where}"
                remedy = "allow it in that host's sshd_config (AllowTcpForwarding, PermitOpen)"
            return DeviceGone(device, what, remedy)
        if isinstance(error, paramiko.SSHException):
            return DeviceGone(
                device, f"no SSH with {where}: {text}", "see whether it runs and can be reached"
            )
        remedy = "see whether it runs, and whether its address in the inventory is right"
        if not is_device:
            remedy = "see whether it runs, and HostName and Port of its Host in ~/.ssh/config"
        return DeviceGone(
            device, f"{where} cannot be reached: {text or type(error).__name__}", remedy
        )

    def _host_key_refused(
        self, connection: Connection, host: str, is_device: bool, is_unknown_key: bool
    ) -> LoginRefused:
        """Return the error for a hop whose host key is not known, or is another one."""
        # Ansible's ssh looks for a jump host's key in the user's file only
        known = self._files[-1 if is_device else 0]
        if not is_unknown_key:
            return LoginRefused(
                self._access.device,
                f"{host} has another host key than the known one: somebody may be in between",
                f"find out why; if it was reinstalled, remove its old key from {known}",
            )
        scan, before = f"ssh-keyscan -p {connection.port} {connection.host}", connection.gateway
        scan = f"ssh {before.original_host} {scan}" if before else scan
        return LoginRefused(
            self._access.device,
            f"the host key of {host} is not known",
            f"compare its key with one you trust, then: {scan} >> {known}",
        )

    def _proxy_failed(self, hop: Hop, output: bytes) -> DeviceError:
        words = hop.command.split()
        # the words in the middle may have a password
        what = f"the ProxyCommand to {hop.name} ({words[0]} … {words[-1]}) "
        what += (
            f"says: {self._secrets.hide(output)}" if output.strip() else "leads to no SSH server"
        )
        remedy = "try the command by hand; it is in ~/.ssh/config"
        kind = LoginRefused if b"ost key verification failed" in output else DeviceGone
        return kind(self._access.device, what, remedy)


def _transport(sock: Any, **options: Any) -> Any:
    """Return a transport that refuses, instead of asking on the terminal, for a second factor."""
    import paramiko

    def refuse(*_: object, **__: object) -> None:
        raise paramiko.AuthenticationException("it asks for more than a key or a password")

    transport = paramiko.Transport(sock, **options)
    transport.auth_interactive_dumb = refuse
    return transport
