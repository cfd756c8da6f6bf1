"""Makes backends by their names; a backend's modules are loaded when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orchestration.core import plugins
from orchestration.core.capabilities import GROUP, backends, capabilities
from orchestration.core.engines import ONE_ENGINE, PROCESS, EngineChoice
from orchestration.core.errors import InputError, check_known, needs
from orchestration.core.ports import Backend
from orchestration.device.ssh import Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestration.backends.hardware.backend import HardwareBackend
    from orchestration.core.ports import Tuner
    from orchestration.core.topology import Testbed
    from orchestration.core.trial import TrialSpec


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


def backend(name: str, rack: RackAccess | None = None, engine: str = "") -> Backend:
    """Return a new backend. Backends that run on no rack ignore `rack`.

    `engine` is one of `core.engines`, "" for the backend's only one.

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
    of_engine = own.in_process_implementation if engine == PROCESS else own.implementation
    module, _, implementation = of_engine.partition(":")
    with needs(f"the {name} backend", own.extra):
        made = getattr(import_module(module), implementation)
    found: Backend = made(rack.inventory, rack.secrets) if own.on_rack and rack else made()
    return found


def engine_for(
    trials: Sequence[TrialSpec],
    testbeds: Mapping[str, Testbed],
    requested: str = "",
    tuner: Tuner | None = None,
) -> EngineChoice:
    """Return the engine in which all these trials run: none if their backend has only one.

    `testbeds` has the trials' testbeds by name. `requested` is the option --in, "" without it.
    `tuner` decides, if that is not the trials' own. Raises InputError if they cannot run there.
    """
    if capabilities(trials[0].backend).in_process is None:
        if requested:
            raise InputError.single(
                f"--in {requested}",
                f"the {trials[0].backend} backend has one engine only",
                "leave it out",
            )
        return ONE_ENGINE
    from orchestration.backends.emulated.engines import chosen_engine

    return chosen_engine(trials, testbeds, requested, tuner)


def check_policies(trials: Sequence[TrialSpec], engine: str) -> None:
    """Try the users' congestion controls that trials name, which takes a second each.

    Raises InputError if the engine refuses one, NotReadyError if it cannot be tried.
    """
    if not any(trial.host.roce is not None and trial.host.roce.program for trial in trials):
        return
    from orchestration.backends.emulated import bpf_programs, process_backend

    (process_backend if engine == PROCESS else bpf_programs).check_policies(trials)
