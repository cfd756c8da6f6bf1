"""One device of the rack: the first process of its namespaces, and the programs that it starts.

The process is forked from the guest's first process. Like a console, it serves that process's
requests (`dump`, `inject`) over a socket, without SSH.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from orchestration.agent.linux import qdiscs
from orchestration.agent.sonic.resp import SOCKET
from orchestration.backends.emulated.namespaces import offloads_off, route_socket, send_requests
from orchestration.backends.emulated.system import enter_cgroup, run, run_batch, unshare
from orchestration.virtual_rack import cabling, console, containers
from orchestration.virtual_rack.isolation import (
    LAYOUT_FILE,
    SSHD_CONFIG,
    DeviceIdentity,
    enter_device_root,
)
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.messages import PIECE_BYTES, Message, MessageDecoder, encode
from orchestration.virtual_rack.reboot import (
    REDIS_FOLDER,
    InitialKernelState,
    new_boot_id,
    power_cycle,
)

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
# A SONiC switch writes this key to APPL_DB once its ports exist.
_PORTS_READY = "PORT_TABLE:PortInitDone"
_SONIC_START_S = 30.0
# In real time, neighbours are awaited in rounds of this length.
_NEIGHBOURS_S = 1.0
# After how many rounds in which a neighbour is missing lldpd is restarted.
_ROUNDS_UNTIL_RESTART = 4


class ForkedDevice:
    """A device that was started: `connection` is the socket to its process."""

    def __init__(self, connection: socket.socket, pid_pipe: int) -> None:
        self.connection = connection
        self._pid_pipe = pid_pipe

    def first_process(self) -> int:
        """Wait for the device's file tree; return the id of the first process of its namespaces."""
        pid = int(os.read(self._pid_pipe, 32) or 0)
        os.close(self._pid_pipe)
        return pid


def fork_device(layout: Layout, device: str, identity: DeviceIdentity) -> ForkedDevice:
    """Start a device's process: the first of its namespaces, or one that enters its container.

    The device sends `{"built": true}` when its file tree is mounted. It then waits for any message,
    which means that its cables exist. It sends `{"up": true}` when all its programs run. On an
    error it sends `{"failed": text}`.
    """
    guest_end, device_end = socket.socketpair()
    pid_pipe, pid_pipe_end = os.pipe()
    intermediate = os.fork()
    if intermediate == 0:
        guest_end.close()
        try:
            first, enter_root = _enter_namespaces(layout, device, identity)
            pid = os.fork()  # the child is inside
        except BaseException as error:
            device_end.sendall(encode({"failed": str(error)}))
            os._exit(1)
        if pid == 0:
            _run_device(Device(layout, device, device_end, enter_root))
        os.write(pid_pipe_end, str(first or pid).encode())
        os._exit(0)
    device_end.close()
    os.close(pid_pipe_end)
    return ForkedDevice(guest_end, pid_pipe)


def _enter_namespaces(
    layout: Layout, device: str, identity: DeviceIdentity
) -> tuple[int, Callable[[], int]]:
    """Enter a device's namespaces: children of this process will be in them.

    Returns the process id of their first process, 0 if the next child will be the first, and a
    function. A child calls the function to get the device's file tree: see
    `isolation.enter_device_root`.
    """
    if layout.image:
        first, differences = containers.enter_container(layout, device, identity)
        return first, lambda: containers.restrict_capabilities(differences)
    unshare()
    if layout.clock == "virtual":  # in real time, control groups are the machine's own
        enter_cgroup(device)
    return 0, partial(enter_device_root, layout, device, identity)


def _run_device(device: Device) -> NoReturn:
    try:
        device.boot()
        device.serve()
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError):
            device.send({"failed": f"{type(error).__name__}: {error}"})
    os._exit(1)


class Device:
    """What the device's process does. `programs` are the device's daemons by name."""

    def __init__(
        self, layout: Layout, name: str, connection: socket.socket, enter_root: Callable[[], int]
    ) -> None:
        self.layout, self.name = layout, name
        self._connection, self._enter_root = connection, enter_root
        self._decoder = MessageDecoder()
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._rounds_unheard = 0

    def send(self, message: Message) -> None:
        """Send a message to the guest's first process."""
        self._connection.sendall(encode(message))

    def boot(self) -> None:
        """Set up the file tree, wait for the cables, and start all programs."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._differences = self._enter_root()
        self._python_path = os.environ.get("PYTHONPATH", "")
        os.environ.clear()
        os.environ.update(_ENVIRONMENT)
        new_boot_id()
        self.send({"built": True})
        self._receive()
        self._connect()
        self._initial_state = InitialKernelState()
        self._start_programs(warm=False)
        self.send({"up": True})

    def _start_programs(self, *, warm: bool) -> None:
        if self.name in self.layout.sonic:
            if not warm:
                cabling.set_up_switch(self.layout, self.name)
            self.start_redis()
            self._start_sonic()
        self._start_lldpd()
        self.start("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", SSHD_CONFIG])

    def _start_lldpd(self) -> None:
        self.start("lldpd", ["lldpd", "-d", "-S", f"{self.layout.platform(self.name)} (virtual)"])

    def reboot(self, *, warm: bool) -> None:
        """Reboot the device: see the module `reboot`."""
        power_cycle(self.layout, self.name, self._initial_state, warm=warm)
        self._start_programs(warm=warm)

    def _connect(self) -> None:
        ports = [self.layout.interface(p) for p in self.layout.testbed.ports_of[self.name]]
        run_batch("ip", cabling.management_port(self.layout, self.name))
        run_batch("ip", cabling.ports_up(self.layout, self.name))
        if on := offloads_off(ports):
            raise RuntimeError(f"offloads stay on: {', '.join(on)}")
        lines = cabling.delay_lines(self.layout, self.name)
        with route_socket() as netlink:
            parent, handle = qdiscs.TC_H_ROOT, qdiscs.NETEM_HANDLE
            indices = ((socket.if_nametoindex(line), ns) for line, (ns, _) in lines.items())
            send_requests(netlink, [qdiscs.netem(i, handle, parent, ns) for i, ns in indices])
        run_batch("tc", cabling.delay_redirects(self.layout, self.name))
        for argv in cabling.rdma(self.layout, self.name):
            run(argv)

    def start(
        self, name: str, argv: Sequence[str], group: str | None = None, **environment: str
    ) -> None:
        """Start a daemon, with a user group if one is given; its output goes to /var/log."""
        log = os.open(f"/var/log/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.programs[name] = subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            group=group,
            start_new_session=True,
        )
        os.close(log)

    def start_redis(self) -> None:
        """Start Redis as SONiC does: on a socket and the loopback, with an event for each change.

        It loads the data that it saved last, if there are any.
        """
        for folder in (Path(SOCKET).parent, REDIS_FOLDER):
            folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "unixsocket": SOCKET,
            "unixsocketperm": "770",
            "bind": "127.0.0.1",
            "notify-keyspace-events": "AKE",
            "save": "",
            "dir": str(REDIS_FOLDER),
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        # members of the group may use the socket; SONiC's user admin is one
        self.start("redis", ["redis-server", *words], group="redis")

    def _start_sonic(self) -> None:
        """Start the stand-in for SONiC's daemons, and wait until it has filled the databases."""
        module = "orchestration.virtual_rack.sonic_switch"
        argv = [sys.executable, "-P", "-m", module, "--device", self.name]
        self.start("sonic", [*argv, "--config", LAYOUT_FILE], PYTHONPATH=self._python_path)
        ready = ("redis-cli", "-s", SOCKET, "exists", _PORTS_READY)
        end = time.monotonic() + _SONIC_START_S
        while time.monotonic() < end and self.programs["sonic"].poll() is None:
            with suppress(RuntimeError):
                if run(ready).strip() == "1":
                    return
            time.sleep(0.02)
        logs = (Path(f"/var/log/{name}.log") for name in ("redis", "sonic"))
        log_text = " ".join(log.read_text(errors="replace")[-300:] for log in logs)
        raise RuntimeError(f"its SONiC daemons do not start: {log_text}")

    def serve(self) -> None:
        """Serve the requests of the guest's first process until it closes the connection."""
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._connection, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, PIECE_BYTES)
                    _reap()
                else:
                    for request in self._receive():
                        self.send(self._answer(request))

    def _answer(self, request: Message) -> Message:
        try:
            if request["op"] == "announce":
                return {"id": request["id"], "ok": self._announce()}
            if request["op"] == "dump":
                state = console.dump(self.layout, self.name, self._differences)
                return {"id": request["id"], "ok": state}
            return {"id": request["id"], "ok": console.inject(self, request)}
        except Exception as error:
            return {"id": request["id"], "error": f"{self.name}: {error}"}

    def _announce(self) -> bool:
        """Announce this device by LLDP on all ports; return whether all neighbours are known."""
        own = self.layout.testbed.ports_of[self.name]
        ports = {
            self.layout.interface(port) for port in own if not self.layout.cable_leaves_rack(port)
        }
        end = time.monotonic() + _NEIGHBOURS_S
        with suppress(RuntimeError):  # an lldpd that has just been restarted may not listen yet
            run(["lldpcli", "update"])
            while time.monotonic() < end:
                time.sleep(0.2)
                known = json.loads(run(["lldpctl", "-f", "json0"]))["lldp"][0].get("interface", [])
                if ports <= {interface["name"] for interface in known}:
                    return True
        # lldpd sometimes misses that its ports have come up, and then neither sends nor receives
        self._rounds_unheard += 1
        if self._rounds_unheard % _ROUNDS_UNTIL_RESTART == 0:
            self.programs["lldpd"].kill()
            self._start_lldpd()
        return False

    def _receive(self) -> list[Message]:
        while True:
            piece = self._connection.recv(PIECE_BYTES)
            if not piece:
                os._exit(0)
            if messages := self._decoder.feed(piece):
                return messages


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
