"""The rack's first process: it starts the devices, then serves requests from outside.

The controller, which is whatever program runs in the rack, has this process's own namespaces. It
sees the machine's file tree, so that results are written where they would be without a rack, but it
has a home folder of its own.

Virtual time passes only while a request is served. Between requests this process *spins*: a system
call that succeeds takes no virtual time, so no timer of a device can fire until the supervisor
stops the guest. In real time it waits instead, and changes no settings of the machine.
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

from orchestration.backends.common.machine_monitor import RACK_CLOCK
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
from orchestration.core.problems import message_and_remedy
from orchestration.virtual_rack import cabling, containers
from orchestration.virtual_rack.device import fork_device
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.interface_leases import forget_namespaces
from orchestration.virtual_rack.isolation import DeviceIdentity
from orchestration.virtual_rack.layout import CONTROLLER_ADDRESS, Layout
from orchestration.virtual_rack.messages import (
    PIECE_BYTES,
    GuestInbox,
    Message,
    MessageDecoder,
    encode,
)
from orchestration.virtual_rack.programs import GuestProgram, exit_code

TERMINAL = "/dev/tty1"
HOME = Path("/run/home")
_REAL_TIME = os.environ.get(RACK_CLOCK) == "real"
_CONGESTION_CONTROLS = "reno cubic dctcp bbr"
_SSH_PORT = 22
# Time for the devices to learn their neighbours by LLDP. Virtual time costs nothing, so all of it
# passes; in real time it is the maximum.
_LLDP_S = 31.0
_LOGIN_S = 60.0


class Guest:
    """The devices, the programs that run for callers, and the connection to the supervisor."""

    def __init__(self, folder: RackFolder, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        self._real_time = layout.clock == "real"
        self._input, self._output = (
            _pipe_descriptors() if self._real_time else _terminal_descriptors()
        )
        self._inbox = GuestInbox(folder.inbox)
        self._selector = selectors.DefaultSelector()
        # each device's connection, and the first process of its namespaces
        self._devices: dict[str, socket.socket] = {}
        self._pids: dict[str, int] = {}
        self._programs: dict[int, GuestProgram] = {}
        # running requests, and when those that let time pass end (CLOCK_MONOTONIC, seconds)
        self._busy: set[int] = set()
        self._waits: dict[int, float] = {}

    def send(self, message: Message) -> None:
        """Send a message to the supervisor."""
        data = encode(message)
        while data:
            data = data[os.write(self._output, data) :]

    def boot(self) -> None:
        """Start all devices and connect them."""
        run_batch("ip", ["link set lo up", f"address add {CONTROLLER_ADDRESS}/32 dev lo"])
        if not self._real_time:
            allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
            allowed.write_text(_CONGESTION_CONTROLS)
            Path("/proc/sys/vm/overcommit_memory").write_text("1")  # as Redis recommends
        if self._layout.roce:
            run(["rdma", "system", "set", "netns", "exclusive"])
        self._fork_devices()
        if self._layout.leased:
            self._take_leases(self._pids)
        run_batch("ip", cabling.links(self._layout, self._pids))
        for connection in self._devices.values():
            connection.sendall(encode({}))
        self._await_all("up", "devices")
        for device in self._layout.roce:
            for name in self._layout.rdma_devices(device):
                move_rdma_device(name, self._pids[device])
        self._await_logins()
        self._await_neighbours()

    def _fork_devices(self) -> None:
        """Start the devices' processes, and wait until their file trees are mounted."""
        authorized = self._folder.public_key.read_text()
        password = self._folder.password.read_text().strip()
        forked_devices = {}
        for device in self._layout.address:
            host_key = self._folder.host_key(device).read_text()
            machine_id = self._folder.machine_id(device)
            identity = DeviceIdentity(authorized, host_key, password, machine_id)
            forked_devices[device] = fork_device(self._layout, device, identity)
            self._devices[device] = forked_devices[device].connection
        self._await_all("built", "file trees")
        self._pids = {name: forked.first_process() for name, forked in forked_devices.items()}

    def _await_neighbours(self) -> None:
        """Wait until all devices know their neighbours by LLDP, but not for ever."""
        self.send({"stage": "neighbours"})
        if not self._real_time:
            time.sleep(_LLDP_S)
            return
        # a device that began to listen late has missed announcements, so all announce again
        end = time.monotonic() + _LLDP_S
        neighbours_known = False
        while not neighbours_known and time.monotonic() < end:
            for connection in self._devices.values():
                connection.sendall(encode({"op": "announce", "id": 0}))
            neighbours_known = all(answer["ok"] for answer in self._await_all("ok", "neighbours"))

    def _take_leases(self, pids: dict[str, int]) -> None:
        """Let the supervisor move leased interfaces of the machine into devices' namespaces.

        `pids` are the first processes of the devices' namespaces, as they are numbered in the
        guest.
        """
        self.send({"stage": "interfaces"})
        self.send({"lease": {device: f"proc/{pid}/ns/net" for device, pid in pids.items()}})
        replies: list[Message] = []
        while not replies:
            replies += self._inbox.take(os.read(self._input, PIECE_BYTES))
        self.send({"received": True})

    def _await_all(self, key: str, stage: str) -> list[Message]:
        """Wait for one answer of every device, and return them.

        `stage` is what progress is reported as. Raises RuntimeError if an answer lacks `key`.
        """
        answers = []
        for number, (device, connection) in enumerate(self._devices.items(), start=1):
            self.send({"stage": stage, "done": number, "of": len(self._devices)})
            decoder = MessageDecoder()
            messages: list[Message] = []
            while not messages:
                piece = connection.recv(PIECE_BYTES)
                if not piece:
                    raise RuntimeError(f"{device}: its first process has ended")
                messages = decoder.feed(piece)
            if key not in messages[0]:
                raise RuntimeError(f"{device}: {messages[0].get('failed', messages[0])}")
            answers.append(messages[0])
        return answers

    def _await_logins(self) -> None:
        """Wait until an SSH server answers on every device. Raises RuntimeError for one without."""
        end = time.monotonic() + _LOGIN_S
        for number, (device, address) in enumerate(self._layout.address.items(), start=1):
            self.send({"stage": "logins", "done": number, "of": len(self._devices)})
            while True:
                try:
                    with socket.create_connection((address, _SSH_PORT), 1) as ssh:
                        ssh.recv(1)
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
        self._watch(self._input, self._receive)
        self._watch(woken, lambda: os.read(woken, PIECE_BYTES))
        for device, connection in self._devices.items():
            self._watch(connection, partial(self._receive_from_device, device, MessageDecoder()))
        self.send({"ready": True})
        while True:
            for key, _ in self._selector.select(self._select_timeout_s()):
                # an earlier handler of this round may have closed it
                if key.fd in self._selector.get_map():
                    key.data()
            self._reap()
            for number in [n for n, end in self._waits.items() if end <= time.monotonic()]:
                del self._waits[number]
                self._send_end(number, ok=time.monotonic_ns())
            if not self._busy and not self._real_time:
                os.sched_yield()

    def _select_timeout_s(self) -> float | None:
        if not self._busy and not self._real_time:
            return 0.0
        if self._waits:
            return max(0.0, min(self._waits.values()) - time.monotonic())
        return None

    def _watch(self, fd: int | socket.socket, ready: Callable[[], Any]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _receive(self) -> None:
        for message in self._inbox.take(os.read(self._input, PIECE_BYTES)):
            self.send({"received": True})
            number = int(message["id"])
            try:
                if "do" in message:
                    self._busy.add(number)
                    self._begin(number, message)
                elif number in self._programs:
                    self._control(self._programs[number], message)
            except Exception as error:
                self._send_end(number, error=f"{type(error).__name__}: {error}")

    def _begin(self, number: int, message: Message) -> None:
        match message["do"]:
            case "run":
                if not self._real_time:
                    _drop_file_cache()
                program = GuestProgram(number, message, self.send)
                self._programs[number] = program
                for fd in program.outputs:
                    self._watch(fd, partial(self._read, program, fd))
                self.send({"id": number, "pid": program.pid})
            case "pass":
                self._waits[number] = time.monotonic() + float(message["seconds"])
            case "device":
                connection = self._devices.get(message["device"])
                if connection is None:
                    raise ValueError(f"no device {message['device']!r}")
                connection.sendall(encode({**message["request"], "id": number}))
            case other:
                raise ValueError(f"there is no request {other!r}")

    def _send_end(self, number: int, **answer: Any) -> None:
        self._busy.discard(number)
        self.send({"id": number, "end": True, **answer})

    def _read(self, program: GuestProgram, fd: int) -> None:
        if not program.read(fd):
            # before closing: epoll would keep reporting a descriptor that has a duplicate
            self._unwatch(fd)
            program.drop(fd)

    def _control(self, program: GuestProgram, message: Message) -> None:
        """Pass a caller's message on to its program; watch its input until all of it is written."""
        self._unwatch(program.input)
        program.control(message)
        self._watch_input(program)

    def _watch_input(self, program: GuestProgram) -> None:
        if program.blocked:
            flush = partial(self._flush, program)
            self._selector.register(program.input, selectors.EVENT_WRITE, flush)

    def _flush(self, program: GuestProgram) -> None:
        self._unwatch(program.input)
        program.flush()
        self._watch_input(program)

    def _unwatch(self, fd: int) -> None:
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for number, program in tuple(self._programs.items()):
                    if program.pid == pid:
                        self._finish(number, program, status)

    def _finish(self, number: int, program: GuestProgram, status: int) -> None:
        del self._programs[number]
        for fd in (*program.outputs, program.input):
            self._unwatch(fd)
        program.close()
        self._send_end(number, code=exit_code(status))

    def _receive_from_device(self, device: str, decoder: MessageDecoder) -> None:
        piece = self._devices[device].recv(PIECE_BYTES)
        if not piece:
            self._selector.unregister(self._devices[device])
            if self._layout.image:  # its container may still run
                with suppress(ProcessLookupError):
                    os.kill(self._pids[device], signal.SIGKILL)
            self.send({"died": device})
            return
        for message in decoder.feed(piece):
            number = int(message.pop("id"))
            self._send_end(number, **message)


def _terminal_descriptors() -> tuple[int, int]:
    terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(terminal)
    return terminal, terminal


def _pipe_descriptors() -> tuple[int, int]:
    """Keep standard input and output for the supervisor; the output of programs goes to the log."""
    pair = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return pair


def move_rdma_device(name: str, pid: int) -> None:
    """Move an RDMA device to the network namespace of process `pid`, in which its NIC is."""
    mount_point = Path("/run/netns", name)
    mount_point.parent.mkdir(exist_ok=True)
    mount_point.touch()
    bind(f"/proc/{pid}/ns/net", str(mount_point))
    run(["rdma", "dev", "set", name, "netns", name])
    unmount(str(mount_point))
    mount_point.unlink()


def prepare(folder: RackFolder, layout: Layout) -> None:
    """Mount what the controller needs: kernel file systems, a home folder, and a passwd for ssh."""
    if _REAL_TIME:
        forget_namespaces()
    if layout.image:
        containers.mount_with_control_groups()
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
    machine_users = Path("/etc/passwd").read_text(errors="replace").splitlines()
    other_users = [line for line in machine_users if line.split(":")[2:3] != ["0"]]
    users.write_text("\n".join([f"root:x:0:0:root:{HOME}:/bin/bash", *other_users]) + "\n")
    bind(str(users), "/etc/passwd")
    socket.sethostname("controller")


def _drop_file_cache() -> None:
    """Drop cached contents of the machine's files, which may have changed in the meantime."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def main() -> None:
    """Run as the first process of the guest."""
    folder = RackFolder(Path(os.environ["CLOSLOOP_RACK_FOLDER"]))
    guest = None
    try:
        layout = Layout.from_json(json.loads(folder.layout.read_text()))
        prepare(folder, layout)
        guest = Guest(folder, layout)
        guest.send({"stage": "boot"})
        guest.boot()
        guest.serve()
    except ClosloopError as error:
        if guest is not None:
            guest.send(message_and_remedy(error.problems, "failed"))
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        if guest is not None:
            guest.send({"failed": f"{type(error).__name__}: {error}"})
    if not _REAL_TIME:
        power_off()


if __name__ == "__main__":
    main()
