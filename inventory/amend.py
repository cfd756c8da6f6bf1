"""Changes figures in a testbed file and keeps everything else, comments and order included."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from inventory.files import load_testbed, testbed_text
from orchestration.core.errors import InputError, unwritable
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, parse_duration_ns

# Names of the links of a tier in a file; a custom file lists each link instead.
_LINKS_OF_TIER = {
    "leaf-spine": {1: "host_link", 2: "uplink"},
    "fat-tree": {1: "host_link", 2: "aggregation_link", 3: "core_link"},
    "single-switch": {1: "host_link"},
}
_LEAST_DELAY_NS = 1
_DIGITS = 12


def amended(
    name_or_path: str, name: str, framing_bytes: int, delay_change_ns: Mapping[int, int]
) -> str:
    """Return a testbed file's text under another name, with new framing and delays.

    `delay_change_ns` is added to the delay of every link of a tier (1: between hosts and leaves).
    No delay becomes less than 1 ns. Raises InputError for what `load_testbed` refuses.
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
        new_ns = max(_LEAST_DELAY_NS, now_ns + delay_change_ns.get(tier, 0))
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
        raise InputError.single(str(path), "its folder is not there", "make it, or choose another")


def write_new(path: Path, text: str) -> None:
    """Write a new file. Raises InputError if it exists already or cannot be written."""
    check_new(path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise unwritable(path, error, "choose another place", InputError) from error
