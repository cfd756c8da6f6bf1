"""Leases of this machine's interfaces to racks, recorded so that each can be given back.

/run/closloop/lent/INTERFACE/record.json     its former state, and the rack that has it
/run/closloop/lent/INTERFACE/net             the device's network namespace, mounted here

When a network namespace ends, Linux moves its network cards to the initial namespace, down and
perhaps under another name, and destroys its virtual interfaces (`default_device_exit_net` in
net/core/dev.c). So a namespace with a leased interface is kept alive by a mount until the interface
was given back, and an interface is found by its alias, wherever it is.

A reboot creates all interfaces anew, and the machine's own configuration sets them up. So a record
of an earlier boot has nothing to restore.
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
from orchestration.virtual_rack.interfaces import InterfaceState, MachineNetwork
from orchestration.virtual_rack.layout import Layout

LEASES_FOLDER = Path("/run/closloop/lent")
CLEAN_COMMAND = "closloop clean"


@dataclass(frozen=True)
class InterfaceLease:
    """The lease of an interface of this machine to a rack, where it takes the place of a port.

    `rack` is the rack's folder. `owner` is its supervisor, by process id and start time. `boot` is
    the boot id of the machine, and `state` is what the interface is restored to.
    """

    interface: str
    device: str
    port: str
    rack: str
    owner: tuple[int, str]
    boot: str
    state: InterfaceState

    @property
    def folder(self) -> Path:
        """Return the folder of the record."""
        return LEASES_FOLDER / self.interface

    @property
    def namespace(self) -> Path:
        """Return the mount point that keeps the device's network namespace alive."""
        return self.folder / "net"

    @property
    def alias(self) -> str:
        """Return the alias that the interface has while it is leased."""
        return f"closloop: {self.interface} of {self.boot}"

    @property
    def rack_alive(self) -> bool:
        """Whether the rack is up or booting."""
        return self.boot == this_boot() and Process(*self.owner).lives


def leases(rack: Path | None = None) -> list[InterfaceLease]:
    """Return all leases, or those of the rack with this folder, without unreadable ones."""
    found = []
    for file in sorted(LEASES_FOLDER.glob("[!.]*/record.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(file.read_text())
            state = InterfaceState.from_json(data["state"])
            found.append(InterfaceLease(**{**data, "owner": tuple(data["owner"]), "state": state}))
    return [lease for lease in found if rack is None or lease.rack == str(rack)]


def parse_port_interfaces(testbed: Testbed, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return pairs of a port's label and an interface, from words like `leaf1:eth0=enp3s0`.

    Raises InputError for a word of another form, an unknown port, or a port or interface that is
    given twice.
    """
    from inventory.strictyaml import suggest

    chosen: dict[str, str] = {}
    ports = {port.label for port in testbed.ports}
    for word in words:
        port, equals, interface = word.partition("=")
        if not (equals and interface):
            raise InputError.single(
                "--interface",
                f"{word!r} is not PORT=INTERFACE",
                "write it like leaf1:eth0=enp3s0",
            )
        if port not in ports:
            device = port.partition(":")[0]
            near = sorted(label for label in ports if label.startswith(f"{device}:"))
            remedy = f"{suggest(port, sorted(ports))}ports are {', '.join(near or sorted(ports))}"
            raise InputError.single("--interface", f"{testbed.name} has no port {port!r}", remedy)
        if port in chosen or interface in chosen.values():
            twice = port if port in chosen else interface
            raise InputError.single("--interface", f"{twice} is given twice", "give each once")
        chosen[port] = interface
    return tuple(sorted(chosen.items()))


def require_free(layout: Layout) -> None:
    """Check that the interfaces that a rack shall lease are free. Raises NotReadyError."""
    if not layout.leased:
        return
    leased = {lease.interface: lease for lease in leases()}
    machine = MachineNetwork.here()
    for _, interface in layout.leased:
        if lease := leased.get(interface):
            remedy = (
                "take that rack down: closloop rack down"
                if lease.rack_alive
                else f"that rack has ended: {CLEAN_COMMAND} gives the interface back"
            )
            raise NotReadyError(f"{interface} is leased to the rack {lease.rack}", remedy)
        interfaces.require_free(interface, layout.testbed.mtu_bytes, machine)


def take_lease(
    interface: str, device: str, port: str, rack: Path, owner: Process, to: Path
) -> None:
    """Move an interface into the network namespace `to`, where it becomes a port of a device.

    `rack` is the rack's folder, `owner` its supervisor. The record is on disk before the interface
    is touched. Raises RuntimeError or OSError.
    """
    with _locked_ledger():
        state = interfaces.read_state(interface)
        lease = InterfaceLease(
            interface, device, port, str(rack), (owner.pid, owner.started), this_boot(), state
        )
        with whole_folder(lease.folder, sync=True) as folder:
            (folder / "record.json").write_text(json.dumps(asdict(lease)))
            (folder / "net").touch()
        bind(str(to), str(lease.namespace))
        interfaces.set_alias(interface, lease.alias)
        interfaces.move(interface, lease.namespace, port)


def return_interface(lease: InterfaceLease) -> str:
    """Move an interface back, restore its former state and end the lease; return a remark on it.

    It can be called again after a call that was interrupted. Raises RuntimeError or OSError.
    """
    with _locked_ledger():
        if not lease.folder.exists():
            return "it had been given back"
        result = "the machine has booted since" if lease.boot != this_boot() else _bring_back(lease)
        while os.path.ismount(lease.namespace):
            unmount(str(lease.namespace))
        # by a rename, so that a record is complete or absent
        lease.folder.rename(LEASES_FOLDER / f".{lease.interface}")
        return result


def _bring_back(lease: InterfaceLease) -> str:
    pinned = lease.namespace if os.path.ismount(lease.namespace) else None
    if pinned and (leased_name := interfaces.find_by_alias(lease.alias, pinned)):
        own = Path("/proc", str(os.getpid()), "ns/net")
        interfaces.move(leased_name, own, lease.state.name, pinned)
    name = interfaces.find_by_alias(lease.alias)
    if not name:
        # either an earlier call restored the alias already, or the lease was interrupted before
        # the alias was set
        indices = {link["ifname"]: link["ifindex"] for link in interfaces.links()}
        if indices.get(lease.state.name) != lease.state.index:
            return "it is no longer on this machine"
        name = lease.state.name
    interfaces.restore(name, lease.state)
    return f"it was {lease.port} of {lease.device}"


@contextmanager
def _locked_ledger() -> Iterator[None]:
    """Lock the folder of records, and remove incomplete records that a killed writer has left."""
    ledger = _lock_ledger()
    try:
        _remove_partial_records()
        yield
    finally:
        _remove_partial_records()
        with suppress(OSError):  # the folder is not empty if there are other leases
            LEASES_FOLDER.rmdir()
            LEASES_FOLDER.parent.rmdir()
        os.close(ledger)


def _remove_partial_records() -> None:
    for partial in LEASES_FOLDER.glob(".*"):
        shutil.rmtree(partial, ignore_errors=True)


def _lock_ledger() -> int:
    """Return a locked descriptor of the folder of records, which others may remove meanwhile."""
    while True:
        LEASES_FOLDER.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            ledger = os.open(LEASES_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(ledger, fcntl.LOCK_EX)
            if os.fstat(ledger).st_nlink:
                return ledger
            os.close(ledger)


def forget_namespaces() -> None:
    """Unmount the leases' namespaces for this process, so that it does not keep them alive."""
    for namespace in LEASES_FOLDER.glob("*/net"):
        if os.path.ismount(namespace):
            unmount(str(namespace))
