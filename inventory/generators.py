"""Generators of regular fabrics: leaf-spine, k-ary fat tree, one switch.

They are pure functions from parameters to (devices, links). Devices and cables are listed tier by
tier from the hosts up, so that a switch's first ports face down.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.core.problems import WrongValue
from orchestration.core.topology import Device, LinkSpec

Fabric = tuple[list[Device], list[LinkSpec]]

# Eight times the cables of the largest fat tree, of k = 32. So many are generated in seconds.
_MAX_CABLES = 200_000


@dataclass(frozen=True)
class Cable:
    """Rate and delay of all cables between two tiers."""

    rate_bps: int
    delay_ns: int

    def join(self, a: str, b: str) -> LinkSpec:
        """Return a link between devices `a` and `b` with this rate and delay."""
        return LinkSpec(a, b, self.rate_bps, self.delay_ns)


class GeneratorError(WrongValue):
    """An impossible value of the parameter named `parameter`, and what to write instead."""

    def __init__(self, parameter: str, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.parameter = parameter


def leaf_spine(
    *,
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    host_cable: Cable,
    uplink_cable: Cable,
    nics_per_host: int = 1,
    uplinks_per_spine: int = 1,
) -> Fabric:
    """Return a leaf-spine fabric with devices h1.., leaf1.., spine1.. .

    `hosts_per_leaf` is the number of host ports of one leaf, `uplinks_per_spine` the number of
    cables from each leaf to each spine. With n NICs, a host connects to n different leaves: leaves
    1 to n serve the first rack, the next n the second, and so on. Raises GeneratorError if the
    leaves do not divide into racks of n.
    """
    _at_least_one(leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf)
    _at_least_one(nics_per_host=nics_per_host, uplinks_per_spine=uplinks_per_spine)
    if leaves % nics_per_host:
        what = f"{leaves} leaves do not divide into racks of {nics_per_host}, a leaf for each NIC"
        raise GeneratorError("nics_per_host", what, "change the number of NICs or of leaves")
    cables = leaves * (spines * uplinks_per_spine + hosts_per_leaf)
    if cables > _MAX_CABLES:
        counts = {"spines": spines * uplinks_per_spine, "hosts_per_leaf": hosts_per_leaf}
        largest = max(counts, key=lambda name: counts[name])
        what = f"the fabric has {cables:,} cables, more than {_MAX_CABLES:,}"
        raise GeneratorError(largest, what, "use fewer leaves, spines or hosts")
    leaf_names = _names("leaf", leaves)
    spine_names = _names("spine", spines)
    host_names = _names("h", hosts_per_leaf * leaves // nics_per_host)
    links = []
    for number, host in enumerate(host_names):
        first = number // hosts_per_leaf * nics_per_host
        links += [host_cable.join(host, leaf) for leaf in leaf_names[first : first + nics_per_host]]
    for leaf in leaf_names:
        for spine in spine_names:
            links += [uplink_cable.join(leaf, spine)] * uplinks_per_spine
    return _hosts(host_names) + _tier(leaf_names, 1) + _tier(spine_names, 2), links


def fat_tree(*, k: int, host_cable: Cable, aggregation_cable: Cable, core_cable: Cable) -> Fabric:
    """Return the k-ary fat tree of Al-Fares et al. (SIGCOMM 2008): h1.., edge1.., agg1.., core1.. .

    k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 hosts. The j-th
    aggregation switch of every pod connects to the j-th k/2 core switches. Raises GeneratorError
    for an odd k or one below 2.
    """
    if k < 2 or k % 2:
        raise GeneratorError("k", f"a fat tree has no k of {k}", "use an even k of 2 or more")
    half = k // 2
    edges, aggregations = _names("edge", k * half), _names("agg", k * half)
    cores, hosts = _names("core", half * half), _names("h", k * half * half)
    links = [host_cable.join(host, edges[i // half]) for i, host in enumerate(hosts)]
    for number, edge in enumerate(edges):
        first = number // half * half
        links += [aggregation_cable.join(edge, agg) for agg in aggregations[first : first + half]]
    for number, agg in enumerate(aggregations):
        first = number % half * half
        links += [core_cable.join(agg, core) for core in cores[first : first + half]]
    return _hosts(hosts) + _tier(edges, 1) + _tier(aggregations, 2) + _tier(cores, 3), links


def single_switch(*, hosts: int, host_cable: Cable) -> Fabric:
    """Return `hosts` hosts on one switch, switch1. Raises GeneratorError for fewer than 2 hosts."""
    if hosts < 2:
        raise GeneratorError(
            "hosts", f"hosts is {hosts}", "use 2 or more, for traffic between them"
        )
    names = _names("h", hosts)
    links = [host_cable.join(name, "switch1") for name in names]
    return _hosts(names) + _tier(["switch1"], 1), links


def _at_least_one(**counts: int) -> None:
    for parameter, count in counts.items():
        if count < 1:
            raise GeneratorError(parameter, f"{parameter} is {count}", "use 1 or more")


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(1, count + 1)]


def _hosts(names: list[str]) -> list[Device]:
    return [Device(name, "host", 0) for name in names]


def _tier(names: list[str], tier: int) -> list[Device]:
    return [Device(name, "switch", tier) for name in names]
