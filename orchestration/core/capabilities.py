"""Capabilities: what a backend can measure, set, send and break, and on which clock.

Each backend declares its capabilities as data, and an entry point of the group
`closloop.backends` names that declaration. closloop's own backends and those of other packages are
found in the same way. Other code decides by capabilities, never by a backend's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from orchestration.core import plugins
from orchestration.core.congestion import TCP_CONTROLS, mark_answer, roce_controls
from orchestration.core.engines import PROCESS
from orchestration.core.ports import Offer
from orchestration.core.signals import DERIVED, FLOW_TABLE
from orchestration.core.trial import REAL, ClockName, TrialSpec

GROUP = "closloop.backends"

# What tuners can observe on every backend that runs trials.
EVERYWHERE = (
    *("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"),
    *DERIVED,
    *FLOW_TABLE,
)


@dataclass(frozen=True)
class Pace:
    """A backend's speed on one core, from which the run time of a trial is estimated.

    `boot_s` is the time that starting and ending a trial takes. `tcp_hops_per_s` and
    `roce_hops_per_s` are packet-hops per second; the latter is 0 if the backend has no RoCE. `acks`
    is the number of acknowledgements for each data packet of TCP, 0 if the backend has none; for
    RoCE it is a setting of the NICs. Each device adds `device_s`, each flow `flow_s`.
    """

    boot_s: float
    tcp_hops_per_s: float
    acks: float
    roce_hops_per_s: float = 0.0
    device_s: float = 0.0
    flow_s: float = 0.0


@dataclass(frozen=True)
class Mode(Offer):
    """What a backend can do with one kind of fabric, on one clock.

    measure: `signals` are those that tuners can observe, if the trial has what they need
        (`Signal.needs`); `recorded` ones are only in the trial's tables. Counters may be up to
        `counters_late_ns` old.
    set: `knobs`, `programs` on devices, the hosts' `tcp_controls` and `loss_detections`, RoCE NICs
        (`has_roce`; with `nic_controls`, these congestion controls only), whether ports mark
        arriving or departing packets (`marks`), by which rule switches choose paths
        (`load_balancing`), buffers that a switch's ports share (`shared_buffers`), several queues
        at a port (`classes`), and users' own congestion controls in files with one of the suffixes
        in `policies`.
    send: TCP flows come from sockets, RoCE flows from the NICs. Only RoCE flows can be long-lived
        or sampled. With `programs_send`, programs on hosts can send flows too.
    break: links can fail, with `faults`.

    A trial chooses a mode by its fabric's kind and its `clock`, "" or "real". `real_time` says
    whether that clock is the machine's. `deterministic` says whether the same trial gives the same
    results to the bit. `is_linux` says that hosts and switches are those of Linux.
    `known_senders` says that it is known whether hosts ask for ECN (`negotiates_ecn`), and so
    whether flows respond to marks. Without packets (`has_packets` is False: a fluid), nothing is
    acknowledged or received twice. `why` has the reasons for what is lacking, by field name.
    """

    recorded: tuple[str, ...] = ()
    fabric: Literal["linux", "closloop"] = "linux"
    clock: ClockName = ""
    real_time: bool = False
    deterministic: bool = True
    pace: Pace = Pace(0.0, 1.0, 0.0)
    tcp_controls: tuple[str, ...] = TCP_CONTROLS
    has_roce: bool = False
    nic_controls: tuple[str, ...] | None = None
    loss_detections: tuple[str, ...] = ("rack",)
    marks: tuple[str, ...] = ("arrivals",)
    load_balancing: tuple[str, ...] = ()
    shared_buffers: bool = False
    classes: bool = True
    programs_send: bool = False
    policies: tuple[str, ...] = ()
    faults: bool = True
    is_linux: bool = False
    known_senders: bool = True
    negotiates_ecn: bool = False
    has_packets: bool = True
    counters_late_ns: int = 0
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def controls(self) -> tuple[str, ...]:
        """The hosts' congestion controls. RoCE NICs have all that installed packages offer."""
        if self.nic_controls is not None:
            return (*self.tcp_controls, *self.nic_controls)
        return (*self.tcp_controls, *(roce_controls() if self.has_roce else ()))

    def may_answer_marks(self, control: str) -> bool:
        """Return False if flows under a congestion control certainly ignore ECN marks."""
        if not self.known_senders:
            return True
        answer = mark_answer(control)
        return answer == "always" or (answer == "negotiated" and self.negotiates_ecn)


@dataclass(frozen=True)
class Capabilities:
    """A backend and its modes.

    If a campaign names no fabric, the first mode that has the hosts' congestion control is used.
    `in_process` is what its packet engine can do without a kernel, a part of what one of the modes
    can; None if the backend has one engine only (`core.engines`). `in_process_implementation` is
    the class that runs trials in it. `name` is also the name of the entry point. `implementation`
    is the backend's class, as `module:name`; it is "" for imported results, which no backend runs.
    `extra` is the extra of the closloop package that installs its libraries. With `on_rack`, it
    needs an inventory. `former_hop` describes what trials of version 0.1, whose files do not say
    it, counted as a packet-hop.
    """

    name: str
    modes: tuple[Mode, ...]
    implementation: str = ""
    extra: str = ""
    on_rack: bool = False
    in_process: Mode | None = None
    in_process_implementation: str = ""
    former_hop: str = "as an earlier version counted"

    @property
    def runs(self) -> bool:
        """Whether this backend can run trials."""
        return bool(self.implementation)

    def on(self, clock: str) -> tuple[Mode, ...]:
        """Return the modes that a trial with this `clock` can have."""
        return tuple(mode for mode in self.modes if mode.clock == (REAL if clock == REAL else ""))

    def mode(self, fabric: str, clock: str) -> Mode:
        """Return the mode with a fabric on a clock, or else the backend's first on that clock."""
        modes = self.on(clock) or self.modes
        return next((mode for mode in modes if mode.fabric == fabric), modes[0])

    def default(self, control: str, clock: str) -> Mode:
        """Return the mode for hosts with a congestion control, if the campaign names no fabric."""
        modes = self.on(clock) or self.modes
        return next((mode for mode in modes if control in mode.controls), modes[0])

    def in_words(self, mode: Mode) -> str:
        """Return a mode in words: `the emulated backend with fabric: linux`."""
        text = f"the {self.name} backend"
        if len({other.fabric for other in self.on(mode.clock)}) > 1:
            text += f" with `fabric: {mode.fabric}`"
        return f"{text} in real time" if mode.clock else text

    def alternative(self, mode: Mode, has: Callable[[Mode], bool]) -> str:
        """Return a remedy for a trial whose `mode` lacks what `has` looks for; "" if none helps."""
        for other in self.modes:
            if has(other) and other.clock == mode.clock:
                return f"use `fabric: {other.fabric}`"
        if mode.clock and any(map(has, self.modes)):
            return f"leave `clock: {mode.clock}` out"
        names = [backend.name for backend in backends(has) if backend != self]
        return f"run --on {' or '.join(names)}" if names else ""


@cache
def capabilities(backend: str) -> Capabilities:
    """Return the capabilities that a backend declares. Raises PluginError if there are none."""
    declared = plugins.load(backend, GROUP)
    if not isinstance(declared, Capabilities) or declared.name != backend:
        what = f"the entry point {backend!r} of {GROUP} does not name Capabilities of that name"
        raise plugins.PluginError(what, "correct its package")
    return declared


def mode_of(trial: TrialSpec) -> Mode:
    """Return the mode in which a trial runs."""
    return capabilities(trial.backend).mode(trial.fabric.kind, trial.clock)


def pace_of(trial: TrialSpec, engine: str) -> Pace:
    """Return the speed at which a trial runs in an engine, "" if its backend has only one."""
    in_process = capabilities(trial.backend).in_process
    return in_process.pace if engine == PROCESS and in_process else mode_of(trial).pace


def backends(has: Callable[[Mode], bool] = lambda mode: True) -> list[Capabilities]:
    """Return the backends that can run trials and have a mode for which `has` is true.

    They are sorted by name, with those that need a rack last.
    """
    installed = sorted(
        map(capabilities, plugins.offered(GROUP)), key=lambda each: (each.on_rack, each.name)
    )
    return [backend for backend in installed if backend.runs and any(map(has, backend.modes))]
