"""SONiC as a switch's operating system: its hooks for provisioning, for runs and for surveys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from inventory.rack import Rack, SwitchSystem
from orchestration.backends.hardware.sonic.config import desired_tables, queue_locations
from orchestration.backends.hardware.sonic.switch import SonicSwitch

if TYPE_CHECKING:
    from inventory.cabling import DeviceFacts


def _desired(rack: Rack, device: str) -> dict[str, Any]:
    desired: dict[str, Any] = {"tables": desired_tables(rack, device)}
    if rack.access[device].telemetry_ns:
        desired["telemetry_us"] = rack.access[device].telemetry_ns // 1000
    return desired


def _rows(rack: Rack, device: str) -> list[str]:
    """Return the rows of CONFIG_DB that runs change: the queues and their profiles."""
    rows = []
    for interface, queue, profile in queue_locations(rack, device):
        rows += [f"WRED_PROFILE|{profile}", f"QUEUE|{interface}|{queue}"]
    return rows


def _survey_faults(survey: DeviceFacts) -> Iterator[tuple[str, str]]:
    if not survey.system.get("sonic"):
        what = "is not a SONiC switch: it has no /etc/sonic/sonic_version.yml"
        yield what, "correct closloop_platform, or the address"
    if unfit := survey.system.get("unfit"):
        yield unfit, survey.system["unfit_remedy"]
    if not {"redis-cli", "sonic-db-cli"} & set(survey.programs):
        what = "has no redis-cli or sonic-db-cli"
        yield what, "install SONiC's database tools there"


SONIC = SwitchSystem(
    "SONiC",
    SonicSwitch,
    is_linux=False,
    desired=_desired,
    rows=_rows,
    survey_faults=_survey_faults,
)
