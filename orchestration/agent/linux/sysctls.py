"""The kernel settings that runs write: no other one is written or restored.

The one list for the side that writes them (`kernel`), that has them in its snapshot (`state`), and
that puts them back. Whatever else is below `net/` stays as it is, whoever asks: `ip_forward` and
`rp_filter` are provisioning's, and a hardened setting (`net/core/bpf_jit_harden`) is nobody's.
"""

from __future__ import annotations

import re

from ..main import OperationError

_NUMBER = re.compile(r"[0-9]{1,20}")
# A module's name in the kernel has at most 15 characters (TCP_CA_NAME_MAX, include/net/tcp.h).
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")

# By path below /proc/sys, with what the text may be.
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

# The snapshots of closloop 0.2.0 have it too: it is compared then.
_ONLY_COMPARED = ("net/ipv4/ip_forward",)


def sysctl_path(name: str) -> str:
    """Return where a setting of `RUN_SYSCTLS` is. Raises OperationError for any other."""
    if name not in RUN_SYSCTLS:
        raise OperationError(
            f"{name!r} is no setting that runs write",
            "a setting that a trial writes must be listed in orchestration/agent/linux/sysctls.py",
        )
    return "/proc/sys/" + name


def may_be_restored(name: str, value: object) -> bool:
    """Return whether this is a setting that runs write, and a text that it may have."""
    pattern = RUN_SYSCTLS.get(name)
    return pattern is not None and isinstance(value, str) and bool(pattern.fullmatch(value))


def read_sysctl(name: str) -> str | None:
    """Return a setting's text; None if there is none, or it is not one that snapshots have."""
    if name not in RUN_SYSCTLS and name not in _ONLY_COMPARED:
        return None
    try:
        with open("/proc/sys/" + name) as file:
            return file.read().strip()
    except OSError:
        return None
