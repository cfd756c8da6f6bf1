"""Checks of a campaign's hosts: congestion control, RoCE NICs, and the fabric that these need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from inventory.strictyaml import Loc, suggest
from orchestration.campaign.controls import check_control
from orchestration.campaign.hosts import Host
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.patterns import Pattern
from orchestration.core.congestion import PROGRAM, roce_controls
from orchestration.core.roce import DCQCN, DCQCN_PARAMETERS, HEADER_BYTES, MAX_PAYLOAD_BYTES
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Testbed
from orchestration.core.units import format_rate
from orchestration.datapath.policy_dcqcn import RATE_PARAMETERS


def check_host(host: object, testbed: Testbed) -> Iterator[LocatedProblem]:
    """Report a host's congestion control that no flow would use: each traffic class has its own."""
    own = [klass.congestion_control for klass in testbed.classes]
    if isinstance(host, dict) and "congestion_control" in host and own and all(own):
        yield LocatedProblem(
            ("host", "congestion_control"),
            f"no flow would use it: on testbed {testbed.name} each traffic class has its own",
            "remove it, or use a testbed whose classes leave it out",
        )


def controls_of(
    testbed: Testbed | None, host: Host, patterns: Sequence[Pattern] = ()
) -> dict[str, Loc]:
    """Return the congestion controls that flows may have, each with the first field that names it.

    They are named by the host, by the testbed's traffic classes, or by a pattern.
    """
    classes = [klass.congestion_control for klass in testbed.classes] if testbed else []
    locations: dict[str, Loc] = {}
    for of_class in classes or [""]:
        by_host: Loc = ("host", "congestion_control")
        named_by: Loc = ("testbed",) if of_class else by_host
        locations.setdefault(of_class or host.congestion_control, named_by)
    for index, pattern in enumerate(patterns):
        if pattern.congestion_control:
            locations.setdefault(
                pattern.congestion_control, ("traffic", index, "congestion_control")
            )
    return locations


def check_roce(campaign: Fields, testbed: Testbed | None, folder: Path) -> Iterator[LocatedProblem]:
    """Report hosts, RoCE NICs and lossless switches that do not fit together.

    It also reports parameters that an mlx5 NIC would not take. Relative paths start in `folder`.
    """
    host = campaign.get("host")
    if host is None:
        return
    locations = controls_of(testbed, host, campaign.get("traffic", ()))
    roce = [control for control in locations if control in roce_controls()]
    if locations and not roce:
        yield from _check_lossless(locations, testbed)
    if host.loss_detection != Host().loss_detection and set(locations) <= set(roce_controls()):
        yield LocatedProblem(
            ("host", "loss_detection"),
            "no flow is TCP: how RoCE NICs detect losses is set by `recovery`",
            "remove it, or use `roce: {recovery: …}`",
        )
    if len(roce) > 1:
        yield LocatedProblem(
            locations[roce[1]],
            f"RoCE NICs have one congestion control, and flows ask for {' and '.join(roce)}",
            "let the host, the testbed's classes and the patterns name the same one",
        )
    if roce:
        yield from _check_payload(host, testbed)
    elif "roce" in host.model_fields_set:
        yield LocatedProblem(
            ("host", "roce"),
            f"no host has a RoCE NIC: their congestion control is {host.congestion_control}",
            "remove it, or use `congestion_control: dcqcn`",
        )
    control = roce[0] if roce else ""
    if control == PROGRAM and host.roce.program is None:
        yield LocatedProblem(
            locations[PROGRAM],
            "congestion_control: program needs the program's file",
            "write it like {program: my_policy.c}",
        )
    yield from check_control(control, host.roce.given, host.roce.program, folder, testbed)
    yield from _check_dcqcn(host)
    if testbed is not None and "dcqcn" in roce:
        yield from _check_rates_of_set(host, testbed)


def _check_lossless(controls: Iterable[str], testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report lossless switches, where no host has a RoCE NIC."""
    if testbed is not None and testbed.switch and testbed.switch.lossless:
        yield LocatedProblem(
            ("testbed",),
            f"testbed {testbed.name} has PFC, and hosts whose congestion control is "
            f"{' or '.join(controls)} have no NIC that obeys pauses",
            f"use `congestion_control: {DCQCN}`, or remove 'pfc' from the testbed",
        )


def _check_payload(host: Host, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report a payload that does not fit into frames, or is not a multiple of 4 bytes."""
    max_bytes = MAX_PAYLOAD_BYTES
    if testbed is not None:
        max_bytes = min(max_bytes, testbed.mtu_bytes + ETHERNET_HEADER_BYTES - HEADER_BYTES)
    if host.roce.payload > max_bytes:
        yield LocatedProblem(
            ("host", "roce", "payload"),
            f"{host.roce.payload} bytes do not fit: InfiniBand's largest MTU is "
            f"{MAX_PAYLOAD_BYTES}, and this testbed's frames carry {max_bytes}",
            f"use at most {max_bytes}",
        )
    if host.roce.payload % 4:
        yield LocatedProblem(
            ("host", "roce", "payload"),
            f"{host.roce.payload} bytes: full packets of InfiniBand are multiples of 4 bytes",
            f"use {max(4, host.roce.payload // 4 * 4)}B",
        )


def _check_rates_of_set(host: Host, testbed: Testbed) -> Iterator[LocatedProblem]:
    """Report a set whose parameters depend on the NICs' rate, if NICs have several rates."""
    dcqcn, rates = host.roce.dcqcn, testbed.nic_rates_bps
    undecided = [name for name in RATE_PARAMETERS.get(dcqcn.set, ()) if name not in dcqcn.own]
    if undecided and len(rates) > 1:
        parameters = " and ".join(undecided)
        yield LocatedProblem(
            ("host", "roce", "dcqcn"),
            f"in the set {dcqcn.set}, {parameters} depend on the NICs' rate, and NICs of testbed "
            f"{testbed.name} have several: {' and '.join(map(format_rate, rates))}",
            f"give {parameters} beside `set: {dcqcn.set}`",
        )


def _check_dcqcn(host: Host) -> Iterator[LocatedProblem]:
    for name, value in host.roce.dcqcn.own.items():
        loc: Loc = ("host", "roce", "dcqcn", name)
        if name not in DCQCN_PARAMETERS:
            known = ", ".join(DCQCN_PARAMETERS)
            what = f"DCQCN has no parameter {name!r}"
            yield LocatedProblem(loc, what, f"{suggest(name, DCQCN_PARAMETERS)}it has {known}")
            continue
        parameter = DCQCN_PARAMETERS[name]
        minimum, maximum = parameter.minimum, parameter.maximum
        if type(value) is not int or not minimum <= value <= maximum:
            what = f"{value!r} is not a whole number from {minimum} to {maximum} ({parameter.unit})"
            yield LocatedProblem(loc, what, "see docs/generated/campaign-file.md")
