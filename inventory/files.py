"""Testbed files: finds and loads them, checks what their schema cannot, and edits some values.

A testbed is named by a file of the package (`graphcc`) or by a path (`./rack.yml`). A file may
extend another; a field then replaces the other file's whole field:

    like: graphcc
    name: graphcc-pfc
    switch: {buffer: 32MB, alpha: 1/8, pfc: [3]}     # takes the place of `buffer`

The same fields may be part of a testbed's name (`inventory.variant`) or of a campaign.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from inventory import switch_file
from inventory.generators import Fabric, GeneratorError
from inventory.schema import (
    MAX_CLASSES,
    BuiltFile,
    CustomFile,
    TestbedFile,
    slow_link_problems,
)
from inventory.strictyaml import Document, Loc, in_order, parse, read, suggest, without_nones
from inventory.variant import LIKE, is_path, own_name, split_name, variant_name
from orchestration.core import plugins
from orchestration.core.errors import InputError, Problem, unwritable
from orchestration.core.problems import unknown
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Testbed, reachable
from orchestration.core.units import format_duration, format_size, parse_duration_ns

# A file has one of the two: the buffer of each port, or that of each switch. So a field replaces
# the other one of an extended file, too.
_EXCLUSIVE = {"switch": "buffer", "buffer": "switch"}
_MAX_LIKE_DEPTH = 8
TESTBEDS_GROUP = "closloop.testbeds"


def known_testbeds() -> tuple[str, ...]:
    """Return the names of the package's testbeds."""
    folder = resources.files("inventory") / "testbeds"
    names = (item.name for item in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yml") for name in names if name.endswith(".yml")))


def load_testbed(name_or_path: str) -> Testbed:
    """Return a testbed of the package by name, or a user's own by the path of its file.

    A name with a `/`, or that ends in .yml or .yaml, is a path. An installed package can offer a
    testbed as an entry point of `closloop.testbeds` that holds its file's path. Replaced fields may
    follow, as in `graphcc {buffer: 8MB}`. Raises InputError for an unknown name, and for a bad file
    with all its problems.
    """
    return _load(_read_named(name_or_path))


def load_variant(document: Document, folder: Path) -> Testbed:
    """Return the testbed that the mapping `{like: NAME, field: value, …}` describes.

    A path in `like` starts in `folder`. Raises InputError with all problems, each at its line.
    """
    return _load(_variant(document, folder))


def testbed_text(name_or_path: str) -> str:
    """Return a testbed's file as text, unchecked; the name is as for `load_testbed`.

    A file that is `like` another is returned with all fields of both.
    """
    if not split_name(name_or_path)[1]:
        with _testbed_path(name_or_path) as path:
            if LIKE not in read(path).data:
                return path.read_text(encoding="utf-8")
    yaml = YAML()
    yaml.width = 4096
    written = io.StringIO()
    yaml.dump(_read_named(name_or_path).data, written)
    return written.getvalue()


@contextmanager
def _testbed_path(name_or_path: str) -> Iterator[Path]:
    if is_path(name_or_path):
        yield Path(name_or_path)
        return
    known = known_testbeds()
    if name_or_path not in known and name_or_path in plugins.offered(TESTBEDS_GROUP):
        yield Path(plugins.load(name_or_path, TESTBEDS_GROUP))
        return
    if name_or_path not in known:
        what, end = f"unknown testbed {name_or_path!r}", "; or give a file's path"
        raise InputError([unknown("", what, name_or_path, known, "known are ", end)])
    with resources.as_file(resources.files("inventory") / "testbeds") as folder:
        yield folder / f"{name_or_path}.yml"


def _read_named(name: str) -> Document:
    """Return the data of a testbed that is named as for `load_testbed`."""
    base, fields = split_name(name)
    if not fields:
        with _testbed_path(name) as path:
            return _read(path)
    document = parse(fields, name)
    return _variant(replace(document, data={**document.data, LIKE: base}), Path())


def _variant(document: Document, folder: Path) -> Document:
    """Return the data of a mapping with `like`, and with a name of its own."""
    whole = _extended(document, folder / "testbed", (), _merged)
    whole = replace(whole, data=without_nones(whole.data, TestbedFile))
    fields = split_name(variant_name(document.data))[1]
    if not fields:
        return whole
    base = str(whole.data["name"])
    # what describes the other testbed, such as its number of hosts, need not be true of this one
    own = {"name": own_name(base, fields), "description": f"{base} with {fields[1:-1]}"}
    own = {key: text for key, text in own.items() if key not in document.data}
    return replace(whole, data={**whole.data, **own})


def _read(path: Path, seen: tuple[Path, ...] = ()) -> Document:
    """Return a testbed file's data, with the fields of the file that it is `like`."""
    return _extended(read(path), path, seen)


def _replaced(base: object, own: object) -> object:
    """Return what a field of a file has: its own value, not that of the file it is `like`."""
    return own


def _merged(base: object, own: object) -> object:
    """Return what a field of a variant has: a mapping replaces only the fields that it has."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {**base, **{key: _merged(base.get(key), value) for key, value in own.items()}}


def _extended(
    document: Document,
    path: Path,
    seen: tuple[Path, ...],
    combine: Callable[[object, object], object] = _replaced,
) -> Document:
    """Return the data of a testbed file at `path` with the fields of the file that it is `like`.

    Paths in `like` start in the file's folder. Lines are those of the file itself. `seen` are the
    files that were read before this one, to find a loop. `combine` returns the value of a field,
    given those of the other file and of this one.
    """
    if LIKE not in document.data:
        return document
    named = document.data[LIKE]
    if not isinstance(named, str) or not named:
        what = f"{LIKE!r} does not name a testbed: {named!r}"
        remedy = "write a testbed's name or a file's path: like: graphcc"
        raise InputError([document.problem((LIKE,), what, remedy)])
    here = (*seen, path.resolve())
    if is_path(named):
        named = str(path.parent / named)
    with ExitStack() as stack:
        try:
            other = stack.enter_context(_testbed_path(named))
        except InputError as error:
            raise InputError(document.at((LIKE,), it) for it in error.problems) from error
        if other.resolve() in here or len(here) > _MAX_LIKE_DEPTH:
            what = f"{path.name} is like itself, through {other.name}"
            raise InputError([document.problem((LIKE,), what, "remove `like` from one of them")])
        base = _read(other, here).data
    own = {key: value for key, value in document.data.items() if key != LIKE}
    replaced = {_EXCLUSIVE[key] for key in own if key in _EXCLUSIVE}
    data = {key: value for key, value in base.items() if key not in replaced}
    own = {key: combine(data.get(key), value) for key, value in own.items()}
    return replace(document, data={**data, **own})


def _load(document: Document) -> Testbed:
    """Return the testbed of a file's data. Raises InputError with all of its problems."""
    checked, problems = switch_file.with_port_buffer(document).check(TestbedFile)
    if checked is None:
        raise InputError(in_order(problems))
    file = checked.root
    names = [item.name for item in file.classes]
    minimum = 2 * (file.mtu + ETHERNET_HEADER_BYTES)
    if file.switch is not None:
        problems += switch_file.problems(file.switch, names, document)
    elif file.buffer < minimum:
        what = f"a buffer of {format_size(file.buffer)} holds less than two packets"
        problems.append(document.problem(("buffer",), what, f"use {minimum}B or more"))
    problems += _class_problems(file, document)
    if isinstance(file, CustomFile):
        problems += list(_device_problems(file, document)) or _reach_problems(file, document)
    fabric: Fabric = ([], [])
    try:
        fabric = file.fabric()
    except GeneratorError as error:
        problems.append(document.at((error.parameter,), error.problem))
    if file.slow_links is not None and fabric[0]:
        problems += slow_link_problems(file.slow_links, fabric, document)
        fabric = file.slow_links.slowed(fabric)
    if problems:
        raise InputError(in_order(problems))
    framed_bytes = file.mtu + ETHERNET_HEADER_BYTES + file.framing
    testbed = Testbed.build(
        file.name,
        *fabric,
        mtu_bytes=file.mtu,
        buffer_bytes=file.buffer,
        framing_bytes=file.framing,
        description=file.description,
        source=file.source,
        classes=file.traffic_classes(),
        switch=None if file.switch is None else file.switch.spec(names, framed_bytes),
    )
    if problems := list(switch_file.capacity_problems(testbed, document)):
        raise InputError(problems)
    return testbed


def _class_problems(file: BuiltFile, document: Document) -> Iterator[Problem]:
    """Yield problems of the traffic classes as a whole: their number, names and buffers."""
    if "classes" not in file.model_fields_set:
        return
    count = len(file.classes)
    if not 2 <= count <= MAX_CLASSES:
        what = f"{count} traffic class{'' if count == 1 else 'es'}"
        remedy = f"list 2 to {MAX_CLASSES}, or leave 'classes' out for one queue a port"
        yield document.problem(("classes",), what, remedy)
    total = sum(item.weight for item in file.classes)
    minimum = 2 * (file.mtu + ETHERNET_HEADER_BYTES)
    seen: set[str] = set()
    for number, item in enumerate(file.classes):
        loc: Loc = ("classes", number)
        if item.name in seen:
            what = f"a second class {item.name!r}"
            yield document.problem((*loc, "name"), what, "rename one of the two")
        seen.add(item.name)
        share = file.buffer if file.switch else file.buffer * item.weight // total
        if share < minimum <= file.buffer:
            what = (
                f"class {item.name!r} has {format_size(share)} of each port's buffer, by its "
                "weight, which holds less than two packets"
            )
            yield document.problem((*loc, "weight"), what, "use a larger buffer or weight")


def _device_problems(file: CustomFile, document: Document) -> Iterator[Problem]:
    """Yield problems of the names and links in a custom testbed file."""
    tiers: dict[str, int] = {}
    for loc, name, tier in _named(file):
        if name in tiers:
            yield document.problem(loc, f"a second device {name!r}", "rename one of the two")
        tiers.setdefault(name, tier)
    for number, link in enumerate(file.links):
        unknown = [end for end in ("a", "b") if getattr(link, end) not in tiers]
        for end in unknown:
            name = getattr(link, end)
            remedy = f"{suggest(name, tiers)}list it under hosts or switches"
            yield document.problem(("links", number, end), f"no device {name!r}", remedy)
        if not unknown and tiers[link.a] == tiers[link.b]:
            what = f"{link.a} and {link.b} are both in tier {tiers[link.a]} (hosts are in tier 0)"
            if link.a == link.b:
                what = f"a link from {link.a} to itself"
            yield document.problem(("links", number), what, "link devices of different tiers")


def _reach_problems(file: CustomFile, document: Document) -> Iterator[Problem]:
    """Yield the devices that cannot be reached from the first switch through switches."""
    neighbours: dict[str, list[str]] = {name: [] for _, name, _ in _named(file)}
    for link in file.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    start = file.switches[0].name
    reached = reachable(start, lambda name: () if name in file.hosts else neighbours[name])
    for loc, name, _ in _named(file):
        if name not in reached:
            what = f"{name} is not connected to {start} (hosts do not forward)"
            yield document.problem(loc, what, "add the missing links")


def _named(file: CustomFile) -> Iterator[tuple[Loc, str, int]]:
    """Yield each device's path in the file, its name and its tier."""
    for number, name in enumerate(file.hosts):
        yield ("hosts", number), name, 0
    for number, switch in enumerate(file.switches):
        yield ("switches", number), switch.name, switch.tier


# The fields with the links below each tier; a custom file lists each link instead.
_LINKS_OF_TIER = {
    "leaf-spine": {1: "host_link", 2: "uplink"},
    "fat-tree": {1: "host_link", 2: "aggregation_link", 3: "core_link"},
    "single-switch": {1: "host_link"},
}
_MIN_DELAY_NS = 1
_DIGITS = 12


def edited_testbed_text(
    name_or_path: str, name: str, framing_bytes: int, delay_change_ns: Mapping[int, int]
) -> str:
    """Return a testbed file's text under another name, with new framing and delays.

    `delay_change_ns` has, by tier, what is added to the delay of every link between that tier and
    the next lower one (1: between hosts and leaves). No delay becomes less than 1 ns. The file's
    comments stay. Raises InputError for what `load_testbed` refuses.
    """
    testbed = load_testbed(name_or_path)
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    data = yaml.load(testbed_text(name_or_path))
    data["name"] = name
    if framing_bytes != testbed.framing_bytes or "framing" in data:
        if "framing" in data:
            data["framing"] = f"{framing_bytes}B"
        else:
            data.insert(list(data).index("mtu") + 1, "framing", f"{framing_bytes}B")
    for cable, tier in _cables(data, testbed):
        now_ns = parse_duration_ns(cable["delay"])
        new_ns = max(_MIN_DELAY_NS, now_ns + delay_change_ns.get(tier, 0))
        if new_ns != now_ns:
            cable["delay"] = format_duration(new_ns, _DIGITS)
    written = io.StringIO()
    yaml.dump(data, written)
    return written.getvalue()


def _cables(data: Any, testbed: Testbed) -> list[tuple[Any, int]]:
    """Return the entries of the file that have a delay, with the tier of their links."""
    if data["kind"] != "custom":
        return [(data[key], tier) for tier, key in _LINKS_OF_TIER[data["kind"]].items()]
    return [
        (link, max(testbed.device[link["a"]].tier, testbed.device[link["b"]].tier))
        for link in data["links"]
    ]


def check_new(path: Path) -> None:
    """Raise InputError if the file exists already or its folder does not."""
    if path.exists():
        raise InputError.single(str(path), "is there already", "choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError.single(
            str(path), "its folder does not exist", "make the folder, or choose another"
        )


def write_new(path: Path, text: str) -> None:
    """Write a new file. Raises InputError if it exists already or cannot be written."""
    check_new(path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise unwritable(path, error, "choose another folder", InputError) from error
