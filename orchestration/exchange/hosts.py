"""Which hosts of a testbed the names in a foreign file mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from inventory.strictyaml import suggest
from inventory.topology import Testbed
from orchestration.exchange.fabric import host_numbers, one_big_switch
from orchestration.exchange.mapping import CsvMapping, OmnetppMapping, testbed_of
from orchestration.model.errors import InputError
from orchestration.model.records import Ints

_DEVICE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class Hosts:
    """Which hosts the cells of a file mean, on the testbed that its mapping names."""

    def __init__(
        self, mapping: CsvMapping | OmnetppMapping, mapping_path: Path, cells: Sequence[str]
    ) -> None:
        seen = list(dict.fromkeys(cells))
        self.renamed: dict[str, str] = {}
        self.notes: list[str] = []
        known = dict(mapping.hosts)
        if mapping.testbed is not None:
            self.testbed = testbed_of(mapping.testbed, mapping_path)
        else:
            assert mapping.one_big_switch is not None
            called = [known.get(cell, cell) for cell in seen]
            self.testbed = self._one_switch(mapping, mapping_path, called)
        numbers = host_numbers(self.testbed)
        for cell, name in known.items():
            if name not in numbers:
                what = f"hosts: {cell} is to be {name!r}, which testbed {self.testbed.name} has not"
                ends = f"{self.testbed.hosts[0]} to {self.testbed.hosts[-1]}"
                remedy = f"{suggest(name, numbers)}use {ends}"
                raise InputError.single(str(mapping_path), what, remedy)
        self._number = {
            cell: numbers[name]
            for cell in seen
            if (name := self.renamed.get(known.get(cell, cell), known.get(cell, cell))) in numbers
        }

    def _one_switch(
        self, mapping: CsvMapping | OmnetppMapping, path: Path, seen: list[str]
    ) -> Testbed:
        switch = mapping.one_big_switch
        assert switch is not None
        names = sorted(dict.fromkeys(seen), key=_natural)
        if not all(_DEVICE_NAME.fullmatch(name) for name in names):
            self.renamed = {name: f"h{number}" for number, name in enumerate(names, start=1)}
            first = names[0]
            self.notes.append(f"hosts' own names: {first} is {self.renamed[first]}, and so on")
        self.notes.append("the fabric: its hosts are on one big switch")
        hosts = [self.renamed.get(name, name) for name in names]
        return one_big_switch(path.stem.lower(), hosts, switch.rate, switch.delay, switch.mtu)

    def numbers(self, cells: Sequence[str], where: Callable[[int], str]) -> Ints:
        """Return the hosts' numbers; `where(row)` is the place of a row in errors."""
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
    """Return a key by which h2 comes before h10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]
