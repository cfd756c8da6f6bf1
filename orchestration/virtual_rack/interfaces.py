"""Interfaces of this machine: which of them a rack may lease, their state, and restoring it.

When an interface is moved to another network namespace (net/core/dev.c), Linux sets it down, and it
loses its addresses, routes, queueing disciplines and its settings under /proc/sys/net. It keeps
name, alias, MTU, hardware address and offloads, and programs in the other namespace may change
those.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestration.agent.linux import ethtool
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack.folder import SBIN
from orchestration.virtual_rack.reboot import sysctls

Table = Sequence[Mapping[str, Any]]

_CLASS = Path("/sys/class/net")
# Kinds of interfaces that can be moved to another namespace; "" is a network card.
_MOVABLE_KINDS = ("", "veth", "dummy", "vlan", "macvlan")
# Flags as `ip link show` prints them -> the word of `ip link set`, and its value if the flag is
# set.
_FLAGS = {
    "MULTICAST": ("multicast", "on"),
    "PROMISC": ("promisc", "on"),
    "ALLMULTI": ("allmulticast", "on"),
    "NOARP": ("arp", "off"),
}
_OPPOSITE = {"on": "off", "off": "on"}
_SETTINGS = ("net/ipv4/conf", "net/ipv4/neigh", "net/ipv6/conf", "net/ipv6/neigh")


@dataclass(frozen=True)
class InterfaceState:
    """The state that an interface is restored to.

    `queue_packets` is its txqueuelen, `features` are its offloads (see `ethtool.features`), and
    `addresses` are the words of `ip address`. `settings` are its own files below /proc/sys.
    """

    name: str
    index: int
    mac: str
    alias: str
    mtu: int
    queue_packets: int
    group: str
    flags: tuple[str, ...]
    features: tuple[int, ...]
    addresses: tuple[str, ...]
    settings: Mapping[str, str]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InterfaceState:
        """Rebuild a state from the output of `dataclasses.asdict`, read back from JSON."""
        lists = ("flags", "features", "addresses")
        return cls(**{**data, **{name: tuple(data[name]) for name in lists}})


def run_command(argv: Sequence[str], namespace: Path | None = None) -> str:
    """Run `ip` or `tc`, here or in a network namespace, and return its output.

    Raises RuntimeError with the program's error message.
    """
    inside = ["nsenter", f"--net={namespace}", "--"] if namespace else []
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    done = subprocess.run(
        [*inside, *argv],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def links(namespace: Path | None = None) -> Table:
    """Return all interfaces of a network namespace, as `ip -json` shows them."""
    return _listed("ip", "-d", "link", "show", namespace=namespace)


def _listed(program: str, *words: str, namespace: Path | None = None) -> Table:
    found: Table = json.loads(run_command([program, "-j", *words], namespace) or "[]")
    return [item for item in found if item]  # `ip` prints empty objects for what it filters out


@dataclass(frozen=True)
class MachineNetwork:
    """All that decides whether an interface is free.

    `sessions` maps an interface to the address of the SSH client whose session it carries.
    `wireless` are the names of wireless interfaces.
    """

    links: Table
    addresses: Table
    routes: Table
    qdiscs: Table
    sessions: Mapping[str, str]
    wireless: frozenset[str]

    @classmethod
    def here(cls) -> MachineNetwork:
        """Read the state of this machine."""
        routes = [
            route
            for family in ("-4", "-6")
            for route in _listed("ip", family, "route", "show", "table", "all")
        ]
        sessions = {}
        for client in ssh_clients():
            with suppress(RuntimeError, IndexError, KeyError):
                sessions[_listed("ip", "route", "get", client)[0]["dev"]] = client
        return cls(
            links(),
            _listed("ip", "address", "show"),
            routes,
            _listed("tc", "qdisc", "show"),
            sessions,
            frozenset(path.parent.name for path in _CLASS.glob("*/phy80211")),
        )


def ssh_clients() -> set[str]:
    """Return the addresses of SSH clients in whose sessions this process runs, also below sudo."""
    found, pid = set(), os.getpid()
    while pid > 1:
        with suppress(OSError):
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word.startswith(b"SSH_CONNECTION="):
                    found.add(word.partition(b"=")[2].decode(errors="replace").split()[0])
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def require_free(name: str, mtu_bytes: int, machine: MachineNetwork) -> None:
    """Check that a rack may lease an interface for a port with this MTU. Raises NotReadyError."""
    links_by_name = {link["ifname"]: link for link in machine.links}
    if name not in links_by_name:
        raise NotReadyError(f"this machine has no interface {name}", "ip -brief link lists them")
    remedy = f"use another interface: without {name} this machine would lose its network"
    if any(route["dst"] == "default" for route in _routes_via(name, machine.routes)):
        raise NotReadyError(
            f"{name} is this machine's own uplink: its default route goes there", remedy
        )
    if client := machine.sessions.get(name):
        raise NotReadyError(f"{name} carries your SSH session, from {client}", remedy)
    link = links_by_name[name]
    kind = _kind(link)
    if link.get("link_type") != "ether" or kind not in _MOVABLE_KINDS or name in machine.wireless:
        reason = "wireless" if name in machine.wireless else kind or str(link.get("link_type"))
        raise NotReadyError(
            f"a rack cannot use {name}: it is {reason}",
            f"use a network card, or a {', '.join(_MOVABLE_KINDS[1:-1])} or {_MOVABLE_KINDS[-1]}",
        )
    for use, remedy in _uses(name, links_by_name, machine):
        raise NotReadyError(f"{name} is in use: {use}", remedy)
    maximum = link.get("max_mtu") or mtu_bytes
    if mtu_bytes > maximum:
        raise NotReadyError(
            f"{name} supports an MTU of at most {maximum}, and the testbed's MTU is {mtu_bytes}",
            "use another interface, or lower the testbed's mtu",
        )


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _routes_via(name: str, routes: Table) -> Iterator[Mapping[str, Any]]:
    for route in routes:
        if name in (route.get("dev"), *(hop.get("dev") for hop in route.get("nexthops", ()))):
            yield route


def _uses(
    name: str, links_by_name: Mapping[str, Mapping[str, Any]], machine: MachineNetwork
) -> Iterator[tuple[str, str]]:
    """Yield what an interface is used for, each with the command that ends that use."""
    link = links_by_name[name]
    if master := link.get("master"):
        yield f"it belongs to {master}", f"ip link set {name} nomaster"
    for other in machine.links:
        # a veth's `link` is its other end
        if other.get("link") == name and "link_netnsid" not in other and _kind(other) != "veth":
            yield f"{other['ifname']} is on it", f"ip link del {other['ifname']}"
    for address in _addresses(name, machine.addresses):
        if address["scope"] != "link":
            text = f"{address['local']}/{address['prefixlen']}"
            yield f"it has the address {text}", f"ip address del {text} dev {name}"
    for route in _routes_via(name, machine.routes):
        # the kernel's own routes come and go with link-local addresses
        if route.get("protocol") != "kernel":
            use = f"the route to {route['dst']} goes through it"
            yield use, f"ip route del {route['dst']} dev {name}"
    for qdisc in machine.qdiscs:
        if qdisc.get("dev") == name and qdisc["handle"] != "0:":
            where = qdisc["kind"] if qdisc["kind"] in ("clsact", "ingress") else "root"
            yield (
                f"it has a queueing discipline, {qdisc['kind']}",
                f"tc qdisc del dev {name} {where}",
            )
    if link.get("xdp"):
        yield "it has an XDP program", f"ip link set {name} xdp off"


def _addresses(name: str, table: Table) -> Iterator[Mapping[str, Any]]:
    for link in table:
        if link["ifname"] == name:
            yield from link.get("addr_info", ())


def _address_words(address: Mapping[str, Any]) -> str:
    flags = [flag for flag in ("nodad", "noprefixroute") if address.get(flag)]
    return " ".join([f"{address['local']}/{address['prefixlen']}", *flags])


def read_state(name: str) -> InterfaceState:
    """Return the state of an interface in this process's network namespace.

    Raises RuntimeError if there is no such interface.
    """
    link = next((link for link in links() if link["ifname"] == name), None)
    if link is None:
        raise RuntimeError(f"there is no interface {name}")
    addresses = _addresses(name, _listed("ip", "address", "show", "dev", name))
    settings = {
        key: value for part in _SETTINGS for key, value in sysctls(Path("/proc/sys", part, name))
    }
    return InterfaceState(
        name,
        link["ifindex"],
        link["address"],
        link.get("ifalias", ""),
        link["mtu"],
        link.get("txqlen", 0),
        link.get("group", "default"),
        tuple(sorted({"UP", *_FLAGS} & {*link["flags"]})),
        tuple(ethtool.features(name)),
        tuple(map(_address_words, addresses)),
        settings,
    )


def restore(current_name: str, former: InterfaceState) -> None:
    """Restore the former state of the interface `current_name` in this process's network namespace.

    It can be called again after a call that was interrupted: the alias, by which the interface is
    found, is changed last. Raises RuntimeError or OSError.
    """
    run_command(["ip", "link", "set", "dev", current_name, "down"])
    if current_name != former.name:
        run_command(["ip", "link", "set", "dev", current_name, "name", former.name])
    words = ["mtu", str(former.mtu), "txqueuelen", str(former.queue_packets), "group", former.group]
    for flag, (word, value) in _FLAGS.items():
        words += [word, value if flag in former.flags else _OPPOSITE[value]]
    run_command(["ip", "link", "set", "dev", former.name, *words])
    if read_state(former.name).mac != former.mac:
        run_command(["ip", "link", "set", "dev", former.name, "address", former.mac])
    ethtool.set_features(former.name, former.features)
    # twice, because some settings change others
    for _ in range(2):
        settings_now = read_state(former.name).settings
        for name, value in former.settings.items():
            if settings_now.get(name) != value:
                with suppress(OSError):  # some files only the kernel can write
                    Path("/proc/sys", name).write_text(value)
    if "UP" in former.flags:
        run_command(["ip", "link", "set", "dev", former.name, "up"])
    for address in former.addresses:
        run_command(["ip", "address", "replace", *address.split(), "dev", former.name])
    run_command(["ip", "link", "set", "dev", former.name, "alias", former.alias])


def set_alias(name: str, text: str) -> None:
    """Set the alias of an interface, which it keeps when it is moved to another namespace."""
    run_command(["ip", "link", "set", "dev", name, "alias", text])


def find_by_alias(text: str, namespace: Path | None = None) -> str:
    """Return the name of the interface with this alias, or "" if there is none."""
    return next((link["ifname"] for link in links(namespace) if link.get("ifalias") == text), "")


def move(name: str, to: Path, new_name: str, namespace: Path | None = None) -> None:
    """Move an interface into the network namespace `to` and rename it.

    `namespace` is where it is now, by default this process's network namespace.
    """
    argv = ["ip", "link", "set", "dev", name, "name", new_name, "netns", str(to)]
    run_command(argv, namespace)
