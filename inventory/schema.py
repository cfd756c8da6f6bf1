"""Schema of a testbed file, whose `kind` is the name of a generator, or `custom`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, RootModel

from inventory.generators import Cable, Fabric, fat_tree, leaf_spine, single_switch
from inventory.strictyaml import (
    CongestionControlName,
    Document,
    Duration,
    Rate,
    Size,
    StrictModel,
    matching,
    must,
    suggest,
)
from inventory.switch_file import Switch
from orchestration.core.errors import Problem
from orchestration.core.topology import ETHERNET_FRAMING_BYTES, Device, LinkSpec, TrafficClass

_SHARE = must(lambda value: 0 < value <= 1, "{:g} is not a share of the links", "use 0.05 for 5 %")
_FACTOR = must(
    lambda value: 0 < value < 1, "a factor of {:g} slows nothing", "use more than 0, less than 1"
)


class SlowLinks(StrictModel):
    """Links between switches that run at a part of their rate: listed by name, or drawn by a seed.

    `share` is the share of all links between switches that is drawn.
    """

    factor: Annotated[float, _FACTOR] = Field(description="what is left of the rate, like 0.5")
    share: Annotated[float, _SHARE] | None = None
    seed: Annotated[int, Field(ge=0)] = 1
    links: tuple[str, ...] = ()

    def slowed(self, fabric: Fabric) -> Fabric:
        """Return the fabric with the rate of these links reduced, in both directions."""
        devices, links = fabric
        slowed = list(links)
        for number in self._chosen(links, _between_switches(fabric)):
            rate_bps = max(1, round(links[number].rate_bps * self.factor))
            slowed[number] = replace(links[number], rate_bps=rate_bps)
        return devices, slowed

    def _chosen(self, links: Sequence[LinkSpec], between: list[int]) -> list[int]:
        if self.share is None:
            named = set(self.links)
            return [n for n in between if named & {_name(links[n]), _name(links[n], back=True)}]
        draws = random.Random(self.seed)
        # Of the module's methods, only `random` gives the same numbers in all versions of Python.
        order = {number: draws.random() for number in between}
        count = max(1, math.floor(self.share * len(between) + 0.5))
        return sorted(between, key=lambda number: order[number])[:count]


def slow_link_problems(slow: SlowLinks, fabric: Fabric, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with `slow_links` on this fabric."""
    between = _between_switches(fabric)
    known = [_name(fabric[1][number]) for number in between]
    loc = ("slow_links",)
    if (slow.share is None) == (not slow.links):
        remedy = "give `share: 0.05`, or `links: [leaf1-spine1]`, one of the two"
        yield document.problem(loc, "slow_links needs either share or links", remedy)
    elif not between:
        yield document.problem(loc, "there are no links between switches", "remove it")
    either = {*known, *(_name(fabric[1][number], back=True) for number in between)}
    for index, name in enumerate(slow.links):
        if name not in either and known:
            what = f"there is no link {name!r} between switches"
            remedy = f"{suggest(name, known)}the first is {known[0]}"
            yield document.problem((*loc, "links", index), what, remedy)


def _between_switches(fabric: Fabric) -> list[int]:
    devices, links = fabric
    switches = {device.name for device in devices if device.kind == "switch"}
    return [n for n, link in enumerate(links) if {link.a, link.b} <= switches]


def _name(link: LinkSpec, *, back: bool = False) -> str:
    return f"{link.b}-{link.a}" if back else f"{link.a}-{link.b}"


MIN_MTU_BYTES, MAX_MTU_BYTES = 576, 9216
# Linux distinguishes this many by IPv4's old type-of-service bits (rt_tos2priority).
MAX_CLASSES = 4
MAX_WEIGHT = 100
# More than any encapsulation adds to a packet.
MAX_FRAMING_BYTES = 256


_MTU = must(
    lambda value: MIN_MTU_BYTES <= value <= MAX_MTU_BYTES,
    "an MTU of {}B is out of range",
    f"use {MIN_MTU_BYTES}B to {MAX_MTU_BYTES}B",
)
_FRAMING = must(
    lambda value: value <= MAX_FRAMING_BYTES,
    "{}B of framing is out of range",
    f"use {ETHERNET_FRAMING_BYTES}B for Ethernet",
)
_SOME_RATE = must(bool, "a link needs a rate", "use more than 0bps")
_SOME_DELAY = must(bool, "a link needs a propagation delay", "use 5ns for a metre of cable")
_TESTBED_NAME = matching(
    r"[a-z0-9][a-z0-9_.-]{0,62}",
    "{!r} is not a name",
    "use lower-case letters, digits, '-', '_', '.'",
)
_DEVICE_NAME = matching(
    r"[a-z][a-z0-9_]{0,30}",
    "{!r} is not a device name",
    "use a lower-case letter, then letters, digits and '_', 31 in all",
)
_CLASS_NAME = matching(
    r"[a-z][a-z0-9_-]{0,30}",
    "{!r} is not a class name",
    "use a lower-case letter, then letters, digits, '-' and '_', 31 in all",
)
Count = Annotated[int, Field(ge=1, le=1024)]
DeviceName = Annotated[str, _DEVICE_NAME]


class _Cable(StrictModel):
    rate: Annotated[Rate, _SOME_RATE] = Field(description="like 25Gbps")
    delay: Annotated[Duration, _SOME_DELAY] = Field(
        description="one-way propagation delay, like 1us"
    )

    def cable(self) -> Cable:
        return Cable(self.rate, self.delay)


class _Class(StrictModel):
    name: Annotated[str, _CLASS_NAME] = Field(description="the class's name, like rdma")
    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = Field(
        description="its share of a port, relative to the other classes' weights, like 70"
    )
    congestion_control: CongestionControlName | None = None


class AnyFile(StrictModel):
    """The fields of every testbed file, and of an inventory that defines a testbed."""

    name: Annotated[str, _TESTBED_NAME] = Field(description="the testbed's name, as in `graphcc`")
    description: str = Field(default="", description="one line for `closloop inventory list`")
    source: str = Field(default="", description="where the figures come from")
    mtu: Annotated[Size, _MTU] = Field(description="largest IP packet in bytes, like 1500B")
    framing: Annotated[Size, _FRAMING] = Field(
        default=ETHERNET_FRAMING_BYTES,
        description="what a packet takes on the wire beside its Ethernet frame's header, like 24B",
    )
    buffer: Size = Field(description="what one switch port may hold, like 16MB")
    classes: tuple[_Class, ...] = Field(
        default=(), description="traffic classes that share each switch port by weight"
    )

    def traffic_classes(self) -> tuple[TrafficClass, ...]:
        """Return the traffic classes, in the file's order; none for one queue a port."""
        return tuple(
            TrafficClass(item.name, item.weight, item.congestion_control or "")
            for item in self.classes
        )


class BuiltFile(AnyFile):
    """The fields of every testbed file, also those that an inventory of a rack cannot have.

    closloop builds the fabric of such a file, and so may choose its switches and slow its links.
    """

    switch: Switch | None = None
    slow_links: SlowLinks | None = None


class LeafSpineFile(BuiltFile):
    """Schema of `kind: leaf-spine`; see `generators.leaf_spine`."""

    kind: Literal["leaf-spine"]
    leaves: Count
    spines: Count
    hosts_per_leaf: Count = Field(description="host ports of one leaf")
    nics_per_host: Count = 1
    uplinks_per_spine: Count = 1
    host_link: _Cable
    uplink: _Cable

    def fabric(self) -> Fabric:
        """Return the devices and cables. Raises GeneratorError for impossible parameters."""
        names = ("leaves", "spines", "hosts_per_leaf", "nics_per_host", "uplinks_per_spine")
        return leaf_spine(
            **{name: getattr(self, name) for name in names},
            host_cable=self.host_link.cable(),
            uplink_cable=self.uplink.cable(),
        )


class FatTreeFile(BuiltFile):
    """Schema of `kind: fat-tree`; see `generators.fat_tree`."""

    kind: Literal["fat-tree"]
    k: Annotated[int, Field(ge=2, le=32)] = Field(description="number of pods, even")
    host_link: _Cable
    aggregation_link: _Cable
    core_link: _Cable

    def fabric(self) -> Fabric:
        """Return the devices and cables. Raises GeneratorError for impossible parameters."""
        return fat_tree(
            k=self.k,
            host_cable=self.host_link.cable(),
            aggregation_cable=self.aggregation_link.cable(),
            core_cable=self.core_link.cable(),
        )


class SingleSwitchFile(BuiltFile):
    """Schema of `kind: single-switch`; see `generators.single_switch`."""

    kind: Literal["single-switch"]
    hosts: Count
    host_link: _Cable

    def fabric(self) -> Fabric:
        """Return the devices and cables. Raises GeneratorError for impossible parameters."""
        return single_switch(hosts=self.hosts, host_cable=self.host_link.cable())


class _Switch(StrictModel):
    name: DeviceName
    tier: Annotated[int, Field(ge=1, le=8)] = Field(description="1 for a leaf, counted upwards")


class _Link(_Cable):
    a: DeviceName
    b: DeviceName


class CustomFile(BuiltFile):
    """Schema of `kind: custom`: every device and every link listed."""

    kind: Literal["custom"]
    hosts: Annotated[tuple[DeviceName, ...], Field(min_length=2)]
    switches: Annotated[tuple[_Switch, ...], Field(min_length=1)]
    links: tuple[_Link, ...]

    def fabric(self) -> Fabric:
        """Return the devices and cables."""
        devices = [Device(name, "host", 0) for name in self.hosts]
        devices += [Device(switch.name, "switch", switch.tier) for switch in self.switches]
        return devices, [LinkSpec(link.a, link.b, link.rate, link.delay) for link in self.links]


class TestbedFile(
    RootModel[
        Annotated[
            LeafSpineFile | FatTreeFile | SingleSwitchFile | CustomFile,
            Field(discriminator="kind"),
        ]
    ]
):
    """Schema of any testbed file."""

    __test__ = False  # pytest collects classes named Test*
