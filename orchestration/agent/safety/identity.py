"""Which device this is: so that a device refuses a snapshot that was made of another one.

    state.identity  -> {"machine_id", "chassis", "macs"}, each empty where it is not known

`machine_id` is /etc/machine-id (machine-id(5): one of each installation, the same after a reboot).
SONiC images carry one that was made when the image was built, which all switches with that image
share (sonic-buildimage PR 13061, open); so it counts for nothing where there is a `chassis`, the
MAC address of a SONiC switch (CONFIG_DB, DEVICE_METADATA|localhost, which sonic-cfggen takes from
the EEPROM). `macs` are the permanent addresses of the interfaces that are hardware, or of all
where none is, as in containers, which may share an image's machine id too. DMI's serial numbers
(/sys/class/dmi/id/product_uuid) are for root alone, and other accounts restore too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..small_files import listed, text
from ..sonic.resp import CONFIG_DB, SOCKET, Redis, RedisError

_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_NONE = ("00:00:00:00:00:00", "0" * 32)
# include/uapi/linux/netdevice.h: the address is the hardware's own
_NET_ADDR_PERM = "0"


def identity(root: str = "/", redis_socket: str = SOCKET) -> dict[str, Any]:
    """Return this device's identity."""
    return {
        "machine_id": _known(_MACHINE_ID, text(os.path.join(root, "etc/machine-id"))),
        "chassis": _chassis(redis_socket),
        "macs": _macs(os.path.join(root, "sys/class/net")),
    }


def identity_mismatch(noted: Any, here: Mapping[str, Any]) -> str:
    """Return what shows that two identities are of two devices, in words; "" if nothing does.

    Every part that both know must agree; of several MAC addresses one, since cards are swapped.
    `noted` may be anything: it is read from a snapshot, and older ones have none.
    """
    if not isinstance(noted, Mapping):
        return ""
    by_chassis = noted.get("chassis") or here["chassis"]
    part, words = ("chassis", "MAC address") if by_chassis else ("machine_id", "machine id")
    if noted.get(part) and here[part] and noted[part] != here[part]:
        return f"its {words} is {here[part]}, not {noted[part]}"
    macs = noted.get("macs")
    if isinstance(macs, list) and macs and here["macs"] and not {*map(str, macs)} & {*here["macs"]}:
        return f"it has the MAC addresses {_listed(here['macs'])}, and none of {_listed(macs)}"
    return ""


def same_device(noted: Any, here: Any) -> bool:
    """Return whether two identities are certainly of one device: they share a part, and agree."""
    parts = {"machine_id", "chassis", "macs"}
    if not all(isinstance(side, Mapping) and parts <= side.keys() for side in (noted, here)):
        return False
    if identity_mismatch(noted, here):
        return False
    by_chassis = noted["chassis"] or here["chassis"]
    part = "chassis" if by_chassis else "machine_id"
    shared = {*map(str, noted["macs"])} & {*map(str, here["macs"])}
    return bool(shared or (noted[part] and here[part]))


def _chassis(redis_socket: str) -> str:
    if not os.path.exists(redis_socket):
        return ""
    try:
        redis = Redis(redis_socket)
        try:
            row = redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost")
        finally:
            redis.close()
    except RedisError:
        return ""
    return _known(_MAC, row.get("mac", "").lower())


def _macs(net: str) -> list[str]:
    """Return the permanent MAC addresses of hardware, or those of all interfaces, sorted."""
    hardware, others = set(), set()
    for name in listed(net):
        folder = os.path.join(net, name)
        mac = text(os.path.join(folder, "address"))
        if not os.path.exists(os.path.join(folder, "device")):
            others.add(_known(_MAC, mac.lower()))
            continue
        # a bond gives its address to its members, and keeps their own here
        own = text(os.path.join(folder, "bonding_slave/perm_hwaddr"))
        if own or text(os.path.join(folder, "addr_assign_type")) == _NET_ADDR_PERM:
            hardware.add(_known(_MAC, (own or mac).lower()))
    return sorted((hardware - {""}) or (others - {""}))


def _known(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) and text not in _NONE else ""


def _listed(macs: list[str]) -> str:
    shown = ", ".join(map(str, macs[:4]))
    return shown + (f" and {len(macs) - 4} more" if len(macs) > 4 else "")
