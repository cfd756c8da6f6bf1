"""Congestion controls of RoCE NICs: what one declares, and where declarations come from.

Each is one Python file with its C source beside it, offered in the entry-point group
`closloop.congestion_controls`: ours, orchestration/datapath/policy_*.py, and those of packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from orchestration.core.plugins import load_declaration, offered

GROUP = "closloop.congestion_controls"
# A policy of the user's own, as a BPF program.
PROGRAM = "program"
# How a sender answers ECN marks. "always": its packets are ECN-capable (ECT), and a mark slows it
# down. "negotiated": so it is where hosts ask for ECN (RFC 3168; net.ipv4.tcp_ecn is 1). "never":
# its packets cannot be marked, or a mark changes nothing.
MarkAnswer = Literal["always", "negotiated", "never"]
# Of TCP, which is Linux' own.
TCP_MARK_ANSWERS: Mapping[str, MarkAnswer] = {
    "dctcp": "always",  # RFC 8257; TCP_CONG_NEEDS_ECN in net/ipv4/tcp_dctcp.c
    "cubic": "negotiated",
    "reno": "negotiated",
    # BBRv1, which net/ipv4/tcp_bbr.c is: its cong_control looks at losses and rates only
    "bbr": "never",
}
TCP_CONTROLS = tuple(TCP_MARK_ANSWERS)
# Rates that HPCC's telemetry can name, in Mbit/s (telemetry.h).
TELEMETRY_MBPS = (
    *(100, 1_000, 2_500, 5_000, 10_000, 20_000, 25_000, 40_000, 50_000, 56_000),
    *(100_000, 200_000, 400_000, 800_000, 1_600_000),
)
# In each packet of data and each acknowledgement.
TELEMETRY_BYTES = 42


@dataclass(frozen=True)
class Parameter:
    """A parameter as a whole number: ns, Mbit/s, thousandths, bytes or a count, by its kind."""

    kind: Literal["time", "rate", "number", "size", "count"]
    default: int
    minimum: int
    maximum: int
    help: str = ""


@dataclass(frozen=True)
class CongestionControl:
    """A congestion control: its C source, and its parameters in the order of that source.

    A campaign gives parameters in `host: {roce: {NAME: {…}}}`. Of each pair in `ascending`, the
    first is below the second. A `base_rtt` of 0 stands for that of the testbed. A receiver sends
    one acknowledgement for `ack_every` packets; 0 is the NICs' default. `marks` says whether its
    packets are ECN-capable, and answered with CNPs. With `times_round_trips`, trials count the
    flows that never had a round trip timed, and so kept their first rate.

    One that is not `compiled_in` is loaded into the NICs, as a program of the user's own is.
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
        """Return the parameter that contradicts another one, why, and what to do, if any does."""
        for low, high in self.ascending:
            if values[low] >= values[high]:
                return low, f"{low} is not below {high}", f"lower {low}, or raise {high}"
        return None


@dataclass(frozen=True)
class NicPolicy:
    """What NICs are given of a congestion control: its numbers, in the order of its C source.

    It is worked out before a guest boots: looking for entry points there would take time.
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
    """Return how senders under a control answer ECN marks; "always" where that is not known."""
    if name in offered(GROUP):
        return congestion_control(name).marks
    return TCP_MARK_ANSWERS.get(name, "always")


def default_ack_every(name: str, otherwise: int) -> int:
    """Return for how many packets a receiver under a control sends one acknowledgement."""
    own = congestion_control(name).ack_every if name in offered(GROUP) else 0
    return own or otherwise
