"""What a RoCE NIC needs to be told: packets, acknowledgements, and DCQCN's parameters.

Parameters have the names of mlx5 NICs in MLNX_OFED and mlxconfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestration.core.congestion import TELEMETRY_BYTES, defaults
from orchestration.core.records import Ints


@dataclass(frozen=True)
class DcqcnParameter:
    """A parameter of DCQCN as mlx5 NICs have it: default, unit, least and largest value."""

    default: int
    unit: str
    least: int
    most: int
    help: str


_U32 = 2**32 - 1
# In the order of policy_dcqcn.c, whose last one is followed by that of the receiver. Defaults and
# bounds are those of NVIDIA's "DCQCN CC Parameters" (DOCA 3.4) and of mlxconfig's help; where
# neither has a bound, the width of the register (linux/mlx5/mlx5_ifc.h).
DCQCN_PARAMETERS: Mapping[str, DcqcnParameter] = {
    "rpg_time_reset": DcqcnParameter(300, "us", 1, 131_071, "time between two increases by time"),
    "rpg_byte_reset": DcqcnParameter(
        32_767, "bytes, 0 is off", 0, 32_767, "bytes sent between two increases by bytes"
    ),
    "rpg_threshold": DcqcnParameter(
        1, "events", 0, 31, "increases of either kind until the target rate rises"
    ),
    "rpg_ai_rate": DcqcnParameter(5, "Mbps", 1, _U32, "additive increase of the target rate"),
    "rpg_hai_rate": DcqcnParameter(50, "Mbps", 1, _U32, "hyper-active increase of the target rate"),
    "rpg_gd": DcqcnParameter(11, "log2", 0, 15, "a rate is cut by alpha / 2^rpg_gd of it"),
    "rpg_min_dec_fac": DcqcnParameter(50, "%", 1, 100, "least that a cut leaves of a rate"),
    "rpg_min_rate": DcqcnParameter(1, "Mbps", 1, _U32, "least rate of a flow"),
    "rpg_max_rate": DcqcnParameter(
        0, "Mbps, 0 is line rate", 0, _U32, "largest rate of a flow that is not below it"
    ),
    "rate_to_set_on_first_cnp": DcqcnParameter(
        0, "Mbps, 0 is line rate", 0, _U32, "rate of a flow after its first CNP"
    ),
    "dce_tcp_g": DcqcnParameter(1019, "/1024", 0, 1023, "weight of the old alpha in the new one"),
    "dce_tcp_rtt": DcqcnParameter(1, "us", 1, 131_071, "time between two updates of alpha"),
    "rate_reduce_monitor_period": DcqcnParameter(
        4, "us", 1, _U32, "period at whose end a rate is cut, if a CNP came in it"
    ),
    "initial_alpha_value": DcqcnParameter(1023, "/1024", 1, 1023, "alpha at a flow's first CNP"),
    "clamp_tgt_rate": DcqcnParameter(
        0, "0 or 1", 0, 1, "a cut sets the target rate to the rate before it, always"
    ),
    "clamp_tgt_rate_after_time_inc": DcqcnParameter(
        1,
        "0 or 1",
        0,
        1,
        "a cut sets the target rate to the rate before it, also if that was last raised by time",
    ),
    "min_time_between_cnps": DcqcnParameter(
        4, "us", 0, _U32, "least time between two CNPs of a flow, which its receiver sends"
    ),
}
_MLX5 = {name: one.default for name, one in DCQCN_PARAMETERS.items()}
# Sets of parameters for NICs of 25 Gbit/s, by name; `dcqcn_set` has those for other rates. Some
# values of papers are outside the range of mlx5 NICs.
HPCC, FORMER_HPCC = "hpcc", "hpcc-0.2"
_HPCC_AT_25G = {
    **_MLX5,
    "rpg_byte_reset": 0,
    "rpg_ai_rate": 5,
    "rpg_hai_rate": 50,
    "rpg_min_rate": 1000,
    "dce_tcp_g": 1020,
    "min_time_between_cnps": 0,
}
# What closloop 0.2 called `hpcc`: RATE_AI, RATE_HAI and MIN_RATE are those of the example in that
# repository's mix/config_doc.txt, in place of run.py's.
_FORMER_HPCC_RATES = {"rpg_ai_rate": 50, "rpg_hai_rate": 100, "rpg_min_rate": 100}
DCQCN_SETS: Mapping[str, Mapping[str, int]] = {
    "mlx5": _MLX5,
    # Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015: sections 5.1
    # and 5.2, with g = 1/256 and F = 5
    "paper": {
        **_MLX5,
        "rpg_time_reset": 55,
        "rpg_byte_reset": 10_000_000,
        "rpg_threshold": 5,
        "rpg_ai_rate": 40,
        "rpg_hai_rate": 200,
        "dce_tcp_g": 1020,
        "dce_tcp_rtt": 55,
        "clamp_tgt_rate": 1,
        "min_time_between_cnps": 50,
    },
    # Li et al., "HPCC", SIGCOMM 2019: what its simulator's run.py (at 9f4be2a) sets for DCQCN with
    # NICs of bw Gbit/s, RATE_AI 5 * bw / 25, RATE_HAI 50 * bw / 25 and MIN_RATE 1000 Mb/s. There a
    # mark comes back with each acknowledgement, and no bytes are counted.
    HPCC: _HPCC_AT_25G,
    FORMER_HPCC: {**_HPCC_AT_25G, **_FORMER_HPCC_RATES},
}
# The parameters of a set that go by the rate of the NICs.
RATE_PARAMETERS: Mapping[str, tuple[str, ...]] = {HPCC: ("rpg_ai_rate", "rpg_hai_rate")}


def dcqcn_set(name: str, nic_bps: int) -> dict[str, int]:
    """Return the parameters of a set for NICs of a rate in bit/s. Raises KeyError if unknown.

    As in run.py, NICs have whole Gbit/s, at least one, and rates whole Mb/s, at least one.
    """
    values, gbps = dict(DCQCN_SETS[name]), max(1, nic_bps // 10**9)
    for parameter in RATE_PARAMETERS.get(name, ()):
        values[parameter] = max(1, values[parameter] * gbps // 25)
    return values


def is_former_hpcc(values: Mapping[str, int]) -> bool:
    """Return whether parameters of DCQCN have the rates of `FORMER_HPCC`."""
    return _FORMER_HPCC_RATES.items() <= values.items()


# The largest path MTU of InfiniBand.
MOST_PAYLOAD_BYTES = 4096


# Ethernet, IPv4 and UDP headers, InfiniBand's transport header and CRC.
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
# The port that RoCEv2 is sent to.
UDP_PORT = 4791


def udp_source(flows: Ints) -> Ints:
    """Return the UDP source ports of flows, by which equal-cost paths tell them apart."""
    return 0xC000 | (flows * 0x9E37 & 0x3FFF)


Recovery = Literal["go-back-n", "selective-repeat"]
# What happens to events while a policy decides, by their numbers in datapath/roce.h.
Decisions = Literal["pipelined", "blocking", "serial"]
DECISIONS: tuple[Decisions, ...] = ("pipelined", "blocking", "serial")
# A window as large as the bytes that the longest path holds: Mittal et al., "Revisiting Network
# Support for RDMA", SIGCOMM 2018, section 3.2.
BDP_WINDOW = -1


@dataclass(frozen=True)
class RoceSpec:
    """The hosts' RoCE NICs. A window of 0 is none, `BDP_WINDOW` that of the longest path.

    `dcqcn` are parameters as (name, value), those of `DCQCN_SETS["mlx5"]` in place of any left out.
    A sender without progress for `timeout_ns` sends again what is not acknowledged. With
    `rtt_probe_interval_ns` above 0, a flow that sends probes its path that often.

    Another `control` than DCQCN has its parameters in `values`, the defaults of
    orchestration/core/congestion.py in place of any left out; those of a program, by their
    numbers. `program` is its file, and `telemetry` whether it asks for that.

    A change of a flow's rate or window takes effect `decision_latency_ns` after the event that it
    answers. Meanwhile further events are heard (`pipelined`), or those of the flow (`blocking`) or
    of all flows of the NIC (`serial`) are ignored: Fuhrer et al., HPSR 2023, tables I and II.
    """

    payload_bytes: int = 1024
    ack_every: int = 16
    window_bytes: int = 0
    timeout_ns: int = 16_000_000
    recovery: Recovery = "go-back-n"
    rtt_probe_interval_ns: int = 0
    dcqcn: tuple[tuple[str, int], ...] = ()
    control: str = "dcqcn"
    values: tuple[tuple[str, int], ...] = ()
    program: str = ""
    telemetry: bool = False
    decision_latency_ns: int = 0
    decisions: Decisions = "pipelined"

    def packets(self, size_bytes: int) -> int:
        """Return the packets of a message."""
        return max(1, -(-size_bytes // self.payload_bytes))

    @property
    def parameters(self) -> dict[str, int]:
        """Return every parameter of DCQCN, by name."""
        return {**_MLX5, **dict(self.dcqcn)}

    @property
    def control_values(self) -> dict[str, int]:
        """Return every parameter of another control, by name, in the order of its C source."""
        return {**defaults(self.control), **dict(self.values)}

    @property
    def telemetry_bytes(self) -> int:
        """What telemetry adds to each packet of data and each acknowledgement."""
        return TELEMETRY_BYTES if self.control == "hpcc" or self.telemetry else 0


_COMMENT = re.compile(r"#.*")
# The set's name as a value; the congestion control HPCC has the same.
_NAMED = re.compile(rf"(?<!congestion_control: )(?<![\w.-]){HPCC}(?![\w.-])")

FORMER_HPCC_TEXT = (
    f"the DCQCN set {FORMER_HPCC} (rpg_ai_rate 50, rpg_hai_rate 100, rpg_min_rate 100 Mbps), where "
    "HPCC's simulator has 5, 50 and 1000 at 25 Gbit/s"
)


def trained_under_former_hpcc(card: Mapping[str, object]) -> bool:
    """Return whether a network's card says that it was trained under what is `hpcc-0.2` now."""
    versions, scenario = card.get("versions"), card.get("scenario")
    if not isinstance(versions, Mapping) or not isinstance(scenario, str):
        return False
    if not _is_before_0_3(str(versions.get("closloop", ""))):
        return False
    text = _COMMENT.sub("", scenario)
    return "dcqcn" in text and _NAMED.search(text) is not None


def _is_before_0_3(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (0, 3)
