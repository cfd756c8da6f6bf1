"""Write a lab's folder: topology, inventory, keys and what builds the nodes' image.

NAME.clab.yml  inventory.yml  known_hosts  key{,.pub}  host_keys/DEVICE{,.pub}
Containerfile  start.sh       testbed.yml, for a testbed that is not the package's
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from inventory.ansible import load_rack, write_rack
from inventory.files import known_testbeds, testbed_text
from orchestration.device.keys import PACKAGE, PROGRAM, new_key, public_words
from orchestration.exchange.containerlab.lab import Lab, notes
from orchestration.exchange.source import new_folder
from orchestration.model.errors import NotReadyError

_KNOWN_HOSTS, _TESTBED, _INVENTORY = "known_hosts", "testbed.yml", "inventory.yml"


@dataclass(frozen=True)
class WrittenLab:
    """A lab's folder, its topology file and inventory, and in what the lab departs."""

    folder: Path
    topology: Path
    inventory: Path
    notes: tuple[str, ...]


def write_lab(lab: Lab, named: str, folder: Path) -> WrittenLab:
    """Write the lab into the new folder `folder`, which only its owner can read.

    `named` is the testbed's name or path, as it was loaded by. Raises InputError for what
    containerlab cannot hold and if the folder exists, and NotReadyError without ssh-keygen.
    """
    topology = lab.topology()
    if shutil.which(PROGRAM) is None:
        what = f"the nodes' SSH keys need {PROGRAM}: not installed"
        raise NotReadyError(what, f"apt-get install {PACKAGE}")
    packaged = named in known_testbeds()
    place = folder.resolve()
    names = f"{lab.testbed.name}.clab.yml", _INVENTORY
    with new_folder(folder) as partial:
        partial.chmod(0o700)
        (partial / names[0]).write_text(topology, encoding="utf-8")
        if not packaged:
            (partial / _TESTBED).write_text(testbed_text(named), encoding="utf-8")
        _write_keys(lab, partial)
        rack = lab.rack(str(place / "key"), _KNOWN_HOSTS)
        write_rack(rack, partial / names[1], named if packaged else _TESTBED)
        load_rack(partial / names[1])
        for item in (resources.files(__package__) / "node").iterdir():
            (partial / item.name).write_bytes(item.read_bytes())
    return WrittenLab(folder, folder / names[0], folder / names[1], notes(lab))


def _write_keys(lab: Lab, folder: Path) -> None:
    """Write the user's key, a host key for each node, and who has which host key."""
    new_key(folder / "key", f"closloop {lab.testbed.name}")
    host_keys = folder / "host_keys"
    host_keys.mkdir()
    known = []
    for device, address in lab.address.items():
        new_key(host_keys / device, device)
        known.append(f"{address} {public_words(host_keys / device)}\n")
    (folder / _KNOWN_HOSTS).write_text("".join(known), encoding="ascii")
