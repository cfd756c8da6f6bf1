"""`closloop inventory check`: checks a rack; shows a table of devices and checks, then remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inventory.cabling import CHECKS, DeviceFacts, Finding, is_provisioned
from orchestration.core.errors import ClosloopError, NotReadyError, needs
from orchestration.render.table import Span, Style, strong, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from pathlib import Path

    from inventory.rack import Rack
    from orchestration.run.backend_factory import RackAccess

NOT_READY = 3
_SHOWN = {"ok": "ok", "unproven": "?", "wrong": "WRONG", "unknown": "-"}
_STYLES: dict[str, Style] = {
    "ok": "good",
    "unproven": "warning",
    "wrong": "bad",
    "unknown": "faint",
}
# If one of these checks fails, the result of all later ones is unknown.
_FIRST = ("reachable", "login")


@dataclasses.dataclass(frozen=True)
class CheckedRack:
    """A rack, its devices' facts, or errors where there are none, and the findings."""

    rack: Rack
    facts: Mapping[str, DeviceFacts | ClosloopError]
    findings: tuple[Finding, ...]

    def state(self, device: str, check: str) -> str:
        """Return the result of a check: "ok", "unproven", "wrong" or "unknown"."""
        own = [finding for finding in self.findings if finding.device == device]
        severities = {finding.severity for finding in own if finding.check == check}
        if severities:
            return "wrong" if "wrong" in severities else "unproven"
        facts = self.facts.get(device)
        if isinstance(facts, DeviceFacts):
            was_checked = check != "fabric" or (facts.reach is not None and facts.reach.own)
            return "ok" if was_checked else "unknown"
        failed = {finding.check for finding in own}
        known = CHECKS.index(check) < min((CHECKS.index(name) for name in failed), default=0)
        return "ok" if known and check in _FIRST else "unknown"


def check_rack(inventory: Path, access: RackAccess) -> CheckedRack:
    """Gather the facts of a rack's devices, and check them against the inventory.

    Raises InputError for a wrong inventory, and NotReadyError for one that still has placeholders.
    """
    from inventory.ansible import load_rack
    from inventory.ansible_text import is_example

    rack = load_rack(inventory)
    examples = [name for name, item in rack.access.items() if is_example(item.address)]
    if examples:
        shown = ", ".join(examples[:5]) + (", …" if len(examples) > 5 else "")
        raise NotReadyError(
            f"{inventory}: {len(examples)} addresses are still placeholders: {shown}",
            "write the devices' own addresses at ansible_host",
        )
    with needs("reaching a rack", "hardware"):
        from orchestration.backends.hardware.survey import judge_rack, survey_rack

        with _progress(len(rack.access)) as report:
            facts = survey_rack(rack, access.secrets, report)
    return CheckedRack(rack, facts, tuple(judge_rack(rack, facts)))


@contextmanager
def _progress(devices: int) -> Iterator[Callable[[str], None]]:
    """On a terminal, show progress on standard error; yield a function to call with each device."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("asking the devices", total=devices)
        yield lambda device: bar.update(task, advance=1, description=f"asked {device}")


def print_checked(checked: CheckedRack) -> None:
    """Print the table, then each finding with its remedy."""
    states = {
        device: [checked.state(device, check) for check in CHECKS] for device in checked.rack.access
    }
    rows = [
        [strong(device), *(Span(_SHOWN[state], _STYLES[state]) for state in of_device)]
        for device, of_device in states.items()
    ]
    show(table(("device", *CHECKS), (), rows), "")
    for finding in checked.findings:
        show(Span(str(finding.problem), _STYLES[finding.severity]))
    show(*(Span(note, "faint") for note in _notes(checked)), _verdict(checked))


def _notes(checked: CheckedRack) -> Iterator[str]:
    """Yield notes: what is not wrong, but should be known."""
    known = [item for item in checked.facts.values() if isinstance(item, DeviceFacts)]
    for facts in known:
        level = facts.system.get("lockdown")
        if level and checked.rack.access[facts.device].nic == "roce":
            yield (
                f"{facts.device}: kernel lockdown ({level}) closes debugfs: its DCQCN parameters "
                "can neither be read nor set"
            )
    if not is_provisioned(facts.reach for facts in known):
        yield "hosts have no fabric addresses yet: check again after `closloop provision`"


def _verdict(checked: CheckedRack) -> str:
    wrong = sum(finding.severity == "wrong" for finding in checked.findings)
    unproven = len(checked.findings) - wrong
    if not checked.findings:
        links = len(checked.rack.testbed.links)
        return f"{len(checked.rack.access)} devices and {links} links are as the inventory says"
    return f"{wrong} wrong, {unproven} not proven"


def as_json(checked: CheckedRack) -> dict[str, Any]:
    """Return everything as JSON-ready data, including the devices' facts."""
    return {
        "rack": checked.rack.name,
        "proven": not checked.findings,
        "devices": {
            device: {check: checked.state(device, check) for check in CHECKS}
            for device in checked.rack.access
        },
        "findings": [dataclasses.asdict(finding) for finding in checked.findings],
        "surveys": {
            device: dataclasses.asdict(item)
            for device, item in checked.facts.items()
            if isinstance(item, DeviceFacts)
        },
    }
