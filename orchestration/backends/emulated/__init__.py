"""The fabric as network namespaces in the virtual-time kernel, or in this machine's own kernel.

`engines` chooses between a kernel and closloop's packet engine (`process_backend`). On
the host, `fabric` turns a testbed into netlink requests and `backend` boots a guest with them.
In the guest, `guest` is the first process and `rig` is the fabric that the loop drives. Virtual
racks share `namespaces`, `system`, `host_kernel` and `forwarding`.
Must not import: orchestration.backends.fluid, orchestration.backends.hardware,
orchestration.backends.simulated.
"""

__all__ = [
    "backend",
    "bpf_programs",
    "engines",
    "fabric",
    "forwarding",
    "host_kernel",
    "job",
    "launcher",
    "memory",
    "namespaces",
    "process_backend",
    "process_fabric",
    "system",
]
