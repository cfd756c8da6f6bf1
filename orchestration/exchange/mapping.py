"""Mapping files: the meaning and unit of the columns or vectors of a file of another program.

A mapping file also says which hosts of a testbed the file's names are. Units are always given,
never guessed. The YAML is checked as strictly as a campaign file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field

from inventory.files import load_testbed
from inventory.strictyaml import (
    Document,
    Duration,
    Rate,
    Size,
    StrictModel,
    in_order,
    read,
    suggest,
)
from inventory.testbed_json import testbed_from_json
from inventory.variant import relative_to
from orchestration.core.errors import InputError
from orchestration.core.parts import Device, LinkSpec
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.units import DURATIONS, SIZES
from orchestration.results.reader import read_json

TIME_UNITS, SIZE_UNITS = DURATIONS, SIZES
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
_BUFFER_BYTES = 16_000_000
_DEVICE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


TimeUnit = Literal["s", "ms", "us", "ns"]
SizeUnit = Literal["B", "KB", "MB", "GB", "KiB", "MiB", "GiB"]


class TimeColumn(StrictModel):
    """A column of times, with its unit."""

    column: str
    unit: TimeUnit = Field(description="s, ms, us or ns")


class SizeColumn(StrictModel):
    """A column of sizes, with its unit."""

    column: str
    unit: SizeUnit = Field(description="B, KB, MB, GB, KiB, MiB or GiB")


class OneBigSwitch(StrictModel):
    """The fabric of results that do not describe their own: all of their hosts on one switch."""

    rate: Rate = Field(description="of each host's link, like 25Gbps")
    delay: Duration = Field(description="one-way propagation delay of each link, like 1us")
    mtu: Size = 1500


class _FabricMapping(StrictModel):
    """The fabric and its hosts, and the time of the file that is time 0 of the trial (`base`)."""

    testbed: str | None = None
    one_big_switch: OneBigSwitch | None = None
    hosts: dict[str, str] = Field(default_factory=dict)
    base: Duration = 0


class CsvColumnsOfFlows(StrictModel):
    """The columns of a CSV of flows: `fct` or `end`, or neither for planned flows."""

    src: str
    dst: str
    bytes: SizeColumn
    start: TimeColumn
    fct: TimeColumn | None = None
    end: TimeColumn | None = None
    ideal: TimeColumn | None = None
    klass: str | None = Field(default=None, alias="class")
    status: str | None = None
    retransmits: str | None = None
    flow_id: str | None = None


class CsvMapping(_FabricMapping):
    """Schema of the mapping file of `closloop import csv` and `import flows --from csv`."""

    delimiter: Literal["comma", "semicolon", "tab", "bar", "space"] = "comma"
    columns: CsvColumnsOfFlows
    statuses: dict[str, Literal["done", "unfinished", "failed"]] = Field(default_factory=dict)


class OmnetppFlows(StrictModel):
    """Where an OMNeT++ result file has its flows.

    `module` is a regular expression for the modules that have flows; its groups `src` and `dst` are
    the hosts if no result names them. The other names are those of vectors, whose values at the
    same index belong to one flow, or of scalars, with one flow for each module.
    """

    kind: Literal["vectors", "scalars"]
    module: str
    start: str
    bytes: str
    fct: str | None = None
    end: str | None = None
    src: str | None = None
    dst: str | None = None
    klass: str | None = Field(default=None, alias="class")
    time_unit: TimeUnit = Field(description="of start, fct and end: s, ms, us or ns")
    size_unit: SizeUnit = Field(description="of bytes: B, KB, ...")


class OmnetppQueues(StrictModel):
    """Where an OMNeT++ result file has its queues: vectors of lengths, and of packet counters.

    `module` is a regular expression with the groups `device` and `port`, which are the testbed's
    names, or names that `ports` maps to these. `marked` and `dropped` are vectors of counters.
    """

    module: str
    length: str
    size_unit: SizeUnit = Field(description="of the length: B, KB, ...")
    marked: str | None = None
    dropped: str | None = None
    ports: dict[str, str] = Field(default_factory=dict)
    sample_period: Annotated[Duration, Field(gt=0)] = 100_000


class OmnetppMapping(_FabricMapping):
    """Schema of the mapping file of `closloop import omnetpp`."""

    flows: OmnetppFlows
    queues: OmnetppQueues | None = None
    run: str | None = None


Mapping_ = TypeVar("Mapping_", CsvMapping, OmnetppMapping)


def read_mapping(path: Path, schema: type[Mapping_]) -> tuple[Mapping_, Document]:
    """Return the content of a mapping file. Raises InputError with all problems and their lines."""
    document = read(path)
    mapping, problems = document.check(schema)
    if mapping is not None:
        if (mapping.testbed is None) == (mapping.one_big_switch is None):
            what = "names no fabric, or two of them"
            remedy = "give `testbed: NAME`, or `one_big_switch: {rate: 25Gbps, delay: 1us}`"
            problems.append(document.problem((), what, remedy))
        fields = mapping.columns if isinstance(mapping, CsvMapping) else mapping.flows
        if fields.fct is not None and fields.end is not None:
            where = ("columns" if isinstance(mapping, CsvMapping) else "flows", "end")
            what = "both fct and end are given"
            problems.append(document.problem(where, what, "keep one of the two"))
    if problems or mapping is None:
        raise InputError(in_order(problems))
    return mapping, document


def testbed_of(name: str, mapping_path: Path) -> Testbed:
    """Return a testbed by its name, by the path of a YAML file, or from a run's testbed.json.

    Paths are relative to the folder of the mapping file. Raises InputError.
    """
    if name.endswith(".json"):
        path = mapping_path.parent / name
        remedy = "give the testbed.json of a run"
        try:
            return testbed_from_json(read_json(path, remedy))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError.single(str(path), f"is not a testbed: {error!r}", remedy) from error
    return load_testbed(relative_to(str(mapping_path.parent), name))


def tiers(nodes: int, hosts: Collection[int], links: Sequence[tuple[int, int]]) -> list[int]:
    """Return each node's tier: 0 for a host, the distance in links to the next host for a switch.

    Links must join different tiers, so that of two linked switches at the same distance the later
    one moves up. A switch that no host reaches is in tier 1 or above.
    """
    near: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    distance = dict.fromkeys(hosts, 0)
    todo = deque(hosts)
    while todo:
        node = todo.popleft()
        for other in near[node]:
            if other not in distance:
                distance[other] = distance[node] + 1
                todo.append(other)
    tier = dict.fromkeys(hosts, 0)
    switches = (node for node in range(nodes) if node not in tier)
    for node in sorted(switches, key=lambda node: (distance.get(node, 1), node)):
        taken = {tier[other] for other in near[node] if other in tier}
        tier[node] = next(n for n in count(distance.get(node, 1)) if n not in taken)
    return [tier[node] for node in range(nodes)]


class Hosts:
    """The hosts that the cells of a file name, on the testbed of its mapping file.

    `renamed` maps names that are not valid names of devices to those that they got instead.
    """

    def __init__(
        self, mapping: CsvMapping | OmnetppMapping, mapping_path: Path, cells: Sequence[str]
    ) -> None:
        seen = list(dict.fromkeys(cells))
        self.renamed: dict[str, str] = {}
        self.notes: list[str] = []
        known = dict(mapping.hosts)
        if mapping.one_big_switch is not None:
            names = [known.get(cell, cell) for cell in seen]
            self.testbed = self._one_switch(mapping.one_big_switch, mapping_path, names)
        else:
            assert mapping.testbed is not None  # `read_mapping` requires one of the two
            self.testbed = testbed_of(mapping.testbed, mapping_path)
        numbers = {name: number for number, name in enumerate(self.testbed.hosts)}
        for cell, name in known.items():
            if name not in numbers:
                what = f"hosts: {cell} is {name!r}, which testbed {self.testbed.name} does not have"
                ends = f"{self.testbed.hosts[0]} to {self.testbed.hosts[-1]}"
                remedy = f"{suggest(name, numbers)}use {ends}"
                raise InputError.single(str(mapping_path), what, remedy)
        self._number = {
            cell: numbers[name]
            for cell in seen
            if (name := self.renamed.get(known.get(cell, cell), known.get(cell, cell))) in numbers
        }

    def _one_switch(self, switch: OneBigSwitch, path: Path, seen: list[str]) -> Testbed:
        """Return a testbed of all hosts on one switch."""
        names = sorted(dict.fromkeys(seen), key=_natural)
        if not all(_DEVICE_NAME.fullmatch(name) for name in names):
            self.renamed = {name: f"h{number}" for number, name in enumerate(names, start=1)}
            first = names[0]
            self.notes.append(
                f"hosts' own names: {first} is called {self.renamed[first]}, and so on"
            )
        self.notes.append("the fabric: its hosts are on one big switch")
        hosts = [self.renamed.get(name, name) for name in names]
        switch_name = "switch"
        while switch_name in hosts:
            switch_name += "_"
        return Testbed.build(
            path.stem.lower(),
            [*(Device(host, "host", 0) for host in hosts), Device(switch_name, "switch", 1)],
            [LinkSpec(host, switch_name, switch.rate, switch.delay) for host in hosts],
            mtu_bytes=switch.mtu,
            buffer_bytes=_BUFFER_BYTES,
            source="one big switch of the hosts seen",
        )

    def numbers(self, cells: Sequence[str], where: Callable[[int], str]) -> Ints:
        """Return the numbers of the hosts in `cells`; `where(row)` names a row in errors."""
        try:
            return np.array([self._number[cell] for cell in cells], dtype=np.int64)
        except KeyError:
            row = next(n for n, cell in enumerate(cells) if cell not in self._number)
        raise InputError.single(
            where(row),
            f"testbed {self.testbed.name} has no host {cells[row]!r}",
            "name it under `hosts:` of the mapping file",
        )


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key with numbers in numeric order: h2 before h10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]
