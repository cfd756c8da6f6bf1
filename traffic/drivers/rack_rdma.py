"""Where RDMA flows leave a rack's hosts: the device, port and GID that have a NIC's address.

A RoCE NIC has a GID for each of its addresses and for each version of RoCE. They are asked of the
hosts when a trial begins: their indexes depend on the order in which addresses came, and one of a
former address may still be there. The agent's service is `nic`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from inventory.rack import Rack
from orchestration.device.client import Fleet
from orchestration.device.errors import DeviceError, unreadable
from traffic.drivers.programs import Options, ProgramDriver

# The agent's service (`orchestration.agent.host.rdma`).
SERVICE = "nic"


class Gid(NamedTuple):
    """A GID of RoCE v2 for an IPv4 address: its place on an RDMA device."""

    device: str
    port: int
    gid_index: int
    address: str


Gids = Mapping[str, list[Gid]]


def gids_of(fleet: Fleet, hosts: Iterable[str]) -> dict[str, list[Gid]]:
    """Return each host's GIDs of RoCE v2. Raises DeviceError."""
    found = {}
    for host, rows in fleet.ask("nic.gids", {host: {} for host in hosts}).items():
        try:
            found[host] = [Gid(str(d), int(port), int(n), str(a)) for d, port, n, a in rows]
        except (TypeError, ValueError) as error:
            raise unreadable(host, "its GIDs", error) from error
    return found


def gid_of(host: str, gids: Iterable[Gid], address: str, device: str) -> Gid:
    """Return the GID of an address, of one device if that is given. Raises DeviceError."""
    there = list(gids)
    for gid in there:
        if gid.address == address and device in ("", gid.device):
            return gid
    others = ", ".join(f"{gid.address} at {gid.device}" for gid in there) or "none"
    what = f"RDMA device {device} has no" if device else "no RDMA device has a"
    raise DeviceError(
        host,
        f"{what} RoCE v2 GID for the address {address} (found: {others})",
        "`closloop provision` gives NICs their addresses; a host with several NICs has an "
        "rdma_device at each link in the inventory",
    )


def rdma_end(
    rack: Rack, host: str, number: int, driver: ProgramDriver, options: Options, gids: Gids
) -> Gid:
    """Return where flow `number` leaves or reaches a host. Raises DeviceError."""
    ports = rack.testbed.ports_of[host]
    port = ports[number % len(ports)]
    device = rack.access[host].rdma_device(rack.interface(port))
    given = int(options.get("gid_index", -1))
    if not driver.rdma or given >= 0:
        return Gid(device, 1, given, "")
    wanted = str(options.get("device", "")) or device
    return gid_of(host, gids.get(host, ()), rack.addresses.nics[port.index], wanted)
