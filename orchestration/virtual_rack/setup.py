"""What is written for a rack before it starts: keys, inventory, and the guest's first script."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from orchestration.model.errors import NotReadyError
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.layout import Layout

PROJECT = Path(__file__).resolve().parents[2]
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
# Programs that a rack's devices run, and Debian's packages of them.
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "lldpd": "lldpd",
}
_SONIC_PROGRAMS = {"redis-server": "redis-server", "redis-cli": "redis-tools", "sudo": "sudo"}
_ROCE_PROGRAMS = {"rdma": "iproute2"}


def shortcomings() -> list[str]:
    """Return what the rack's devices cannot do because of this machine, in words."""
    lldpd = shutil.which("lldpd", path=f"{os.environ.get('PATH', '')}:{SBIN}")
    lldpctl = Path(lldpd).with_name("lldpctl") if lldpd else None
    if lldpctl and lldpctl.exists() and not os.access(lldpctl, os.X_OK):
        return [
            f"{lldpctl} is not yours to execute, so the devices cannot say who their neighbours "
            "are: become a member of its group (usermod -aG adm)"
        ]
    return []


def require_programs(layout: Layout) -> None:
    """Raise NotReadyError with what to install, if the devices would lack a program."""
    wanted = dict(_PROGRAMS)
    wanted.update(_SONIC_PROGRAMS if layout.sonic else {})
    wanted.update(_ROCE_PROGRAMS if layout.roce else {})
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    missing = [name for name in wanted if not shutil.which(name, path=path)]
    if missing:
        packages = " ".join(dict.fromkeys(wanted[name] for name in missing))
        raise NotReadyError(
            f"a rack's devices need {', '.join(missing)}: not installed",
            f"apt-get install {packages}",
        )


def write_folder(place: RackFolder, layout: Layout) -> None:
    """Write everything that the guest and its users read, with new keys."""
    from inventory.ansible import write_rack

    place.clear()
    place.sign()
    place.layout.write_text(json.dumps(layout.to_json()))
    _new_key(place.key, "controller")
    place.password.touch(0o600)
    place.password.write_text(secrets.token_urlsafe(12) + "\n")
    known = []
    for folder in (place.host_key(""), place.guest, place.inbox):
        folder.mkdir(mode=0o700)
    for device, address in layout.address.items():
        key = place.host_key(device)
        _new_key(key, device)
        public = key.with_name(f"{key.name}.pub").read_text().split()
        known.append(f"{address} {' '.join(public[:2])}\n")
    place.known_hosts.write_text("".join(known))
    place.ssh_config.write_text(_ssh_config(place, layout))
    write_rack(layout.rack(place.key, place.known_hosts), place.inventory)
    place.init.write_text(_init_script(place))
    place.init.chmod(0o755)


def python_path() -> str:
    """Return a PYTHONPATH with this project first."""
    return os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))


def _init_script(place: RackFolder) -> str:
    return (
        "#!/bin/sh\n"
        f"export CLOSLOOP_RACK_FOLDER={shlex.quote(str(place.path))}\n"
        f"export PYTHONPATH={shlex.quote(python_path())} PYTHONDONTWRITEBYTECODE=1\n"
        "export PYTHONUNBUFFERED=1 LANG=C.UTF-8\n"
        f"export PATH={SBIN}:/usr/local/bin:/usr/bin:/bin\n"
        f"exec {shlex.quote(sys.executable)} -P -m orchestration.virtual_rack.guest\n"
    )


def _new_key(file: Path, comment: str) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def _ssh_config(place: RackFolder, layout: Layout) -> str:
    rack = layout.rack(place.key, place.known_hosts)
    return "".join(
        f"Host {name}\n  HostName {access.address}\n  User {access.user}\n"
        f'  IdentityFile "{place.key}"\n  UserKnownHostsFile "{place.known_hosts}"\n'
        for name, access in rack.access.items()
    )
