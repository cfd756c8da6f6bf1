"""Computes Ansible's input from a rack: each device's desired state, and the inventory. Pure.

The fabric is that of the emulated backend (`emulated/fabric.py`), on links of the rack, which have
their own delay. The addresses are `Rack.addresses`. The queueing disciplines are:

    host NIC, shaped     tbf (line rate) > fq (round robin between flows)
    switch port          [tbf (line rate) >] red, or with traffic classes [tbf >] ets > reds

A kernel that lacks fq or RED gets a plain queue (bfifo) instead.

Hosts get routes only to the fabric's prefixes: a default route belongs to their management network.
A SONiC switch keeps its own ports and routes; only the tables in
`orchestration.backends.hardware.sonic.config` are set there.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.rack import ECT_0, ROCE_DSCP, SONIC_QUEUE, Access, Rack, shapers_late_ns
from inventory.routing import next_hops
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.backends.common.linux import (
    host_queues,
    host_sysctls,
    switch_queues,
    switch_sysctls,
)
from orchestration.backends.hardware.sonic.config import LOSSLESS
from orchestration.core.errors import InputError
from orchestration.core.trial import HostSpec

# The salt of the ECMP hashes in a trial with seed 1, the first one of a campaign.
_ECMP_SEED = 1
# The first routing table for hosts with several NICs, one for each NIC: by rules, packets leave by
# the NIC of their source address.
FIRST_NIC_TABLE = 4101

# Groups of the playbooks' inventory, and the playbook of each.
LINUX_SWITCHES, SONIC_SWITCHES = "linux_switches", "sonic_switches"
ROCE_HOSTS, PLAIN_HOSTS, COLLECTOR = "roce_hosts", "plain_hosts", "collector"
PLAYBOOKS = {
    LINUX_SWITCHES: "linux_switch",
    SONIC_SWITCHES: "sonic_switch",
    ROCE_HOSTS: "roce_host",
    PLAIN_HOSTS: "plain_host",
    COLLECTOR: "collector",
}


@dataclass(frozen=True)
class RoceSettings:
    """The settings of RoCE hosts.

    RoCE packets carry `dscp` and have the priority `priority`, which PFC protects. `dcqcn` are
    parameters by the NIC driver's names (`rp_ai_rate`, `np_min_time_between_cnps`, …); parameters
    not given stay unchanged. `governor` is the CPU's, "" to leave it unchanged.
    """

    dscp: int = ROCE_DSCP
    priority: int = SONIC_QUEUE
    dcqcn: Mapping[str, int] = field(default_factory=dict)
    governor: str = "performance"


def desired_state(
    rack: Rack, host: HostSpec | None = None, roce: RoceSettings | None = None
) -> dict[str, dict[str, Any]]:
    """Return each device's desired state, the value of its variable `closloop_desired`.

    A state has the arguments of the Ansible modules, by the ends of their names: `network`, `roce`,
    `sonic`. Raises InputError for a device whose management address lies in the fabric's prefixes,
    or whose number of interfaces differs from its number of ports in the testbed.
    """
    _check(rack)
    host, roce = host or HostSpec(), roce or RoceSettings()
    result: dict[str, dict[str, Any]] = {}
    for number, device in enumerate(rack.testbed.devices):
        access = rack.access[device.name]
        if desired := access.system.desired:
            result[device.name] = {"sonic": desired(rack, device.name)}
            continue
        if device.kind == "switch":
            result[device.name] = {"network": switch_network(rack, device.name, number)}
            continue
        state: dict[str, Any] = {"network": host_network(rack, device.name, host)}
        if access.nic == "roce":
            state["roce"] = roce_state(rack, device.name, roce)
        result[device.name] = state
    return result


def switch_network(rack: Rack, name: str, number: int) -> dict[str, Any]:
    """Return a Linux switch's interfaces, routes and sysctls; `number` is its index in the testbed.

    Offloads are off, so that every packet gets its own marking decision.
    """
    testbed, access = rack.testbed, rack.access[name]
    names = [rack.interface(port) for port in testbed.ports_of[name]]
    return {
        "sysctls": {
            **switch_sysctls(_ECMP_SEED, number),
            **_unnumbered_sysctls(names),
        },
        "interfaces": [
            {
                "name": rack.interface(port),
                "mtu": testbed.mtu_bytes,
                "offloads_off": True,
                "queues": switch_queues(
                    testbed,
                    port,
                    shape=access.shape,
                    lacks=access.lacks,
                    late_ns=shapers_late_ns(rack.scale),
                ),
            }
            for port in testbed.ports_of[name]
        ],
        "loopback": [f"{rack.addresses.routers[name]}/32"],
        "fabric": str(rack.addresses.prefix),
        "routes": _switch_routes(rack, name),
    }


def host_network(rack: Rack, name: str, host: HostSpec) -> dict[str, Any]:
    """Return a host's interfaces, addresses, routes, rules and sysctls, as `host` asks for them."""
    testbed, access = rack.testbed, rack.access[name]
    addresses, routers = rack.addresses.nics, rack.addresses.routers
    ports = testbed.ports_of[name]
    interfaces: list[dict[str, Any]] = []
    routes: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    prefixes = rack.addresses.blocks.values()
    for index, port in enumerate(ports):
        interface: dict[str, Any] = {
            "name": rack.interface(port),
            "mtu": testbed.mtu_bytes,
            "addresses": [f"{addresses[port.index]}/32"],
        }
        if access.shape:
            interface["offloads_off"] = True
            late_ns = shapers_late_ns(rack.scale)
            interface["queues"] = host_queues(testbed, port, access.lacks, late_ns)
        interfaces.append(interface)
        leaf = testbed.peer_device(port).name
        via = [[routers[leaf], rack.interface(port), 1]]
        route = {"via": via, "source": addresses[port.index]}
        if index == 0:
            routes += [{"to": prefix, **route} for prefix in prefixes]
        if len(ports) > 1:
            table = FIRST_NIC_TABLE + index
            routes += [{"to": prefix, "table": table, **route} for prefix in prefixes]
            rules.append({"from": f"{addresses[port.index]}/32", "priority": table, "table": table})
    names = [rack.interface(port) for port in ports]
    controls = [host.congestion_control, *(klass.congestion_control for klass in testbed.classes)]
    sysctls = {**host_sysctls(host, access.lacks), **_unnumbered_sysctls(names)}
    if host.congestion_control in access.lacks:
        del sysctls["net/ipv4/tcp_congestion_control"]
    return {
        "sysctls": sysctls,
        "congestion_controls": list(
            dict.fromkeys(name for name in controls if name and name not in access.lacks)
        ),
        "interfaces": interfaces,
        "fabric": str(rack.addresses.prefix),
        "routes": routes,
        "rules": rules,
    }


def roce_state(rack: Rack, name: str, settings: RoceSettings) -> dict[str, Any]:
    """Return the settings of a RoCE host for the module closloop_roce.

    A traffic class's packets get the priority of the class's queue at the switch, if that queue is
    lossless, since that is the priority that the switch pauses.
    """
    access, port = rack.access[name], rack.testbed.ports_of[name][0]
    queues = rack.access[rack.testbed.peer_device(port).name].queues
    priorities = {settings.dscp: settings.priority}
    if rack.testbed.classes:
        queues_by_tos = zip(CLASS_TOS, queues, strict=False)
        priorities |= {tos >> 2: queue for tos, queue in queues_by_tos if queue in LOSSLESS}
    return {
        "interfaces": list(access.interfaces),
        "rdma_devices": list(dict.fromkeys(access.rdma_devices)),
        "trust": "dscp",
        "priorities": {str(dscp): priority for dscp, priority in priorities.items()},
        "type_of_service": settings.dscp << 2 | ECT_0,
        "dcqcn": dict(settings.dcqcn),
        "memlock": "unlimited",
        "governor": settings.governor,
    }


def _switch_routes(rack: Rack, name: str) -> list[dict[str, Any]]:
    """Return routes to other leaves' prefixes over all shortest paths, and to its own hosts."""
    testbed = rack.testbed
    addresses, routers = rack.addresses.nics, rack.addresses.routers
    hops = next_hops(testbed)[name]
    result: list[dict[str, Any]] = []
    for target, block in rack.addresses.blocks.items():
        if ports := hops.get(target, ()):
            peers = ((testbed.peer_device(port).name, rack.interface(port)) for port in ports)
            via = [[routers[peer], interface, 1] for peer, interface in peers]
            result.append({"to": block, "via": via})
    for port in testbed.ports_of[name]:
        if port.peer in addresses:
            via = [["", rack.interface(port), 1]]
            result.append({"to": f"{addresses[port.peer]}/32", "via": via})
    return result


def _unnumbered_sysctls(interfaces: list[str]) -> dict[str, str]:
    """Return sysctls for unnumbered links: no reverse-path filter, ARP for all own addresses."""
    names = ["all", *interfaces]
    return {
        **{f"net/ipv4/conf/{name}/rp_filter": "0" for name in names},
        **{f"net/ipv4/conf/{name}/arp_ignore": "0" for name in names},
    }


def _check(rack: Rack) -> None:
    prefix = rack.addresses.prefix
    for device in rack.testbed.devices:
        access = rack.access[device.name]
        ports = len(rack.testbed.ports_of[device.name])
        if len(access.interfaces) != ports:
            raise InputError.single(
                f"{rack.name}: {device.name}",
                f"{len(access.interfaces)} interfaces for {ports} ports of the testbed",
                "list them all in closloop_links, in the testbed's order",
            )
        try:
            address = ipaddress.ip_address(access.address)
        except ValueError:
            continue
        if address in prefix:
            raise InputError.single(
                f"{rack.name}: {device.name}",
                f"its address {address} lies in the fabric's prefix {prefix}: routes to the "
                "fabric would cut off the controller",
                "give the fabric another network: closloop_fabric_prefix in the inventory",
            )


def playbook_inventory(rack: Rack, desired: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an Ansible inventory with each device in its playbook's group.

    A device's `closloop_kind` names its playbook; `closloop_desired` is its desired state. The
    inventory contains no secrets.
    """
    groups: dict[str, dict[str, Any]] = {name: {"hosts": {}} for name in PLAYBOOKS}
    for device in rack.testbed.devices:
        access = rack.access[device.name]
        variables = login(access, rack.known_hosts_file)
        variables["closloop_desired"] = dict(desired[device.name])
        variables["closloop_kind"] = PLAYBOOKS[group_of(rack, device.name)]
        groups[group_of(rack, device.name)]["hosts"][device.name] = variables
    if rack.collector is not None:
        variables = login(rack.collector, rack.known_hosts_file)
        variables["closloop_kind"] = PLAYBOOKS[COLLECTOR]
        groups[COLLECTOR]["hosts"][rack.collector.device] = variables
    return {"all": {"children": groups}}


def group_of(rack: Rack, device: str) -> str:
    """Return the name of the playbooks' group that a device of the testbed belongs to."""
    access = rack.access[device]
    if rack.testbed.device[device].kind == "switch":
        return LINUX_SWITCHES if access.is_linux else SONIC_SWITCHES
    return ROCE_HOSTS if access.nic == "roce" else PLAIN_HOSTS


def login(access: Access, known_hosts_file: str) -> dict[str, Any]:
    """Return a device's Ansible variables for logging in. Unknown host keys are never accepted."""
    files = [str(Path("~/.ssh/known_hosts").expanduser())]
    if known_hosts_file:
        files.append(str(Path(known_hosts_file).expanduser().absolute()))
    known = " ".join(f'"{file}"' for file in files)
    options = ["-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no"]
    options += ["-o", f"UserKnownHostsFile={known}"]
    variables: dict[str, Any] = {
        "ansible_host": access.address,
        "ansible_port": access.port,
        "ansible_user": access.user,
        "ansible_become": access.become,
        "ansible_ssh_common_args": " ".join(shlex.quote(option) for option in options),
    }
    if access.python != Access.python:
        variables["ansible_python_interpreter"] = access.python
    if access.key_file:
        key_file = Path(access.key_file).expanduser().absolute()
        variables["ansible_ssh_private_key_file"] = str(key_file)
    return variables
