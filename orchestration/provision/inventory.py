"""The inventory that Ansible runs on: pure, from a rack and its desired state."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inventory.rack import Access, Rack

# Groups, and the playbook of each.
LINUX_SWITCHES, SONIC_SWITCHES = "linux_switches", "sonic_switches"
ROCE_HOSTS, PLAIN_HOSTS, COLLECTOR = "roce_hosts", "plain_hosts", "collector"
PLAYBOOKS = {
    LINUX_SWITCHES: "linux_switch",
    SONIC_SWITCHES: "sonic_switch",
    ROCE_HOSTS: "roce_host",
    PLAIN_HOSTS: "plain_host",
    COLLECTOR: "collector",
}


def playbook_inventory(rack: Rack, desired: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an Ansible inventory with each device in its playbook's group.

    A device's `closloop_kind` names its playbook; `closloop_desired` is its desired state. There
    are no secrets in it.
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
    """Return the group of a device of the testbed."""
    access = rack.access[device]
    if rack.testbed.device[device].kind == "switch":
        return SONIC_SWITCHES if access.platform == "sonic" else LINUX_SWITCHES
    return ROCE_HOSTS if access.nic == "roce" else PLAIN_HOSTS


def login(access: Access, known_hosts_file: str) -> dict[str, Any]:
    """Return a device's variables for logging in. Host keys are verified, never accepted unseen."""
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
    if access.key_file:
        key_file = Path(access.key_file).expanduser().absolute()
        variables["ansible_ssh_private_key_file"] = str(key_file)
    return variables
