"""Which of a user's open runs were on this rack, and under which names.

A run belongs to the devices that it was on, not to a file's name or place. A device is recognised
by the identity in its snapshot (`safety.identity`), so a run is found again with an inventory that
was moved, copied, edited or is another one of the same rack, and is not found with another rack's.
Where an identity is not known (snapshots of closloop 0.2.0, devices that do not answer), the device
of that name is meant if the run had this very inventory, by its resolved path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestration.agent.safety.identity import same_device
from orchestration.backends.hardware.safety.ledger import Ledger, OpenRun
from orchestration.device.client import AgentClient, Request, gather
from orchestration.device.errors import DeviceError


@dataclass(frozen=True)
class Part:
    """An open run that was on this rack.

    `names` are this inventory's names of its devices, by the run's names. Its devices `elsewhere`
    are not known in this inventory.
    """

    run: OpenRun
    names: Mapping[str, str]
    elsewhere: tuple[str, ...]


def parts_of_rack(
    ledger: Ledger, runs: Sequence[OpenRun], agents: Mapping[str, AgentClient], timeout_s: float
) -> list[Part]:
    """Return those of the user's open runs that were on the devices of `agents`, oldest first."""
    identities: Mapping[str, Any] = {}
    if any(run.identities for run in runs):
        asked: dict[str, tuple[AgentClient, Request]] = {
            device: (agent, ("state.identity", {})) for device, agent in agents.items()
        }
        identities = {
            device: answer
            for device, answer in gather(asked, timeout_s).items()
            if not isinstance(answer, DeviceError)
        }
    parts = []
    for run in runs:
        here = run.inventory == ledger.inventory
        devices = sorted({*run.snapshots, *run.changed})
        found = {device: _name(device, run, identities, here=here) for device in devices}
        names = {device: name for device, name in found.items() if name}
        if names or (here and not devices):
            elsewhere = tuple(device for device, name in found.items() if not name)
            parts.append(Part(run, names, elsewhere))
    return parts


def _name(device: str, run: OpenRun, identities: Mapping[str, Any], *, here: bool) -> str:
    """Return this inventory's name of a run's device, "" for none."""
    noted = run.identities.get(device)
    same = [name for name, found in identities.items() if same_device(noted, found)]
    if device in same or (here and len(same) != 1):
        return device
    return same[0] if len(same) == 1 else ""
