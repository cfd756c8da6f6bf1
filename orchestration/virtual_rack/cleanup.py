"""Cleanup: finds and removes what racks that were killed by SIGKILL have left on this machine.

Each function in `FINDERS` finds one kind of thing. It goes by a record that was written before the
thing was created, or by a mark on the thing itself: a name that other programs might use as well is
no proof that closloop created it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.virtual_rack import control_groups, image, interface_leases
from orchestration.virtual_rack.folder import RackFolder, racks_folder


@dataclass(frozen=True)
class CleanupItem:
    """Something that closloop created on this machine.

    `in_use_by` says which rack or process still uses it, in words: then it must not be removed. It
    is empty for what a killed rack has left. `remove` removes it and returns a remark, if there is
    one; it raises OSError, RuntimeError or ClosloopError. `outcome` is the word for a removal that
    worked.
    """

    kind: str
    name: str
    description: str
    in_use_by: str = ""
    outcome: str = "removed"
    remove: Callable[[], str | None] = field(default=lambda: "", compare=False, repr=False)


def find_interfaces() -> Iterator[CleanupItem]:
    """Find interfaces of this machine that are leased to racks."""
    for lease in interface_leases.leases():
        description = f"leased to the rack {lease.rack}, as port {lease.port} of {lease.device}"
        in_use_by = "the rack uses it: closloop rack down gives it back" if lease.rack_alive else ""

        def remove(lease: interface_leases.InterfaceLease = lease) -> str:
            if os.geteuid():
                raise NotReadyError(
                    "only root can give it back", f"sudo {interface_leases.CLEAN_COMMAND}"
                )
            return interface_leases.return_interface(lease)

        yield CleanupItem(
            "interface", lease.interface, description, in_use_by, "given back", remove
        )


def find_racks() -> Iterator[CleanupItem]:
    """Find the folders of this user's racks. For a rack that is up, `rack down` removes its folder.

    An empty folder belongs to a rack that was killed before it wrote its first file.
    """
    for path in sorted(racks_folder().glob("*/")):
        rack_folder = RackFolder(path)
        if not rack_folder.is_rack() and any(path.iterdir()):
            continue
        in_use_by = "the rack is up, or is being started: closloop rack down ends it"

        def remove(rack_folder: RackFolder = rack_folder) -> None:
            with rack_folder.locked():
                rack_folder.remove()

        description = f"keys, inventory and log in {path}"
        yield CleanupItem(
            "rack",
            rack_folder.name,
            description,
            in_use_by * rack_folder.is_locked(),
            remove=remove,
        )


def find_control_groups() -> Iterator[CleanupItem]:
    """Find the control groups of racks of containers whose supervisor has ended."""
    for group in control_groups.orphaned_groups():
        remove = partial(control_groups.remove_tree, group)
        yield CleanupItem("control group", str(group), "of a killed rack", remove=remove)


def find_unfinished_images() -> Iterator[CleanupItem]:
    """Find images of devices whose build was killed."""
    for folder in image.abandoned_builds():
        yield CleanupItem("image", str(folder), "unfinished", remove=partial(shutil.rmtree, folder))


# In the order in which they are removed.
FINDERS: tuple[Callable[[], Iterator[CleanupItem]], ...] = (
    find_interfaces,
    find_control_groups,
    find_unfinished_images,
    find_racks,
)


def cleanup_items() -> list[CleanupItem]:
    """Return what all finders find, things that are in use included."""
    return [item for find in FINDERS for item in find()]


def remove_orphaned(*finders: Callable[[], Iterator[CleanupItem]]) -> list[str]:
    """Remove what is not in use; return the names of what was removed.

    `finders` are those to call, by default all of `FINDERS`. What cannot be removed stays, such
    as a control group that another program has moved a process into.
    """
    removed = []
    for item in [item for find in finders or FINDERS for item in find() if not item.in_use_by]:
        with suppress(ClosloopError, OSError, RuntimeError):
            item.remove()
            removed.append(item.name)
    return removed
