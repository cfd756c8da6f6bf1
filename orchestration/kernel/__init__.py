"""The virtual-time kernel, user-mode Linux with `time-travel`: build, find, check and boot it."""

from orchestration.kernel.boot import guest_argv, launch, memory_dir
from orchestration.kernel.cache import Kernel, find_kernel, require_kernel

__all__ = ["Kernel", "find_kernel", "guest_argv", "launch", "memory_dir", "require_kernel"]
