"""Puts back what dead runs left on a rack, from the ledger and the devices' own timers."""

from __future__ import annotations

from pathlib import Path

from inventory.rack import Rack
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.outcome import Outcome
from orchestration.backends.hardware.safety.recovery import restore_open_runs
from orchestration.device.client import open_agents
from orchestration.device.fleet import Fleet
from orchestration.device.ssh import Secrets

_SERVICES = ("state", "deadman", "lease")


def restore_runs(rack: Rack, inventory: Path, secrets: Secrets | None = None) -> list[Outcome]:
    """Restore every device that can be reached; return what became of each, the others too.

    Raises NotReadyError while a run still goes on.
    """
    services = dict.fromkeys(rack.access, _SERVICES)
    agents, problems = open_agents(rack.access.values(), rack.known_hosts_file, services, secrets)
    with Fleet(agents):
        outcomes = restore_open_runs(agents, Ledger.of(rack.name, inventory))
    known = {outcome.device for outcome in outcomes}
    outcomes += [
        Outcome(error.device, False, error.what) for error in problems if error.device not in known
    ]
    return sorted(outcomes, key=lambda outcome: list(rack.access).index(outcome.device))
