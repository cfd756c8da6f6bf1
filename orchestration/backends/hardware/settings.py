"""Kernel settings of a rack's Linux devices during a trial: those of the emulation, and more."""

from __future__ import annotations

from collections.abc import Mapping

from inventory.rack import Rack
from orchestration.backends.hardware.balancing import SETTINGS as PATH_SETTINGS
from orchestration.backends.hardware.balancing import chooses
from orchestration.backends.hardware.controls import DEFAULT
from orchestration.backends.linux import absent_settings, host_sysctls, switch_sysctls
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet

# Provisioning's: a trial does not switch it, so nothing that restores a trial can.
_FORWARDING = "net/ipv4/ip_forward"
# The next trial's flows use the same ports, so old connections must not linger.
_NO_TIME_WAIT = {"net/ipv4/tcp_max_tw_buckets": "0"}


class Settings:
    """The settings of one trial, by device. SONiC switches have none: their ASIC forwards."""

    def __init__(
        self, rack: Rack, trial: TrialSpec, names: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`names` has by host what stands for a congestion control (`controls.Controls`)."""
        self._values: dict[str, dict[str, str]] = {}
        for number, device in enumerate(rack.testbed.devices):
            if device.kind == "host":
                values = {**host_sysctls(trial.host), **_NO_TIME_WAIT}
                own = (names or {}).get(device.name, {})
                values[DEFAULT] = own.get(values[DEFAULT], values[DEFAULT])
                self._values[device.name] = values
            elif rack.access[device.name].platform == "linux":
                more = PATH_SETTINGS if chooses(trial) else {}
                values = {**switch_sysctls(trial.seed, number), **more}
                del values[_FORWARDING]
                self._values[device.name] = values

    def names(self) -> dict[str, list[str]]:
        """Return the names of the written settings, by device: a snapshot must hold them."""
        return {device: sorted(values) for device, values in self._values.items()}

    def write(self, fleet: Fleet) -> dict[str, list[str]]:
        """Write them; return the names that a device's kernel lacks, by device."""
        asked = {device: {"values": values} for device, values in self._values.items()}
        answers = fleet.ask("sysctl.write", asked)
        return {device: list(map(str, names)) for device, names in answers.items() if names}

    def findings(self, absent: dict[str, list[str]]) -> list[dict[str, str]]:
        """Return findings on absent settings for the trial's stamp."""
        return absent_settings(absent)
