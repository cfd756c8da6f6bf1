"""Network interfaces: MTU, whether they are up, and offloads that merge or split packets."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

from ansible.module_utils.closloop.reconcile import Refused
from ansible.module_utils.netlink import RouteSocket, attribute, attributes, message

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFLA_IFNAME, _IFLA_MTU = 3, 4
_IFF_UP = 1
_IFINFO = struct.Struct("=BxHiII")

_SIOCETHTOOL = 0x8946
# ethtool commands: (get, set) of generic receive, generic and TCP segmentation offload
_OFFLOADS = {"gro": (0x2B, 0x2C), "gso": (0x23, 0x24), "tso": (0x1E, 0x1F)}
_GET_FEATURES, _SET_FEATURES = 0x3A, 0x3B
_FEATURE_WORDS = 4


class Links:
    """The interfaces of this device's network namespace, as a dump of the kernel says."""

    def __init__(self, route: RouteSocket) -> None:
        self._route = route
        self.refresh()

    def refresh(self) -> None:
        """Read all interfaces anew."""
        self.index: dict = {}
        self.name: dict = {}
        self._mtu: dict = {}
        self._up: dict = {}
        for kind, payload in self._route.dump(message(_RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0))):
            if kind != _RTM_NEWLINK:
                continue
            _, _, index, flags, _ = _IFINFO.unpack_from(payload)
            found = attributes(payload, _IFINFO.size)
            name = found[_IFLA_IFNAME].rstrip(b"\0").decode()
            self.index[name], self.name[index] = index, name
            (self._mtu[name],) = struct.unpack("=I", found[_IFLA_MTU])
            self._up[name] = bool(flags & _IFF_UP)

    def require(self, name: str) -> int:
        """Return an interface's index. Raises Refused if there is none of that name."""
        if name not in self.index:
            raise Refused(
                f"there is no interface {name!r}; there are {', '.join(sorted(self.index))}",
                "correct the interfaces in closloop_links of the inventory",
            )
        return self.index[name]

    def mtu(self, name: str) -> object:
        """Return the MTU in bytes, None without such an interface."""
        return self._mtu.get(name)

    def up(self, name: str) -> object:
        """Return whether the interface is up, None without such an interface."""
        return self._up.get(name)

    def set_mtu(self, name: str, mtu_bytes: int) -> None:
        """Set the MTU. Raises Refused."""
        body = _IFINFO.pack(0, 0, self.require(name), 0, 0)
        body += attribute(_IFLA_MTU, struct.pack("=I", mtu_bytes))
        try:
            self._route.request([message(_RTM_NEWLINK, body)])
        except OSError as error:
            raise Refused(
                f"{name} refuses an MTU of {mtu_bytes} bytes: {error.strerror}",
                "lower the testbed's mtu, or see what the NIC can do: ip -d link show " + name,
            ) from None

    def set_up(self, name: str, up: bool) -> None:
        """Set the interface up or down."""
        flags = _IFF_UP if up else 0
        body = _IFINFO.pack(0, 0, self.require(name), flags, _IFF_UP)
        self._route.request([message(_RTM_NEWLINK, body)])


def offloads(name: str) -> dict:
    """Return which offloads are on, and the features asked for, as the kernel's bit blocks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        on = [what for what, (get, _) in _OFFLOADS.items() if _value(control, name, get)]
        return {"on": on, "features": _requested(control, name)}


def set_offloads(name: str, target: dict) -> None:
    """Turn the offloads off, or put the features back. Raises Refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if "features" not in target:
            for what, (get, put) in _OFFLOADS.items():
                if _value(control, name, get):
                    try:
                        _value(control, name, put)
                    except OSError as error:
                        raise Refused(
                            f"{name} keeps {what} on: {error.strerror}",
                            f"see what the NIC can do: ethtool -k {name}",
                        ) from None
            return
        words = []
        for wanted, present in _pairs(target["features"], _requested(control, name)):
            words += [wanted ^ present, wanted]
        # struct ethtool_sfeatures: a mask of what to change, and the values, for each block
        head = struct.pack("=II", _SET_FEATURES, len(words) // 2)
        _ethtool(control, name, head + struct.pack(f"={len(words)}I", *words))


def _requested(control: socket.socket, name: str) -> list:
    """Return the blocks of features asked for; an interface may have fewer than there is room."""
    head = struct.pack("=II", _GET_FEATURES, _FEATURE_WORDS)
    answer = _ethtool(control, name, head + bytes(16 * _FEATURE_WORDS))
    (count,) = struct.unpack_from("=I", answer, 4)
    # struct ethtool_get_features_block: available, requested, active, never_changed
    return [struct.unpack_from("=4I", answer, 8 + 16 * n)[1] for n in range(count)]


def _pairs(saved: list, present: list) -> list:
    return [(saved[n] if n < len(saved) else now, now) for n, now in enumerate(present)]


def _value(control: socket.socket, name: str, command: int) -> int:
    """Ask or, with the same words, set to 0: struct ethtool_value."""
    return int(struct.unpack("=II", _ethtool(control, name, struct.pack("=II", command, 0)))[1])


def _ethtool(control: socket.socket, name: str, data: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(data, len(data))
    request = struct.pack("16sP16x", name.encode(), ctypes.addressof(buffer))
    fcntl.ioctl(control.fileno(), _SIOCETHTOOL, request)
    return buffer.raw
