"""The virtual-time kernel, user-mode Linux with `time-travel`: built, found, checked and booted.

Must not import: orchestration.backends, orchestration.campaign, orchestration.run.
"""

from orchestration.kernel.boot import guest_argv, launch, memory_dir
from orchestration.kernel.cache import Kernel, find_kernel, require_kernel

__all__ = [
    "Kernel",
    "boot",
    "build",
    "cache",
    "find_kernel",
    "first_use",
    "guest_argv",
    "launch",
    "memory_dir",
    "require_kernel",
    "wheel",
]
