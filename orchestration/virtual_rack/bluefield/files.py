"""A host that stands in for one with a BlueField-3 NIC and the DOCA SDK.

Its commands take the options and print the output that NVIDIA documents. They were written from the
documents alone: no BlueField-3 has been used. A policy's C is compiled for this machine, with
stand-ins of the SDK's headers and library. So code that does not compile, or that registers no
algorithm, is found here. The algorithm never controls a packet.

| command | written after |
| --- | --- |
| mlxconfig, mlxreg | NVIDIA Firmware Tools (MFT) documentation: mlxconfig query, mlxreg with PPCC |
| meson, ninja, dpacc | DOCA PCC Application Guide, "Compiling the Application"; doca-samples \
applications/pcc/build_device_code.sh |
| doca_pcc | doca-samples applications/pcc/host/pcc.c; doca_pcc.h: one process is active, another \
in standby |
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

SDK = Path(__file__).with_name("sdk")
STATE = "/etc/closloop/bluefield.json"
_DOCA = "/opt/mellanox/doca"
_COMMANDS = {
    f"{_DOCA}/tools/dpacc": "dpacc",
    **{f"/usr/local/bin/{name}": name for name in ("meson", "ninja", "mlxconfig", "mlxreg")},
}
_TEMPLATE = f"{_DOCA}/applications/pcc/device/rp/rtt_template/rp_rtt_template_dev_main.c"


def bluefield_files(device: str) -> dict[str, tuple[str, int]]:
    """Return text and mode, by path, of the files of a host with this programmable NIC, if any."""
    if not device:
        return {}
    program = Path(__file__).with_name("commands.py")
    start = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    # as mlxconfig shows it: the default, the current value, the value after the next boot
    state = {"device": device, "type": "BlueField3", "USER_PROGRAMMABLE_CC": [0, 1, 1]}
    return {
        **{path: (f'{start} {name} "$@"\n', 0o755) for path, name in _COMMANDS.items()},
        f"{_DOCA}/VERSION": ("3.3.0\n", 0o644),
        f"{_DOCA}/applications/meson.build": ("# a stand-in\n", 0o644),
        f"{_DOCA}/applications/pcc/meson.build": ("# a stand-in\n", 0o644),
        _TEMPLATE: ("#error the template of the SDK must be replaced\n", 0o644),
        STATE: (json.dumps(state) + "\n", 0o644),
    }
