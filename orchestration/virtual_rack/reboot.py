"""The reboot of one device: its programs end, its kernel state is lost, its disk is kept.

A SONiC-like switch has warm reboots, too: the ASIC goes on forwarding, and Redis starts with its
data (`backup_database` in sonic-utilities' scripts/fast-reboot). After a cold reboot, CONFIG_DB is
what `config save` has written: rows that were not saved are lost.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestration.agent.sonic.resp import CONFIG_DB, SOCKET, Redis
from orchestration.backends.emulated.system import bind, run, run_batch
from orchestration.virtual_rack import cabling
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_model import Rows

CONFIG_FILE = Path("/etc/sonic/config_db.json")
# Redis loads the file `dump.rdb` of this folder when it starts.
REDIS_FOLDER = Path("/var/lib/redis")


def save_config(rows: Mapping[str, Mapping[str, str]], file: Path = CONFIG_FILE) -> None:
    """Write rows of CONFIG_DB as SONiC does, nested by table, key and field.

    `rows` are fields and values by the rows' names, `TABLE|KEY`.
    """
    tables: dict[str, dict[str, Mapping[str, str]]] = {}
    for name in sorted(rows):
        table, _, key = name.partition("|")
        tables.setdefault(table, {})[key] = rows[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tables, indent=4))


def load_config(file: Path = CONFIG_FILE) -> Rows | None:
    """Return the saved rows by their names in CONFIG_DB, or None if nothing was saved."""
    if not file.exists():
        return None
    tables = json.loads(file.read_text())
    return {f"{table}|{key}": row for table, rows in tables.items() for key, row in rows.items()}


def config_save(socket: str = SOCKET, file: Path = CONFIG_FILE) -> None:
    """Save the running CONFIG_DB, as the command `config save` does."""
    redis = Redis(socket)
    rows = redis.rows(CONFIG_DB, "*|*")
    redis.close()
    save_config(rows, file)


def prepare_redis_data(*, warm: bool, socket: str = SOCKET, folder: Path = REDIS_FOLDER) -> None:
    """Save the data of Redis for a warm or fast reboot, or remove them as a cold reboot does.

    It must be called before Redis is stopped if `warm`, and afterwards if not.
    """
    if warm:
        redis = Redis(socket)
        redis.call(CONFIG_DB, "SAVE")
        redis.close()
    else:
        (folder / "dump.rdb").unlink(missing_ok=True)


# How long a reboot takes, in the rack's time.
AWAY_S = 20.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# It is mounted over the kernel's boot id, which all devices share.
_OWN_BOOT_ID = Path("/dev/shm/.boot_id")
_SYSCTLS = Path("/proc/sys/net")
_RUN_FOLDERS = ("sshd", "lldpd", "lock")


def new_boot_id() -> None:
    """Give this device a new boot id of its own, as each boot does."""
    first = not _OWN_BOOT_ID.exists()
    _OWN_BOOT_ID.write_text(f"{uuid4()}\n")
    if first:
        bind(str(_OWN_BOOT_ID), str(_BOOT_ID))


class InitialKernelState:
    """The kernel state of a device that has just booted, read when the object is created."""

    def __init__(self) -> None:
        self._sysctls = dict(sysctls(_SYSCTLS))
        self._mtus = {link["ifname"]: link["mtu"] for link in _ip_objects("link")}
        self._rules = {rule["priority"] for rule in _ip_objects("rule")}

    def reset(self, ports: list[str]) -> None:
        """Reset the device's kernel to this state, but keep the rack's cables, which are veths."""
        for port in ports:
            with suppress(RuntimeError):  # the default qdisc cannot be deleted
                run(["tc", "qdisc", "del", "dev", port, "root"])
            # the port's routes go when it is set down
            run(["ip", "link", "set", port, "down", "mtu", str(self._mtus[port])])
            run(["ip", "address", "flush", "dev", port])
        run(["ip", "address", "flush", "dev", "lo", "scope", "global"])
        for rule in _ip_objects("rule"):
            if rule["priority"] not in self._rules:
                run(["ip", "rule", "del", "priority", str(rule["priority"])])
        with suppress(RuntimeError):  # there may be no such route
            run(["ip", "route", "flush", "type", "blackhole"])
        # twice, because some settings change others
        for _ in range(2):
            now = dict(sysctls(_SYSCTLS))
            for name, value in self._sysctls.items():
                if now.get(name) != value:
                    with suppress(OSError):
                        Path("/proc/sys", name).write_text(value)
        for port in ports:
            run(["ip", "link", "set", port, "up"])


def sysctls(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the readable settings below `root`: path below /proc/sys, and content."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):
                if path.stat().st_mode & 0o400:
                    yield str(path.relative_to("/proc/sys")), path.read_text(errors="replace")


def _ip_objects(kind: str) -> list[Mapping[str, Any]]:
    objects: list[Mapping[str, Any]] = json.loads(run(("ip", "-j", kind, "show")) or "[]")
    return objects


def power_cycle(
    layout: Layout, device: str, initial_state: InitialKernelState, *, warm: bool
) -> None:
    """End a device's programs, remove what a reboot loses, and reconnect its management port.

    Raises ValueError for a warm reboot of a device that has none.
    """
    sonic = device in layout.sonic
    if warm and not sonic:
        raise ValueError("only SONiC switches have warm reboots")
    if warm:
        prepare_redis_data(warm=True)
    # peers must not notice that connections end
    run(["ip", "link", "set", layout.management_interface(device), "down"])
    os.kill(-1, signal.SIGKILL)
    if sonic and not warm:
        prepare_redis_data(warm=False)
    for entry in Path("/run").iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for name in _RUN_FOLDERS:
        Path("/run", name).mkdir()
    if not warm:
        initial_state.reset([layout.interface(port) for port in layout.testbed.ports_of[device]])
    new_boot_id()
    time.sleep(AWAY_S)
    run_batch("ip", cabling.management_port(layout, device))
