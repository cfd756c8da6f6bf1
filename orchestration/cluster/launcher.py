"""A cluster of closloop's own: the head on this machine, nodes on others by SSH, gone at the end.

`ray start --block` runs as long as it is wanted, below a shell that ends it when its standard input
is closed: when the SSH connection is closed or lost, or closloop on this machine ends. The shell
also removes the folder of Ray's files, which no other account can enter.

All of them ask for a token of this run's own. It goes through the shell's standard input into a
file: arguments can be read by everybody on a machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from inventory.ansible import Machines
from inventory.rack import Access
from orchestration.cluster.authentication import (
    TOKEN_FILE,
    admitted,
    environment,
    new_token,
    with_token,
)
from orchestration.core.errors import NotReadyError
from orchestration.device.client import in_parallel
from orchestration.device.errors import DeviceError
from orchestration.device.ssh import Secrets, connect, disconnect

_START_S = 90.0
_ANSWER_S = 10.0
_STOP_S = 20.0
_STARTED = b"Ray runtime started"
_RAY = ("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
_SHOWN = 300
_READ_BYTES = 1 << 16
# Its path is short: Ray's sockets are below it, and a socket's path has 107 bytes at most.
_FOLDER_BASE, _FOLDER_PREFIX = "/tmp", "closloop-ray-"
_MADE_FOLDER = f"$(mktemp -d {_FOLDER_BASE}/{_FOLDER_PREFIX}XXXXXXXX)"
# Ends Ray when standard input is closed, leaves nothing, and says when Ray has ended by itself.
# Ray opens its folder to all accounts (node.py, try_to_create_directory), so it gets one inside.
# A shell that gets a signal just before it waits sees it only when that wait has ended, so none of
# its waits takes longer than a second.
_HELD = """\
exec 3<&0 2>&1
ended=
folder={folder} || exit
trap 'rm -rf "$folder"' EXIT
trap 'ended=yes' HUP INT TERM
{prepare}{command} --temp-dir="$folder/ray" 3<&- & ray=$!
(cat <&3 >/dev/null 2>&1; kill $ray) & holder=$!
while test -z "$ended" && kill -0 $ray 2>/dev/null; do sleep 1 >/dev/null 2>&1 & wait $!; done
kill $ray 2>/dev/null
wait $ray
wait $ray 2>/dev/null  # a signal ends the first
kill $holder 2>/dev/null
rm -rf "$folder"
echo closloop: ray ended
"""
_ENDED = b"closloop: ray ended"


@contextmanager
def started(machines: Machines, secrets: Secrets, say: Callable[[str], None]) -> Iterator[str]:
    """Start a cluster on this machine and others, and yield its address; stop it at the end.

    `say` is told of each node. Raises NotReadyError with all machines that cannot be one.
    """
    with ExitStack() as ends:
        known = machines.known_hosts_file
        logins = in_parallel(machines.access, lambda access: connect(access, known, secrets))
        for login in logins.values():
            if not isinstance(login, DeviceError):
                ends.callback(disconnect, login)
        _raise_any(logins)
        token = new_token()
        address = ends.enter_context(head(_own_address(list(logins.values())), token))
        say(f"head of a cluster at {address}, on this machine")
        channels = in_parallel(
            machines.access, lambda access: _node(access, logins[access.device], address, token)
        )
        for channel in channels.values():
            if not isinstance(channel, DeviceError):
                ends.callback(_end, channel)
        _raise_any(channels)
        for name in channels:
            say(f"node {name}")
        yield address


@contextmanager
def head(host: str, token: str) -> Iterator[str]:
    """Start a head on this machine, reachable at the address `host`; yield its HOST:PORT.

    It asks for the token, and this process has it meanwhile.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    cpus = len(os.sched_getaffinity(0))
    options = ["--head", f"--port={port}", f"--node-ip-address={host}", f"--num-cpus={cpus}"]
    # the monitor is for clusters that grow by themselves, and serves metrics to everybody
    options += ["--include-dashboard=false", "--no-monitor"]
    with _here(options, token) as folder, environment(with_token(f"{folder}/{TOKEN_FILE}")):
        yield f"{host}:{port}"


@contextmanager
def joined(address: str, say: Callable[[str], None]) -> Iterator[None]:
    """Have this machine join a cluster that it is no node of, to hand out trials and run none.

    `say` is told if the cluster lets everybody in. Raises NotReadyError if nothing answers there,
    the user has no token for it, or Ray does not start.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise NotReadyError(
            f"nothing answers at {address}: {error}",
            "see whether the cluster's head runs there (ray start --head), and its port",
        ) from error
    with admitted(address, say), ExitStack() as ends:
        if not _is_node(address):
            ends.enter_context(_here([f"--address={address}", "--num-cpus=0"]))
        yield


def _is_node(address: str) -> bool:
    """Return whether some raylet of this machine belongs to a cluster."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"raylet") and any(address.encode() in word for word in words):
                return True
    return False


@contextmanager
def _here(options: Sequence[str], token: str = "") -> Iterator[str]:
    """Run `ray start` on this machine, in a session of its own that ends with this thread.

    Yields the folder of its files.
    """
    folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_FOLDER_BASE)
    script = _held([sys.executable, *_RAY, *options], shlex.quote(folder), token)
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # the shell says why
            os.write(process.stdin.fileno(), f"{token}\n".encode())
        _await_start(_Reader(process.stdout), options)
        yield folder
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _held(command: Sequence[str], folder: str, token: str) -> str:
    """Return the shell's script that runs `ray start`; `folder` is an expression of the shell.

    With a token the script reads it from the first line of standard input.
    """
    lines = []
    if token:
        file = f"$folder/{TOKEN_FILE}"
        lines.append(f'(umask 077; head -n 1 >"{file}")')
        for name, value in with_token(file).items():
            lines.append(f"unset {name}" if value is None else f'export {name}="{value}"')
    prepare = "".join(f"{line}\n" for line in lines)
    return _HELD.format(folder=folder, prepare=prepare, command=shlex.join(command))


class _Reader:
    """Keeps reading what a process says, so that it never waits for that."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.said = b""
        self.ended = False
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            self.said = (self.said + line)[-_READ_BYTES:]
        self.ended = True


def _await_start(reader: _Reader, options: Sequence[str]) -> None:
    until_s = time.monotonic() + _START_S
    while _STARTED not in reader.said:
        if reader.ended or time.monotonic() > until_s:
            raise NotReadyError(
                f"ray start {' '.join(options)} fails on this machine: {_end_of(reader.said)}",
                "try that command by hand",
            )
        time.sleep(0.1)


def _node(access: Access, login: Any, address: str, token: str) -> Any:
    """Start a node on a machine; return the channel that holds it. Raises DeviceError."""
    script = _held([access.python, *_RAY, f"--address={address}"], _MADE_FOLDER, token)
    channel = login.client.get_transport().open_session()
    channel.settimeout(1.0)
    channel.exec_command(f"sh -c {shlex.quote(script)}")
    channel.sendall(f"{token}\n".encode())
    said = b""
    until_s = time.monotonic() + _START_S
    while _STARTED not in said:
        with suppress(TimeoutError):
            piece = channel.recv(_READ_BYTES)
            said += piece
            if not piece or _ENDED in said:
                raise DeviceError(
                    access.device,
                    f"Ray does not start there: {_end_of(said.replace(_ENDED, b''))}",
                    f"its Python is {access.python} (ansible_python_interpreter): install "
                    "closloop[cluster] there, and let the machines reach each other's ports",
                )
        if time.monotonic() > until_s:
            raise DeviceError(
                access.device,
                f"Ray does not start there within {_START_S:.0f} s: {_end_of(said)}",
                f"it must reach {address}: see firewalls",
            )
    return channel


def _end(channel: Any) -> None:
    """End a node: its shell stops Ray, and says so at last."""
    with suppress(Exception):
        channel.shutdown_write()
        channel.settimeout(_STOP_S)
        said = b""
        while _ENDED not in said and (piece := channel.recv(_READ_BYTES)):
            said = said[-len(_ENDED) :] + piece
    channel.close()


def _own_address(logins: Sequence[Any]) -> str:
    """Return this machine's address as the first of the others that is reached directly sees it."""
    for login in logins:
        sock = login.client.get_transport().sock
        if isinstance(sock, socket.socket):
            return str(sock.getsockname()[0])
    import ray

    util: Any = ray.util
    return str(util.get_node_ip_address())


def _raise_any(found: dict[str, Any]) -> None:
    errors = [item for item in found.values() if isinstance(item, DeviceError)]
    if errors:
        raise NotReadyError(one for error in errors for one in error.problems)


def _end_of(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines)[-_SHOWN:] or "it says nothing"
