"""Log in to devices with Fabric. Host keys are verified; errors name the device and the remedy.

The user's `~/.ssh/config` (jump hosts, keys) and a running ssh-agent are used.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inventory.rack import Access
from orchestration.device.errors import DeviceGone, LoginRefused, printable

if TYPE_CHECKING:
    from fabric import Connection

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 5


@dataclass(frozen=True)
class Secrets:
    """Login and sudo passwords of the devices. They are never shown or written to a file."""

    login: str = ""
    become: str = ""

    def __repr__(self) -> str:
        return "Secrets(…)"


def connect(access: Access, known_hosts_file: str, secrets: Secrets | None = None) -> Connection:
    """Log in to a device and return the open connection.

    Raises:
        LoginRefused: unknown or changed host key, key or password refused.
        DeviceGone: no route, nothing listens, no answer.
    """
    import paramiko
    from fabric import Connection

    where = f"{access.user}@{access.address} port {access.port}"
    options: dict[str, object] = {
        "auth_timeout": CONNECT_TIMEOUT_S,
        "banner_timeout": CONNECT_TIMEOUT_S,
    }
    if access.key_file:
        key_file = Path(access.key_file).expanduser()
        if not key_file.is_file():
            raise LoginRefused(
                access.device,
                f"there is no key file {key_file}",
                "correct ansible_ssh_private_key_file in the inventory",
            )
        options["key_filename"] = str(key_file)
    if secrets is not None and secrets.login:
        options["password"] = secrets.login
    connection = Connection(
        access.address,
        user=access.user,
        port=access.port,
        connect_timeout=CONNECT_TIMEOUT_S,
        connect_kwargs=options,
    )
    client = connection.client
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    files = [Path("~/.ssh/known_hosts").expanduser()]
    if known_hosts_file:
        files.append(Path(known_hosts_file).expanduser())
    for file in files:
        if file.exists():
            client.load_system_host_keys(str(file))
    scan = (
        f"compare its key with one you trust, then: ssh-keyscan -p {access.port} {access.address}"
    )
    try:
        connection.open()
    except paramiko.BadHostKeyException as error:
        raise LoginRefused(
            access.device,
            f"{access.address} has another host key than the known one: somebody may be in between",
            f"find out why; if the device was reinstalled, take its old key out of {files[-1]}",
        ) from error
    except paramiko.AuthenticationException as error:
        raise LoginRefused(
            access.device,
            f"{where} refuses the login: {printable(str(error))}",
            "check the user and its key (ansible_user, ansible_ssh_private_key_file), or give its "
            "password with --ask-pass",
        ) from error
    except paramiko.SSHException as error:
        text = printable(str(error))
        if "not found in known_hosts" in text:
            raise LoginRefused(
                access.device,
                f"the host key of {access.address} is not known",
                f"compare its key with one you trust, then: {scan} >> {files[-1]}",
            ) from error
        raise DeviceGone(
            access.device, f"no SSH with {where}: {text}", "see whether it runs and can be reached"
        ) from error
    except (TimeoutError, OSError, EOFError) as error:
        raise DeviceGone(
            access.device,
            f"{where} cannot be reached: {printable(str(error)) or type(error).__name__}",
            "see whether it runs, and whether its address in the inventory is right",
        ) from error
    transport = connection.transport
    if transport is not None:
        transport.set_keepalive(_KEEPALIVE_S)
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
