"""ASICs of SONiC switches: which ones are not supported, and in which units they count buffers.

A multi-ASIC switch has a Redis and a CONFIG_DB for each ASIC, and the host's own CONFIG_DB has no
queues (sonic-buildimage, sonic_py_common/multi_asic.py, device_info.py). The queues of a VOQ
(virtual output queue) switch are at the ports where packets arrive, with their own keys and
counters (sonic-swss, portsorch.cpp).

The units of buffers (cells), and what is known about how thresholds are rounded to them:

    Spectrum cells     sonic-buildimage, platform/mellanox/asic_table.j2; the switch has it in
                       STATE_DB (ASIC_TABLE), which takes precedence over this table
    Spectrum WRED      Mellanox/SAI-Implementation, mlnx_sai_wred.c: bytes are rounded up to cells,
                       and by the SDK further up to 64 cells
    Broadcom's cells   facebook/fboss, agent/hw/switch_asics, getPacketBufferUnitSize: Trident 2 and
                       Tomahawk 208 B, Tomahawk 3 to 5 254 B; how WRED rounds is not public
    Silicon One        the same: 384 B; how WRED rounds is not public

ASIC_DB does not show the rounding: it has the requested values, and syncd reads no attribute back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..small_files import fields, text

_PLATFORM_NAMES = ("onie_platform", "aboot_platform")
# `switch_type` of DEVICE_METADATA: without it, or with `switch`, queues are those of the ports.
_OTHER_QUEUES = {
    "voq": "a VOQ switch, whose queues are where packets come in",
    "fabric": "a fabric card of a chassis, without ports of its own",
    "dpu": "a DPU, without queues of ports",
}


def unsupported_reason(metadata: Mapping[str, str], root: str = "/") -> tuple[str, str]:
    """Return why this switch is not supported, and the remedy, or two empty strings.

    `metadata` is CONFIG_DB's row DEVICE_METADATA|localhost.
    """
    asics = asic_count(root)
    what = ""
    if asics > 1:
        what = f"is a multi-ASIC switch: it has {asics} ASICs, each with its own CONFIG_DB"
    elif kind := _OTHER_QUEUES.get(metadata.get("switch_type", "")):
        what = f"is {kind} (switch_type {metadata['switch_type']} in its DEVICE_METADATA)"
    return what, what and "leave it out of the inventory: only switches with one ASIC can be tuned"


def asic_count(root: str = "/") -> int:
    """Return the number of the switch's ASICs, which is determined as SONiC does it."""
    folders = [os.path.join(root, "usr/share/sonic/platform")]
    machine = _settings(os.path.join(root, "host/machine.conf"))
    for platform in filter(None, map(machine.get, _PLATFORM_NAMES)):
        folders.append(os.path.join(root, "usr/share/sonic/device", platform))
    for folder in folders:
        number = _settings(os.path.join(folder, "asic.conf")).get("num_asic", "")
        if number.isdigit():
            return int(number)
    return 1


def _settings(path: str) -> dict[str, str]:
    return {name.lower(): value for name, value in fields(text(path), "=").items()}


_WRED_CELLS = 64
# platform (DEVICE_METADATA) -> chip, cell in bytes
_SPECTRUM = (
    (r"mlnx_(lssn|msn)2|nvidia_sn2", "Spectrum", 96),
    (r"mlnx_msn3", "Spectrum-2", 144),
    (r"mlnx_msn4|nvidia_sn4", "Spectrum-3", 144),
    (r"nvidia_sn5640", "Spectrum-5", 192),
    (r"nvidia_sn5", "Spectrum-4", 192),
    (r"nvidia_sn6", "Spectrum-6", 256),
)
_UNKNOWN = {
    "broadcom": "in cells of 208 or 254 B, by chip; how it rounds them is not public",
    "cisco-8000": "in buffers of 384 B; how it rounds them is not public",
}


@dataclass(frozen=True)
class Cells:
    """The units of an ASIC's buffer (`cell_bytes`) and of its WRED thresholds (`step_bytes`).

    A unit is None if it is unknown. `description` continues the sentence "the ASIC has thresholds
    …".
    """

    cell_bytes: int | None
    step_bytes: int | None
    description: str

    def expected(self, threshold_bytes: int) -> int | None:
        """Return the threshold that the ASIC should use for a requested one, None if unknown."""
        if self.step_bytes is None:
            return None
        return -(-threshold_bytes // self.step_bytes) * self.step_bytes


def cells_of(asic: str, platform: str, cell_bytes: int | None) -> Cells:
    """Return what is known about an ASIC's units.

    `asic` and `platform` are SONiC's names; `cell_bytes` is what the switch reports, if it does.
    """
    if asic != "mellanox":
        return Cells(cell_bytes, None, _UNKNOWN.get(asic, "in units that are not known"))
    for pattern, chip, bytes_ in _SPECTRUM:
        if cell_bytes is None and re.match(f"x86_64-(?:{pattern})", platform):
            return _spectrum(chip, bytes_)
    return _spectrum("Spectrum", cell_bytes)


def _spectrum(chip: str, cell_bytes: int | None) -> Cells:
    if cell_bytes is None:
        return Cells(None, None, f"in steps of {_WRED_CELLS} cells of unknown size ({chip})")
    step = cell_bytes * _WRED_CELLS
    description = f"rounded up to {step} B ({chip}: {_WRED_CELLS} cells of {cell_bytes} B)"
    return Cells(cell_bytes, step, description)
