#!/usr/bin/python
"""Ansible module: sets a RoCE host's NIC and limits, as far as the host offers the settings.

Where the settings are in the kernel or NVIDIA's driver, by key:

trust IF           /sys/class/net/IF/qos/trust                        NVIDIA's driver
dscp IF D          iproute2's dcb: the priorities of DSCP D           any driver with DCB
pfc IF P           iproute2's dcb: PFC on priority P
tos DEV            /sys/kernel/config/rdma_cm/DEV/ports/1/default_roce_tos
dcqcn IF NAME      /sys/kernel/debug/mlx5/PCI/cc_params, or /sys/class/net/IF/ecn
ecn IF rp|np P     /sys/class/net/IF/ecn/roce_rp|roce_np/enable/P     NVIDIA's driver
memlock            /etc/security/limits.d/closloop.conf
governor N         /sys/devices/system/cpu/cpuN/cpufreq/scaling_governor
"""

from __future__ import annotations

import contextlib
import glob
import json
import os

from ansible.module_utils.agent.host.dcqcn import lockdown, parameter_files
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop.reconcile import ARGUMENTS, Device, Refused, run
from ansible.module_utils.core.files import write_whole

DOCUMENTATION = r"""
module: closloop_roce
short_description: Brings a RoCE host's trust mode, PFC, DCQCN and limits into one state
description:
  - Sets trust mode, the priorities of RoCE's DSCPs, PFC, the type of service of RoCE connections,
    DCQCN parameters, the limit of locked memory and the CPU governor.
  - A step that the host does not offer is skipped and reported with the reason.
  - Former values are saved in C(/var/lib/closloop/provision); O(state) C(absent) restores them.
options:
  desired:
    description: The state, as C(orchestration/provision/desired.py) computes it.
    type: dict
extends_documentation_fragment: closloop
author: closloop
"""

EXAMPLES = r"""
- name: Prepare the NIC
  closloop_roce:
    desired:
      interfaces: [eth2]
      rdma_devices: [mlx5_0]
      trust: dscp
      priorities: {"26": 3}
      type_of_service: 106
      dcqcn: {rp_ai_rate: 5}
      memlock: unlimited
      governor: performance
"""

RETURN = r"""
lease:
  description: The lease that is left to the next module; empty if it was given back.
  type: str
  returned: success
skipped_steps:
  description: Steps left out because the host does not offer them, each with its reason.
  type: list
  returned: success
"""


_LIMITS = "etc/security/limits.d/closloop.conf"
_CONFIGFS = "sys/kernel/config/rdma_cm"
_GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"


class RoceHost(Device):
    """The settings of a RoCE host. Keys are as above, and values are strings.

    `run_command` is that of AnsibleModule; tests set `root`.
    """

    name = "roce"

    def __init__(self, run_command, root: str = "/") -> None:
        super().__init__()
        self._run = run_command
        self._root = root

    def desired_values(self, desired: dict) -> dict:
        """Return the desired values of the settings that this host offers."""
        requested: dict = {}
        for name in desired["interfaces"]:
            requested[f"trust {name}"] = desired["trust"]
            for dscp, priority in desired["priorities"].items():
                requested[f"dscp {name} {dscp}"] = str(priority)
                requested[f"pfc {name} {priority}"] = "on"
                for side in ("rp", "np"):
                    requested[f"ecn {name} {side} {priority}"] = "1"
            for parameter, value in desired["dcqcn"].items():
                requested[f"dcqcn {name} {parameter}"] = str(value)
        for device in desired["rdma_devices"]:
            requested[f"tos {device}"] = str(desired["type_of_service"])
        if desired["governor"]:
            cpus = glob.glob(self._root + _GOVERNORS)
            if not cpus:
                self.skip("governor", "this system cannot set the CPUs' frequency")
            for path in sorted(cpus):
                requested["governor " + path.split("/cpu")[-2].partition("/")[0]] = desired[
                    "governor"
                ]
        found = {key: value for key, value in requested.items() if not self._skips(key, value)}
        if desired["memlock"]:
            limit = desired["memlock"]
            found["memlock"] = f"* soft memlock {limit}\n* hard memlock {limit}\n"
        return found

    def read(self, keys: list) -> dict:
        """Return the present values; None for a setting that is not set or does not exist."""
        return {key: self._read(key) for key in keys}

    def undo_target(self, key: str, saved: object, present: object) -> object:
        """Return the saved value; a setting that was lost with its device is a skipped step."""
        if present is None and self._is_absent(key):
            self.skip(f"undo of {key}", "its device no longer exists")
        return saved

    def is_same(self, key: str, present: object, target: object) -> bool:
        """Return True if nothing has to change, or nothing can, because the value is unknown."""
        unknown = present is None and (self._is_absent(key) or bool(self._unreadable_reason(key)))
        return unknown or present == target

    def unreadable(self, key: str) -> str:
        """Return why a setting of an existing device cannot be read, "" if it can."""
        return (
            ""
            if self._read(key) is not None or self._is_absent(key)
            else self._unreadable_reason(key)
        )

    def apply(self, changes: list) -> None:
        """Write the values."""
        for change in changes:
            kind, _, rest = change.key.partition(" ")
            try:
                self._write(kind, rest.split(" "), change.before, change.after)
            except OSError as error:
                raise Refused(
                    f"{change.key} = {change.after} is refused: {error.strerror}",
                    "see what the NIC's driver and firmware allow",
                ) from None

    def _is_absent(self, key: str) -> bool:
        """Return True if the interface, RDMA device or CPU of a setting does not exist."""
        kind, _, rest = key.partition(" ")
        name = rest.split(" ")[0]
        folder = {"tos": "class/infiniband", "governor": "devices/system/cpu"}.get(
            kind, "class/net"
        )
        return kind != "memlock" and not os.path.isdir(f"{self._root}sys/{folder}/{name}")

    def _unreadable_reason(self, key: str) -> str:
        """Return why a setting that reads as None cannot be read, "" if it is not set."""
        kind, _, rest = key.partition(" ")
        if kind == "memlock":
            return ""
        reason = self._reason(kind, rest.split(" "))
        return reason or ("" if kind == "dscp" else "its driver no longer shows it")

    def _skips(self, key: str, value: str) -> bool:
        """Skip a step that this host does not offer; return whether it was skipped."""
        kind, _, rest = key.partition(" ")
        words = rest.split(" ")
        reason = self._reason(kind, words)
        if kind == "governor" and not reason:
            offered = self._text(
                os.path.dirname(self._path(kind, words)) + "/scaling_available_governors"
            )
            if offered is not None and value not in offered.split():
                reason = f"the CPU offers {offered}"
        if reason:
            self.skip(key, reason)
        return bool(reason)

    def _reason(self, kind: str, words: list) -> str:
        reason = ""
        if kind in ("dscp", "pfc"):
            _, reason = self._dcb("app" if kind == "dscp" else "pfc", words[0])
        elif kind == "tos":
            if not os.path.isdir(self._root + _CONFIGFS):
                reason = "no rdma_cm in configfs (modprobe rdma_cm, mount -t configfs)"
            elif self._tos(words[0]) is None:
                reason = f"rdma_cm does not know {words[0]}"
        elif kind == "dcqcn" and "/debug/" in self._path(kind, words) and lockdown(self._root):
            level = lockdown(self._root)
            reason = f"kernel lockdown ({level}) closes debugfs, where DCQCN parameters are"
        elif not self._path(kind, words):
            owner = "CPU" if kind == "governor" else "NIC"
            reason = f"the {owner}'s driver does not offer it"
        return reason

    def _read(self, key: str) -> object:
        kind, _, rest = key.partition(" ")
        words = rest.split(" ")
        if kind == "memlock":
            with contextlib.suppress(FileNotFoundError), open(self._root + _LIMITS) as file:
                return file.read()
            return None
        if kind == "dscp":
            return ",".join(self._priorities(words)) or None
        if kind == "pfc":
            switched = self._dcb("pfc", words[0])[0].get("prio_pfc", [])
            number = int(words[1])
            return ("on" if switched[number] else "off") if number < len(switched) else None
        if kind == "tos":
            return self._tos(words[0])
        if kind == "dcqcn" and self._reason(kind, words):
            return None
        return self._text(self._path(kind, words))

    def _write(self, kind: str, words: list, before: object, after: object) -> None:
        if kind == "memlock":
            self._write_limits(after)
        elif kind == "dscp":
            self._set_priorities(words, str(after).split(",") if after is not None else [])
        elif kind == "pfc":
            self._change_dcb("pfc", "set", words[0], "prio-pfc", f"{words[1]}:{after}")
        elif kind == "tos":
            self._tos(words[0], str(after))
        else:
            with open(self._path(kind, words), "w") as file:
                file.write(str(after))

    def _priorities(self, words: list) -> list:
        """Return the priorities of an interface's DSCP, which may be several, as text."""
        pairs = self._dcb("app", words[0])[0].get("dscp_prio", [])
        return sorted(str(pair[1]) for pair in pairs if str(pair[0]) == words[1])

    def _set_priorities(self, words: list, wanted: list) -> None:
        """Give a DSCP these priorities: new ones are added before old ones are removed.

        Some drivers have only one, and remove the old one themselves (mlx5e_dcbnl_ieee_setapp).
        """
        there = self._priorities(words)
        for priority in wanted:
            if priority not in there:
                self._change_dcb("app", "add", words[0], "dscp-prio", f"{words[1]}:{priority}")
        for priority in self._priorities(words):
            if priority not in wanted:
                self._change_dcb("app", "del", words[0], "dscp-prio", f"{words[1]}:{priority}")

    def _write_limits(self, text: object) -> None:
        path = self._root + _LIMITS
        if text is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        write_whole(path, str(text))
        os.chmod(path, 0o644)

    def _path(self, kind: str, words: list) -> str:
        """Return the file of a setting, or "" if this host has none."""
        net = f"{self._root}sys/class/net/{words[0]}"
        if kind == "trust":
            found = [f"{net}/qos/trust"]
        elif kind == "ecn":
            found = [f"{net}/ecn/roce_{words[1]}/enable/{words[2]}"]
        elif kind == "governor":
            found = [self._root + _GOVERNORS.replace("[0-9]*", words[0])]
        else:
            pci = os.path.basename(os.path.realpath(f"{net}/device"))
            debugfs = f"{self._root}sys/kernel/debug/mlx5/{pci}/cc_params"
            found = parameter_files(words[1], debugfs, f"{net}/ecn")
        return next((path for path in found if os.path.isfile(path)), "")

    def _text(self, path: str) -> object:
        if not path or not os.path.isfile(path):
            return None
        with open(path) as file:
            return file.read().strip()

    def _tos(self, device: str, value: str = "") -> object:
        """Set the type of service of a device's RoCE connections if given, and return it.

        The folder in configfs is created only for this, as the driver's own tool does. The setting
        stays when it is removed.
        """
        folder = f"{self._root}{_CONFIGFS}/{device}"
        file_name = folder + "/ports/1/default_roce_tos"
        made = False
        try:
            if not os.path.isdir(folder):
                os.mkdir(folder)
                made = True
            if value:
                with open(file_name, "w") as file:
                    file.write(value)
            return self._text(file_name)
        except OSError:
            if value:
                raise
            return None
        finally:
            if made:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _dcb(self, what: str, name: str) -> tuple:
        """Return the output of `dcb` for an interface, and the reason if there is none."""
        try:
            code, out, err = self._run(["dcb", "-j", what, "show", "dev", name])
        except OSError:
            return {}, "there is no dcb (iproute2 5.11 or later has it)"
        if code:
            errors = " ".join(err.split())[:200]
            return {}, f"the NIC's driver has no DCB ({errors})" if errors else "no dcb in iproute2"
        try:
            found = json.loads(out)
        except ValueError:
            found = None
        return (found, "") if isinstance(found, dict) else ({}, "dcb's output is not as expected")

    def _change_dcb(self, what: str, verb: str, name: str, setting: str, value: str) -> None:
        code, _, err = self._run(["dcb", what, verb, "dev", name, setting, value])
        if code:
            errors = " ".join(err.split())[:200]
            raise Refused(
                f"dcb {what} {verb} {setting} {value} on {name} is refused: {errors}",
                "check whether firmware-controlled DCBX or lldpad holds the NIC's settings",
            )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    run(module, RoceHost(module.run_command))


if __name__ == "__main__":
    main()
