"""Control racks from outside: start one, run programs in it, let its time pass, take it down.

Everything but the start uses a connection to the rack's supervisor.
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
from orchestration.backends.common.realtime import RACK_CLOCK
from orchestration.core import machine
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.topology import Testbed
from orchestration.kernel.boot import memory_dir
from orchestration.kernel.cache import require_kernel
from orchestration.virtual_rack import cleanup, interface_leases
from orchestration.virtual_rack import containers as oci
from orchestration.virtual_rack.commands import PIECE_BYTES, Lines, Message, encode
from orchestration.virtual_rack.folder import (
    SBIN,
    RackFolder,
    python_path,
    racks_folder,
    require_programs,
    write_folder,
)
from orchestration.virtual_rack.image import image_tree, require_image
from orchestration.virtual_rack.layout import Clock, Layout, layout_here, make_layout

INSIDE = "CLOSLOOP_RACK"
_MEMORY_BYTES, _DEVICE_MEMORY_BYTES = 1 << 30, 64 << 20
# How long a supervisor may take to start, and to end what it has: seconds on a busy machine.
_START_S, _END_S = 60.0, 60.0

# Called with the stage, the number of its steps done, and their total.
Progress = Callable[[str, int, int], None]

# Variables of the caller's environment that make sense only outside of the rack.
_LEFT_OUT = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_XDG = {"XDG_CACHE_HOME": ".cache", "XDG_STATE_HOME": ".local/state", "XDG_CONFIG_HOME": ".config"}


class RackProcess:
    """A program that runs in a rack. Its starter must wait for it."""

    def __init__(self, line: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self.line = line
        self._sinks = {1: out, 2: err}
        self._lines = Lines()
        self._code: int | None = None

    def kill(self, number: int) -> None:
        """Send a signal to the program's process group."""
        self.send({"signal": int(number)})

    def send(self, message: Message) -> None:
        """Send a message to the program, such as input or a window size."""
        with suppress(OSError):
            self.line.sendall(encode(message))

    def take(self) -> bool:
        """Wait for messages and pass them on; return False once the program has ended.

        Raises NotReadyError if the rack goes down.
        """
        for message in _messages(self.line, self._lines):
            if "out" in message:
                sink = self._sinks[message["out"]]
                sink.write(base64.b64decode(message["data"]))
                sink.flush()
            if message.get("end"):
                self._code = _checked(message)["code"]
        return self._code is None

    def wait(self) -> int:
        """Pass on the output until the end; return the exit code (128 + n after signal n)."""
        while self._code is None:
            self.take()
        self.line.close()
        return self._code


class RackHandle:
    """A rack that is up."""

    def __init__(self, folder: RackFolder) -> None:
        self._folder = folder
        self.name = folder.name
        self.folder = folder.path
        # its addresses are valid only within the rack
        self.inventory = folder.inventory

    @property
    def password(self) -> str:
        """The password of the users admin and operator on all devices."""
        return self._folder.password.read_text().strip()

    @property
    def layout(self) -> Layout:
        """The rack's devices, addresses and cables."""
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
        """Start a program in the rack, as the controller.

        Working folder, environment and output are the caller's unless given. With `terminal`
        (rows, columns) the program has a terminal, and all its output goes to `stdout`.
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
        line = call(self._folder, request)
        return RackProcess(line, stdout or sys.stdout.buffer, stderr or sys.stderr.buffer)

    def run(self, argv: Sequence[str], **where: Any) -> int:
        """Run a program in the rack to its end, without input; return its exit code.

        `where` are further arguments of `start`.
        """
        process = self.start(argv, **where)
        process.send({"input": ""})
        return process.wait()

    def let_pass(self, seconds: float) -> None:
        """Let this many seconds of the rack's time pass."""
        ask(self._folder, {"do": "pass", "seconds": seconds})

    def dump(self, device: str) -> str:
        """Return the whole state of a device, read at its console: see `console.dump`."""
        return str(self._at_console(device, op="dump"))

    def inject(self, device: str, what: str, port: str = "") -> Any:
        """Inject an event into a device: see `console.KINDS`. `port` is an interface's name."""
        return self._at_console(device, op="inject", what=what, port=port)

    def _at_console(self, device: str, **request: str) -> Any:
        return ask(self._folder, {"do": "device", "device": device, "request": request})

    def status(self) -> dict[str, Any]:
        """Return the rack's status: `state`, `busy` (requests), process ids."""
        return dict(ask(self._folder, {"do": "status"}))

    def down(self) -> None:
        """End the rack and remove its files.

        Raises NotReadyError if it does not end, or has not given an interface back, and says which.
        """
        with suppress(NotReadyError):
            ask(self._folder, {"do": "down"})
        deadline = time.monotonic() + _END_S
        while self._folder.is_held():
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"the rack {self.name} has not ended in {_END_S:g} s: "
                    f"see {self._folder.console}",
                    "closloop rack down again, when the machine is less busy",
                )
            time.sleep(0.02)
        if left := interface_leases.loans(self.folder):
            raise NotReadyError(
                f"{', '.join(loan.interface for loan in left)} could not be given back: "
                f"see {self._folder.console}",
                interface_leases.CLEAN,
            )
        self._folder.remove()

    def _environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        home = Path(caller.get("HOME") or Path.home())
        return {
            **{key: str(home / place) for key, place in _XDG.items()},
            **{key: value for key, value in caller.items() if key not in _LEFT_OUT},
            "PATH": f"{caller.get('PATH', '/usr/local/bin:/usr/bin:/bin')}:{SBIN}",
            "HOME": "/run/home",
            "TMPDIR": "/run/tmp",
            "USER": "root",
            "LOGNAME": "root",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            INSIDE: self.name,
        }


def inside() -> bool:
    """Return True in a program that runs in a rack."""
    return INSIDE in os.environ


def find_rack(name_or_folder: str | Path | None = None) -> RackHandle:
    """Return a rack that is up: the one of this name or folder, or the only one.

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
    """Return True if a rack's supervisor answers."""
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

    If the rack is already up with these devices, return it unchanged and False. `progress` is
    called with the stage, the number of its steps done, and their total. With `clock` "real" the
    devices are namespaces of this machine's kernel (see `layout`), with `containers` those of
    an OCI runtime (see `containers`), at rates divided by `scale` (see `inventory.rack`). With
    `real_time` they are a guest's that share one CPU, and their work takes time: for latencies, not
    for traffic. `interfaces` are words like `leaf1:eth0=enp3s0`: this machine's own, in place of
    ports.

    Raises:
        InputError: names that are not in the testbed, or a folder with other files.
        NotReadyError: programs, the kernel or memory are missing; a rack with other devices is up;
            the guest does not boot.
    """
    layout = make_layout(scaled(testbed, scale), sonic, roce, bluefield)
    if clock == "real":
        lent = interface_leases.choose(testbed, interfaces)
        layout = replace(layout_here(layout), lent=lent, scale=scale)
        if containers:
            layout = replace(layout, image=str(image_tree()))
    elif scale != 1:
        raise InputError.single("--scale", "virtual time carries any rates", "leave it out")
    place = RackFolder((folder or racks_folder() / testbed.name).expanduser().absolute())
    handle = RackHandle(place)
    if is_up(place):
        if handle.layout.to_json() != layout.to_json():
            raise NotReadyError(
                f"the rack {place.name} is up with other devices",
                "take it down first: closloop rack down; or name another folder with --folder",
            )
        return handle, False
    require_programs(layout)
    interface_leases.require_free(layout)
    runtime = ""
    if containers:
        runtime, tree = oci.require_runtime(), require_image(progress=progress)
        cleanup.remove_dead(cleanup.control_groups, cleanup.half_images)
        oci.require_containers(runtime, tree)
    guest: tuple[str, ...] = ()
    if clock == "virtual":
        kernel, own_clock = require_kernel().path, "real" if real_time else "virtual"
        memory_bytes = _MEMORY_BYTES + _DEVICE_MEMORY_BYTES * len(layout.address)
        guest = (str(kernel), str(memory_bytes), str(memory_dir(memory_bytes)), own_clock)
    place.make()
    with place.held() as lock:
        _start(place, layout, guest, runtime, progress, lock)
    return handle, True


def _start(
    place: RackFolder,
    layout: Layout,
    guest: Sequence[str],
    runtime: str,
    progress: Progress,
    lock: int,
) -> None:
    """Start the supervisor, which holds the folder's lock as long as it lives."""
    write_folder(place, layout)
    words = [str(place.path), *guest]
    with place.console.open("ab") as console:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestration.virtual_rack.supervisor", *words],
            cwd=place.path,
            env={**os.environ, "PYTHONPATH": python_path(), oci.RUNTIME: runtime},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            pass_fds=(lock,),
        )
    try:
        deadline = time.monotonic() + _START_S
        while not is_up(place):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotReadyError("the rack's supervisor does not start", f"see {place.console}")
            time.sleep(0.02)
        ask(place, {"do": "await"}, progress)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def connect(folder: RackFolder) -> socket.socket:
    """Connect to a rack's supervisor. Raises NotReadyError if the rack is not up.

    The folder's path may be too long for a socket's name, so a shorter name is used.
    """
    line = socket.socket(socket.AF_UNIX)
    try:
        place = os.open(folder.path, os.O_PATH | os.O_DIRECTORY)
        try:
            line.connect(f"/proc/self/fd/{place}/{folder.socket.name}")
        finally:
            os.close(place)
    except OSError as error:
        line.close()
        raise NotReadyError(
            f"the rack {folder.name} is not up", "start it: closloop rack up"
        ) from error
    return line


def call(folder: RackFolder, request: Message) -> socket.socket:
    """Send a request to a rack's supervisor; return the connection for the answers."""
    line = connect(folder)
    line.sendall(encode(request))
    return line


def ask(folder: RackFolder, request: Message, progress: Progress = lambda *_: None) -> Any:
    """Send a request to a rack's supervisor, wait for its end and return its result.

    Raises NotReadyError with the rack's message if the request fails.
    """
    with call(folder, request) as line:
        lines = Lines()
        while True:
            for message in _messages(line, lines):
                if message.get("end"):
                    return _checked(message).get("ok")
                if "stage" in message:
                    progress(message["stage"], message.get("done", 0), message.get("of", 0))


def _messages(line: socket.socket, lines: Lines) -> list[Message]:
    piece = line.recv(PIECE_BYTES)
    if not piece:
        raise NotReadyError("the rack went down", "start it again: closloop rack up")
    return lines.feed(piece)


def _checked(message: Message) -> Message:
    if "error" in message:
        raise NotReadyError(message["error"], message.get("remedy", ""))
    return message
