"""The virtual-time kernel, user-mode Linux with `time-travel`: built, found, checked and booted.

Must not import: orchestration.backends, orchestration.campaign, orchestration.run.
"""

from orchestration.kernel.boot import guest_argv, launch, memory_dir
from orchestration.kernel.cache import Kernel, find_kernel, require_kernel
from orchestration.kernel.first_use import kernel_for, kernel_to_build

__all__ = [
    "Kernel",
    "boot",
    "build",
    "cache",
    "find_kernel",
    "guest_argv",
    "kernel_for",
    "kernel_to_build",
    "launch",
    "memory_dir",
    "require_kernel",
    "wheel",
]
