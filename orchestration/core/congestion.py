"""Congestion controls of RoCE NICs: how one is declared, and how declarations are found.

A congestion control is one Python file with its C source beside it, offered in the entry-point
group `closloop.congestion_controls`. closloop's own are orchestration/datapath/policy_*.py;
installed packages can offer others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from orchestration.core.plugins import load_declaration, offered

GROUP = "closloop.congestion_controls"
# The name of a congestion control that the user gives as a BPF program.
PROGRAM = "program"
# How a sender responds to ECN marks. "always": its packets are ECN-capable (ECT), and a mark slows
# it down. "negotiated": the same, but only if hosts ask for ECN (RFC 3168; net.ipv4.tcp_ecn is 1).
# "never": its packets cannot be marked, or a mark changes nothing.
MarkAnswer = Literal["always", "negotiated", "never"]
# TCP's congestion controls are those of Linux.
TCP_MARK_ANSWERS: Mapping[str, MarkAnswer] = {
    "dctcp": "always",  # RFC 8257; TCP_CONG_NEEDS_ECN in net/ipv4/tcp_dctcp.c
    "cubic": "negotiated",
    "reno": "negotiated",
    # net/ipv4/tcp_bbr.c is BBRv1, whose cong_control uses losses and rates only
    "bbr": "never",
}
TCP_CONTROLS = tuple(TCP_MARK_ANSWERS)
# The link rates, in Mbit/s, that HPCC's telemetry can encode (telemetry.h).
TELEMETRY_MBPS = (
    *(100, 1_000, 2_500, 5_000, 10_000, 20_000, 25_000, 40_000, 50_000, 56_000),
    *(100_000, 200_000, 400_000, 800_000, 1_600_000),
)
# Telemetry in each data packet and each acknowledgement.
TELEMETRY_BYTES = 42


@dataclass(frozen=True)
class Parameter:
    """A parameter of a congestion control, as a whole number.

    Its `kind` says the unit: a time is in ns, a rate in Mbit/s, a number in thousandths, a size in
    bytes; a count has none. `minimum` and `maximum` are included.
    """

    kind: Literal["time", "rate", "number", "size", "count"]
    default: int
    minimum: int
    maximum: int
    help: str = ""


@dataclass(frozen=True)
class CongestionControl:
    """A congestion control: its C source, and its parameters in the order of that source.

    A campaign gives parameters in `host: {roce: {NAME: {…}}}`. For each pair of names in
    `ascending`, the first parameter must be less than the second. `base_rtt` names the parameter
    that holds the base RTT, "" if there is none; a value of 0 means the base RTT of the testbed. A
    receiver sends one acknowledgement for `ack_every` packets; 0 means the NICs' default. `marks`
    says whether packets are ECN-capable, so that receivers send CNPs for marked ones. With
    `times_round_trips`, a trial counts the flows without any round-trip measurement, which kept
    their first rate.

    A congestion control that is not `compiled_in` is loaded into the NICs as a BPF program.
    """

    source: Path
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    marks: Literal["always", "never"] = "never"
    base_rtt: str = ""
    ack_every: int = 0
    ascending: tuple[tuple[str, str], ...] = ()
    times_round_trips: bool = False
    compiled_in: bool = False

    @property
    def defaults(self) -> dict[str, int]:
        """The parameters' default values, by name."""
        return {name: item.default for name, item in self.parameters.items()}

    def contradiction(self, values: Mapping[str, int]) -> tuple[str, str, str] | None:
        """Return the first parameter that breaks `ascending`, with what is wrong and the remedy."""
        for low, high in self.ascending:
            if values[low] >= values[high]:
                return low, f"{low} is not below {high}", f"lower {low}, or raise {high}"
        return None


@dataclass(frozen=True)
class NicPolicy:
    """A congestion control as NICs get it: its parameters, in the order of its C source.

    It is prepared before a guest boots, because finding entry points in the guest would take time.
    """

    numbers: tuple[int, ...]
    answers_marks: bool = True
    times_round_trips: bool = True


def roce_controls() -> tuple[str, ...]:
    """Return the names of the congestion controls that RoCE NICs can have."""
    return (*offered(GROUP), PROGRAM)


def all_controls() -> tuple[str, ...]:
    """Return the names of all congestion controls, TCP's first."""
    return (*TCP_CONTROLS, *roce_controls())


@cache
def congestion_control(name: str) -> CongestionControl:
    """Return a RoCE NIC's congestion control. Raises InputError if no package declares it."""
    return load_declaration(name, GROUP, CongestionControl)


def mark_answer(name: str) -> MarkAnswer:
    """Return how senders with a congestion control respond to ECN marks.

    An unknown congestion control counts as "always".
    """
    if name in offered(GROUP):
        return congestion_control(name).marks
    return TCP_MARK_ANSWERS.get(name, "always")


def default_ack_every(name: str, otherwise: int) -> int:
    """Return for how many packets a receiver sends one acknowledgement.

    It is what the congestion control declares, or `otherwise` if it declares nothing.
    """
    declared = congestion_control(name).ack_every if name in offered(GROUP) else 0
    return declared or otherwise
