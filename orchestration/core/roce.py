"""The settings of a RoCE NIC: packets, acknowledgements, and the parameters of DCQCN.

The parameters have the names that NVIDIA's mlx5 NICs give them in MLNX_OFED and mlxconfig.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestration.core.congestion import (
    PROGRAM,
    TELEMETRY_BYTES,
    NicPolicy,
    congestion_control,
)
from orchestration.core.records import Ints


@dataclass(frozen=True)
class DcqcnParameter:
    """A parameter of DCQCN in mlx5 NICs; `minimum` and `maximum` are included."""

    default: int
    unit: str
    minimum: int
    maximum: int
    help: str


_U32 = 2**32 - 1
# The parameters of policy_dcqcn.c, in its order, and then that of the receiver. Defaults and bounds
# are those of NVIDIA's "DCQCN CC Parameters" (DOCA 3.4) and of mlxconfig's help. If neither has a
# bound, it is the width of the register (linux/mlx5/mlx5_ifc.h).
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
    "rpg_min_dec_fac": DcqcnParameter(
        50, "%", 1, 100, "smallest share of a rate that a cut leaves"
    ),
    "rpg_min_rate": DcqcnParameter(1, "Mbps", 1, _U32, "smallest rate of a flow"),
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
        4, "us", 0, _U32, "shortest time between two CNPs of a flow, which its receiver sends"
    ),
}
MLX5_DEFAULTS = {name: parameter.default for name, parameter in DCQCN_PARAMETERS.items()}
# This is the receiver's parameter; the others are those of the sender's congestion control.
CNP_INTERVAL = "min_time_between_cnps"
# Names of two sets of DCQCN's parameters (orchestration/datapath/policy_dcqcn.py): those of HPCC's
# simulator, and those that closloop 0.2 called `hpcc`. The older set has RATE_AI, RATE_HAI and
# MIN_RATE from the example in the simulator's mix/config_doc.txt instead of its run.py.
HPCC, FORMER_HPCC = "hpcc", "hpcc-0.2"
FORMER_HPCC_RATES = {"rpg_ai_rate": 50, "rpg_hai_rate": 100, "rpg_min_rate": 100}


def is_former_hpcc(values: Mapping[str, int]) -> bool:
    """Return whether parameters of DCQCN have the rates of `FORMER_HPCC`."""
    return FORMER_HPCC_RATES.items() <= values.items()


DCQCN = "dcqcn"
# The largest path MTU of InfiniBand.
MAX_PAYLOAD_BYTES = 4096


# Ethernet, IPv4 and UDP headers, InfiniBand's transport header and CRC.
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
# The port that RoCEv2 is sent to.
UDP_PORT = 4791


def udp_source(flows: Ints) -> Ints:
    """Return the UDP source port of each flow number; ECMP distinguishes flows by it."""
    return 0xC000 | (flows * 0x9E37 & 0x3FFF)


Recovery = Literal["go-back-n", "selective-repeat"]
# What happens to events while a policy decides, by their numbers in datapath/roce.h.
Decisions = Literal["pipelined", "blocking", "serial"]
DECISIONS: tuple[Decisions, ...] = ("pipelined", "blocking", "serial")
# A window of the bandwidth-delay product of the longest path: Mittal et al., "Revisiting Network
# Support for RDMA", SIGCOMM 2018, section 3.2.
BDP_WINDOW = -1


@dataclass(frozen=True)
class RoceSpec:
    """The settings of the hosts' RoCE NICs.

    A window of 0 means that there is none, `BDP_WINDOW` that it is the bandwidth-delay product of
    the longest path. A sender whose flow makes no progress for `timeout_ns` sends again what is not
    acknowledged. With `rtt_probe_interval_ns` above 0, a sending flow measures the round-trip time
    with probes at that interval.

    `dcqcn` has parameters of DCQCN as (name, value) pairs; mlx5's defaults apply to the others. For
    another congestion control, `control`, they are in `values`. A congestion control that is loaded
    into the NICs has the path of its file in `program`, and all parameters in `values`, in that
    file's order; a program without a declaration has numbers as their names. `telemetry` says
    whether it needs HPCC's telemetry in packets.

    A change of a flow's rate or window takes effect `decision_latency_ns` after the event that
    caused it. Meanwhile further events are handled (`pipelined`), or events of the same flow
    (`blocking`) or of all flows of the NIC (`serial`) are ignored: Fuhrer et al., HPSR 2023, tables
    I and II.
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
        """Return the number of packets of a message."""
        return max(1, -(-size_bytes // self.payload_bytes))

    @property
    def parameters(self) -> dict[str, int]:
        """All parameters of DCQCN, by name, with defaults for those that are not set."""
        return {**MLX5_DEFAULTS, **dict(self.dcqcn)}

    @property
    def control_values(self) -> dict[str, int]:
        """All parameters of the congestion control, by name, in the order of its C source."""
        given = dict(self.values)
        if self.program:
            return given
        if self.control == DCQCN:
            given = dict(self.dcqcn)
        return {
            name: given.get(name, default)
            for name, default in congestion_control(self.control).defaults.items()
        }

    def policy(self, base_rtt_ns: Callable[[], int]) -> NicPolicy:
        """Return the congestion control as NICs get it, on a testbed with this base RTT."""
        values = self.control_values
        if self.control == PROGRAM:
            return NicPolicy(tuple(values.values()))
        control = congestion_control(self.control)
        if control.base_rtt and not values[control.base_rtt]:
            values[control.base_rtt] = base_rtt_ns()
        return NicPolicy(
            tuple(values.values()), control.marks == "always", control.times_round_trips
        )

    @property
    def telemetry_bytes(self) -> int:
        """The size of telemetry in each data packet and each acknowledgement."""
        return TELEMETRY_BYTES if self.control == "hpcc" or self.telemetry else 0


_COMMENT = re.compile(r"#.*")
# Finds the name of the set in a scenario, but not the congestion control of the same name.
_NAMED = re.compile(rf"(?<!congestion_control: )(?<![\w.-]){HPCC}(?![\w.-])")

FORMER_HPCC_TEXT = (
    f"the DCQCN set {FORMER_HPCC} (rpg_ai_rate 50, rpg_hai_rate 100, rpg_min_rate 100 Mbps), where "
    "HPCC's simulator has 5, 50 and 1000 at 25 Gbit/s"
)


def trained_under_former_hpcc(card: Mapping[str, object]) -> bool:
    """Return whether a model card shows that its network was trained under `hpcc-0.2`.

    Cards of closloop before 0.3 call that set `hpcc`.
    """
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
