"""A commented inventory for a testbed, to be edited: addresses and interfaces are placeholders."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from inventory.ansible_schema import COLLECTOR, GROUPS
from inventory.ansible_text import inventory_text
from inventory.rack import Access, Rack
from inventory.topology import Testbed

# Networks that no device has, for documentation (RFC 5737).
_EXAMPLES = tuple(map(ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
_PER_NETWORK = 254

_HEAD = """\
An Ansible inventory of a rack wired as testbed {name}. Before you use it:
  1. Replace every ansible_host: 192.0.2.x, 198.51.100.x and 203.0.113.x are placeholders.
  2. Replace the names of interfaces, eth0 and so on, by those of the devices' operating systems,
     at both ends of each link. Keep the order of each device's links: it is the testbed's.
  3. Say who logs in (ansible_user) and with which key. No passwords here: --ask-pass and
     --ask-become-pass ask for them. Host keys must be known: ssh to each device once.
  4. closloop inventory check FILE
All variables: docs/inventory.md. Any other variable is left to your own playbooks."""

_COMMENTS = {
    "closloop_testbed": "A testbed of `closloop inventory list`, or the path of a testbed file.",
    "ansible_user": """\
For all devices; a device or group may have its own. With sudo instead of root:
  ansible_user: admin
  ansible_become: true
  ansible_ssh_private_key_file: ~/.ssh/rack""",
    "hosts": """\
Hosts with RoCE NICs, which must have an RDMA device (`rdma link`), also say:
  closloop_nic: roce
  closloop_rdma_device: mlx5_0""",
    "leaves": """\
Switches. One that runs SONiC also says:
  closloop_platform: sonic
  closloop_queues: [3]     # the queue of each traffic class
One whose links have no rate of their own (virtual ones) is shaped with closloop_shape: true.""",
    COLLECTOR: "The machine for InfluxDB and Grafana. Remove the group if there is none.",
}


def skeleton(testbed: Testbed, named: str = "") -> str:
    """Return the text of an inventory for `testbed`, which closloop_testbed calls `named`."""
    access = {}
    for number, device in enumerate(testbed.devices):
        ports = testbed.ports_of[device.name]
        access[device.name] = Access(
            device.name, _example(number), interfaces=tuple(port.name for port in ports)
        )
    collector = Access("collector1", _example(len(access)))
    comments = {**_COMMENTS, "": _HEAD.format(name=testbed.name)}
    lowest = next((GROUPS[d.tier] for d in testbed.devices if d.kind == "switch"), "leaves")
    comments[lowest] = _COMMENTS["leaves"]
    return inventory_text(Rack(testbed.name, testbed, access, collector), named, comments)


def is_example(address: str) -> bool:
    """Tell whether an address is one of those that a skeleton has in place of the real ones."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in _EXAMPLES)


def _example(number: int) -> str:
    network = _EXAMPLES[number // _PER_NETWORK % len(_EXAMPLES)]
    return str(network[number % _PER_NETWORK + 1])
