"""The routes of a switch's choice of paths: what the kernel's main table says, kept up to date.

`struct paths` of collectors/bpf/path_choice.bpf.c has routes that differ in their ports, and a map
has the place of each prefix's.
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

# struct route and its struct way
ROUTE_BYTES, MAX_NEXT_HOPS, MAX_ROUTES = 1544, 64, 256
_COUNTS, _WAY = struct.Struct("=II"), struct.Struct("=II16s")
# the map's keys and values
KEY, ROUTE_INDEX = struct.Struct("=I4s"), struct.Struct("=I")
_NOWHERE = bytes(ROUTE_BYTES)


def read_choices(
    names: Mapping[int, str],
) -> tuple[dict[Prefix, tuple[Hop, ...]], dict[str, list[str]]]:
    """Return the next hops among which packets have a choice, and the ports, both by prefix.

    `names` has the interfaces that may be chosen, by index and in order. Other routes are left to
    the kernel: they have no hops here. Raises OperationError for a route by several of these
    interfaces that cannot be followed.
    """
    with RouteSocket() as kernel:
        found = routes(kernel)
    wanted, ports = {}, {}
    for prefix, route in found.items():
        name = str(ip_network(prefix))
        try:
            wanted[prefix] = _choice(route, names)
        except OperationError as error:
            raise OperationError(f"route {name}: {error.what}", error.remedy) from error
        if wanted[prefix]:
            ports[name] = [names[hop.ifindex] for hop in wanted[prefix]]
    return wanted, ports


class ProgramRoutes:
    """The program's routes: `memory` has its struct paths, routes from `at` on."""

    def __init__(self, memory: mmap.mmap, at: int, prefixes: int) -> None:
        self._memory, self._at, self._prefixes = memory, at, prefixes
        self._known: dict[Prefix, bytes] = {}
        self._places = {_NOWHERE: 0}
        self._last = 0

    def follow(self, wanted: Mapping[Prefix, Sequence[Hop]]) -> None:
        """Bring the program's routes to what `read_choices` returns.

        A route that has changed gets a place of its own, which prefixes are then told: a packet
        sees the one or the other. Raises OperationError if there are too many.
        """
        packed = {prefix: _packed(hops) for prefix, hops in wanted.items()}
        for value in set(packed.values()) - set(self._places):
            self._places[value] = self._free()
            at = self._at + self._places[value] * ROUTE_BYTES
            self._memory[at : at + ROUTE_BYTES] = value
        for network, bits in set(self._known) - set(packed):
            remove_entry(self._prefixes, KEY.pack(bits, network))
        for prefix, value in packed.items():
            if self._known.get(prefix) != value:
                network, bits = prefix
                put_entry(
                    self._prefixes, KEY.pack(bits, network), ROUTE_INDEX.pack(self._places[value])
                )
        self._known = packed
        kept = {_NOWHERE, *packed.values()}
        self._places = {value: place for value, place in self._places.items() if value in kept}

    def _free(self) -> int:
        """Return the place that was free for longest: no packet looks at its former route now."""
        taken = set(self._places.values())
        for step in range(1, MAX_ROUTES):
            place = (self._last + step) % MAX_ROUTES
            if place not in taken:
                self._last = place
                return place
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
            "its ports have different weights, and paths are chosen among equal ones",
            "give all next hops the same weight",
        )
    if not all(hop.family for hop in route.hops):
        raise OperationError("a next hop has no router's address", "route `via` an address")
    order = {ifindex: place for place, ifindex in enumerate(names)}
    return tuple(sorted(route.hops, key=lambda hop: (not hop.up, order[hop.ifindex])))


def _packed(hops: Sequence[Hop]) -> bytes:
    head = _COUNTS.pack(len(hops), sum(hop.up for hop in hops))
    body = b"".join(_WAY.pack(hop.ifindex, hop.family, hop.router) for hop in hops)
    return (head + body).ljust(ROUTE_BYTES, b"\0")
