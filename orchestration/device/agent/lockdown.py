"""Kernel lockdown, which Secure Boot switches on with many distributions.

At `integrity` and above, files of debugfs that can be written cannot be opened, not by root either
(Linux, fs/debugfs/file.c, debugfs_locked_down; security/lockdown/lockdown.c): a NIC's DCQCN
parameters are such files.
"""

from __future__ import annotations

import os
import re


def lockdown(root: str = "/") -> str:
    """Return the level of lockdown, like `integrity`, "" if there is none."""
    try:
        with open(os.path.join(root, "sys/kernel/security/lockdown")) as file:
            level = re.search(r"\[(\w+)\]", file.read(200))
    except OSError:
        return ""
    return level[1] if level is not None and level[1] != "none" else ""
