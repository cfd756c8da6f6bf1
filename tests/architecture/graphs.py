"""Circles, floors and chains of a directed graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

Graph = Mapping[str, Set[str]]


def graph(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return a graph without edges of a node to itself."""
    made: dict[str, set[str]] = {node: set() for node in nodes}
    for begin, end in edges:
        if begin != end:
            made[begin].add(end)
    return made


def circles(edges: Graph) -> list[list[str]]:
    """Return a shortest loop for each set of nodes that reach one another, its first node last too.

    Empty if the graph has no circle.
    """
    return [_loop(edges, knot) for knot in _knots(edges) if len(knot) > 1]


def floors(edges: Graph) -> dict[str, int]:
    """Return each node's floor: how many nodes are on the longest chain from it down, itself too.

    Nodes of one circle have one floor, and each of them counts.
    """
    return _depths(edges, lambda node: 1)


def longest_chain(edges: Graph, counted: Callable[[str], bool] = lambda node: True) -> list[str]:
    """Return the chain that holds the most counted nodes, each importing the next.

    Other nodes may link them, and are on the chain that is returned.
    """
    depths = _depths(edges, lambda node: int(counted(node)))
    chain: list[str] = []
    below: Iterable[str] = sorted(edges)
    while left := [node for node in below if node not in chain]:
        node = max(left, key=lambda node: depths[node])
        if not depths[node]:
            break
        chain.append(node)
        below = sorted(edges[node])
    return chain


def _knots(edges: Graph) -> list[list[str]]:
    """Return the sets of nodes that reach one another, the lowest first (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    open_nodes: list[str] = []
    knots: list[list[str]] = []
    for start in sorted(edges):
        if start in order:
            continue
        path = [(start, iter(sorted(edges[start])))]
        order[start] = low[start] = len(order)
        open_nodes.append(start)
        while path:
            node, rest = path[-1]
            for end in rest:
                if end not in order:
                    order[end] = low[end] = len(order)
                    open_nodes.append(end)
                    path.append((end, iter(sorted(edges[end]))))
                    break
                if end in open_nodes:
                    low[node] = min(low[node], order[end])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    begin = open_nodes.index(node)
                    knots.append(open_nodes[begin:])
                    del open_nodes[begin:]
    return knots


def _loop(edges: Graph, knot: list[str]) -> list[str]:
    """Return a shortest loop through the first node, by name, of those that reach one another."""
    start = min(knot)
    came_from: dict[str, str] = {}
    turn = [start]
    while turn:
        following = []
        for node in turn:
            for end in sorted(edges[node] & set(knot)):
                if end == start:
                    loop = [start, node]
                    while loop[-1] != start:
                        loop.append(came_from[loop[-1]])
                    return loop[::-1]
                if end not in came_from:
                    came_from[end] = node
                    following.append(end)
        turn = following
    raise AssertionError("nodes that reach one another have a loop")


def _depths(edges: Graph, weight: Callable[[str], int]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for knot in _knots(edges):
        below = [depths[end] for node in knot for end in edges[node] if end not in knot]
        depth = sum(map(weight, knot)) + max(below, default=0)
        depths.update(dict.fromkeys(knot, depth))
    return depths
