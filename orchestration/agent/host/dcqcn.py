"""The files of DCQCN's parameters on NVIDIA (mlx5) NICs, by the upstream driver's names.

DCQCN is the congestion control that RoCE NICs run (Zhu et al., SIGCOMM 2015). The files are in
debugfs with the upstream kernel (drivers/infiniband/hw/mlx5/cong.c), and in sysfs with MLNX_OFED
and DOCA-OFED. Parameters of mlxconfig take effect only at the next reset, and are not used.
"""

from __future__ import annotations

import os
import re

from ..small_files import text

# Names of the reaction point in debugfs begin with rp_, and in sysfs some of them with rpg_.
_RP = (
    "clamp_tgt_rate", "clamp_tgt_rate_after_time_inc", "rpg_time_reset", "rpg_byte_reset",
    "rpg_threshold", "rpg_max_rate", "rpg_ai_rate", "rpg_hai_rate", "rpg_gd", "rpg_min_dec_fac",
    "rpg_min_rate", "rate_to_set_on_first_cnp", "dce_tcp_g", "dce_tcp_rtt",
    "rate_reduce_monitor_period", "initial_alpha_value",
)  # fmt: skip
# Names in sysfs, below the NIC's folder `ecn`, by names in debugfs.
SYSFS = {
    **{
        "rp_" + name.removeprefix("rpg_").replace("_after_time_inc", "_ati"): f"roce_rp/{name}"
        for name in _RP
    },
    "np_min_time_between_cnps": "roce_np/min_time_between_cnps",
    "np_cnp_dscp": "roce_np/cnp_dscp",
    "np_cnp_prio": "roce_np/cnp_802p_prio",
}


def parameter_files(name: str, debugfs: str, ecn: str) -> list[str]:
    """Return the possible files of a parameter, the preferred one first.

    `debugfs` is the NIC's folder `cc_params` in debugfs, `ecn` its folder `ecn` in sysfs.
    """
    files = [os.path.join(debugfs, name)]
    if name in SYSFS:
        folder, file = SYSFS[name].split("/")
        # some releases have a folder `params` in between
        files += [os.path.join(ecn, folder, *level, file) for level in ((), ("params",))]
    return files


def lockdown(root: str = "/") -> str:
    """Return the level of kernel lockdown, like `integrity`, "" if there is none.

    On many distributions, Secure Boot switches it on. At `integrity` and above, not even root can
    open writable files of debugfs (Linux, fs/debugfs/file.c, debugfs_locked_down;
    security/lockdown/lockdown.c).
    """
    level = re.search(r"\[(\w+)\]", text(os.path.join(root, "sys/kernel/security/lockdown")))
    return level[1] if level is not None and level[1] != "none" else ""
