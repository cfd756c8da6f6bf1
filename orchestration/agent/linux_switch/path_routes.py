"""The routes among whose next hops a switch chooses: copied from the kernel's main table.

`struct paths` of collectors/bpf/path_choice.bpf.c has the different routes (sets of ports), and a
map has the index of each prefix's route there.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from ipaddress import ip_network

from ..bpf.load import put_entry, remove_entry
from ..linux.fib import Hop, Prefix, Route, routes
from ..linux.netlink import RouteSocket
from ..main import OperationError

# struct route, and the struct way of one next hop
ROUTE_BYTES, MAX_NEXT_HOPS, MAX_ROUTES = 1544, 64, 256
_COUNTS, _NEXT_HOP = struct.Struct("=II"), struct.Struct("=II16s")
# the map's keys and values
KEY, ROUTE_INDEX = struct.Struct("=I4s"), struct.Struct("=I")
_NO_CHOICE = bytes(ROUTE_BYTES)


def read_choices(
    names: Mapping[int, str],
) -> tuple[dict[Prefix, tuple[Hop, ...]], dict[str, list[str]]]:
    """Return the next hops among which packets have a choice, and the ports, both by prefix.

    `names` has the interfaces that may be chosen, by index and in order. A route without a choice
    among them has no hops here: the kernel forwards its packets. Raises OperationError for a route
    over several of these interfaces whose next hops cannot be chosen.
    """
    with RouteSocket() as kernel:
        table = routes(kernel)
    choices, ports = {}, {}
    for prefix, route in table.items():
        name = str(ip_network(prefix))
        try:
            choices[prefix] = _choice(route, names)
        except OperationError as error:
            raise OperationError(f"route {name}: {error.what}", error.remedy) from error
        if choices[prefix]:
            ports[name] = [names[hop.ifindex] for hop in choices[prefix]]
    return choices, ports


class ProgramRoutes:
    """The BPF program's routes.

    `memory` has its struct paths, with the routes from offset `at` on. `prefixes` is the
    descriptor of the map with each prefix's route.
    """

    def __init__(self, memory: mmap.mmap, at: int, prefixes: int) -> None:
        self._memory, self._at, self._prefixes = memory, at, prefixes
        self._known: dict[Prefix, bytes] = {}
        self._indices = {_NO_CHOICE: 0}
        self._last_index = 0

    def follow(self, choices: Mapping[Prefix, Sequence[Hop]]) -> None:
        """Make the program's routes those of `choices`, which `read_choices` returns.

        A route that has changed is written at an unused index, and then its prefixes refer to it:
        a packet sees the former route or the new one. Raises OperationError for too many routes.
        """
        packed = {prefix: _packed(hops) for prefix, hops in choices.items()}
        for value in set(packed.values()) - set(self._indices):
            self._indices[value] = self._free_index()
            at = self._at + self._indices[value] * ROUTE_BYTES
            self._memory[at : at + ROUTE_BYTES] = value
        for network, bits in set(self._known) - set(packed):
            remove_entry(self._prefixes, KEY.pack(bits, network))
        for prefix, value in packed.items():
            if self._known.get(prefix) != value:
                network, bits = prefix
                put_entry(
                    self._prefixes, KEY.pack(bits, network), ROUTE_INDEX.pack(self._indices[value])
                )
        self._known = packed
        in_use = {_NO_CHOICE, *packed.values()}
        self._indices = {value: index for value, index in self._indices.items() if value in in_use}

    def _free_index(self) -> int:
        """Return the index that was free for longest: no packet is using its former route now."""
        taken = set(self._indices.values())
        for step in range(1, MAX_ROUTES):
            index = (self._last_index + step) % MAX_ROUTES
            if index not in taken:
                self._last_index = index
                return index
        raise OperationError(
            f"its routes have more than {MAX_ROUTES - 1} different sets of ports",
            "choose paths on a switch with fewer",
        )


def _choice(route: Route, names: Mapping[int, str]) -> tuple[Hop, ...]:
    """Return a route's next hops, first those whose link is up, each in the order of `names`."""
    if route.hidden:
        raise OperationError(
            "the kernel does not show the next hops of its nexthop object",
            "sysctl net.ipv4.nexthop_compat_mode=1",
        )
    if len(route.hops) < 2 or any(hop.ifindex not in names for hop in route.hops):
        return ()
    if len(route.hops) > MAX_NEXT_HOPS:
        raise OperationError(f"{len(route.hops)} ports are more than {MAX_NEXT_HOPS}", "use fewer")
    if len({hop.weight for hop in route.hops}) > 1:
        raise OperationError(
            "its ports have different weights, but paths are chosen among equal ones",
            "give all next hops the same weight",
        )
    if not all(hop.family for hop in route.hops):
        raise OperationError("a next hop has no router address", "route `via` an address")
    order = {ifindex: index for index, ifindex in enumerate(names)}
    return tuple(sorted(route.hops, key=lambda hop: (not hop.up, order[hop.ifindex])))


def _packed(hops: Sequence[Hop]) -> bytes:
    head = _COUNTS.pack(len(hops), sum(hop.up for hop in hops))
    body = b"".join(_NEXT_HOP.pack(hop.ifindex, hop.family, hop.router) for hop in hops)
    return (head + body).ljust(ROUTE_BYTES, b"\0")
