"""The part `switch` of a testbed file: its schema, and what the schema cannot check.

It describes the shared buffer of each switch and priority flow control (PFC, IEEE 802.1Qbb): a
switch asks its neighbours to pause a lossless class before the buffer overflows. Headroom is the
buffer kept for what still arrives after a pause frame was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from inventory.strictyaml import SOMETHING, Document, Duration, Loc, Size, StrictModel, suggest
from orchestration.core.errors import Problem
from orchestration.core.parts import (
    DEFAULT_WATCHDOG_NS,
    MAX_ALPHA,
    MAX_QUANTA,
    MIN_ALPHA,
    PRIORITIES,
    SwitchSpec,
    WatchdogAction,
    quanta_ns,
)
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Testbed
from orchestration.core.units import UnitError, format_duration, format_size, parse_size_bytes


def _alpha(value: object) -> float:
    """Return alpha, the dynamic-threshold factor, from a number or from text like 1/8."""
    try:
        number = float(Fraction(value)) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError, ZeroDivisionError):
        number = None
    if number is None:
        raise ValueError(f"{value!r} is not an alpha: write a number like 1/8 or 2")
    if not MIN_ALPHA <= number <= MAX_ALPHA:
        raise ValueError(f"an alpha of {number:g} is out of range: use 1/128 to 8")
    return number


def _alphas(value: object) -> float | dict[str, float]:
    if isinstance(value, dict):
        return {str(name): _alpha(alpha) for name, alpha in value.items()}
    return _alpha(value)


class Watchdog(StrictModel):
    """The PFC watchdog: after what time a queue counts as stuck, and what is done then.

    `restore` is how long the queue must be free of pauses before the action ends.
    """

    detect: Duration = DEFAULT_WATCHDOG_NS
    restore: Duration = DEFAULT_WATCHDOG_NS
    action: WatchdogAction = "alert"


class Switch(StrictModel):
    """The shared buffer of each switch, and its priority flow control."""

    buffer: Size = Field(description="what all ports of a switch share, like 12MB")
    alpha: Annotated[float | dict[str, float], BeforeValidator(_alphas)] = Field(
        default=1.0, description="the share of the free buffer that one may take, like 1/8"
    )
    pfc: tuple[str | int, ...] = Field(
        default=(), description="the lossless classes, by name or number, like [rdma]"
    )
    headroom: Annotated[
        Size | None,
        BeforeValidator(lambda value: None if value == "auto" else value),
        SOMETHING,
    ] = None
    xoff: Size = Field(default=0, description="a fixed limit in place of alpha, like 30KB")
    xon_offset: Annotated[Size | None, SOMETHING] = None
    quanta: Annotated[int, Field(ge=1, le=MAX_QUANTA)] = MAX_QUANTA
    watchdog: Watchdog = Watchdog()

    def spec(self, classes: Sequence[str], frame_bytes: int) -> SwitchSpec:
        """Return the switches' settings for a testbed with these classes.

        `frame_bytes` is a full packet's size on the wire. `problems` must have found none.
        """
        count = max(1, len(classes))
        common = self.alpha if isinstance(self.alpha, float) else 1.0
        by_name = self.alpha if isinstance(self.alpha, dict) else {}
        names = list(classes) or [""]
        priorities = tuple(range(count))
        if not classes and self.pfc:
            priorities = (int(self.pfc[0]),)
        lossless = {0} if not classes else {_number(item, names) for item in self.pfc}
        return SwitchSpec(
            buffer_bytes=self.buffer,
            alpha=tuple(by_name.get(name, common) for name in names),
            lossless=tuple(sorted(lossless)) if self.pfc else (),
            priorities=priorities,
            headroom_bytes=self.headroom or 0,
            xoff_bytes=self.xoff,
            xon_offset_bytes=2 * frame_bytes if self.xon_offset is None else self.xon_offset,
            quanta=self.quanta,
            detect_ns=self.watchdog.detect,
            restore_ns=self.watchdog.restore,
            action=self.watchdog.action,
        )


def _number(item: str | int, names: Sequence[str]) -> int:
    return names.index(item) if isinstance(item, str) else item


def with_port_buffer(document: Document) -> Document:
    """Return the file with a buffer of each port, as large as that of `switch`, unless it has one.

    A port of a switch with a shared buffer may hold as much as the whole switch.
    """
    switch = document.data.get("switch")
    if "buffer" in document.data or not isinstance(switch, dict):
        return document
    try:
        shared_bytes = parse_size_bytes(switch.get("buffer"))
    except UnitError:  # reported when `switch` is checked
        shared_bytes = 1
    return replace(document, data={**document.data, "buffer": f"{shared_bytes}B"})


def problems(switch: Switch, classes: Sequence[str], document: Document) -> Iterator[Problem]:
    """Yield what is wrong with `switch` on a testbed with these classes."""
    if "buffer" in document.data:
        what = "the ports share the buffer of 'switch', and 'buffer' is what a port has of its own"
        yield document.problem(("buffer",), what, "leave out one of the two")
    for index, item in enumerate(switch.pfc):
        yield from _class_problems(("switch", "pfc", index), item, classes, document)
    if len({str(item) for item in switch.pfc}) < len(switch.pfc):
        yield document.problem(("switch", "pfc"), "a class is listed twice", "list it once")
    if isinstance(switch.alpha, dict):
        for name in switch.alpha:
            if name not in classes:
                loc: Loc = ("switch", "alpha", name)
                yield document.problem(loc, *_no_class(name, classes, "one alpha for all"))
    if switch.pfc and switch.headroom == 0:
        what = "PFC without headroom: what arrives after a pause was sent would be dropped"
        yield document.problem(("switch", "headroom"), what, "use `auto`, or some bytes")


def _class_problems(
    loc: Loc, item: str | int, classes: Sequence[str], document: Document
) -> Iterator[Problem]:
    if not classes:
        if isinstance(item, str):
            yield document.problem(loc, *_no_class(item, classes, "its priority, like [3]"))
        elif loc[-1] != 0:
            what = "without traffic classes all packets have one priority"
            yield document.problem(loc, what, "list one number, or add `classes`")
        elif not 0 <= item < PRIORITIES:
            what = f"there is no priority {item}"
            yield document.problem(loc, what, f"use 0 to {PRIORITIES - 1}")
    elif (item not in classes) if isinstance(item, str) else not 0 <= item < len(classes):
        yield document.problem(loc, *_no_class(item, classes, ""))


def _no_class(item: str | int, classes: Sequence[str], instead: str) -> tuple[str, str]:
    if not classes:
        return f"there is no class {item!r}: the testbed has no `classes`", f"write {instead}"
    known = ", ".join(f"{name} ({number})" for number, name in enumerate(classes))
    what = f"there is no class {item!r} that could be lossless"
    return what, f"{suggest(str(item), list(classes))}the testbed's classes are {known}"


def capacity_problems(testbed: Testbed, document: Document) -> Iterator[Problem]:
    """Yield a buffer or watchdog time of `switch` that is too small for the switches' ports."""
    switch = testbed.switch
    if switch is None:
        return
    packet_bytes = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    for name in testbed.switches:
        ports = testbed.ports_of[name]
        reserved = switch.reserved_bytes(
            [(port.rate_bps, port.delay_ns) for port in ports], testbed.frame_bytes
        )
        minimum = reserved + 2 * packet_bytes
        if switch.buffer_bytes < minimum:
            what = f"a buffer of {format_size(switch.buffer_bytes)} holds less than two packets"
            if reserved:
                what = (
                    f"{name} has a buffer of {format_size(switch.buffer_bytes)}, and PFC needs "
                    f"{format_size(reserved)} of headroom there, for {len(ports)} ports and "
                    f"{len(switch.lossless)} lossless class"
                    f"{'' if len(switch.lossless) == 1 else 'es'}"
                )
            yield document.problem(("switch", "buffer"), what, f"use {minimum}B or more")
            return
    slowest = min(port.rate_bps for port in testbed.switch_ports)
    lasts_ns = quanta_ns(switch.quanta, slowest)
    for key, value_ns in (("detect", switch.detect_ns), ("restore", switch.restore_ns)):
        if switch.lossless and value_ns <= lasts_ns:
            what = f"{key} of {format_duration(value_ns)} is not longer than one pause"
            remedy = (
                f"use more than {format_duration(lasts_ns, 4)}, which {switch.quanta} quanta last "
                f"at {slowest / 1e9:g} Gbit/s"
            )
            yield document.problem(("switch", "watchdog", key), what, remedy)
