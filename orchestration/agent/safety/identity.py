"""Identifies this device, so that it refuses a snapshot that was made of another device.

    state.identity  -> {"machine_id", "chassis", "macs"}, each empty if it is not known

`machine_id` is /etc/machine-id (machine-id(5): one for each installation, the same after a reboot).
SONiC images contain one that was made when the image was built, so all switches with an image share
it (sonic-buildimage PR 13061, open). Therefore it is not used if there is a `chassis`, the MAC
address of a SONiC switch (CONFIG_DB, DEVICE_METADATA|localhost, which sonic-cfggen takes from the
EEPROM). `macs` are the permanent addresses of hardware interfaces, or of all interfaces if none is
hardware, as in containers, which may also share an image's machine id. DMI's serial numbers
(/sys/class/dmi/id/product_uuid) are readable only for root, but other accounts also restore
devices.
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
_MEANINGLESS = ("00:00:00:00:00:00", "0" * 32)
# include/uapi/linux/netdevice.h: the address is the hardware's own
_NET_ADDR_PERM = "0"


def identity(root: str = "/", redis_socket: str = SOCKET) -> dict[str, Any]:
    """Return this device's identity: the fields of `state.identity`."""
    return {
        "machine_id": _valid_or_empty(_MACHINE_ID, text(os.path.join(root, "etc/machine-id"))),
        "chassis": _chassis(redis_socket),
        "macs": _macs(os.path.join(root, "sys/class/net")),
    }


def identity_mismatch(recorded: Any, here: Mapping[str, Any]) -> str:
    """Return why two identities belong to different devices, in words; "" if they may be one.

    Every part that both have must agree; of several MAC addresses one must be in both, since cards
    are swapped. `recorded` may be anything: it is read from a snapshot, and older snapshots have no
    identity.
    """
    if not isinstance(recorded, Mapping):
        return ""
    by_chassis = recorded.get("chassis") or here["chassis"]
    part, words = ("chassis", "MAC address") if by_chassis else ("machine_id", "machine id")
    if recorded.get(part) and here[part] and recorded[part] != here[part]:
        return f"its {words} is {here[part]}, not {recorded[part]}"
    macs = recorded.get("macs")
    if isinstance(macs, list) and macs and here["macs"] and not {*map(str, macs)} & {*here["macs"]}:
        return f"it has the MAC addresses {_shown(here['macs'])}, and none of {_shown(macs)}"
    return ""


def same_device(recorded: Any, here: Any) -> bool:
    """Return whether two identities certainly belong to one device.

    They must agree, and have a part in common.
    """
    parts = {"machine_id", "chassis", "macs"}
    if not all(isinstance(side, Mapping) and parts <= side.keys() for side in (recorded, here)):
        return False
    if identity_mismatch(recorded, here):
        return False
    by_chassis = recorded["chassis"] or here["chassis"]
    part = "chassis" if by_chassis else "machine_id"
    shared = {*map(str, recorded["macs"])} & {*map(str, here["macs"])}
    return bool(shared or (recorded[part] and here[part]))


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
    return _valid_or_empty(_MAC, row.get("mac", "").lower())


def _macs(net: str) -> list[str]:
    """Return the permanent MAC addresses of hardware, or those of all interfaces, sorted."""
    hardware, others = set(), set()
    for name in listed(net):
        folder = os.path.join(net, name)
        mac = text(os.path.join(folder, "address"))
        if not os.path.exists(os.path.join(folder, "device")):
            others.add(_valid_or_empty(_MAC, mac.lower()))
            continue
        # a bond gives its address to its members; their own addresses are in this file
        own = text(os.path.join(folder, "bonding_slave/perm_hwaddr"))
        if own or text(os.path.join(folder, "addr_assign_type")) == _NET_ADDR_PERM:
            hardware.add(_valid_or_empty(_MAC, (own or mac).lower()))
    return sorted((hardware - {""}) or (others - {""}))


def _valid_or_empty(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) and text not in _MEANINGLESS else ""


def _shown(macs: list[str]) -> str:
    shown = ", ".join(map(str, macs[:4]))
    return shown + (f" and {len(macs) - 4} more" if len(macs) > 4 else "")
