"""DCQCN parameters of NVIDIA (mlx5) NICs: names, units, ranges, and files per interface.

A NIC offers them through up to three interfaces: debugfs (the upstream kernel), sysfs (MLNX_OFED
and DOCA-OFED), and mlxconfig. Values of mlxconfig take effect at the next reset and are only read
here. This project uses the names of sysfs, which are those of mlxconfig in lower case.

Ranges: NVIDIA's "DCQCN CC Parameters" and mlxconfig's help; where neither has one, the width of the
register (linux/mlx5/mlx5_ifc.h). Defaults differ between firmware versions, so they are read.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_U32 = 2**32 - 1


class Parameter(NamedTuple):
    """One parameter. With `is_rate`, values above the line rate make no sense.

    `debugfs` and `sysfs` are file names, the latter below `ecn/`; "" where there is no such file.
    """

    name: str
    unit: str
    least: int
    most: int
    debugfs: str
    sysfs: str
    mlxconfig: str
    is_rate: bool = False


def _rp(name: str, unit: str, least: int, most: int, is_rate: bool = False) -> Parameter:
    """Return a parameter of the reaction point: `rpg_*` in sysfs, `rp_*` in debugfs."""
    short = name.removeprefix("rpg_").replace("_after_time_inc", "_ati")
    return Parameter(
        name, unit, least, most, f"rp_{short}", f"roce_rp/{name}", name.upper(), is_rate
    )


# Order of writing. cnp_prio_mode follows cnp_802p_prio because writing the latter clears it.
PARAMETERS = (
    _rp("clamp_tgt_rate", "0 or 1", 0, 1),
    _rp("clamp_tgt_rate_after_time_inc", "0 or 1", 0, 1),
    _rp("rpg_time_reset", "us", 1, 131_071),
    _rp("rpg_byte_reset", "bytes, 0 is off", 0, 32_767),
    _rp("rpg_threshold", "events", 0, 31),
    _rp("rpg_max_rate", "Mbps, 0 is line rate", 0, _U32, True),
    _rp("rpg_ai_rate", "Mbps", 1, _U32, True),
    _rp("rpg_hai_rate", "Mbps", 1, _U32, True),
    _rp("rpg_gd", "log2", 0, 15),
    _rp("rpg_min_dec_fac", "%", 1, 100),
    _rp("rpg_min_rate", "Mbps", 1, _U32, True),
    _rp("rate_to_set_on_first_cnp", "Mbps, 0 is line rate", 0, _U32, True),
    # weight of the old alpha: 1019 is the DCQCN paper's g of 5/1024
    _rp("dce_tcp_g", "/1024", 0, 1023),
    _rp("dce_tcp_rtt", "us", 1, 131_071),
    _rp("rate_reduce_monitor_period", "us", 1, _U32),
    _rp("initial_alpha_value", "/1024", 1, 1023),
    Parameter(
        "min_time_between_cnps",
        "us",
        0,
        _U32,
        "np_min_time_between_cnps",
        "roce_np/min_time_between_cnps",
        "MIN_TIME_BETWEEN_CNPS",
    ),
    Parameter("cnp_dscp", "DSCP", 0, 63, "np_cnp_dscp", "roce_np/cnp_dscp", "CNP_DSCP"),
    Parameter(
        "cnp_802p_prio", "priority", 0, 7, "np_cnp_prio", "roce_np/cnp_802p_prio", "CNP_802P_PRIO"
    ),
    Parameter("cnp_prio_mode", "0 or 1", 0, 1, "np_cnp_prio_mode", "", ""),
)
BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def places(parameter: Parameter, debugfs: str, ecn: str) -> list[tuple[str, str]]:
    """Return the possible places of a parameter as (interface, file), the preferred one first.

    `debugfs` is the NIC's folder `cc_params` in debugfs, `ecn` its folder `ecn` in sysfs.
    """
    found = [("debugfs", os.path.join(debugfs, parameter.debugfs))]
    if parameter.sysfs:
        side, name = parameter.sysfs.split("/")
        # some releases have a folder `params` in between
        found += [("sysfs", os.path.join(ecn, side, *level, name)) for level in ((), ("params",))]
    return found


def refusal(name: str, value: object, line_rate_mbps: int = -1) -> tuple[str, str]:
    """Return what is wrong with a value and the remedy, or two empty strings.

    A `line_rate_mbps` of -1 means unknown.
    """
    parameter = BY_NAME.get(name)
    if parameter is None:
        return f"no DCQCN parameter {name!r}", f"use one of {', '.join(BY_NAME)}"
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{name} is {value!r}, not a whole number", f"give it in {parameter.unit}"
    most = parameter.most
    if parameter.is_rate and line_rate_mbps > 0:
        most = line_rate_mbps
    if not parameter.least <= value <= most:
        return (
            f"{name} is {value}, out of range",
            f"use {parameter.least} to {most} ({parameter.unit})",
        )
    return "", ""
