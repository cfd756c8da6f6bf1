"""BPF on a device: object files are read, programs loaded and attached, and their maps read.

`load` makes the bpf system call, `elf` reads object files, `btf` finds the kernel's structures,
`congestion`, `cgroup` and `tcx` attach programs.
Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = ["btf", "cgroup", "congestion", "elf", "load", "tcx"]
