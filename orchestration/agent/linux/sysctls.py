"""The sysctls that runs may write: no other one is written or restored.

Three modules use this one list: `kernel` writes them, and `safety.state` records and restores them.
All other settings below `net/` stay as they are, whatever the controller requests: provisioning
sets `ip_forward` and `rp_filter`, and nothing sets a hardened one (`net/core/bpf_jit_harden`).
"""

from __future__ import annotations

import re

from ..main import OperationError

_NUMBER = re.compile(r"[0-9]{1,20}")
# A module's name in the kernel has at most 15 characters (TCP_CA_NAME_MAX, include/net/tcp.h).
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")

# By path below /proc/sys, with the pattern of texts that it may have.
RUN_SYSCTLS = {
    # hosts
    "net/core/txrehash": _NUMBER,
    "net/ipv4/tcp_congestion_control": _NAME,
    "net/ipv4/tcp_early_retrans": _NUMBER,
    "net/ipv4/tcp_ecn": _NUMBER,
    "net/ipv4/tcp_limit_output_bytes": _NUMBER,
    "net/ipv4/tcp_max_reordering": _NUMBER,
    "net/ipv4/tcp_max_tw_buckets": _NUMBER,
    "net/ipv4/tcp_no_metrics_save": _NUMBER,
    "net/ipv4/tcp_reordering": _NUMBER,
    "net/ipv4/tcp_rto_min_us": _NUMBER,
    "net/ipv4/tcp_sack": _NUMBER,
    # switches
    "net/ipv4/conf/all/ignore_routes_with_linkdown": _NUMBER,
    "net/ipv4/fib_multipath_hash_fields": _NUMBER,
    "net/ipv4/fib_multipath_hash_policy": _NUMBER,
    "net/ipv4/fib_multipath_hash_seed": _NUMBER,
    "net/ipv4/ip_early_demux": _NUMBER,
}

# Snapshots of closloop 0.2.0 have it, too. It is then compared, but not restored.
_ONLY_COMPARED = ("net/ipv4/ip_forward",)


def sysctl_path(name: str) -> str:
    """Return the file of a setting of `RUN_SYSCTLS`. Raises OperationError for any other."""
    if name not in RUN_SYSCTLS:
        raise OperationError(
            f"{name!r} is not a setting that runs may write",
            "a setting that a trial writes must be listed in orchestration/agent/linux/sysctls.py",
        )
    return "/proc/sys/" + name


def may_be_restored(name: str, value: object) -> bool:
    """Return whether runs may write this setting, and whether it may have this value."""
    pattern = RUN_SYSCTLS.get(name)
    return pattern is not None and isinstance(value, str) and bool(pattern.fullmatch(value))


def read_sysctl(name: str) -> str | None:
    """Return a setting's text; None if the kernel lacks it, or snapshots do not have it."""
    if name not in RUN_SYSCTLS and name not in _ONLY_COMPARED:
        return None
    try:
        with open("/proc/sys/" + name) as file:
            return file.read().strip()
    except OSError:
        return None
