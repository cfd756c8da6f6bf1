"""Congestion controls of RoCE NICs beside DCQCN, and their parameters under their papers' names.

One C source each has the algorithm: orchestration/datapath/policy_*.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# A policy of the user's own, as a BPF program.
PROGRAM = "program"


@dataclass(frozen=True)
class Parameter:
    """A parameter as a whole number: ns, Mbit/s, thousandths, bytes or a count, by its kind."""

    kind: Literal["time", "rate", "number", "size", "count"]
    default: int
    least: int
    most: int


_MS = 1_000_000
# What all models of RL-CC take, in the order of enum rlcc_parameter in policy_rlcc.h.
_RLCC = {
    "target": Parameter("number", 64, 1, 1_000),
    "beta": Parameter("number", 1_500, 0, 100_000),
    "base_rtt": Parameter("time", 0, 0, 100 * _MS),
    # of the line: DOCA PCC's template starts flows at the line, its SDK at 1/256 of it
    "new_flow_rate": Parameter("number", 1_000, 1, 1_000),
}
# In the order of the C source's enum.
CONTROLS: Mapping[str, Mapping[str, Parameter]] = {
    "fixed": {"rate": Parameter("rate", 0, 0, 4_000_000)},  # 0: line rate
    # Kumar et al., "Swift", SIGCOMM 2020, algorithm 1 and section 3.5. The paper has no values for
    # most; these are those of csg-htsim (sim/swift.cpp), and init_cwnd is its window at the start.
    "swift": {
        "ai": Parameter("number", 1_000, 1, 1_000_000),
        "beta": Parameter("number", 800, 1, 1_000),
        "max_mdf": Parameter("number", 500, 1, 999),
        "base_target": Parameter("time", 20_000, 1, 100 * _MS),
        "hop_scale": Parameter("time", 3_053, 0, 10 * _MS),
        "fs_range": Parameter("time", 100_000, 0, 100 * _MS),
        "fs_min_cwnd": Parameter("number", 100, 1, 4_000_000),
        "fs_max_cwnd": Parameter("number", 100_000, 1, 4_000_000),
        "min_cwnd": Parameter("number", 10, 1, 1_000),
        "max_cwnd": Parameter("number", 1_000_000, 1_000, 4_000_000),
        "init_cwnd": Parameter("number", 12_000, 1, 4_000_000),
        "retx_reset_threshold": Parameter("count", 5, 1, 1_000),
    },
    # Mittal et al., "TIMELY", SIGCOMM 2015, sections 4.3 and 5. A delta of 0 is a
    # thousandth of the line, the paper's 10 Mbit/s at 10 Gbit/s; a least rate of 0, which the paper
    # has none of, is a hundredth.
    "timely": {
        "delta": Parameter("rate", 0, 0, 4_000_000),
        "beta": Parameter("number", 800, 1, 1_000),
        "alpha": Parameter("number", 875, 1, 1_000),
        "t_low": Parameter("time", 50_000, 0, 1_000 * _MS),
        "t_high": Parameter("time", 500_000, 1, 1_000 * _MS),
        "min_rtt": Parameter("time", 20_000, 1, 1_000 * _MS),
        "hai_after": Parameter("count", 5, 1, 1_000),
        "min_rate": Parameter("rate", 0, 0, 4_000_000),
    },
    # Li et al., "HPCC", SIGCOMM 2019, section 5.1; t is the base round trip, 0: that of the testbed
    "hpcc": {
        "eta": Parameter("number", 950, 1, 1_000),
        "max_stage": Parameter("count", 5, 0, 1_000),
        "w_ai": Parameter("size", 80, 1, 10_000_000),
        "t": Parameter("time", 0, 0, 16 * _MS),
    },
    # Fuhrer et al., "Implementing RL Datacenter Congestion Control in NVIDIA NICs", HPSR 2023,
    # sections III and IV; a base_rtt of 0: that of the testbed. Its trees, and the networks that
    # they are distilled from
    "rlcc": _RLCC,
    "rlcc-mlp": _RLCC,
    "rlcc-lstm": _RLCC,
}
# A round trip that is that of the testbed if it is 0.
_BASE_RTT = {"hpcc": "t", **dict.fromkeys(("rlcc", "rlcc-mlp", "rlcc-lstm"), "base_rtt")}
# How a sender answers ECN marks. "always": its packets are ECN-capable (ECT), and a mark slows it
# down. "negotiated": so it is where hosts ask for ECN (RFC 3168; net.ipv4.tcp_ecn is 1). "never":
# its packets cannot be marked, or a mark changes nothing.
MarkAnswer = Literal["always", "negotiated", "never"]
MARK_ANSWERS: Mapping[str, MarkAnswer] = {
    "dctcp": "always",  # RFC 8257; TCP_CONG_NEEDS_ECN in net/ipv4/tcp_dctcp.c
    "cubic": "negotiated",
    "reno": "negotiated",
    # BBRv1, which net/ipv4/tcp_bbr.c is: its cong_control looks at losses and rates only
    "bbr": "never",
    "dcqcn": "always",
    PROGRAM: "always",  # it is told of CNPs; whether it looks at them is not known
    # delays, telemetry or nothing decide; their packets are Not-ECT
    **dict.fromkeys(CONTROLS, "never"),
}
# RoCE controls whose packets may be marked, and are answered with CNPs.
HEARS_MARKS = tuple(
    name for name in (*CONTROLS, "dcqcn", PROGRAM) if MARK_ANSWERS[name] == "always"
)
# Whose trials say how many flows never had their round trip timed, and so kept their rate.
TIMES_ROUND_TRIPS = ("rlcc", "rlcc-mlp", "rlcc-lstm", PROGRAM)
# They act on each acknowledgement; the others know of more at one.
ACK_EVERY = dict.fromkeys(("swift", "hpcc", "rlcc", "rlcc-mlp", "rlcc-lstm"), 1)
# Rates that HPCC's telemetry can name, in Mbit/s (telemetry.h).
TELEMETRY_MBPS = (
    *(100, 1_000, 2_500, 5_000, 10_000, 20_000, 25_000, 40_000, 50_000, 56_000),
    *(100_000, 200_000, 400_000, 800_000, 1_600_000),
)
# In each packet of data and each acknowledgement.
TELEMETRY_BYTES = 42


def defaults(control: str) -> dict[str, int]:
    """Return a control's parameters by their names, as a NIC takes them; none of a program's."""
    return {name: item.default for name, item in CONTROLS.get(control, {}).items()}


def with_base_rtt(control: str, values: Mapping[str, int], base_rtt_ns: int) -> list[int]:
    """Return a control's numbers for its C source, with a base round trip of 0 replaced."""
    name = _BASE_RTT.get(control)
    return [value or base_rtt_ns if key == name else value for key, value in values.items()]


def relation_fault(control: str, values: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Return the parameter that contradicts another one, why, and what to do; None for none."""
    pairs = {
        "swift": (("fs_min_cwnd", "fs_max_cwnd"), ("min_cwnd", "max_cwnd")),
        "timely": (("t_low", "t_high"),),
    }
    for low, high in pairs.get(control, ()):
        if values[low] >= values[high]:
            return low, f"{low} is not below {high}", f"lower {low}, or raise {high}"
    return None
