"""What a SIGKILL has left on this machine of what this project made there, and removing it.

A kind of leftovers is a function that finds them, in `KINDS`. It goes by records that were made
before the thing was, or by marks on the thing; never by a pattern of names that others may have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.virtual_rack import groups, image, interface_leases
from orchestration.virtual_rack.folder import RackFolder, racks_folder


@dataclass(frozen=True)
class Leftover:
    """A thing that is left, or that somebody alive uses: then `alive` says who, and it stays.

    `remove` removes it and returns what else there is to say, if anything; `done` is the word for
    that. It raises OSError, RuntimeError or ClosloopError.
    """

    kind: str
    name: str
    what: str
    alive: str = ""
    done: str = "removed"
    remove: Callable[[], str | None] = field(default=lambda: "", compare=False, repr=False)


def interfaces() -> Iterator[Leftover]:
    """Find interfaces that are lent."""
    for loan in interface_leases.loans():
        what = f"lent to {loan.device} of the rack {loan.rack} as {loan.port}"
        alive = "the rack has it: closloop rack down gives it back" if loan.alive else ""

        def remove(loan: interface_leases.InterfaceLease = loan) -> str:
            if os.geteuid():
                raise NotReadyError("giving it back takes root", f"sudo {interface_leases.CLEAN}")
            return interface_leases.return_interface(loan)

        yield Leftover("interface", loan.interface, what, alive, "given back", remove)


def racks() -> Iterator[Leftover]:
    """Find the folders of racks of this user, which `rack down` removes.

    An empty one is that of a rack which was killed before its first file was written.
    """
    for path in sorted(racks_folder().glob("*/")):
        place = RackFolder(path)
        if not place.is_rack() and any(path.iterdir()):
            continue
        alive = "it is up, or is being started: closloop rack down ends it"

        def remove(place: RackFolder = place) -> None:
            with place.held():
                place.remove()

        what = f"keys, inventory and log in {path}"
        yield Leftover("rack", place.name, what, alive * place.is_held(), remove=remove)


def control_groups() -> Iterator[Leftover]:
    """Find the control groups of racks of containers whose supervisor is gone."""
    for group in groups.leftovers():
        remove = partial(groups.remove_tree, group)
        yield Leftover("control group", str(group), "a killed rack's", remove=remove)


def half_images() -> Iterator[Leftover]:
    """Find images of devices whose building was killed."""
    for folder in image.leftovers():
        yield Leftover("image", str(folder), "half built", remove=partial(shutil.rmtree, folder))


# In the order in which they are removed.
KINDS: tuple[Callable[[], Iterator[Leftover]], ...] = (
    interfaces,
    control_groups,
    half_images,
    racks,
)


def leftovers() -> list[Leftover]:
    """Return what is left of all kinds, and what is not since somebody alive uses it."""
    return [row for kind in KINDS for row in kind()]


def remove_dead(*kinds: Callable[[], Iterator[Leftover]]) -> list[str]:
    """Remove what is left of some kinds, all by default; return the names of what was removed.

    What cannot be removed stays, such as a control group that somebody has put a process into.
    """
    removed = []
    for row in [row for kind in kinds or KINDS for row in kind() if not row.alive]:
        with suppress(ClosloopError, OSError, RuntimeError):
            row.remove()
            removed.append(row.name)
    return removed
