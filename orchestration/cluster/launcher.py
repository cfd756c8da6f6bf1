"""Launches a Ray cluster: the head on this machine, nodes on others by SSH; all end with the run.

`ray start --block` runs below a shell that ends it when the shell's standard input is closed. That
happens when the SSH connection is closed or lost, or when closloop on this machine ends. The shell
also removes the folder of Ray's files, which no other account can enter.

All processes require a token of this run. It is sent through the shell's standard input into a
file, because everybody on a machine can read the arguments of commands.
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
    authenticated,
    environment,
    new_token,
    token_environment,
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
_MAX_SHOWN = 300
_READ_BYTES = 1 << 16
# The path is short, because Ray's sockets are below it, and a socket's path has at most 107 bytes.
_FOLDER_BASE, _FOLDER_PREFIX = "/tmp", "closloop-ray-"
_MADE_FOLDER = f"$(mktemp -d {_FOLDER_BASE}/{_FOLDER_PREFIX}XXXXXXXX)"
# Ends Ray when standard input is closed, removes its files, and prints a line when Ray has ended.
# Ray makes its folder accessible to all accounts (node.py, try_to_create_directory), so it gets a
# folder within ours. A shell that gets a signal just before it waits notices that only after the
# wait, so no wait takes longer than a second.
_SCRIPT = """\
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
wait $ray 2>/dev/null  # again, because a signal ends the first wait
kill $holder 2>/dev/null
rm -rf "$folder"
echo closloop: ray ended
"""
_ENDED = b"closloop: ray ended"


@contextmanager
def started_cluster(
    machines: Machines, secrets: Secrets, report: Callable[[str], None]
) -> Iterator[str]:
    """Start a cluster on this machine and others, and yield its address; stop it at the end.

    `report` is called with a line on each node. Raises NotReadyError with all machines on which no
    node can be started.
    """
    with ExitStack() as ends:
        known = machines.known_hosts_file
        logins = in_parallel(machines.access, lambda access: connect(access, known, secrets))
        for login in logins.values():
            if not isinstance(login, DeviceError):
                ends.callback(disconnect, login)
        _raise_errors(logins)
        token = new_token()
        address = ends.enter_context(head(_own_address(list(logins.values())), token))
        report(f"head of a cluster at {address}, on this machine")
        channels = in_parallel(
            machines.access, lambda access: _node(access, logins[access.device], address, token)
        )
        for channel in channels.values():
            if not isinstance(channel, DeviceError):
                ends.callback(_end, channel)
        _raise_errors(channels)
        for name in channels:
            report(f"node {name}")
        yield address


@contextmanager
def head(host: str, token: str) -> Iterator[str]:
    """Start a head on this machine, reachable at the address `host`; yield its HOST:PORT.

    It requires the token, and this process uses the token while the context lasts.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    cpus = len(os.sched_getaffinity(0))
    options = ["--head", f"--port={port}", f"--node-ip-address={host}", f"--num-cpus={cpus}"]
    # the monitor is for clusters that scale automatically, and it serves metrics to everybody
    options += ["--include-dashboard=false", "--no-monitor"]
    with (
        _local_ray(options, token) as folder,
        environment(token_environment(f"{folder}/{TOKEN_FILE}")),
    ):
        yield f"{host}:{port}"


@contextmanager
def joined_cluster(address: str, report: Callable[[str], None]) -> Iterator[None]:
    """Join a cluster for as long as the context lasts, to hand out trials, not to run them.

    Nothing is started if this machine is a node of the cluster already. `report` is called with a
    warning if the cluster requires no token. Raises NotReadyError if nothing answers at the
    address, the user has no token for it, or Ray does not start.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise NotReadyError(
            f"nothing answers at {address}: {error}",
            "check that the cluster's head runs there (ray start --head), and its port",
        ) from error
    with authenticated(address, report), ExitStack() as ends:
        if not _is_node(address):
            ends.enter_context(_local_ray([f"--address={address}", "--num-cpus=0"]))
        yield


def _is_node(address: str) -> bool:
    """Return whether a Ray process (raylet) of this machine belongs to the cluster."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"raylet") and any(address.encode() in word for word in words):
                return True
    return False


@contextmanager
def _local_ray(options: Sequence[str], token: str = "") -> Iterator[str]:
    """Run `ray start` on this machine, in a session of its own that ends with this thread.

    Yields the folder of Ray's files.
    """
    folder = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_FOLDER_BASE)
    script = _script([sys.executable, *_RAY, *options], shlex.quote(folder), token)
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # the shell has ended, and its output says why
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


def _script(command: Sequence[str], folder: str, token: str) -> str:
    """Return the shell script that runs the command `ray start`.

    `folder` is a shell expression for the folder of Ray's files. With a token, the script reads it
    from the first line of standard input.
    """
    lines = []
    if token:
        file = f"$folder/{TOKEN_FILE}"
        lines.append(f'(umask 077; head -n 1 >"{file}")')
        for name, value in token_environment(file).items():
            lines.append(f"unset {name}" if value is None else f'export {name}="{value}"')
    prepare = "".join(f"{line}\n" for line in lines)
    return _SCRIPT.format(folder=folder, prepare=prepare, command=shlex.join(command))


class _Reader:
    """Reads a process's output all the time, so that the process never waits, and keeps its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.output = b""
        self.ended = False
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            self.output = (self.output + line)[-_READ_BYTES:]
        self.ended = True


def _await_start(reader: _Reader, options: Sequence[str]) -> None:
    until_s = time.monotonic() + _START_S
    while _STARTED not in reader.output:
        if reader.ended or time.monotonic() > until_s:
            output = _last_output(reader.output)
            raise NotReadyError(
                f"ray start {' '.join(options)} fails on this machine: {output}",
                "try that command by hand",
            )
        time.sleep(0.1)


def _node(access: Access, login: Any, address: str, token: str) -> Any:
    """Start a node on a machine; return the channel that keeps it running. Raises DeviceError."""
    script = _script([access.python, *_RAY, f"--address={address}"], _MADE_FOLDER, token)
    channel = login.client.get_transport().open_session()
    channel.settimeout(1.0)
    channel.exec_command(f"sh -c {shlex.quote(script)}")
    channel.sendall(f"{token}\n".encode())
    output = b""
    until_s = time.monotonic() + _START_S
    while _STARTED not in output:
        with suppress(TimeoutError):
            piece = channel.recv(_READ_BYTES)
            output += piece
            if not piece or _ENDED in output:
                raise DeviceError(
                    access.device,
                    f"Ray does not start there: {_last_output(output.replace(_ENDED, b''))}",
                    f"its Python is {access.python} (ansible_python_interpreter): install "
                    "closloop[cluster] there, and let the machines reach each other's ports",
                )
        if time.monotonic() > until_s:
            raise DeviceError(
                access.device,
                f"Ray does not start there within {_START_S:.0f} s: {_last_output(output)}",
                f"it must reach {address}: check firewalls",
            )
    return channel


def _end(channel: Any) -> None:
    """End a node: wait until its shell reports that Ray has ended."""
    with suppress(Exception):
        channel.shutdown_write()
        channel.settimeout(_STOP_S)
        output = b""
        while _ENDED not in output and (piece := channel.recv(_READ_BYTES)):
            output = output[-len(_ENDED) :] + piece
    channel.close()


def _own_address(logins: Sequence[Any]) -> str:
    """Return this machine's address in its connection to the first machine reached directly."""
    for login in logins:
        sock = login.client.get_transport().sock
        if isinstance(sock, socket.socket):
            return str(sock.getsockname()[0])
    import ray

    util: Any = ray.util
    return str(util.get_node_ip_address())


def _raise_errors(results: dict[str, Any]) -> None:
    errors = [item for item in results.values() if isinstance(item, DeviceError)]
    if errors:
        raise NotReadyError(problem for error in errors for problem in error.problems)


def _last_output(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines)[-_MAX_SHOWN:] or "it printed nothing"
