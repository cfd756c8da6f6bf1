"""Checks that a rack is ready for a testbed's trials, before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from inventory.rack import Rack, scaled
from orchestration.backends.hardware.switches import Switch
from orchestration.core.errors import NotReadyError
from orchestration.core.ports import Tuner
from orchestration.core.signals import BALANCING_KEYS, DERIVED, FLOW_TABLE
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError, printable

_SHOWN = 12
# Signals that no switch offers by itself: they come from the loop or from programs on switches.
_NOT_FROM_SWITCHES = (*DERIVED, *BALANCING_KEYS, *FLOW_TABLE)


def check_same_fabric(rack: Rack, testbed: Testbed) -> None:
    """Raise NotReadyError if the rack is wired differently from the campaign's testbed."""
    actual, expected = rack.testbed, scaled(testbed, rack.scale)
    in_inventory, in_testbed = set(actual.device), set(expected.device)
    problems = [
        *(
            f"{name}: the inventory has no such device"
            for name in sorted(in_testbed - in_inventory)
        ),
        *(
            f"{name}: testbed {expected.name} has no such device"
            for name in sorted(in_inventory - in_testbed)
        ),
    ]
    for name in sorted(in_inventory & in_testbed):
        problems += _wiring_problems(name, actual, expected)
    if actual.classes != expected.classes:
        problems.append(f"the traffic classes of {actual.name} are not those of {expected.name}")
    raise_problems(
        f"rack {rack.name} is not wired like testbed {expected.name}",
        problems,
        "correct closloop_links in the inventory, or name the testbed that the rack has",
    )


def _wiring_problems(name: str, actual: Testbed, expected: Testbed) -> Iterator[str]:
    """Yield the differences between a device's links in the inventory and in the testbed."""
    links, expected_links = (
        [(testbed.peer_device(port).name, port.rate_bps) for port in testbed.ports_of[name]]
        for testbed in (actual, expected)
    )
    for number, (peer, rate_bps) in enumerate(expected_links):
        if number >= len(links) or links[number] != (peer, rate_bps):
            other = f"{links[number][0]} at {links[number][1]}" if number < len(links) else "none"
            yield (
                f"{name}: link {number} goes to {peer} at {rate_bps} bit/s in testbed "
                f"{expected.name}, and to {other} in the inventory"
            )
    if len(links) > len(expected_links):
        yield f"{name}: has {len(links)} links, {len(expected_links)} in {expected.name}"


def check_scale(rack: Rack, trials: Iterable[TrialSpec]) -> None:
    """Raise NotReadyError for trials whose scale is not the rack's."""
    other = sorted({trial.scale for trial in trials} - {rack.scale})
    if other:
        raise NotReadyError(
            f"rack {rack.name} is scaled by {rack.scale}, and the trials by {other[0]}",
            "plan the trials with the rack's scale: see orchestration.campaign.scale.with_scale",
        )


def check_sources(switches: Iterable[Switch], tuners: Mapping[str, Tuner]) -> None:
    """Raise NotReadyError if a tuner observes a signal that a switch does not offer.

    Call it after the first reading.
    """
    observers: dict[str, list[str]] = {}
    for tuner_name, tuner in tuners.items():
        for signal in (key for key in tuner.observes if key not in _NOT_FROM_SWITCHES):
            names = observers.setdefault(signal, [])
            if tuner_name not in names:
                names.append(tuner_name)
    problems = []
    for switch in switches:
        sources = switch.sources()
        for signal, names in observers.items():
            if signal not in sources:
                problems.append(
                    f"{switch.device}: offers no {signal}, which {', '.join(names)} observes"
                )
    raise_problems(
        "a tuner observes signals that the switches do not rack_testbed",
        problems,
        "run static tuners on this rack, or turn the counters on where the switch has them: "
        "`closloop provision` does that, and docs/sonic.md says which release offers what",
    )


def check_queues(fleet: Fleet, switches: Iterable[Switch]) -> None:
    """Raise NotReadyError, naming every switch, if queues cannot be read."""
    requests = {switch: (fleet.agents[switch.device], switch.open_request()) for switch in switches}
    problems = []
    for switch, answer in gather(requests).items():
        try:
            if isinstance(answer, DeviceError):
                raise answer
            switch.reading(answer)
        except DeviceError as error:
            problems.append(error.problems[0].line)
    raise_problems("switches are not ready", problems, "run `closloop provision` on the inventory")


def check_free(answers: Mapping[str, Any], own: Collection[str]) -> None:
    """Raise NotReadyError if another run holds a device, or has left it unrestored.

    `answers` are the answers to `lease.show`. `own` are the nonces of this ledger's dead runs: the
    next run restores what they left.
    """
    held, left = [], []
    for device, answer in answers.items():
        if lease := answer["lease"]:
            account, since = printable(lease["account"]), printable(lease["since"])
            holder = printable(lease["holder"])
            held.append(f"{device}: held by {holder} (account {account}) since {since}")
        for record in answer["unresolved"]:
            if record["nonce"] not in own:
                # a plain restore leaves records of other accounts alone
                more = "" if record.get("trusted", True) else f" ({printable(record['remedy'])})"
                left.append(f"{device}: {printable(record['text'])}{more}")
    remedy = "wait until that run has ended; a lease that nobody renews ends by itself"
    raise_problems("the rack is in use", held, remedy)
    remedy = "`closloop restore INVENTORY` puts back what that run found"
    raise_problems("devices rack_testbed not been restored after an earlier run", left, remedy)


def raise_problems(title: str, problems: list[str], remedy: str) -> None:
    """Raise NotReadyError with a title and a line for each problem, if there is one."""
    if not problems:
        return
    shown = problems[:_SHOWN]
    if len(problems) > _SHOWN:
        shown.append(f"and {len(problems) - _SHOWN} more")
    raise NotReadyError(f"{title}:\n  " + "\n  ".join(shown), remedy)
