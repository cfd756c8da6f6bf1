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

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
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
from orchestration.virtual_rack.interfaces import Machine, State
from orchestration.virtual_rack.layout import Layout

LENT = Path("/run/closloop/lent")
CLEAN = "closloop clean"


@dataclass(frozen=True)
class InterfaceLease:
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


def loans(rack: Path | None = None) -> list[InterfaceLease]:
    """Return what is lent, to all racks or to the one of a folder. An unreadable record is none."""
    found = []
    for file in sorted(LENT.glob("[!.]*/record.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(file.read_text())
            state = State.from_json(data["state"])
            found.append(InterfaceLease(**{**data, "owner": tuple(data["owner"]), "state": state}))
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


def take_lease(
    interface: str, device: str, port: str, rack: Path, owner: Process, to: Path
) -> None:
    """Move an interface into the network namespace `to`, as a port of a device.

    Its record is on the disk before it is touched. Raises RuntimeError or OSError.
    """
    with _held():
        state = interfaces.state(interface)
        loan = InterfaceLease(
            interface, device, port, str(rack), (owner.pid, owner.started), this_boot(), state
        )
        with whole_folder(loan.place, sync=True) as folder:
            (folder / "record.json").write_text(json.dumps(asdict(loan)))
            (folder / "net").touch()
        bind(str(to), str(loan.namespace))
        interfaces.mark(interface, loan.mark)
        interfaces.move(interface, loan.namespace, port)


def return_interface(loan: InterfaceLease) -> str:
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


def _fetch(loan: InterfaceLease) -> str:
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
