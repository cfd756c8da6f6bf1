"""Capabilities: what a backend can measure, set, send and break, and on which clock.

A backend's package says it as data, which an entry point of the group `closloop.backends` names:
ours and a user's are found by the same path. All others ask here: nobody outside the package
compares the backend's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from orchestration.core import plugins
from orchestration.core.congestion import TCP_CONTROLS, mark_answer, roce_controls
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
    """A backend's speed on one core: boot and shutdown of a trial in s, then packet-hops per s.

    `acks` is the number of acknowledgements that a data packet of TCP causes, 0 where there are
    none; those of RoCE are its NICs' setting. Without `roce_hops_per_s` there is no RoCE. Each
    device and each flow takes its time besides.
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

    measure: `signals` that tuners can observe, where the trial has what they need (`Signal.needs`);
        `recorded` ones are in the trial's tables only. Counters may be `counters_late_ns` late.
    set: `knobs`, `programs` of devices, the hosts' `tcp_controls` and `loss_detections`, RoCE NICs
        (`has_roce`), what ports' `marks` look at, the `route_by` of paths that switches choose
        (`load_balancing`), buffers that a switch's ports share (`shared_buffers`), several queues
        a port (`classes`), and `policies` of one's own in files that end like this.
    send: from `sockets` of TCP or from RoCE NICs, whose flows alone can last and be sampled, and
        with `programs_send` from programs on hosts.
    break: links, with `faults`.

    A trial asks for a mode by its fabric's kind and its `clock`, "" or real. `real_time` says what
    the clock is, and `deterministic` whether a trial repeats another one to the bit. `is_linux` is
    for hosts and switches that are Linux' own. Of `known_senders` it is known whether they answer
    ECN marks, and whether they ask for ECN (`negotiates_ecn`). A fluid has no packets
    (`has_packets`): nothing is acknowledged, or arrives twice. `why` has reasons for what is
    lacking, by the field's name.
    """

    recorded: tuple[str, ...] = ()
    fabric: Literal["linux", "closloop"] = "linux"
    clock: ClockName = ""
    real_time: bool = False
    deterministic: bool = True
    pace: Pace = Pace(0.0, 1.0, 0.0)
    tcp_controls: tuple[str, ...] = TCP_CONTROLS
    has_roce: bool = False
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
        """The hosts' congestion controls: RoCE NICs have every one that a package offers."""
        return (*self.tcp_controls, *(roce_controls() if self.has_roce else ()))

    def may_answer_marks(self, control: str) -> bool:
        """Return whether flows under a control may answer ECN marks. False is certain."""
        if not self.known_senders:
            return True
        answer = mark_answer(control)
        return answer == "always" or (answer == "negotiated" and self.negotiates_ecn)


@dataclass(frozen=True)
class Capabilities:
    """A backend's modes; where a fabric is not asked for, the first that has the hosts' control.

    `name` is also that of its entry point. `implementation` is its class, as `module:name`; "" for
    results of other programs, which nothing runs. Its libraries are those of the `extra`. With
    `on_rack` it needs an inventory. `former_hop` is what trials of 0.1 counted as a packet-hop,
    without saying so.
    """

    name: str
    modes: tuple[Mode, ...]
    implementation: str = ""
    extra: str = ""
    on_rack: bool = False
    former_hop: str = "as an earlier version counted"

    @property
    def runs(self) -> bool:
        """Whether trials run on it."""
        return bool(self.implementation)

    def on(self, clock: str) -> tuple[Mode, ...]:
        """Return the modes that a trial with this `clock` can have."""
        return tuple(mode for mode in self.modes if mode.clock == (REAL if clock == REAL else ""))

    def mode(self, fabric: str, clock: str) -> Mode:
        """Return the mode with a fabric on a clock; the nearest one if there is none."""
        modes = self.on(clock) or self.modes
        return next((mode for mode in modes if mode.fabric == fabric), modes[0])

    def default(self, control: str, clock: str) -> Mode:
        """Return the mode of hosts under a congestion control, where no fabric is asked for."""
        modes = self.on(clock) or self.modes
        return next((mode for mode in modes if control in mode.controls), modes[0])

    def in_words(self, mode: Mode) -> str:
        """Return what a mode of it is called: `the emulated backend with fabric: linux`."""
        text = f"the {self.name} backend"
        if len({one.fabric for one in self.on(mode.clock)}) > 1:
            text += f" with `fabric: {mode.fabric}`"
        return f"{text} in real time" if mode.clock else text

    def alternative(self, mode: Mode, has: Callable[[Mode], bool]) -> str:
        """Return how a trial of a mode gets what that lacks; "" if nothing has it."""
        for one in self.modes:
            if has(one) and one.clock == mode.clock:
                return f"use `fabric: {one.fabric}`"
        if mode.clock and any(map(has, self.modes)):
            return f"leave `clock: {mode.clock}` out"
        names = [one.name for one in backends(has) if one != self]
        return f"run --on {' or '.join(names)}" if names else ""


@cache
def capabilities(backend: str) -> Capabilities:
    """Return the capabilities of a backend. Raises PluginError if its package has none to load."""
    own = plugins.load(backend, GROUP)
    if not isinstance(own, Capabilities) or own.name != backend:
        what = f"{backend!r} of {GROUP} names no Capabilities with that name"
        raise plugins.PluginError(what, "correct its package")
    return own


def mode_of(trial: TrialSpec) -> Mode:
    """Return the mode in which a trial runs."""
    return capabilities(trial.backend).mode(trial.fabric.kind, trial.clock)


def backends(has: Callable[[Mode], bool] = lambda mode: True) -> list[Capabilities]:
    """Return the backends that run trials, and can do what is asked for in some mode.

    Those that need a rack come last.
    """
    known = sorted(
        map(capabilities, plugins.offered(GROUP)), key=lambda one: (one.on_rack, one.name)
    )
    return [one for one in known if one.runs and any(map(has, one.modes))]
