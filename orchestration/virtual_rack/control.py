"""Control racks from outside: start one, run programs in it, let its time pass, take it down.

A rack runs in a *guest*: a Linux kernel in virtual time, or namespaces of this machine's own kernel
in real time. Its *supervisor* is the process outside that owns the guest. Everything but the start
goes over a connection to the supervisor.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from inventory.rack import scaled
from orchestration.backends.common.machine_monitor import RACK_CLOCK
from orchestration.core import machine
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.topology import Testbed
from orchestration.kernel.boot import memory_dir
from orchestration.kernel.cache import require_kernel
from orchestration.virtual_rack import cleanup, interface_leases
from orchestration.virtual_rack import containers as oci
from orchestration.virtual_rack.folder import (
    SBIN,
    RackFolder,
    python_path,
    racks_folder,
    require_programs,
    write_folder,
)
from orchestration.virtual_rack.image import image_tree, require_image
from orchestration.virtual_rack.layout import Clock, Layout, make_layout, real_time_layout
from orchestration.virtual_rack.messages import PIECE_BYTES, Message, MessageDecoder, encode

RACK_VARIABLE = "CLOSLOOP_RACK"
_GUEST_MEMORY_BYTES, _DEVICE_MEMORY_BYTES = 1 << 30, 64 << 20
# How long a supervisor may take to start, and to end all that it has started, on a busy machine.
_START_S, _END_S = 60.0, 60.0

# Called with the stage, the number of its steps done, and their total.
Progress = Callable[[str, int, int], None]

# Variables of the caller's environment that are meaningless in the rack.
_DROPPED_VARIABLES = (
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
)
_XDG = {"XDG_CACHE_HOME": ".cache", "XDG_STATE_HOME": ".local/state", "XDG_CONFIG_HOME": ".config"}


class RackProcess:
    """A program that runs in a rack. Whoever starts it must call `wait`."""

    def __init__(self, connection: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self.connection = connection
        self._sinks = {1: out, 2: err}
        self._decoder = MessageDecoder()
        self._code: int | None = None

    def kill(self, number: int) -> None:
        """Send a signal to the program's process group."""
        self.send({"signal": int(number)})

    def send(self, message: Message) -> None:
        """Send a message to the program, such as input or a window size."""
        with suppress(OSError):
            self.connection.sendall(encode(message))

    def forward_output(self) -> bool:
        """Wait for messages and write the output in them; return False once the program has ended.

        Raises NotReadyError if the rack goes down.
        """
        for message in _messages(self.connection, self._decoder):
            if "out" in message:
                sink = self._sinks[message["out"]]
                sink.write(base64.b64decode(message["data"]))
                sink.flush()
            if message.get("end"):
                self._code = _checked(message)["code"]
        return self._code is None

    def wait(self) -> int:
        """Write the program's output until it ends; return its exit code (128 + signal number)."""
        while self._code is None:
            self.forward_output()
        self.connection.close()
        return self._code


class RackHandle:
    """A rack that is up."""

    def __init__(self, folder: RackFolder) -> None:
        self._folder = folder
        self.name = folder.name
        self.folder = folder.path
        # the addresses in it can be reached only from within the rack
        self.inventory = folder.inventory

    @property
    def password(self) -> str:
        """Return the password of the users admin and operator, the same on all devices."""
        return self._folder.password.read_text().strip()

    @property
    def layout(self) -> Layout:
        """Return the rack's devices, addresses and cables."""
        return Layout.from_json(json.loads(self._folder.layout.read_text()))

    def start(
        self,
        argv: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> RackProcess:
        """Start a program in the rack, where the controller runs.

        Working folder, environment and output are the caller's unless they are given. With
        `terminal` (rows, columns) the program has a terminal, and all its output goes to `stdout`.
        """
        variables = self._environment(os.environ if env is None else env)
        clock = self.layout.clock
        if clock == "virtual":
            variables[machine.FOLDER_VARIABLE] = str(self.folder)
        request = {
            "do": "run",
            "argv": list(argv),
            "cwd": str(Path(cwd or Path.cwd()).absolute()),
            "env": {**variables, RACK_CLOCK: clock},
            "terminal": list(terminal) if terminal else None,
        }
        connection = send_request(self._folder, request)
        return RackProcess(connection, stdout or sys.stdout.buffer, stderr or sys.stderr.buffer)

    def run(self, argv: Sequence[str], **options: Any) -> int:
        """Run a program in the rack to its end, without input; return its exit code.

        `options` are further arguments of `start`.
        """
        process = self.start(argv, **options)
        process.send({"input": ""})
        return process.wait()

    def let_pass(self, seconds: float) -> None:
        """Let this many seconds of the rack's time pass."""
        ask(self._folder, {"do": "pass", "seconds": seconds})

    def dump(self, device: str) -> str:
        """Return the whole state of a device as JSON, read at its console: see `console.dump`."""
        return str(self._at_console(device, op="dump"))

    def inject(self, device: str, what: str, port: str = "") -> Any:
        """Inject an event into a device: see `console.EVENTS`. `port` is an interface's name."""
        return self._at_console(device, op="inject", what=what, port=port)

    def _at_console(self, device: str, **request: str) -> Any:
        return ask(self._folder, {"do": "device", "device": device, "request": request})

    def status(self) -> dict[str, Any]:
        """Return the rack's `state`, `busy` (the number of running requests), and process ids."""
        return dict(ask(self._folder, {"do": "status"}))

    def down(self) -> None:
        """End the rack and remove its files.

        Raises NotReadyError if it does not end, or if an interface was not given back.
        """
        with suppress(NotReadyError):
            ask(self._folder, {"do": "down"})
        deadline = time.monotonic() + _END_S
        while self._folder.is_locked():
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"the rack {self.name} has not ended within {_END_S:g} s: "
                    f"see {self._folder.console}",
                    "run closloop rack down again when the machine is less busy",
                )
            time.sleep(0.02)
        if left := interface_leases.leases(self.folder):
            raise NotReadyError(
                f"{', '.join(lease.interface for lease in left)} could not be given back: "
                f"see {self._folder.console}",
                interface_leases.CLEAN_COMMAND,
            )
        self._folder.remove()

    def _environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        home = Path(caller.get("HOME") or Path.home())
        return {
            **{key: str(home / rack_folder) for key, rack_folder in _XDG.items()},
            **{key: value for key, value in caller.items() if key not in _DROPPED_VARIABLES},
            "PATH": f"{caller.get('PATH', '/usr/local/bin:/usr/bin:/bin')}:{SBIN}",
            "HOME": "/run/home",
            "TMPDIR": "/run/tmp",
            "USER": "root",
            "LOGNAME": "root",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            RACK_VARIABLE: self.name,
        }


def in_rack() -> bool:
    """Return whether this program runs in a rack."""
    return RACK_VARIABLE in os.environ


def find_rack(name_or_folder: str | Path | None = None) -> RackHandle:
    """Return a rack that is up: the one with this name or folder, or else the only one.

    Raises NotReadyError if it is not up, or if no name is given and several are up.
    """
    if name_or_folder is not None:
        path = Path(name_or_folder)
        folder = RackFolder(path.absolute() if "/" in str(path) else racks_folder() / path)
        if not is_up(folder):
            raise NotReadyError(f"the rack {folder.name} is not up", "start it: closloop rack up")
        return RackHandle(folder)
    racks = racks_up()
    if not racks:
        raise NotReadyError("no rack is up", "start one: closloop rack up")
    if len(racks) > 1:
        names = ", ".join(folder.name for folder in racks)
        raise NotReadyError(f"several racks are up: {names}", "name one of them with --rack")
    return racks[0]


def racks_up() -> list[RackHandle]:
    """Return the racks in the user's state folder that are up."""
    folders = (RackFolder(path) for path in sorted(racks_folder().glob("*")))
    return [RackHandle(folder) for folder in folders if is_up(folder)]


def is_up(folder: RackFolder) -> bool:
    """Return whether a rack's supervisor accepts connections."""
    with suppress(OSError, NotReadyError), connect(folder):
        return True
    return False


def up(
    testbed: Testbed,
    *,
    sonic: Collection[str] = (),
    roce: Collection[str] = (),
    bluefield: Collection[str] = (),
    folder: Path | None = None,
    real_time: bool = False,
    clock: Clock = "virtual",
    containers: bool = False,
    interfaces: Sequence[str] = (),
    scale: int = 1,
    progress: Progress = lambda *_: None,
) -> tuple[RackHandle, bool]:
    """Start a rack and wait until logging in works on all devices; return it and True.

    If the rack is already up with these devices, it is returned unchanged, with False.

    Args:
        testbed: the devices and cables.
        sonic: names of switches that are SONiC-like.
        roce: names of hosts with RoCE NICs.
        bluefield: names of hosts that stand in for hosts with a BlueField NIC (see `bluefield`).
        folder: where keys and inventory are written, by default in the user's state folder.
        real_time: with `clock` "virtual", the guest runs on the real clock instead. Its devices
            share one CPU and their work takes time: this is for measuring latencies, not for
            traffic.
        clock: "virtual", or "real" for namespaces of this machine's own kernel (see `layout`).
        containers: with `clock` "real", the devices are containers (see `containers`).
        interfaces: with `clock` "real", interfaces of this machine in place of ports, each like
            `leaf1:eth0=enp3s0`.
        scale: with `clock` "real", what all rates are divided by (see `inventory.rack`).
        progress: called with the stage, the number of its steps that are done, and their total.

    Raises:
        InputError: a name is not in the testbed, or the folder contains other files.
        NotReadyError: programs, the kernel or memory are missing; a rack with other devices is up;
            the guest does not boot.
    """
    layout = make_layout(scaled(testbed, scale), sonic, roce, bluefield)
    if clock == "real":
        leased = interface_leases.parse_port_interfaces(testbed, interfaces)
        layout = replace(real_time_layout(layout), leased=leased, scale=scale)
        if containers:
            layout = replace(layout, image=str(image_tree()))
    elif scale != 1:
        raise InputError.single("--scale", "virtual time needs no scale", "leave it out")
    rack_folder = RackFolder((folder or racks_folder() / testbed.name).expanduser().absolute())
    handle = RackHandle(rack_folder)
    if is_up(rack_folder):
        if handle.layout.to_json() != layout.to_json():
            raise NotReadyError(
                f"the rack {rack_folder.name} is up with other devices",
                "take it down first: closloop rack down; or name another folder with --folder",
            )
        return handle, False
    require_programs(layout)
    interface_leases.require_free(layout)
    runtime = ""
    if containers:
        runtime, tree = oci.require_runtime(), require_image(progress=progress)
        cleanup.remove_orphaned(cleanup.find_control_groups, cleanup.find_unfinished_images)
        oci.require_containers(runtime, tree)
    guest: tuple[str, ...] = ()
    if clock == "virtual":
        kernel, own_clock = require_kernel().path, "real" if real_time else "virtual"
        memory_bytes = _GUEST_MEMORY_BYTES + _DEVICE_MEMORY_BYTES * len(layout.address)
        guest = (str(kernel), str(memory_bytes), str(memory_dir(memory_bytes)), own_clock)
    rack_folder.make()
    with rack_folder.locked() as lock:
        _start(rack_folder, layout, guest, runtime, progress, lock)
    return handle, True


def _start(
    rack_folder: RackFolder,
    layout: Layout,
    guest: Sequence[str],
    runtime: str,
    progress: Progress,
    lock: int,
) -> None:
    """Start the supervisor and wait until the rack is up.

    The supervisor inherits `lock`, the descriptor of the locked folder, and so holds the lock for
    as long as it runs.
    """
    write_folder(rack_folder, layout)
    words = [str(rack_folder.path), *guest]
    with rack_folder.console.open("ab") as console:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestration.virtual_rack.supervisor", *words],
            cwd=rack_folder.path,
            env={**os.environ, "PYTHONPATH": python_path(), oci.RUNTIME_VARIABLE: runtime},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            pass_fds=(lock,),
        )
    try:
        deadline = time.monotonic() + _START_S
        while not is_up(rack_folder):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotReadyError(
                    "the rack's supervisor does not start", f"see {rack_folder.console}"
                )
            time.sleep(0.02)
        ask(rack_folder, {"do": "await"}, progress)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def connect(folder: RackFolder) -> socket.socket:
    """Connect to a rack's supervisor. Raises NotReadyError if the rack is not up.

    A socket's name must be short, and the folder's path may be long. So the socket is reached
    through a descriptor of the folder.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        rack_folder = os.open(folder.path, os.O_PATH | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{rack_folder}/{folder.socket.name}")
        finally:
            os.close(rack_folder)
    except OSError as error:
        connection.close()
        raise NotReadyError(
            f"the rack {folder.name} is not up", "start it: closloop rack up"
        ) from error
    return connection


def send_request(folder: RackFolder, request: Message) -> socket.socket:
    """Send a request to a rack's supervisor; return the connection, over which the answers come."""
    connection = connect(folder)
    connection.sendall(encode(request))
    return connection


def ask(folder: RackFolder, request: Message, progress: Progress = lambda *_: None) -> Any:
    """Send a request to a rack's supervisor, wait until it is done, and return its result.

    Raises NotReadyError with the rack's message if the request fails.
    """
    with send_request(folder, request) as connection:
        decoder = MessageDecoder()
        while True:
            for message in _messages(connection, decoder):
                if message.get("end"):
                    return _checked(message).get("ok")
                if "stage" in message:
                    progress(message["stage"], message.get("done", 0), message.get("of", 0))


def _messages(connection: socket.socket, decoder: MessageDecoder) -> list[Message]:
    piece = connection.recv(PIECE_BYTES)
    if not piece:
        raise NotReadyError("the rack went down", "start it again: closloop rack up")
    return decoder.feed(piece)


def _checked(message: Message) -> Message:
    if "error" in message:
        raise NotReadyError(message["error"], message.get("remedy", ""))
    return message
