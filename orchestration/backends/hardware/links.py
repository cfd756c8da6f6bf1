"""Watches a rack's ports for a lost carrier: with a flapping port, a trial measures the cable."""

from __future__ import annotations

from collections.abc import Sequence

from inventory.rack import Rack
from orchestration.core.errors import TrialError
from orchestration.device.client import Fleet
from orchestration.device.errors import DeviceError, DeviceGone

_SHOWN = 6
_REMEDY = "look at cable and optics, and at who shuts the port; `closloop inventory check` sees it"


class LinkWatch:
    """Compares the carriers of all linked ports before and after a trial.

    On leaving it raises TrialError if a carrier has changed. That error replaces a DeviceError or
    TrialError, which a flapping port has probably caused.
    """

    def __init__(self, rack: Rack, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names = {device: list(access.interfaces) for device, access in rack.access.items()}
        self._peers = {
            (device, access.interfaces[place]): rack.testbed.peer_device(port).name
            for device, access in rack.access.items()
            for place, port in enumerate(rack.testbed.ports_of[device])
        }
        self._changes: dict[tuple[str, str], int] = {}

    def __enter__(self) -> LinkWatch:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (
            isinstance(error, (DeviceError, TrialError)) and not isinstance(error, DeviceGone)
        ):
            self.finish()

    def start(self) -> None:
        """Read all ports' carriers. Raises TrialError, naming the ports that are down."""
        links = self._read()
        self._changes = {port: changes for port, (_, changes) in links.items()}
        down = [f"{self._words(port)} is down" for port, (up, _) in links.items() if not up]
        self._raise(down)

    def finish(self) -> None:
        """Read them again. Raises TrialError, naming the ports that went down meanwhile."""
        said = []
        for port, (up, changes) in self._read().items():
            times = changes - self._changes[port]
            if not up:
                said.append(f"{self._words(port)} went down during the trial")
            elif times:
                said.append(f"{self._words(port)} flapped during the trial: {times} changes")
        self._raise(said)

    def _read(self) -> dict[tuple[str, str], tuple[bool, int]]:
        asked = {device: {"interfaces": names} for device, names in self._names.items()}
        answers = self._fleet.ask("links.read", asked)
        return {
            (device, name): (bool(answers[device][name][0]), int(answers[device][name][1]))
            for device, name in self._peers
        }

    def _words(self, port: tuple[str, str]) -> str:
        return f"{port[0]}: {port[1]}, towards {self._peers[port]},"

    def _raise(self, said: Sequence[str]) -> None:
        if said:
            more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
            raise TrialError("; ".join(said[:_SHOWN]) + more, _REMEDY)
