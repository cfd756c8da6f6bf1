"""One device of the rack: the first process of its namespaces, and the programs it starts.

The process is forked from the guest's first process. It serves that process's requests (`dump`,
`inject`) over a socket, without SSH, like a console.
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
from orchestration.virtual_rack.commands import PIECE_BYTES, Lines, Message, encode
from orchestration.virtual_rack.isolation import LAYOUT_FILE, SSHD_CONFIG, Keys, enter_device_root
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.reboot import REDIS_FOLDER, Fresh, go_down, new_boot_id

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
# A SONiC switch writes this key to APPL_DB once its ports exist.
_PORTS_READY = "PORT_TABLE:PortInitDone"
_BRIDGE_S = 30.0
# In real time, of one round of announcements.
_NEIGHBOURS_S = 1.0
# Rounds without a neighbour until lldpd is started anew.
_PATIENCE = 4


class Forked:
    """A device that was started: the socket to its process, and the first one of its namespaces."""

    def __init__(self, line: socket.socket, told: int) -> None:
        self.line = line
        self._told = told

    def first_process(self) -> int:
        """Return the process id, once the device has its file tree."""
        pid = int(os.read(self._told, 32) or 0)
        os.close(self._told)
        return pid


def fork_device(layout: Layout, device: str, keys: Keys) -> Forked:
    """Start a device's process: the first of its namespaces, or one that enters its container.

    The device sends `{"built": true}` when it has its file tree. It then waits for any message,
    which says that its cables exist, and sends `{"up": true}` when everything runs. On an error it
    sends `{"failed": text}`.
    """
    here, there = socket.socketpair()
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        here.close()
        try:
            first, root = _enter(layout, device, keys)
            pid = os.fork()  # the child is inside
        except BaseException as error:
            there.sendall(encode({"failed": str(error)}))
            os._exit(1)
        if pid == 0:
            _live(Device(layout, device, there, root))
        os.write(tell, str(first or pid).encode())
        os._exit(0)
    there.close()
    os.close(tell)
    return Forked(here, told)


def _enter(layout: Layout, device: str, keys: Keys) -> tuple[int, Callable[[], int]]:
    """Enter a device's namespaces, for children of this process.

    Returns their first process, 0 if a child will be it, and what a child calls to have the
    device's file tree: see `roots.enter_device_root`.
    """
    if layout.image:
        first, differences = containers.enter_container(layout, device, keys)
        return first, lambda: containers.settle(differences)
    unshare()
    if layout.clock == "virtual":  # the machine's groups are not the rack's
        enter_cgroup(device)
    return 0, partial(enter_device_root, layout, device, keys)


def _live(device: Device) -> NoReturn:
    try:
        device.boot()
        device.serve()
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError):
            device.say({"failed": f"{type(error).__name__}: {error}"})
    os._exit(1)


class Device:
    """The program of the device's process."""

    def __init__(
        self, layout: Layout, name: str, line: socket.socket, root: Callable[[], int]
    ) -> None:
        self.layout, self.name = layout, name
        self._line, self._enter_root = line, root
        self._lines = Lines()
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._unheard = 0

    def say(self, message: Message) -> None:
        """Send a message to the guest's first process."""
        self._line.sendall(encode(message))

    def boot(self) -> None:
        """Set up the file tree, wait for the cables, and start everything."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._differences = self._enter_root()
        self._python_path = os.environ.get("PYTHONPATH", "")
        os.environ.clear()
        os.environ.update(_ENVIRONMENT)
        new_boot_id()
        self.say({"built": True})
        self._hear()
        self._connect()
        self._fresh = Fresh()
        self._start_programs(warm=False)
        self.say({"up": True})

    def _start_programs(self, *, warm: bool) -> None:
        if self.name in self.layout.sonic:
            if not warm:
                cabling.set_up_switch(self.layout, self.name)
            self.start_redis()
            self._start_bridge()
        self._start_lldpd()
        self.start("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", SSHD_CONFIG])

    def _start_lldpd(self) -> None:
        self.start("lldpd", ["lldpd", "-d", "-S", f"{self.layout.platform(self.name)} (virtual)"])

    def reboot(self, *, warm: bool) -> None:
        """Reboot the device: see `reboot`."""
        go_down(self.layout, self.name, self._fresh, warm=warm)
        self._start_programs(warm=warm)

    def _connect(self) -> None:
        ports = [self.layout.interface(p) for p in self.layout.testbed.ports_of[self.name]]
        run_batch("ip", cabling.management(self.layout, self.name))
        run_batch("ip", cabling.ports_up(self.layout, self.name))
        if on := offloads_off(ports):
            raise RuntimeError(f"offloads stay on: {', '.join(on)}")
        lines = cabling.delays(self.layout, self.name)
        with route_socket() as netlink:
            root, handle = qdiscs.TC_H_ROOT, qdiscs.NETEM_HANDLE
            indices = ((socket.if_nametoindex(line), ns) for line, (ns, _) in lines.items())
            send_requests(netlink, [qdiscs.netem(i, handle, root, ns) for i, ns in indices])
        run_batch("tc", cabling.arrivals(self.layout, self.name))
        for argv in cabling.rdma(self.layout, self.name):
            run(argv)

    def start(
        self, name: str, argv: Sequence[str], group: str | None = None, **environment: str
    ) -> None:
        """Start a daemon, in a user group if one is given; its output goes to /var/log."""
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
        """Start Redis as SONiC does: on a socket and the loopback, with an event per change.

        It starts with the data that it saved last, if there are any.
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
        # the group may use the socket; SONiC's user is a member
        self.start("redis", ["redis-server", *words], group="redis")

    def _start_bridge(self) -> None:
        """Start the switch's daemons, and wait until they have filled its databases."""
        module = "orchestration.virtual_rack.sonic_switch"
        argv = [sys.executable, "-P", "-m", module, "--device", self.name]
        self.start("sonic", [*argv, "--config", LAYOUT_FILE], PYTHONPATH=self._python_path)
        ready = ("redis-cli", "-s", SOCKET, "exists", _PORTS_READY)
        end = time.monotonic() + _BRIDGE_S
        while time.monotonic() < end and self.programs["sonic"].poll() is None:
            with suppress(RuntimeError):
                if run(ready).strip() == "1":
                    return
            time.sleep(0.02)
        logs = (Path(f"/var/log/{name}.log") for name in ("redis", "sonic"))
        said = " ".join(log.read_text(errors="replace")[-300:] for log in logs)
        raise RuntimeError(f"its SONiC side does not start: {said}")

    def serve(self) -> None:
        """Serve the requests of the guest's first process until it closes the connection."""
        wake, told = os.pipe()
        os.set_blocking(told, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, PIECE_BYTES)
                    _reap()
                else:
                    for request in self._hear():
                        self.say(self._answer(request))

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
        """Say on all ports who this is; return whether all neighbours have said it, too."""
        own = self.layout.testbed.ports_of[self.name]
        ports = {self.layout.interface(port) for port in own if not self.layout.is_cut(port)}
        end = time.monotonic() + _NEIGHBOURS_S
        with suppress(RuntimeError):  # one that was started anew may not listen yet
            run(["lldpcli", "update"])
            while time.monotonic() < end:
                time.sleep(0.2)
                known = json.loads(run(["lldpctl", "-f", "json0"]))["lldp"][0].get("interface", [])
                if ports <= {interface["name"] for interface in known}:
                    return True
        # now and then one misses that its ports have come up, and neither sends nor hears
        self._unheard += 1
        if self._unheard % _PATIENCE == 0:
            self.programs["lldpd"].kill()
            self._start_lldpd()
        return False

    def _hear(self) -> list[Message]:
        while True:
            piece = self._line.recv(PIECE_BYTES)
            if not piece:
                os._exit(0)
            if messages := self._lines.feed(piece):
                return messages


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
