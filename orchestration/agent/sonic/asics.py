"""Which SONiC switches are not driven: those with several ASICs, and those with virtual queues.

A multi-ASIC switch has a Redis and a CONFIG_DB for each ASIC, and the one of the host has no queues
(sonic-buildimage, sonic_py_common/multi_asic.py, device_info.py). A VOQ switch's queues are at the
ports where packets come in, with keys and counters of their own (sonic-swss, portsorch.cpp).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..small_files import fields, text

_PLATFORM_NAMES = ("onie_platform", "aboot_platform")
# `switch_type` of DEVICE_METADATA: without it, or with `switch`, queues are those of the ports.
_OTHER_QUEUES = {
    "voq": "a VOQ switch, whose queues are where packets come in",
    "fabric": "a fabric card of a chassis, without ports of its own",
    "dpu": "a DPU, without queues of ports",
}


def refusal(metadata: Mapping[str, str], root: str = "/") -> tuple[str, str]:
    """Return why this switch is not driven and the remedy, or two empty strings.

    `metadata` is CONFIG_DB's row DEVICE_METADATA|localhost.
    """
    asics = count(root)
    what = ""
    if asics > 1:
        what = f"is a multi-ASIC switch: it has {asics} ASICs, each with a CONFIG_DB of its own"
    elif kind := _OTHER_QUEUES.get(metadata.get("switch_type", "")):
        what = f"is {kind} (switch_type {metadata['switch_type']} in its DEVICE_METADATA)"
    return what, what and "leave it out of the inventory: only switches with one ASIC can be tuned"


def count(root: str = "/") -> int:
    """Return the number of the switch's ASICs, as SONiC itself finds it."""
    places = [os.path.join(root, "usr/share/sonic/platform")]
    machine = _settings(os.path.join(root, "host/machine.conf"))
    for platform in filter(None, map(machine.get, _PLATFORM_NAMES)):
        places.append(os.path.join(root, "usr/share/sonic/device", platform))
    for place in places:
        number = _settings(os.path.join(place, "asic.conf")).get("num_asic", "")
        if number.isdigit():
            return int(number)
    return 1


def _settings(path: str) -> dict[str, str]:
    return {name.lower(): value for name, value in fields(text(path), "=").items()}
