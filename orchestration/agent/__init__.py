"""All that runs on a device: sent over SSH as one program, gone with the connection.

It needs Python 3.9, which SONiC has since 202111, its first release on Debian 11; older hosts have
one beside their own (docs/hardware.md). All imports are relative, since Ansible's modules have this
package under another name; of `orchestration.core` it takes the two modules of `FROM_CORE`. `main`
is the program, `safety` leaves devices as they were, `host`, `linux_switch` and `sonic` are what
each kind of device does, `senders` send traffic, `policies` are congestion controls of hosts and
NICs, `linux` and `bpf` speak to the kernel. `orchestration.device` starts it and asks it.
Must not import: numpy, pyroute2, typer, orchestration.device, orchestration.backends.
"""

__all__ = [
    "FROM_CORE",
    "OLDEST_PYTHON",
    "SERVICES",
    "bpf",
    "linux",
    "linux_switch",
    "main",
    "safety",
    "senders",
    "sonic",
]

# Services by the name that the controller asks for: modules with a function `operations(agent)`.
SERVICES = {
    "control": "host.dctcp",
    "deadman": "safety.deadman",
    "flowtable": "linux_switch.flow_table",
    "incast": "senders.frames",
    "kernel": "linux.kernel",
    "lease": "safety.lease",
    "markq": "linux_switch.marks",
    "nic": "host.rdma",
    "paths": "linux_switch.paths",
    "policy": "policies.policy",
    "programs": "senders.programs",
    "reach": "reach",
    "redq": "linux_switch.red",
    "sender": "senders.driver_process",
    "sonic": "sonic.counters",
    "state": "safety.state",
    "survey": "survey",
}
FROM_CORE = ("files", "status")
OLDEST_PYTHON = (3, 9)
