"""A cluster of closloop's own: the head on this machine, nodes on others by SSH, gone at the end.

`ray start --block` runs as long as it is wanted. On another machine its shell ends it when the SSH
connection is closed or lost, on this one the kernel does when closloop ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
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
from orchestration.device.errors import DeviceError
from orchestration.device.fleet import side_by_side
from orchestration.device.ssh import Secrets, connect, disconnect
from orchestration.model.errors import NotReadyError

_START_S = 90.0
_ANSWER_S = 10.0
_STOP_S = 20.0
_STARTED = b"Ray runtime started"
_RAY = ("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
_SHOWN = 300
_READ_BYTES = 1 << 16
# Ends Ray when standard input is closed, and says when Ray has ended by itself.
_HELD = (
    "exec 3<&0; {command} 2>&1 & ray=$!; (cat <&3 >/dev/null; kill $ray) & "
    "wait $ray; echo closloop: ray ended"
)
_ENDED = b"closloop: ray ended"


@contextmanager
def started(machines: Machines, secrets: Secrets, say: Callable[[str], None]) -> Iterator[str]:
    """Start a cluster on this machine and others, and yield its address; stop it at the end.

    `say` is told of each node. Raises NotReadyError with all machines that cannot be one.
    """
    with ExitStack() as ends:
        logins = side_by_side(
            machines.access,
            lambda access: connect(access, machines.known_hosts_file, secrets),
        )
        for login in logins.values():
            if not isinstance(login, DeviceError):
                ends.callback(disconnect, login)
        _raise_any(logins)
        address = ends.enter_context(head(_own_address(list(logins.values()))))
        say(f"head of a cluster at {address}, on this machine")
        channels = side_by_side(
            machines.access, lambda access: _node(access, logins[access.device], address)
        )
        for channel in channels.values():
            if not isinstance(channel, DeviceError):
                ends.callback(_end, channel)
        _raise_any(channels)
        for name in channels:
            say(f"node {name}")
        yield address


@contextmanager
def head(host: str) -> Iterator[str]:
    """Start a head on this machine, reachable at the address `host`; yield its HOST:PORT."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    cpus = len(os.sched_getaffinity(0))
    options = ["--head", f"--port={port}", f"--node-ip-address={host}", f"--num-cpus={cpus}"]
    with _here([*options, "--include-dashboard=false"]):
        yield f"{host}:{port}"


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Have this machine join a cluster that it is no node of, to hand out trials and run none.

    Raises NotReadyError if nothing answers there, or Ray does not start.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise NotReadyError(
            f"nothing answers at {address}: {error}",
            "see whether the cluster's head runs there (ray start --head), and its port",
        ) from error
    if _is_node(address):
        yield
        return
    with _here([f"--address={address}", "--num-cpus=0"]):
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
def _here(options: Sequence[str]) -> Iterator[None]:
    """Run `ray start` on this machine, in a session of its own that ends with this thread."""
    # short: Ray's sockets are below it, and a socket's path has 107 bytes at most
    folder = tempfile.mkdtemp(prefix="closloop-ray-", dir="/tmp")
    process = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "TERM", sys.executable, *_RAY),
            *(*options, f"--temp-dir={folder}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        _await_start(_Reader(process.stdout), options)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


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


def _node(access: Access, login: Any, address: str) -> Any:
    """Start a node on a machine; return the channel that holds it. Raises DeviceError."""
    command = shlex.join([access.python, *_RAY, f"--address={address}"])
    channel = login.client.get_transport().open_session()
    channel.settimeout(1.0)
    channel.exec_command(f"sh -c {shlex.quote(_HELD.format(command=command))}")
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
    problems = [item for item in found.values() if isinstance(item, DeviceError)]
    if problems:
        text = "\n".join(problem.message for problem in problems)
        raise NotReadyError(text, problems[0].remedy)


def _end_of(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines)[-_SHOWN:] or "it says nothing"
