"""The ledger of interfaces that are lent to racks, by which they are given back after anything.

/run/closloop/lent/INTERFACE/record.json     its former state, and whom it was lent to
/run/closloop/lent/INTERFACE/net             the device's network namespace, mounted here

When a namespace ends, Linux moves a network card of it to the initial one, down and perhaps under
another name, and destroys an interface that is virtual (`default_device_exit_net` in
net/core/dev.c). So a namespace with a lent interface is kept by a mount until it was given back,
and an interface is found by a mark in its alias, wherever it is.

A boot makes interfaces anew, and the machine's own configuration sets them up: a record of an
earlier boot has nothing to put back.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestration.agent.safety.deadman_process import Process
from orchestration.agent.safety.shared_folder import this_boot
from orchestration.backends.emulated.system import bind, unmount
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.files import whole_folder
from orchestration.core.topology import Testbed
from orchestration.virtual_rack import interfaces
from orchestration.virtual_rack.commands import PIECE_BYTES, Lines, Message, encode
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.interfaces import Machine, State
from orchestration.virtual_rack.layout import Layout

LENT = Path("/run/closloop/lent")
CLEAN = "closloop clean"


@dataclass(frozen=True)
class Loan:
    """An interface that is lent, or is to be: to a port of a device of a rack.

    `owner` is the rack's supervisor, by process id and start time.
    """

    interface: str
    device: str
    port: str
    rack: str
    owner: tuple[int, str]
    boot: str
    state: State

    @property
    def place(self) -> Path:
        """The record's folder."""
        return LENT / self.interface

    @property
    def namespace(self) -> Path:
        """The mount that keeps the device's network namespace."""
        return self.place / "net"

    @property
    def mark(self) -> str:
        """The alias that the interface has while it is lent."""
        return f"closloop: {self.interface} of {self.boot}"

    @property
    def alive(self) -> bool:
        """Whether the rack is still up or booting."""
        return self.boot == this_boot() and Process(*self.owner).lives


def loans(rack: Path | None = None) -> list[Loan]:
    """Return what is lent, to all racks or to the one of a folder. An unreadable record is none."""
    found = []
    for file in sorted(LENT.glob("[!.]*/record.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(file.read_text())
            state = State.from_json(data["state"])
            found.append(Loan(**{**data, "owner": tuple(data["owner"]), "state": state}))
    return [loan for loan in found if rack is None or loan.rack == str(rack)]


def choose(testbed: Testbed, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return pairs of port and interface from words like `leaf1:eth0=enp3s0`. Raises InputError."""
    from inventory.strictyaml import suggest

    chosen: dict[str, str] = {}
    ports = {port.label for port in testbed.ports}
    for word in words:
        port, equals, interface = word.partition("=")
        if not (equals and interface):
            raise InputError.single(
                "--interface", f"{word!r} is no PORT=INTERFACE", "write it like leaf1:eth0=enp3s0"
            )
        if port not in ports:
            device = port.partition(":")[0]
            near = sorted(known for known in ports if known.startswith(f"{device}:"))
            remedy = f"{suggest(port, sorted(ports))}ports are {', '.join(near or sorted(ports))}"
            raise InputError.single("--interface", f"{testbed.name} has no port {port!r}", remedy)
        if port in chosen or interface in chosen.values():
            twice = port if port in chosen else interface
            raise InputError.single("--interface", f"{twice} is given twice", "give each once")
        chosen[port] = interface
    return tuple(sorted(chosen.items()))


def require_free(layout: Layout) -> None:
    """Check that a rack may have the interfaces that it is to have. Raises NotReadyError."""
    if not layout.lent:
        return
    known = {loan.interface: loan for loan in loans()}
    machine = Machine.here()
    for _, interface in layout.lent:
        if loan := known.get(interface):
            remedy = "closloop rack down" if loan.alive else f"it is dead: {CLEAN}"
            raise NotReadyError(f"{interface} has been given to the rack {loan.rack}", remedy)
        interfaces.require_free(interface, layout.testbed.mtu_bytes, machine)


def lend(interface: str, device: str, port: str, rack: Path, owner: Process, to: Path) -> None:
    """Move an interface into the network namespace `to`, as a port of a device.

    Its record is on the disk before it is touched. Raises RuntimeError or OSError.
    """
    with _held():
        state = interfaces.state(interface)
        loan = Loan(
            interface, device, port, str(rack), (owner.pid, owner.started), this_boot(), state
        )
        with whole_folder(loan.place, sync=True) as folder:
            (folder / "record.json").write_text(json.dumps(asdict(loan)))
            (folder / "net").touch()
        bind(str(to), str(loan.namespace))
        interfaces.mark(interface, loan.mark)
        interfaces.move(interface, loan.namespace, port)


def give_back(loan: Loan) -> str:
    """Move an interface back and give it its former state; forget the loan. Says what was done.

    It may be called again on what an earlier call has left. Raises RuntimeError or OSError.
    """
    with _held():
        if not loan.place.exists():
            return "it had been given back"
        said = "the machine has booted since" if loan.boot != this_boot() else _fetch(loan)
        while os.path.ismount(loan.namespace):
            unmount(str(loan.namespace))
        # in one step: a record is whole or not there
        loan.place.rename(LENT / f".{loan.interface}")
        return said


def _fetch(loan: Loan) -> str:
    pinned = loan.namespace if os.path.ismount(loan.namespace) else None
    if pinned and (away := interfaces.marked(loan.mark, pinned)):
        own = Path("/proc", str(os.getpid()), "ns/net")
        interfaces.move(away, own, loan.state.name, pinned)
    name = interfaces.marked(loan.mark)
    if not name:
        # an earlier call may have come as far as this, or no call to where it is marked
        same = {link["ifname"]: link["ifindex"] for link in interfaces.links()}
        if same.get(loan.state.name) != loan.state.index:
            return "it is gone from this machine"
        name = loan.state.name
    interfaces.restore(name, loan.state)
    return f"it was {loan.port} of {loan.device}"


@contextmanager
def _held() -> Iterator[None]:
    """Lock the ledger, and drop what a writer that was killed has left of a record."""
    ledger = _locked()
    try:
        _drop_partials()
        yield
    finally:
        _drop_partials()
        with suppress(OSError):  # not if others are lent
            LENT.rmdir()
            LENT.parent.rmdir()
        os.close(ledger)


def _drop_partials() -> None:
    for partial in LENT.glob(".*"):
        shutil.rmtree(partial, ignore_errors=True)


def _locked() -> int:
    """Return a locked descriptor of the ledger's folder, which an earlier holder may remove."""
    while True:
        LENT.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            ledger = os.open(LENT, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(ledger, fcntl.LOCK_EX)
            if os.fstat(ledger).st_nlink:
                return ledger
            os.close(ledger)


def forget_namespaces() -> None:
    """Unmount others' namespaces in this process's mount namespace, so that it keeps none alive."""
    for namespace in LENT.glob("*/net"):
        if os.path.ismount(namespace):
            unmount(str(namespace))


# One that ends by itself while it gives back is started again, so often.
_TRIES = 3
_AGAIN_S = 0.2


class Keeper:
    """The supervisor's side of its guardian."""

    def __init__(self, folder: RackFolder) -> None:
        self._folder = folder
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._minding: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process
        self._ending = False

    async def lend(self, wanted: Mapping[str, tuple[str, str, str]]) -> Message:
        """Lend interfaces, each to a device, its port and its namespace; return the answer."""
        await self._start()
        self._minding = asyncio.create_task(self._mind())
        assert self._process.stdin is not None
        self._process.stdin.write(encode({"lend": dict(wanted)}))
        return await self._answers.get()

    async def end(self) -> None:
        """Have everything given back."""
        self._ending = True
        if self._minding is not None:
            self._let_go()
            await self._minding

    async def _start(self) -> None:
        with self._folder.console.open("ab") as console:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "orchestration.virtual_rack.lending"),
                *(str(self._folder.path), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=console,
                cwd="/",
                start_new_session=True,
            )

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _mind(self) -> None:
        """Pass on the guardian's answers, and replace one that is killed."""
        failed = 0
        while failed < _TRIES:
            assert self._process.stdout is not None
            lines = Lines()
            while piece := await self._process.stdout.read(PIECE_BYTES):
                for message in lines.feed(piece):
                    self._answers.put_nowait(message)
            code = await self._process.wait()
            if self._ending and code == 0:
                return
            failed += self._ending
            self._answers.put_nowait({"failed": "its guardian was killed"})
            await asyncio.sleep(_AGAIN_S)
            await self._start()
            if self._ending:
                self._let_go()


def main() -> int:
    """Lend and give back; return 1 if something could not be given back."""
    rack, owner = Path(sys.argv[1]), Process.of(int(sys.argv[2]))
    lines = Lines()
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        for message in lines.feed(piece):
            os.write(sys.stdout.fileno(), encode(_lend(message["lend"], rack, owner)))
    code = 0
    for loan in loans(rack):
        try:
            print(f"{loan.interface} is given back: {give_back(loan)}", file=sys.stderr)
        except (OSError, RuntimeError) as error:
            print(f"{loan.interface} is not given back: {error}", file=sys.stderr)
            code = 1
    return code


def _lend(wanted: Mapping[str, tuple[str, str, str]], rack: Path, owner: Process) -> Message:
    for interface, (device, port, namespace) in wanted.items():
        try:
            lend(interface, device, port, rack, owner, Path(namespace))
        except (OSError, RuntimeError) as error:
            return {"failed": f"{interface} cannot be moved to {device}: {error}"}
    return {"lent": True}


if __name__ == "__main__":
    sys.exit(main())
