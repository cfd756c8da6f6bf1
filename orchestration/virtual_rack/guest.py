"""The rack's first process: it starts the devices, then serves requests from outside.

The controller runs in this process's own namespaces. It sees the machine's file tree, so that
results land where they would without a rack, but it has a home folder of its own.

Virtual time passes only while a request is served. Between requests this process *spins*: a system
call that succeeds takes no virtual time, so no timer of a device can fire until the supervisor
stops the guest. In real time it waits, and what is the machine's is left alone.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from orchestration.backends.common.realtime import RACK_CLOCK
from orchestration.backends.emulated.system import (
    bind,
    mount,
    mount_kernel_files,
    power_off,
    run,
    run_batch,
    unmount,
)
from orchestration.core.errors import ClosloopError
from orchestration.core.problems import told
from orchestration.virtual_rack import cabling, containers
from orchestration.virtual_rack.commands import (
    PIECE_BYTES,
    Command,
    Incoming,
    Lines,
    Message,
    encode,
    exit_code,
)
from orchestration.virtual_rack.device import fork_device
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.interface_leases import forget_namespaces
from orchestration.virtual_rack.isolation import Keys
from orchestration.virtual_rack.layout import CONTROLLER_ADDRESS, Layout

LINE = "/dev/tty1"
HOME = Path("/run/home")
_REAL = os.environ.get(RACK_CLOCK) == "real"
_CONGESTION_CONTROLS = "reno cubic dctcp bbr"
_SSH_PORT = 22
# Until the devices know their neighbours: virtual time, which costs nothing; at most, in real time.
_LLDP_S = 31.0
_LOGIN_S = 60.0


class Guest:
    """The devices, the running commands, and the connection to the supervisor."""

    def __init__(self, folder: RackFolder, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        self._real = layout.clock == "real"
        self._line, self._out = _line_of_pipes() if self._real else _line_of_a_terminal()
        self._inbox = Incoming(folder.inbox)
        self._selector = selectors.DefaultSelector()
        # each device's line, and the first process of its namespaces
        self._devices: dict[str, socket.socket] = {}
        self._pids: dict[str, int] = {}
        self._commands: dict[int, Command] = {}
        # pending requests, and the end times of those that wait
        self._busy: set[int] = set()
        self._waits: dict[int, float] = {}

    def say(self, message: Message) -> None:
        """Send a message to the supervisor."""
        data = encode(message)
        while data:
            data = data[os.write(self._out, data) :]

    def boot(self) -> None:
        """Start all devices and connect them."""
        run_batch("ip", ["link set lo up", f"address add {CONTROLLER_ADDRESS}/32 dev lo"])
        if not self._real:
            allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
            allowed.write_text(_CONGESTION_CONTROLS)
            Path("/proc/sys/vm/overcommit_memory").write_text("1")  # as Redis recommends
        if self._layout.roce:
            run(["rdma", "system", "set", "netns", "exclusive"])
        authorized = self._folder.public_key.read_text()
        password = self._folder.password.read_text().strip()
        forked = {}
        for device in self._layout.address:
            host_key = self._folder.host_key(device).read_text()
            keys = Keys(authorized, host_key, password, self._folder.machine_id(device))
            forked[device] = fork_device(self._layout, device, keys)
            self._devices[device] = forked[device].line
        self._await_all("built", "file trees")
        self._pids = {name: found.first_process() for name, found in forked.items()}
        if self._layout.lent:
            self._borrow(self._pids)
        run_batch("ip", cabling.links(self._layout, self._pids))
        for line in self._devices.values():
            line.sendall(encode({}))
        self._await_all("up", "devices")
        for device in self._layout.roce:
            for name in self._layout.rdma_devices(device):
                give_rdma_device(name, self._pids[device])
        self._await_logins()
        self.say({"stage": "neighbours"})
        if not self._real:
            time.sleep(_LLDP_S)
            return
        # one that began to listen late has missed what others said, so all say it again
        end = time.monotonic() + _LLDP_S
        known = False
        while not known and time.monotonic() < end:
            for line in self._devices.values():
                line.sendall(encode({"op": "announce", "id": 0}))
            known = all(answer["ok"] for answer in self._await_all("ok", "neighbours"))

    def _borrow(self, pids: dict[str, int]) -> None:
        """Have interfaces of the machine moved into devices' namespaces, from where they are."""
        self.say({"stage": "interfaces"})
        self.say({"borrow": {device: f"proc/{pid}/ns/net" for device, pid in pids.items()}})
        told: list[Message] = []
        while not told:
            told += self._inbox.take(os.read(self._line, PIECE_BYTES))
        self.say({"took": True})

    def _await_all(self, word: str, stage: str) -> list[Message]:
        """Return every device's answer. Raises RuntimeError for one without `word`."""
        answers = []
        for number, (device, line) in enumerate(self._devices.items(), start=1):
            self.say({"stage": stage, "done": number, "of": len(self._devices)})
            lines = Lines()
            messages: list[Message] = []
            while not messages:
                piece = line.recv(PIECE_BYTES)
                if not piece:
                    raise RuntimeError(f"{device}: its first process has ended")
                messages = lines.feed(piece)
            if word not in messages[0]:
                raise RuntimeError(f"{device}: {messages[0].get('failed', messages[0])}")
            answers.append(messages[0])
        return answers

    def _await_logins(self) -> None:
        """Wait until logging in works on every device."""
        end = time.monotonic() + _LOGIN_S
        for number, (device, address) in enumerate(self._layout.address.items(), start=1):
            self.say({"stage": "logins", "done": number, "of": len(self._devices)})
            while True:
                try:
                    with socket.create_connection((address, _SSH_PORT), 1) as connection:
                        connection.recv(1)
                        break
                except OSError as error:
                    if time.monotonic() > end:
                        raise RuntimeError(f"{device}: no SSH server: {error}") from error
                    time.sleep(0.01)

    def serve(self) -> None:
        """Serve the supervisor until the guest ends."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._watch(self._line, self._hear)
        self._watch(woken, lambda: os.read(woken, PIECE_BYTES))
        for device, line in self._devices.items():
            self._watch(line, partial(self._hear_device, device, Lines()))
        self.say({"ready": True})
        while True:
            for key, _ in self._selector.select(self._patience_s()):
                # an earlier handler of this round may have closed it
                if key.fd in self._selector.get_map():
                    key.data()
            self._reap()
            for number in [n for n, end in self._waits.items() if end <= time.monotonic()]:
                del self._waits[number]
                self._end(number, ok=time.monotonic_ns())
            if not self._busy and not self._real:
                os.sched_yield()

    def _patience_s(self) -> float | None:
        if not self._busy and not self._real:
            return 0.0
        if self._waits:
            return max(0.0, min(self._waits.values()) - time.monotonic())
        return None

    def _watch(self, fd: int | socket.socket, ready: Callable[[], Any]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _hear(self) -> None:
        for message in self._inbox.take(os.read(self._line, PIECE_BYTES)):
            self.say({"took": True})
            number = int(message["id"])
            try:
                if "do" in message:
                    self._busy.add(number)
                    self._begin(number, message)
                elif number in self._commands:
                    self._control(self._commands[number], message)
            except Exception as error:
                self._end(number, error=f"{type(error).__name__}: {error}")

    def _begin(self, number: int, message: Message) -> None:
        match message["do"]:
            case "run":
                if not self._real:
                    _look_anew()
                command = Command(number, message, self.say)
                self._commands[number] = command
                for fd in command.outputs:
                    self._watch(fd, partial(self._read, command, fd))
                self.say({"id": number, "pid": command.pid})
            case "pass":
                self._waits[number] = time.monotonic() + float(message["seconds"])
            case "device":
                line = self._devices.get(message["device"])
                if line is None:
                    raise ValueError(f"no device {message['device']!r}")
                line.sendall(encode({**message["request"], "id": number}))
            case other:
                raise ValueError(f"cannot do {other!r}")

    def _end(self, number: int, **what: Any) -> None:
        self._busy.discard(number)
        self.say({"id": number, "end": True, **what})

    def _read(self, command: Command, fd: int) -> None:
        if not command.read(fd):
            # before closing: epoll would keep reporting a descriptor that has a duplicate
            self._forget(fd)
            command.drop(fd)

    def _control(self, command: Command, message: Message) -> None:
        """Pass a message on to a command; watch its input until the program has taken it."""
        self._forget(command.input)
        command.control(message)
        self._watch_input(command)

    def _watch_input(self, command: Command) -> None:
        if command.blocked:
            flush = partial(self._flush, command)
            self._selector.register(command.input, selectors.EVENT_WRITE, flush)

    def _flush(self, command: Command) -> None:
        self._forget(command.input)
        command.flush()
        self._watch_input(command)

    def _forget(self, fd: int) -> None:
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for number, command in tuple(self._commands.items()):
                    if command.pid == pid:
                        self._finish(number, command, status)

    def _finish(self, number: int, command: Command, status: int) -> None:
        del self._commands[number]
        for fd in (*command.outputs, command.input):
            self._forget(fd)
        command.close()
        self._end(number, code=exit_code(status))

    def _hear_device(self, device: str, lines: Lines) -> None:
        piece = self._devices[device].recv(PIECE_BYTES)
        if not piece:
            self._selector.unregister(self._devices[device])
            if self._layout.image:  # its container may live on
                with suppress(ProcessLookupError):
                    os.kill(self._pids[device], signal.SIGKILL)
            self.say({"died": device})
            return
        for message in lines.feed(piece):
            number = int(message.pop("id"))
            self._end(number, **message)


def _line_of_a_terminal() -> tuple[int, int]:
    line = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    return line, line


def _line_of_pipes() -> tuple[int, int]:
    """Keep standard input and output for the supervisor; what programs print goes to the log."""
    pair = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return pair


def give_rdma_device(name: str, pid: int) -> None:
    """Move an RDMA device to its NIC's network namespace, that of process `pid`."""
    place = Path("/run/netns", name)
    place.parent.mkdir(exist_ok=True)
    place.touch()
    bind(f"/proc/{pid}/ns/net", str(place))
    run(["rdma", "dev", "set", name, "netns", name])
    unmount(str(place))
    place.unlink()


def prepare(folder: RackFolder, layout: Layout) -> None:
    """Mount what the controller needs: kernel file systems, a home, and the users for ssh."""
    if _REAL:
        forget_namespaces()
    if layout.image:
        containers.mount_with_groups()
    else:
        mount_kernel_files()
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    for point in ("/dev/pts", "/dev/shm"):
        os.makedirs(point, exist_ok=True)
    mount("devpts", "/dev/pts", "devpts", options="mode=620,ptmxmode=666")
    mount("tmpfs", "/dev/shm", "tmpfs")
    for path in (HOME, HOME / ".ssh", Path("/run/tmp")):
        path.mkdir()
        path.chmod(0o700)
    (HOME / ".ssh" / "config").write_text(folder.ssh_config.read_text())
    # OpenSSH ignores $HOME and takes the home folder from this file
    users = Path("/run/passwd")
    known = Path("/etc/passwd").read_text(errors="replace").splitlines()
    others = [line for line in known if line.split(":")[2:3] != ["0"]]
    users.write_text("\n".join([f"root:x:0:0:root:{HOME}:/bin/bash", *others]) + "\n")
    bind(str(users), "/etc/passwd")
    socket.sethostname("controller")


def _look_anew() -> None:
    """Drop cached data of the host's files, which may have changed in the meantime."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def main() -> None:
    """Run as process 1."""
    folder = RackFolder(Path(os.environ["CLOSLOOP_RACK_FOLDER"]))
    guest = None
    try:
        layout = Layout.from_json(json.loads(folder.layout.read_text()))
        prepare(folder, layout)
        guest = Guest(folder, layout)
        guest.say({"stage": "boot"})
        guest.boot()
        guest.serve()
    except ClosloopError as error:
        if guest is not None:
            guest.say(told(error.problems, "failed"))
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        if guest is not None:
            guest.say({"failed": f"{type(error).__name__}: {error}"})
    if not _REAL:
        power_off()


if __name__ == "__main__":
    main()
