"""Reads and writes kernel settings below /proc/sys, by path (`net/ipv4/ip_forward`)."""

from __future__ import annotations

import glob
import os

from ansible.module_utils.closloop.reconcile import Refused

ROOT = "/proc/sys/"
ALLOWED = "net/ipv4/tcp_allowed_congestion_control"
# Settings that the kernel changes together with another one: inet_forward_change
# (net/ipv4/devinet.c), tcp_set_default_congestion_control (net/ipv4/tcp_cong.c).
_CHANGED_WITH = {
    "net/ipv4/ip_forward": ("net/ipv4/conf/*/forwarding", "net/ipv4/conf/all/accept_redirects"),
    "net/ipv4/tcp_congestion_control": (ALLOWED,),
}


class Sysctls:
    """The kernel's settings, by path.

    A value is a string, or a dict if the kernel changes other settings together with this one. A
    desired value may also be a list of words that the setting must include.
    """

    def __init__(self, root: str = ROOT) -> None:
        self._root = root

    def exists(self, path: str) -> bool:
        """Return True if this kernel has the setting."""
        return os.path.exists(self._root + path)

    def writable(self, path: str) -> bool:
        """Return True if the setting is writable; in a namespace, some are not even for root."""
        return self.exists(path) and bool(os.stat(self._root + path).st_mode & 0o200)

    def read(self, path: str) -> object:
        """Return a setting's value, or None if this kernel lacks it."""
        value = self._value(path)
        if path not in _CHANGED_WITH or value is None:
            return value
        paths = [
            name[len(self._root) :]
            for pattern in _CHANGED_WITH[path]
            for name in sorted(glob.glob(self._root + pattern))
        ]
        return {"value": value, "beside": {p: self._value(p) for p in paths if self.writable(p)}}

    def is_same(self, present: object, target: object) -> bool:
        """Return True if the setting and those that change with it have their values.

        A setting that was lost with its interface needs no restoring.
        """
        if present is None:
            return True
        if isinstance(target, list):
            return set(target) <= set(str(present).split())
        if isinstance(present, dict) and isinstance(target, dict):
            beside = present["beside"]
            return present["value"] == target["value"] and all(
                beside[path] == value for path, value in target["beside"].items() if path in beside
            )
        return self.describe(present) == self.describe(target)

    def apply(self, path: str, target: object) -> None:
        """Write the setting. Raises Refused."""
        if isinstance(target, dict):
            self._write(path, target["value"])
            for beside, value in target["beside"].items():
                if self.writable(beside) and self._value(beside) != value:
                    self._write(beside, value)
        elif isinstance(target, list):
            words = str(self._value(path)).split()
            self._write(path, " ".join([*words, *(word for word in target if word not in words)]))
        elif target is not None and self.exists(path):
            self._write(path, str(target))

    def describe(self, value: object) -> str:
        """Return a value as text for people."""
        if isinstance(value, list):
            return "one with " + " ".join(value)
        return str(value["value"] if isinstance(value, dict) else value)

    def _value(self, path: str) -> object:
        try:
            with open(self._root + path) as file:
                return " ".join(file.read().split())
        except FileNotFoundError:
            return None

    def _write(self, path: str, value: str) -> None:
        try:
            with open(self._root + path, "w") as file:
                file.write(value)
        except OSError as error:
            name = path.replace("/", ".")
            remedy = "check whether this kernel supports that"
            if path.endswith("congestion_control"):
                remedy = "load the kernel's modules for it (modprobe tcp_" + value.split()[-1] + ")"
            raise Refused(f"sysctl {name} = {value} is refused: {error.strerror}", remedy) from None
