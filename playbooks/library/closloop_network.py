#!/usr/bin/python
"""Ansible module: brings the network of a Linux device into a desired state, with undo."""

from __future__ import annotations

import contextlib
import ipaddress
import os

from ansible.module_utils.agent.linux import ethtool
from ansible.module_utils.agent.linux.fib import overlapping_routes
from ansible.module_utils.agent.linux.netlink import RouteSocket
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop import queues, routes
from ansible.module_utils.closloop.reconcile import ARGUMENTS, Device, Refused, run
from ansible.module_utils.closloop.sysctls import ALLOWED, Sysctls

DOCUMENTATION = r"""
module: closloop_network
short_description: Brings addresses, routes, queueing disciplines and sysctls into one state
description:
  - Sets interfaces (MTU, up, offloads, queueing disciplines), addresses, routes, rules and sysctls
    of a Linux device over netlink, and reports a change only where something differed.
  - Before the first change the former values are saved in C(/var/lib/closloop/provision); O(state)
    C(absent) restores them and removes the file.
  - RED is set up to mark by the instantaneous queue length, which the tc tool cannot configure.
options:
  desired:
    description: The state, as C(orchestration/provision/desired.py) computes it.
    type: dict
extends_documentation_fragment: closloop
author: closloop
"""

EXAMPLES = r"""
- name: Prepare the switch
  closloop_network:
    desired:
      sysctls: {net/ipv4/ip_forward: "1"}
      interfaces:
        - name: eth0
          mtu: 1500
          offloads_off: true
          addresses: [198.18.1.1/32]
          queues:
            shaper: {rate_bps: 25000000000, bucket_bytes: 1614, framing_bytes: 24}
            reds: [{kmin_bytes: 20000, kmax_bytes: 80000, max_p: 42949672, limit_bytes: 1000000}]
      fabric: 198.18.0.0/15
      routes:
        - {to: 198.18.2.0/24, via: [[198.18.0.1, eth0, 1]]}
"""

RETURN = r"""
lease:
  description: The lease that is left to the next module; empty if it was given back.
  type: str
  returned: success
skipped_steps:
  description: Steps left out because the device does not offer them, each with its reason.
  type: list
  returned: success
"""

# The order of changes; removals come first, in the opposite order. Interfaces are brought up before
# the settings that need them up.
_ORDER = ("sysctl", "mtu", "offloads", "up", "queues", "address", "route", "rule")
_LINK_KINDS = ("mtu", "up", "offloads", "queues")
_LOOPBACK = "lo"


class Network(Device):
    """The network settings.

    A key is a kind (see `_ORDER`), a blank, and the key within that kind.
    """

    name = "network"

    def __init__(self, controller: str) -> None:
        super().__init__()
        self._controller = controller
        self._sysctls = Sysctls()
        self._route = RouteSocket()
        self._links = routes.Links(self._route)
        self._routing = routes.Routing(self._route, self._links)
        self._queues = queues.Queues(self._route)
        self._fabric = ""
        self._own_networks: set = set()
        # functions by kind: one returns all values by the rest of their keys, and one sets a value
        self._tables = {
            "queues": self._all_queues,
            "address": self._routing.addresses,
            "route": self._routing.routes,
            "rule": self._routing.rules,
        }
        self._setters = {
            "sysctl": self._sysctls.apply,
            "mtu": self._links.set_mtu,
            "up": self._links.set_up,
            "offloads": routes.set_offloads,
            "address": self._routing.set_address,
            "route": self._routing.set_route,
            "rule": self._routing.set_rule,
        }

    def desired_values(self, desired: dict) -> dict:
        """Return the desired values by key."""
        result: dict = {}
        self._fabric = desired.get("fabric", "")
        self._own_networks = {entry["to"] for entry in desired.get("routes", [])}
        for path, value in desired.get("sysctls", {}).items():
            if self._sysctls.exists(path):
                result["sysctl " + path] = str(value)
            else:
                name = path.replace("/", ".")
                self.skip(f"sysctl {name} = {value}", "this device's kernel has no such setting")
        controls = desired.get("congestion_controls", [])
        if controls and self._sysctls.writable(ALLOWED):
            result["sysctl " + ALLOWED] = controls
        elif not self._sysctls.is_same(self._sysctls.read(ALLOWED), controls):
            self.skip(
                "allow all users " + " ".join(controls),
                "only the machine's first network namespace can set this",
            )
        for interface in desired.get("interfaces", []):
            name = interface["name"]
            self._links.require(name)
            result["mtu " + name] = int(interface["mtu"])
            result["up " + name] = True
            if interface.get("offloads_off"):
                result["offloads " + name] = {"on": []}
            if interface.get("queues"):
                result["queues " + name] = interface["queues"]
            for address in interface.get("addresses", []):
                result[f"address {name} {address}"] = {}
        for address in desired.get("loopback", []):
            result["up " + _LOOPBACK] = True
            result[f"address {_LOOPBACK} {address}"] = {}
        for entry in desired.get("routes", []):
            key = f"route {entry.get('table', routes.MAIN)} {entry['to']} 0"
            result[key] = {"via": entry["via"], "source": entry.get("source", "")}
        for entry in desired.get("rules", []):
            priority, table = entry["priority"], entry["table"]
            result[f"rule {priority} {entry['from']} {table}"] = {}
        return result

    def read(self, keys: list) -> dict:
        """Return the present values of `keys`."""
        self._links.refresh()
        kinds = {key.partition(" ")[0] for key in keys}
        tables = {kind: table() for kind, table in self._tables.items() if kind in kinds}
        return {key: self._present_value(key, tables) for key in keys}

    def _all_queues(self) -> dict:
        by_index = self._queues.read()
        return {name: by_index.get(index, []) for name, index in self._links.index.items()}

    def _present_value(self, key: str, tables: dict) -> object:
        kind, _, rest = key.partition(" ")
        if kind == "sysctl":
            return self._sysctls.read(rest)
        if kind == "mtu":
            return self._links.mtu.get(rest)
        if kind == "up":
            return self._links.up.get(rest)
        if kind == "offloads":
            if rest not in self._links.index:
                return None
            return {"on": ethtool.offloads_on(rest), "features": ethtool.features(rest)}
        return tables[kind].get(rest)

    def undo_target(self, key: str, saved: object, present: object) -> object:
        """Return the saved value; a setting that was lost with its interface is a skipped step."""
        kind, _, rest = key.partition(" ")
        interface = rest.split(" ")[0] if kind in (*_LINK_KINDS, "address") else ""
        if kind == "sysctl" and present is None and saved is not None:
            self.skip(f"undo of {key}", "the kernel no longer has such a setting")
        elif interface and interface not in self._links.index:
            self.skip(f"undo of {key}", f"{interface} no longer exists, or has another name")
        return saved

    def is_same(self, key: str, present: object, target: object) -> bool:
        """Return True if the present value equals the desired or saved one."""
        kind, _, rest = key.partition(" ")
        if kind in _LINK_KINDS and rest not in self._links.index:
            return True  # nothing can be restored on an interface that no longer exists
        if kind == "sysctl":
            return self._sysctls.is_same(present, target)
        if kind == "offloads":
            return present["features" if "features" in target else "on"] == target.get(
                "features", []
            )
        if kind == "queues":
            return queues.same_queues(present, target)
        if kind == "route":
            return routes.same_route(present, target)
        if kind in ("address", "rule"):
            return (present is None) == (target is None)
        return present == target

    def check(self, changes: list) -> None:
        """Raise Refused for changes that could not be undone, or hide networks that are in use."""
        routes_change = any(change.key.startswith("route ") for change in changes)
        if routes_change and self._fabric:
            overlapping = overlapping_routes(self._route, self._fabric, self._own_networks)
            if overlapping:
                raise Refused(
                    f"this device has a route to {overlapping[0]}, and the fabric's addresses "
                    f"are in {self._fabric}: one would hide the other",
                    "give the fabric a network that nobody uses here: closloop_fabric_prefix",
                )
        for change in changes:
            kind, _, rest = change.key.partition(" ")
            if kind == "queues":
                self._queues.check(self._links.require(rest), rest, change.before)
            if kind == "route" and self._controller:
                prefix = ipaddress.ip_network(rest.split(" ")[1])
                if ipaddress.ip_address(self._controller) in prefix:
                    raise Refused(
                        f"the route to {prefix} would also lead to the controller, "
                        f"{self._controller}, and cut it off",
                        "give the fabric another network: closloop_fabric_prefix",
                    )

    def apply(self, changes: list) -> None:
        """Make the changes: removals first, from routes back to addresses."""
        parts = [(change.key.partition(" "), change) for change in changes]
        removals = [part for part in parts if part[1].after is None]
        others = [part for part in parts if part[1].after is not None]
        removals.sort(key=lambda part: -_ORDER.index(part[0][0]))
        others.sort(key=lambda part: _ORDER.index(part[0][0]))
        for (kind, _, rest), change in removals + others:
            try:
                self._apply(kind, rest, change.before, change.after)
            except OSError as error:
                raise Refused(
                    f"the kernel refuses {change.key}: {error.strerror or error}",
                    "check that the kernel has what this needs (RED, TBF, ETS, policy routing)",
                ) from None

    def _apply(self, kind: str, rest: str, before: object, after: object) -> None:
        if kind == "queues":
            change = self._queues.build if isinstance(after, dict) else self._queues.restore
            change(self._links.require(rest), before, after)
        else:
            self._setters[kind](rest, after)

    def describe(self, key: str, value: object) -> str:
        """Return a value in a form for people."""
        kind = key.partition(" ")[0]
        if value is None:
            return "nothing"
        if kind == "sysctl":
            return self._sysctls.describe(value)
        if kind == "queues":
            return queues.describe_queues(value)
        if kind == "offloads":
            return ", ".join(value["on"]) or "off"
        if kind == "route":
            return ", ".join(f"via {gateway or 'link'} {name}" for gateway, name, _ in value["via"])
        return "there" if isinstance(value, dict) else str(value)


def controller() -> str:
    """Return the address that the controller is logged in from, or "" if it is unknown.

    sudo removes it from the environment, so it is read from a parent process.
    """
    pid = os.getpid()
    while pid > 1:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"SSH_CONNECTION="):
                    return entry.split(b"=", 1)[1].split()[0].decode()
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        device = Network(controller())
    except OSError as error:
        module.fail_json(msg=f"no netlink: {error}", remedy="the device must run Linux")
    run(module, device)


if __name__ == "__main__":
    main()
