"""Makes backends by their names; a backend's modules are loaded when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orchestration.core import plugins
from orchestration.core.capabilities import GROUP, backends, capabilities
from orchestration.core.errors import InputError, check_known, needs
from orchestration.core.ports import Backend
from orchestration.device.ssh import Secrets

if TYPE_CHECKING:
    from orchestration.backends.hardware.backend import HardwareBackend


@dataclass(frozen=True)
class RackAccess:
    """The rack to run on: its inventory, and passwords for devices that do not accept a key."""

    inventory: Path
    secrets: Secrets


def hardware(rack: RackAccess | None) -> HardwareBackend:
    """Return the hardware backend on a rack.

    Raises InputError if `rack` is None, and NotReadyError without the libraries.
    """
    return cast("HardwareBackend", backend("hardware", rack))


def backend(name: str, rack: RackAccess | None = None) -> Backend:
    """Return a new backend. Backends that run on no rack ignore `rack`.

    Raises InputError for an unknown name, and if `rack` is missing; NotReadyError if libraries of
    the backend are missing.
    """
    if name not in plugins.offered(GROUP) or not capabilities(name).runs:
        known = [known_backend.name for known_backend in backends()]
        check_known("backend", "no backend is called {!r}", [name], known)
    own = capabilities(name)
    if own.on_rack and rack is None:
        raise InputError.single(
            f"--on {name}",
            "no inventory is given",
            "name the rack's Ansible inventory with --inventory, or in CLOSLOOP_INVENTORY; "
            "`closloop rack up` makes a virtual one",
        )
    module, _, implementation = own.implementation.partition(":")
    with needs(f"the {name} backend", own.extra):
        made = getattr(import_module(module), implementation)
    found: Backend = made(rack.inventory, rack.secrets) if own.on_rack and rack else made()
    return found
