"""A device's console, without SSH: it returns the device's whole state, or injects an event.

A dump contains no counters and no times, so that two dumps can be compared. Events are faults and
repairs, for tests and benchmarks.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

from orchestration.agent.sonic.resp import CONFIG_DB, SOCKET, Redis
from orchestration.backends.emulated.system import run, run_batch
from orchestration.virtual_rack import cabling
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.reboot import config_save, sysctls

_COMMANDS = {
    "qdiscs": ("tc", "-j", "-d", "qdisc", "show"),
    "links": ("ip", "-j", "-d", "link", "show"),
    "addresses": ("ip", "-j", "address", "show"),
    "routes": ("ip", "-j", "-d", "route", "show", "table", "all"),
    "rules": ("ip", "-j", "rule", "show"),
    "neighbours": ("ip", "-j", "neigh", "show", "nud", "permanent"),
    "rdma": ("rdma", "-j", "link"),
}
# Files that change although nobody changes the configuration.
_TRANSIENT = ("var/log/", "var/lib/redis/", "var/lib/sudo/", "var/cache/", "run/", "tmp/")
_TRANSIENT_PARTS = (".ansible", ".cache", "__pycache__", ".sudo_as_admin_successful")
# Each network namespace lists the congestion controls of the whole kernel here
# (net/ipv4/sysctl_net_ipv4.c). On the machine's own kernel, other programs may add some meanwhile.
_MACHINE_WIDE_SYSCTLS = (
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_allowed_congestion_control",
)
_FILLER = Path("/tmp/.filler")
# An agent has this word on its command line.
_AGENT = b"closloop-agent"


def dump(layout: Layout, device: str, differences: int) -> str:
    """Return the device's state as JSON, one fact per line.

    It contains queueing disciplines, links, addresses, routes, rules, permanent neighbours, RDMA
    links, every setting of the device's own under /proc/sys/net, every file that differs from the
    machine's, and a SONiC switch's CONFIG_DB. `differences` is a descriptor of the folder of those
    files (`isolation.enter_device_root`).
    """
    commands = dict(_COMMANDS)
    if layout.clock == "real":  # the machine's kernel may not support RDMA
        del commands["rdma"]
    state: dict[str, Any] = {name: _json_items(argv) for name, argv in commands.items()}
    state["sysctls"] = dict(sysctls(Path("/proc/sys/net")))
    if layout.clock == "real":
        state["sysctls"] = {
            k: v for k, v in state["sysctls"].items() if k not in _MACHINE_WIDE_SYSCTLS
        }
    state["files"] = dict(_files(differences))
    if device in layout.sonic:
        redis = Redis(SOCKET)
        state["CONFIG_DB"] = redis.rows(CONFIG_DB, "*|*")
        redis.close()
    return json.dumps(state, indent=0, sort_keys=True)


def _json_items(argv: tuple[str, ...]) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True) for item in json.loads(run(argv) or "[]"))


def _files(differences: int) -> Iterator[tuple[str, str]]:
    """Yield path, and then kind, mode, owner and hash, of each file in the device's own layer."""
    root = f"/proc/self/fd/{differences}"
    for folder, folders, names in os.walk(root):
        for name in (*names, *folders):
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            transient = shown.startswith(_TRANSIENT) or any(p in shown for p in _TRANSIENT_PARTS)
            status = path.lstat()
            if transient or stat.S_ISDIR(status.st_mode):
                continue
            description = f"{status.st_mode:o} {status.st_uid}:{status.st_gid}"
            if stat.S_ISREG(status.st_mode):
                description += f" {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
            elif stat.S_ISLNK(status.st_mode):
                description += f" -> {os.readlink(path)}"
            yield shown, description


class EventTarget(Protocol):
    """The device that an event happens to: `device.Device`."""

    layout: Layout
    name: str
    programs: dict[str, Popen[bytes]]

    def start_redis(self) -> None:
        """Start Redis."""

    def reboot(self, *, warm: bool) -> None:
        """Reboot the device."""


def inject(device: EventTarget, request: dict[str, Any]) -> Any:
    """Inject the event `request["what"]` into a device, at the interface `request["port"]` if any.

    Returns what the event's function returns. Raises ValueError for an unknown event.
    """
    event = str(request["what"])
    if event not in EVENTS:
        raise ValueError(f"there is no event {event!r}; events are {', '.join(EVENTS)}")
    return EVENTS[event](device, str(request["port"]))


def _set_link(interface: str, state: str) -> None:
    run(["ip", "link", "set", interface, state])


def _disk_full(_: EventTarget, __: str) -> None:
    with _FILLER.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def _redis_restart(device: EventTarget, _: str) -> None:
    """Restart Redis as an upgrade would: all connections are lost, the data are kept."""
    run(["redis-cli", "-s", SOCKET, "save"])
    device.programs["redis"].kill()
    device.programs["redis"].wait()
    device.start_redis()


def _kill_agent(_: EventTarget, __: str) -> int:
    """Kill all agents; return how many there were."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"python3") and any(_AGENT in word for word in words):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


EVENTS: dict[str, Callable[[EventTarget, str], Any]] = {
    "vanish": lambda device, _: _set_link(device.layout.management_interface(device.name), "down"),
    "return": lambda device, _: run_batch(
        "ip", cabling.management_port(device.layout, device.name)
    ),
    "port down": lambda _, port: _set_link(port, "down"),
    "port up": lambda _, port: _set_link(port, "up"),
    "disk full": _disk_full,
    "disk free": lambda *_: _FILLER.unlink(missing_ok=True),
    "redis restart": _redis_restart,
    "config save": lambda *_: config_save(),
    "reboot warm": lambda device, _: device.reboot(warm=True),
    "reboot cold": lambda device, _: device.reboot(warm=False),
    "kill agent": _kill_agent,
}
