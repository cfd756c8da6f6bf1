"""The commands of a host that stands in for one with a BlueField-3 NIC: see `files`.

It runs on the host as a program: `commands.py NAME ARGUMENT...`. It uses the standard library only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).with_name("sdk")
STATE = Path("/etc/closloop/bluefield.json")
DPACC = "/opt/mellanox/doca/tools/dpacc"
_ARCHIVE = "pcc_rp_rtt_template_app.a"
_TRUTH = ("False(0)", "True(1)")


def mlxconfig(arguments: list[str]) -> int:
    """mlxconfig -d DEVICE -e query NAME."""
    state = json.loads(STATE.read_text())
    device, name = arguments[arguments.index("-d") + 1], arguments[-1]
    if device != state["device"]:
        print(f"-E- Failed to open the device: {device}", file=sys.stderr)
        return 3
    print("\nDevice #1:\n----------\n")
    print(f"Device type:        {state['type']}")
    print(f"Device:             {device}\n")
    if name not in state:
        print(f"-E- The Device doesn't support {name} parameter", file=sys.stderr)
        return 3
    print(f"{'Configurations:':<48}{'Default':>12}{'Current':>16}{'Next Boot':>16}")
    default, current, at_boot = (_TRUTH[value] for value in state[name])
    mark = "*" if current != default else " "
    print(f"{mark}       {name:<40}{default:>12}{current:>16}{at_boot:>16}")
    return 0


def mlxreg(arguments: list[str]) -> int:
    """mlxreg -d DEVICE -y --get --op cmd_type=N --reg_name PPCC --indexes ..."""
    device = arguments[arguments.index("-d") + 1]
    fields = dict(re.findall(r"(\w+)=(\w+)", " ".join(arguments)))
    if arguments[arguments.index("--reg_name") + 1] != "PPCC" or "--get" not in arguments:
        print("-E- this stand-in does not support that", file=sys.stderr)
        return 1
    running = Path(f"/run/bluefield-{device}.ppcc").exists()
    fields = {**{name: int(value, 0) for name, value in fields.items()}, "value": int(running)}
    print("Sending access register...\n\nField Name            | Data\n" + "=" * 36)
    for name, value in fields.items():
        print(f"{name:<22}| {value:#010x}")
    print("=" * 36)
    return 0


def meson(arguments: list[str]) -> int:
    """meson setup BUILD SOURCE -Denable_all_applications=false -Denable_pcc=true: runs dpacc."""
    build, source = (Path(word) for word in arguments[1:3])
    required = {"-Denable_all_applications=false", "-Denable_pcc=true"}
    if arguments[0] != "setup" or not required <= set(arguments):
        print("ERROR: these are not the options of DOCA's guide")
        return 1
    for path in (source / "meson.build", source / "pcc/meson.build", source.parent / "VERSION"):
        if not path.is_file():
            print(f"ERROR: {path} is missing")
            return 1
    device = source / "pcc/device/rp/rtt_template"
    sources = [str(path) for folder in (device, device / "algo") for path in folder.glob("*.c")]
    build.mkdir(parents=True)
    options = f"--devicecc-options=-O2, -I{device}/algo"
    argv = [DPACC, "-flto", *sources, "-o", str(build / _ARCHIVE), "-hostcc=gcc", options]
    return subprocess.run(argv, check=False).returncode


def dpacc(arguments: list[str]) -> int:
    """dpacc SOURCE... -o ARCHIVE --devicecc-options=...: for this machine, with gcc."""
    archive = Path(arguments[arguments.index("-o") + 1])
    folders = re.findall(r"-I(\S+)", " ".join(a for a in arguments if "devicecc-options" in a))
    sources = [Path(word) for word in arguments if word.endswith(".c")]
    if not sources:
        print("dpacc: error: no input files", file=sys.stderr)
        return 1
    objects = []
    for source in sources:
        object_file = archive.with_name(f"{source.stem}.o")
        flags = ["-Wall", "-Wextra", "-Werror", "-O2", f"-I{SDK}", *(f"-I{f}" for f in folders)]
        if subprocess.run(["gcc", *flags, "-c", "-o", object_file, source], check=False).returncode:
            return 1
        objects.append(object_file)
    return subprocess.run(["ar", "cr", archive, *objects], check=False).returncode


def ninja(arguments: list[str]) -> int:
    """ninja -C BUILD: the host's program around the NIC's."""
    build = Path(arguments[arguments.index("-C") + 1])
    (build / "pcc").mkdir()
    sources = [Path(__file__).with_name("doca_pcc.c"), SDK / "library.c"]
    object_file = [build / "pcc/doca_pcc", *sources, build / _ARCHIVE]
    argv = ["gcc", "-Wall", f"-I{SDK}", "-o", *map(str, object_file)]
    return subprocess.run(argv, check=False).returncode


if __name__ == "__main__":
    commands = {f.__name__: f for f in (mlxconfig, mlxreg, meson, dpacc, ninja)}
    sys.exit(commands[sys.argv[1]](sys.argv[2:]))
