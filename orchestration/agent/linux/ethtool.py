"""Ethtool requests (ioctl SIOCETHTOOL): offloads, features, drivers and statistics.

Struct layouts: linux/ethtool.h. All functions raise OSError if the kernel refuses.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Sequence

_SIOCETHTOOL = 0x8946
# Commands that read and set generic receive, generic and TCP segmentation offload.
_OFFLOADS = {"gro": (0x2B, 0x2C), "gso": (0x23, 0x24), "tso": (0x1E, 0x1F)}
OFFLOADS = tuple(_OFFLOADS)
_GET_DRIVER, _DRIVER_INFO_BYTES = 0x03, 196  # its name is at 4, 32 bytes
_GET_STRINGS, _GET_STATS, _GET_SET_INFO = 0x1B, 0x1D, 0x37
_SET_STATS, _NAME_BYTES, _MAX_STATISTICS = 1, 32, 100_000
_GET_FEATURES, _SET_FEATURES, _FEATURE_WORDS = 0x3A, 0x3B, 4


def ethtool(interface: str, request: bytes) -> bytes:
    """Make one request and return the buffer as the kernel has filled it."""
    data = ctypes.create_string_buffer(request, len(request))
    ioctl_request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(data))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control.fileno(), _SIOCETHTOOL, ioctl_request)
    return data.raw


def offloads_on(interface: str) -> list[str]:
    """Return which of the offloads that merge or split packets are on: gro, gso, tso."""
    return [name for name, (get, _) in _OFFLOADS.items() if _value(interface, get)]


def turn_off(interface: str, offload: str) -> None:
    """Turn an offload off. A driver may keep it on without an error."""
    _value(interface, _OFFLOADS[offload][1])


def _value(interface: str, command: int) -> int:
    """Read a value, or set it to 0 with a command that sets: struct ethtool_value."""
    answer = ethtool(interface, struct.pack("=II", command, 0))
    return int(struct.unpack("=II", answer)[1])


def features(interface: str) -> list[int]:
    """Return the requested features, as the kernel's blocks of 32 bits."""
    head = struct.pack("=II", _GET_FEATURES, _FEATURE_WORDS)
    answer = ethtool(interface, head + bytes(16 * _FEATURE_WORDS))
    # the kernel may have fewer blocks than fit the buffer
    (count,) = struct.unpack_from("=I", answer, 4)
    # struct ethtool_get_features_block: available, requested, active, never_changed
    return [struct.unpack_from("=4I", answer, 8 + 16 * n)[1] for n in range(count)]


def set_features(interface: str, requested: Sequence[int]) -> None:
    """Request features, as blocks of 32 bits. Blocks that are not given stay unchanged."""
    words = []
    for number, present in enumerate(features(interface)):
        new = requested[number] if number < len(requested) else present
        # struct ethtool_sfeatures: a mask of what to change, and the values, for each block
        words += [new ^ present, new]
    head = struct.pack("=II", _SET_FEATURES, len(words) // 2)
    ethtool(interface, head + struct.pack(f"={len(words)}I", *words))


def driver(interface: str) -> str:
    """Return the name of an interface's driver, "" if it reports none."""
    request = struct.pack("=I", _GET_DRIVER).ljust(_DRIVER_INFO_BYTES, b"\0")
    try:
        return _text(ethtool(interface, request)[4:36])
    except OSError:
        return ""


def statistics(interface: str) -> dict[str, int]:
    """Return the driver's statistics by name, as `ethtool -S` prints them; {} if it has none."""
    info = ethtool(interface, struct.pack("=IIQI", _GET_SET_INFO, 0, 2, 0))
    (count,) = struct.unpack_from("=I", info, 16)
    if not struct.unpack_from("=Q", info, 8)[0] or not 0 < count < _MAX_STATISTICS:
        return {}
    head = struct.pack("=III", _GET_STRINGS, _SET_STATS, count)
    strings = ethtool(interface, head + bytes(_NAME_BYTES * count))
    head = struct.pack("=II", _GET_STATS, count)
    values = struct.unpack_from(f"={count}Q", ethtool(interface, head + bytes(8 * count)), 8)
    names = (_text(strings[at:][:_NAME_BYTES]) for at in range(12, len(strings), _NAME_BYTES))
    return dict(zip(names, values))


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")
