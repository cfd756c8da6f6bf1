"""A Linux device's own kernel: netlink, queueing disciplines, sysctls, ethtool, routes.

Everything here is written against the standard library, since it also runs on switches.
Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = [
    "ethtool",
    "fib",
    "genetlink",
    "kernel",
    "netlink",
    "qdisc_counters",
    "qdiscs",
    "sysctls",
    "vrf",
]
