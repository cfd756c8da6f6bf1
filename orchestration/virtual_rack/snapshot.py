"""The whole state of a device, as text that two times are compared by: no counters, no times."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration.virtual_rack import tools
from orchestration.virtual_rack.layout import Layout

_COMMANDS = {
    "qdiscs": ("tc", "-j", "-d", "qdisc", "show"),
    "links": ("ip", "-j", "-d", "link", "show"),
    "addresses": ("ip", "-j", "address", "show"),
    "routes": ("ip", "-j", "-d", "route", "show", "table", "all"),
    "rules": ("ip", "-j", "rule", "show"),
    "neighbours": ("ip", "-j", "neigh", "show", "nud", "permanent"),
    "rdma": ("rdma", "-j", "link"),
}
# Files that come and go without anyone's meaning to configure something.
_PASSING = ("var/log/", "var/lib/sudo/", "var/cache/", "run/", "tmp/")
_PASSING_PARTS = (".ansible", ".cache", "__pycache__", ".sudo_as_admin_successful")


def dump(layout: Layout, device: str, differences: int) -> str:
    """Return the device's state as JSON with a line for each fact.

    Queueing disciplines, links, addresses, routes, rules, permanent neighbours, RDMA links, every
    setting under /proc/sys/net, every file that differs from the machine's, and a SONiC switch's
    CONFIG_DB. `differences` is the open folder of those files (`roots.enter_device_root`).
    """
    state: dict[str, Any] = {name: _listed(argv) for name, argv in _COMMANDS.items()}
    state["sysctls"] = dict(_sysctls(Path("/proc/sys/net")))
    state["files"] = dict(_files(differences))
    if device in layout.sonic:
        state["CONFIG_DB"] = _config_db()
    return json.dumps(state, indent=0, sort_keys=True)


def _listed(argv: tuple[str, ...]) -> list[str]:
    printed = json.loads(tools.run(argv) or "[]")
    return sorted(json.dumps(item, sort_keys=True) for item in printed)


def _sysctls(root: Path) -> Iterator[tuple[str, str]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                if path.stat().st_mode & stat.S_IRUSR:
                    yield str(path.relative_to("/proc/sys")), path.read_text(errors="replace")
            except OSError:
                continue


def _files(differences: int) -> Iterator[tuple[str, str]]:
    """Yield each file of the device's own layer: its kind, mode, owner and contents' hash."""
    root = f"/proc/self/fd/{differences}"
    for folder, folders, names in os.walk(root):
        for name in (*names, *folders):
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            passing = shown.startswith(_PASSING) or any(p in shown for p in _PASSING_PARTS)
            about = path.lstat()
            if passing or stat.S_ISDIR(about.st_mode):
                continue
            what = f"{about.st_mode:o} {about.st_uid}:{about.st_gid}"
            if stat.S_ISREG(about.st_mode):
                what += f" {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
            elif stat.S_ISLNK(about.st_mode):
                what += f" -> {os.readlink(path)}"
            yield shown, what


def _config_db() -> dict[str, dict[str, str]]:
    script = (
        "local r={} for _,k in ipairs(redis.call('keys','*')) do "
        "if redis.call('type',k).ok=='hash' then r[k]=redis.call('hgetall',k) end end "
        "return cjson.encode(r)"
    )
    printed = tools.run(("redis-cli", "-s", tools.REDIS_SOCKET, "-n", "4", "eval", script, "0"))
    tables = json.loads(printed)
    return {
        key: dict(zip(values[::2], values[1::2], strict=True)) for key, values in tables.items()
    }
