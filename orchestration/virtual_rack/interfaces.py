"""Interfaces of this machine: which of them may be lent to a rack, their state, and restoring it.

What Linux does (net/core/dev.c): an interface that changes its network namespace goes down and
loses addresses, routes, queueing disciplines and the settings of its own under /proc/sys/net; name,
alias, MTU, hardware address and offloads it keeps, and whoever is there may change them.
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
# Virtual interfaces that may change their namespace; "" is a network card.
_KINDS = ("", "veth", "dummy", "vlan", "macvlan")
# Flags as `ip link show` has them: the word that sets one, and what to say where it is there.
_FLAGS = {
    "MULTICAST": ("multicast", "on"),
    "PROMISC": ("promisc", "on"),
    "ALLMULTI": ("allmulticast", "on"),
    "NOARP": ("arp", "off"),
}
_OTHER = {"on": "off", "off": "on"}
_SETTINGS = ("net/ipv4/conf", "net/ipv4/neigh", "net/ipv6/conf", "net/ipv6/neigh")


@dataclass(frozen=True)
class State:
    """What an interface is put back to. `settings` are those of its own under /proc/sys."""

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
    def from_json(cls, data: Mapping[str, Any]) -> State:
        """Rebuild a state from `dataclasses.asdict` through JSON."""
        lists = ("flags", "features", "addresses")
        return cls(**{**data, **{name: tuple(data[name]) for name in lists}})


def command(argv: Sequence[str], namespace: Path | None = None) -> str:
    """Run `ip` or `tc`, here or in a network namespace. Raises RuntimeError with what it said."""
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
    """Return all interfaces of a namespace, as `ip` shows them."""
    return _listed("ip", "-d", "link", "show", namespace=namespace)


def _listed(program: str, *words: str, namespace: Path | None = None) -> Table:
    found: Table = json.loads(command([program, "-j", *words], namespace) or "[]")
    return [item for item in found if item]  # a filter leaves empty objects


@dataclass(frozen=True)
class Machine:
    """What tells whether an interface is free. `sessions`: interface -> an SSH client's address."""

    links: Table
    addresses: Table
    routes: Table
    qdiscs: Table
    sessions: Mapping[str, str]
    wireless: frozenset[str]

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine."""
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
    """Return the clients whose SSH sessions this process descends from, sudo in between or not."""
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


def require_free(name: str, mtu_bytes: int, machine: Machine) -> None:
    """Check that an interface may be lent for a port with this MTU. Raises NotReadyError."""
    found = {link["ifname"]: link for link in machine.links}
    if name not in found:
        raise NotReadyError(f"this machine has no interface {name}", "ip -brief link lists them")
    away = f"it would take this machine off the network: lend another one than {name}"
    if any(route["dst"] == "default" for route in _routes_via(name, machine.routes)):
        raise NotReadyError(
            f"{name} is this machine's own uplink: its default route goes there", away
        )
    if client := machine.sessions.get(name):
        raise NotReadyError(f"{name} carries your SSH session, from {client}", away)
    link = found[name]
    kind = _kind(link)
    if link.get("link_type") != "ether" or kind not in _KINDS or name in machine.wireless:
        what = "wireless" if name in machine.wireless else kind or str(link.get("link_type"))
        raise NotReadyError(
            f"{name} cannot be lent: it is {what}",
            f"lend a network card, or a {', '.join(_KINDS[1:-1])} or {_KINDS[-1]}",
        )
    for what, remedy in _uses(name, found, machine):
        raise NotReadyError(f"{name} is in use: {what}", remedy)
    maximum = link.get("max_mtu") or mtu_bytes
    if mtu_bytes > maximum:
        raise NotReadyError(
            f"{name} takes an MTU of at most {maximum}, and the testbed's is {mtu_bytes}",
            "lend another interface, or lower the testbed's mtu",
        )


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _routes_via(name: str, routes: Table) -> Iterator[Mapping[str, Any]]:
    for route in routes:
        if name in (route.get("dev"), *(hop.get("dev") for hop in route.get("nexthops", ()))):
            yield route


def _uses(
    name: str, found: Mapping[str, Mapping[str, Any]], machine: Machine
) -> Iterator[tuple[str, str]]:
    """Yield what an interface is used for, each with what ends that."""
    link = found[name]
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
        # the kernel's own ones come and go with link-local addresses
        if route.get("protocol") != "kernel":
            yield f"the route to {route['dst']} is by it", f"ip route del {route['dst']} dev {name}"
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


def state(name: str) -> State:
    """Return the state of an interface of this process's namespace. Raises RuntimeError."""
    link = next((link for link in links() if link["ifname"] == name), None)
    if link is None:
        raise RuntimeError(f"there is no interface {name}")
    addresses = _addresses(name, _listed("ip", "address", "show", "dev", name))
    settings = {
        key: value for part in _SETTINGS for key, value in sysctls(Path("/proc/sys", part, name))
    }
    return State(
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


def restore(now: str, was: State) -> None:
    """Give an interface of this process's namespace, called `now`, its former state.

    It may be called again on what an earlier call has left. Its alias is the last that is changed.
    Raises RuntimeError or OSError.
    """
    command(["ip", "link", "set", "dev", now, "down"])
    if now != was.name:
        command(["ip", "link", "set", "dev", now, "name", was.name])
    words = ["mtu", str(was.mtu), "txqueuelen", str(was.queue_packets), "group", was.group]
    for flag, (word, value) in _FLAGS.items():
        words += [word, value if flag in was.flags else _OTHER[value]]
    command(["ip", "link", "set", "dev", was.name, *words])
    if state(was.name).mac != was.mac:
        command(["ip", "link", "set", "dev", was.name, "address", was.mac])
    ethtool.set_features(was.name, was.features)
    # twice, because some change others
    for _ in range(2):
        now_set = state(was.name).settings
        for name, value in was.settings.items():
            if now_set.get(name) != value:
                with suppress(OSError):  # what only the kernel may write
                    Path("/proc/sys", name).write_text(value)
    if "UP" in was.flags:
        command(["ip", "link", "set", "dev", was.name, "up"])
    for address in was.addresses:
        command(["ip", "address", "replace", *address.split(), "dev", was.name])
    command(["ip", "link", "set", "dev", was.name, "alias", was.alias])


def mark(name: str, text: str) -> None:
    """Set the alias of an interface, which goes with it from namespace to namespace."""
    command(["ip", "link", "set", "dev", name, "alias", text])


def marked(text: str, namespace: Path | None = None) -> str:
    """Return the name of the interface with this alias, "" if there is none."""
    return next((link["ifname"] for link in links(namespace) if link.get("ifalias") == text), "")


def move(name: str, to: Path, called: str, namespace: Path | None = None) -> None:
    """Move an interface out of a namespace into another one, under another name."""
    argv = ["ip", "link", "set", "dev", name, "name", called, "netns", str(to)]
    command(argv, namespace)
