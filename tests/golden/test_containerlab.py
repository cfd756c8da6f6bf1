"""Labs out and in: testbeds to topology files and inventories; labs to testbeds or exact errors.

`python tests/golden/test_containerlab.py` writes the expected outputs anew; read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from inventory.ansible_text import inventory_text
from inventory.files import load_testbed
from orchestration.core.errors import InputError
from orchestration.exchange.containerlab.lab import SONIC_IMAGE, SWITCH_KINDS, Lab
from orchestration.exchange.containerlab.read import read_lab
from orchestration.exchange.containerlab.testbed import LinkDefaults, to_testbed
from orchestration.exchange.containerlab.testbed import testbed_text as text_of

FOLDER = Path(__file__).parent / "containerlab"
EXPORTS, IMPORTS = FOLDER / "export", FOLDER / "import"
LABS = sorted(path.name for path in IMPORTS.glob("*.clab.yml"))
TESTBED, ERROR = ".testbed.yml", ".err"
RATE_BPS = 25 * 10**9


def exported() -> dict[str, str]:
    """Return the files of `lab.yml` as a lab with Linux switches and with SONiC's."""
    testbed = load_testbed(str(EXPORTS / "lab.yml"))
    linux, sonic = SWITCH_KINDS
    labs = {linux: Lab(testbed), sonic: Lab(testbed, sonic, switch_image=SONIC_IMAGE)}
    result = {}
    for kind, lab in labs.items():
        result[f"{kind}.clab.yml"] = lab.topology()
        rack = lab.rack("/lab/key", "known_hosts")
        result[f"{kind}.inventory.yml"] = inventory_text(rack, "testbed.yml")
    return result


def imported(name: str) -> tuple[str, str]:
    """Return the suffix and the text of what a lab leads to, read from its folder."""
    try:
        rate_bps = None if name.startswith("no-rate") else RATE_BPS
        found = to_testbed(read_lab(Path(name)), LinkDefaults(rate_bps=rate_bps))
    except InputError as error:
        return ERROR, f"{error}\n"
    notes = "".join(f"# note: {note}\n" for note in found.notes)
    return TESTBED, text_of(found) + notes


def expected_of(name: str, suffix: str) -> Path:
    """Return where the expected text of a lab is kept."""
    return IMPORTS / (name.removesuffix(".clab.yml") + suffix)


@pytest.mark.parametrize(
    "name", [f"{kind}.{what}.yml" for kind in SWITCH_KINDS for what in ("clab", "inventory")]
)
def test_exported_file(name: str) -> None:
    assert exported()[name] == (EXPORTS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LABS)
def test_imported_lab(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(IMPORTS)
    suffix, text = imported(name)
    assert text == expected_of(name, suffix).read_text(encoding="utf-8")


def test_every_expectation_has_its_lab() -> None:
    found = {path.name for path in IMPORTS.iterdir() if path.name.endswith((TESTBED, ERROR))}
    labs = [name.removesuffix(TESTBED).removesuffix(ERROR) + ".clab.yml" for name in found]
    assert sorted(labs) == LABS


def schema_in(file: Path) -> Any:
    """Return containerlab's schema as data.

    Python's patterns have no Unicode categories: letters and digits of any script are \\w.
    """
    schema = json.loads(file.read_text().replace(r"\\p{N}\\p{L}", r"\\w"))
    jsonschema.Draft7Validator.check_schema(schema)
    return schema


@pytest.mark.clab
@pytest.mark.parametrize("kind", SWITCH_KINDS)
def test_exports_are_valid_by_containerlabs_schema(kind: str, containerlab_schema: Path) -> None:
    schema = schema_in(containerlab_schema)
    valid = jsonschema.Draft7Validator(schema).is_valid
    lab = YAML(typ="safe", pure=True).load((EXPORTS / f"{kind}.clab.yml").read_text())
    assert valid(lab)
    links = lab["topology"]["links"]
    # A link need only be valid as one of its forms, and of that of a veth the schema takes further
    # fields, which containerlab itself refuses: so these are compared.
    veth = schema["definitions"]["link-type-veth"]
    as_veth = jsonschema.Draft7Validator({**veth, "definitions": schema["definitions"]}).is_valid
    end = set(schema["definitions"]["link-endpoint"]["properties"])
    for link in links:
        assert as_veth(link)
        assert set(link) <= set(veth["properties"])
        assert all(set(item) <= end for item in link["endpoints"])
    assert not as_veth({**links[0], "endpoints": links[0]["endpoints"][:1]})
    lab["topology"]["nodes"]["h1"]["mgmt-ipv4"] = "172.20.64.256"
    assert not valid(lab)


@pytest.mark.clab
@pytest.mark.parametrize("name", ["inherited.clab.yml", "groups.clab.yml"])
def test_the_labs_that_are_imported_are_valid_too(name: str, containerlab_schema: Path) -> None:
    lab = YAML(typ="safe", pure=True).load((IMPORTS / name).read_text(encoding="utf-8"))
    assert jsonschema.Draft7Validator(schema_in(containerlab_schema)).is_valid(lab)


def write_expectations() -> None:
    """Write what is exported, and what every lab leads to, now."""
    for name, text in exported().items():
        (EXPORTS / name).write_text(text, encoding="utf-8")
    os.chdir(IMPORTS)
    for old in (*IMPORTS.glob(f"*{TESTBED}"), *IMPORTS.glob(f"*{ERROR}")):
        old.unlink()
    for name in LABS:
        suffix, text = imported(name)
        expected_of(name, suffix).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_expectations()
