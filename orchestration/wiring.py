"""The one place that maps a backend's name to its class. Each loads on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.device.ssh import Secrets
from orchestration.model.errors import InputError, NotReadyError
from orchestration.model.ports import Backend

if TYPE_CHECKING:
    from orchestration.backends.hardware.backend import HardwareBackend
    from orchestration.campaign.expand import Campaign


@dataclass(frozen=True)
class RackAccess:
    """The rack to run on: its inventory, and passwords where keys do not suffice."""

    inventory: Path
    secrets: Secrets


def _fluid() -> type[Backend]:
    from orchestration.backends.fluid.backend import FluidBackend

    return FluidBackend


def _emulated() -> type[Backend]:
    from orchestration.backends.emulated.backend import EmulatedBackend

    return EmulatedBackend


def _simulated() -> type[Backend]:
    from orchestration.backends.simulated.backend import SimulatedBackend

    return SimulatedBackend


def _hardware() -> type[HardwareBackend]:
    try:
        from orchestration.backends.hardware.backend import HardwareBackend
    except ModuleNotFoundError as error:
        raise NotReadyError(
            f"the hardware backend needs {error.name}, which is not installed",
            "pip install 'closloop[hardware]'",
        ) from error
    return HardwareBackend


BACKENDS: dict[str, Callable[[], type[Backend]]] = {
    "emulated": _emulated,
    "fluid": _fluid,
    "hardware": _hardware,
    "simulated": _simulated,
}


def hardware(rack: RackAccess | None) -> HardwareBackend:
    """Return the hardware backend on a rack.

    Raises InputError without one, NotReadyError without the libraries.
    """
    if rack is None:
        raise InputError.single(
            "--on hardware",
            "no inventory is given",
            "name the rack's Ansible inventory with --inventory, or in CLOSLOOP_INVENTORY; "
            "`closloop rack up` makes a virtual one",
        )
    return _hardware()(rack.inventory, rack.secrets)


def backend_class(name: str) -> type[Backend]:
    """Return a backend's class. Raises InputError, naming the known ones, for any other name."""
    if name not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise InputError.single("backend", f"no backend is called {name!r}", f"known are {known}")
    return BACKENDS[name]()


def backend(name: str, rack: RackAccess | None = None) -> Backend:
    """Return a new backend. Raises InputError as `backend_class` does.

    The hardware backend needs a `rack`; the others ignore it.
    """
    return hardware(rack) if name == "hardware" else backend_class(name)()


def check_fits(campaign: Campaign) -> None:
    """Raise InputError if a tuner needs something that its campaign's backend lacks.

    Likewise if the guest's kernel refuses a policy of one's own, or if the repeats depend on a
    metric that does not exist.
    """
    from inventory.files import load_testbed
    from orchestration.campaign.marks import check_marking
    from orchestration.campaign.places import tuner_places
    from orchestration.runner.adaptive import checked_rule
    from orchestration.runner.fit import check_fit

    checked_rule(campaign)

    names = dict.fromkeys(trial.testbed for trial in campaign.trials)
    testbeds = {name: load_testbed(name) for name in names}
    offer = backend_class(campaign.trials[0].backend).offer
    place = tuner_places(campaign)
    check_fit(campaign.trials, testbeds, offer, place)
    check_marking(campaign.trials, testbeds.__getitem__, place)
    if any(trial.host.roce is not None and trial.host.roce.program for trial in campaign.trials):
        from orchestration.backends.emulated.policies import check_policies

        check_policies(campaign.trials)
