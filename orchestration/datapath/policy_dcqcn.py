"""DCQCN: Zhu et al., SIGCOMM 2015, as mlx5 NICs have it.

Its parameters are those of the knob `dcqcn`, without the receiver's interval between CNPs. A
campaign chooses a set of them by name, and any of them beside it.
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
        name: Parameter("count", one.default, one.minimum, one.maximum, f"{one.help} ({one.unit})")
        for name, one in DCQCN_PARAMETERS.items()
        if name != CNP_INTERVAL
    },
    marks="always",
    compiled_in=True,
)

# Sets of parameters for NICs of 25 Gbit/s, by name; `dcqcn_set` has those for other rates. Some
# values of papers are outside the range of mlx5 NICs.
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
    # NICs of bw Gbit/s, RATE_AI 5 * bw / 25, RATE_HAI 50 * bw / 25 and MIN_RATE 1000 Mb/s. There a
    # mark comes back with each acknowledgement, and no bytes are counted.
    HPCC: _HPCC_AT_25G,
    FORMER_HPCC: {**_HPCC_AT_25G, **FORMER_HPCC_RATES},
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
