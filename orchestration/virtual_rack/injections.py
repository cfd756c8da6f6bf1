"""What can befall a device: done to it from inside, for tests of hostile surroundings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

from orchestration.virtual_rack import cabling, tools
from orchestration.virtual_rack.layout import Layout

_FILLER = Path("/tmp/.filler")
# What an agent's command line has in it.
_AGENT = b"closloop-agent"


class Target(Protocol):
    """The device that something befalls, from inside: `device.Device`."""

    layout: Layout
    name: str
    programs: dict[str, Popen[bytes]]

    def start_redis(self) -> None:
        """Start Redis."""


def inject(device: Target, request: dict[str, Any]) -> Any:
    """Do `request["what"]` to the device; raise ValueError for what is not known."""
    what = str(request["what"])
    if what not in KINDS:
        raise ValueError(f"no injection {what!r}: there are {', '.join(KINDS)}")
    return KINDS[what](device, request)


def _vanish(device: Target, _: dict[str, Any]) -> None:
    tools.run(["ip", "link", "set", device.layout.management_interface(device.name), "down"])


def _return(device: Target, _: dict[str, Any]) -> None:
    tools.run_batch("ip", cabling.management(device.layout, device.name))


def _port(state: str) -> Callable[[Target, dict[str, Any]], None]:
    def set_port(device: Target, request: dict[str, Any]) -> None:
        tools.run(["ip", "link", "set", str(request["port"]), state])

    return set_port


def _disk_full(_: Target, __: dict[str, Any]) -> None:
    with _FILLER.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def _disk_free(_: Target, __: dict[str, Any]) -> None:
    _FILLER.unlink(missing_ok=True)


def _redis_restart(device: Target, _: dict[str, Any]) -> None:
    """Restart Redis as a new version would: everybody loses the connection, the data stay."""
    tools.run(["redis-cli", "-s", tools.REDIS_SOCKET, "save"])
    device.programs["redis"].kill()
    device.programs["redis"].wait()
    device.start_redis()


def _kill_agent(_: Target, __: dict[str, Any]) -> int:
    """Kill every agent of a controller; return how many there were."""
    killed = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"python3") and any(_AGENT in word for word in words):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


KINDS: dict[str, Callable[[Target, dict[str, Any]], Any]] = {
    "vanish": _vanish,
    "return": _return,
    "port down": _port("down"),
    "port up": _port("up"),
    "disk full": _disk_full,
    "disk free": _disk_free,
    "redis restart": _redis_restart,
    "kill agent": _kill_agent,
}
