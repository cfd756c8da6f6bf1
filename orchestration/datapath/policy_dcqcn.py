"""DCQCN as in NVIDIA's mlx5 NICs (Zhu et al., SIGCOMM 2015).

Its parameters are those of the knob `dcqcn`, without the receiver's interval between CNPs. A
campaign chooses a set of values by name, and may change single parameters of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter
from orchestration.core.roce import (
    CNP_INTERVAL,
    DCQCN_PARAMETERS,
    FORMER_HPCC,
    FORMER_HPCC_RATES,
    HPCC,
    MLX5_DEFAULTS,
)

DCQCN = CongestionControl(
    Path(__file__).with_suffix(".c"),
    {
        name: Parameter("count", p.default, p.minimum, p.maximum, f"{p.help} ({p.unit})")
        for name, p in DCQCN_PARAMETERS.items()
        if name != CNP_INTERVAL
    },
    marks="always",
    compiled_in=True,
)

# Sets of parameters, by name, for NICs of 25 Gbit/s; `dcqcn_set` computes those for other rates.
# Some values of papers are outside the range of mlx5 NICs.
_HPCC_AT_25G = {
    **MLX5_DEFAULTS,
    "rpg_byte_reset": 0,
    "rpg_ai_rate": 5,
    "rpg_hai_rate": 50,
    "rpg_min_rate": 1000,
    "dce_tcp_g": 1020,
    "min_time_between_cnps": 0,
}
DCQCN_SETS: Mapping[str, Mapping[str, int]] = {
    "mlx5": MLX5_DEFAULTS,
    # Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015: sections 5.1
    # and 5.2, with g = 1/256 and F = 5
    "paper": {
        **MLX5_DEFAULTS,
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
    # NICs of bw Gbit/s: RATE_AI 5 * bw / 25, RATE_HAI 50 * bw / 25 and MIN_RATE 1000 Mb/s. In that
    # simulator each acknowledgement echoes the mark, and rates do not increase by bytes sent.
    HPCC: _HPCC_AT_25G,
    FORMER_HPCC: {**_HPCC_AT_25G, **FORMER_HPCC_RATES},
}
# The parameters of a set that are proportional to the rate of the NICs.
RATE_PARAMETERS: Mapping[str, tuple[str, ...]] = {HPCC: ("rpg_ai_rate", "rpg_hai_rate")}


def dcqcn_set(name: str, nic_bps: int) -> dict[str, int]:
    """Return the parameters of a set for NICs of `nic_bps`. Raises KeyError for an unknown set.

    As in run.py, the NICs' rate is rounded down to whole Gbit/s and the results to whole Mb/s, each
    to at least 1.
    """
    values, gbps = dict(DCQCN_SETS[name]), max(1, nic_bps // 10**9)
    for parameter in RATE_PARAMETERS.get(name, ()):
        values[parameter] = max(1, values[parameter] * gbps // 25)
    return values
