"""The folder of a rack, which contains all files that the rack keeps on the machine.

~/.local/state/closloop/racks/NAME       or under $XDG_STATE_HOME, or a folder that the user names
  inventory.yml  rack.json  layout.json
  key  key.pub  password  known_hosts  ssh_config  host_keys/DEVICE{,.pub}
  init  guest/  inbox/  console.log  socket
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestration.backends.common.machine_monitor import RACK_CLOCK
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.files import state_folder
from orchestration.device.jump_hosts import PACKAGE, PROGRAM, new_key, public_words
from orchestration.virtual_rack.layout import Layout

PROJECT_ROOT = Path(__file__).resolve().parents[2]
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_FORMAT = 1
# Programs that a rack's devices run, and their Debian packages.
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    PROGRAM: PACKAGE,
    "lldpd": "lldpd",
}
# Those that the machine itself needs if the devices are containers. Their image has the others.
_MACHINE_PROGRAMS = ("ip", "tc", PROGRAM)
_SONIC_PROGRAMS = {"redis-server": "redis-server", "redis-cli": "redis-tools", "sudo": "sudo"}
_ROCE_PROGRAMS = {"rdma": "iproute2"}


class RackFolder:
    """A rack's folder, which may not exist yet. Only its owner can read the secrets in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        # the Ansible inventory, and a file that marks the folder as that of a rack
        self.inventory, self.marker = path / "inventory.yml", path / "rack.json"
        # the rack's devices, addresses and cables (`layout.Layout`)
        self.layout = path / "layout.json"
        # the controller's key, with which it can log in as any user of a device
        self.key, self.public_key = path / "key", path / "key.pub"
        # the password of the users admin and operator
        self.password = path / "password"
        # every device's host key, and the settings for `ssh DEVICE` in the rack
        self.known_hosts, self.ssh_config = path / "known_hosts", path / "ssh_config"
        # the script that the guest starts with, and the folder of its kernel's own files
        self.init, self.guest = path / "init", path / "guest"
        # messages to the guest that it has not read yet
        self.inbox = path / "inbox"
        # the output of the guest's kernel and processes
        self.console = path / "console.log"
        # the supervisor's socket; it exists only while the rack is up
        self.socket = path / "socket"

    def host_key(self, device: str) -> Path:
        """Return the path of a device's private host key."""
        return self.path / "host_keys" / device

    def make(self) -> None:
        """Create the folder. Raises InputError if it contains other files."""
        if self.path.exists() and not self.is_rack() and any(self.path.iterdir()):
            raise InputError.single(
                "--folder",
                f"{self.path} contains other files",
                "name a new folder, or an empty one",
            )
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the folder while the context lasts; yield its descriptor.

        A process that inherits the descriptor holds the lock, too, until it ends. Raises
        NotReadyError if the folder is locked already.
        """
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except BlockingIOError as error:
            raise NotReadyError(
                f"the rack {self.name} is being started by another process",
                "wait until it is up: closloop rack status shows it",
            ) from error
        finally:
            os.close(folder)

    def is_locked(self) -> bool:
        """Return whether the rack is being started, or its supervisor has not ended."""
        try:
            with self.locked():
                return False
        except NotReadyError:
            return True
        except FileNotFoundError:
            return False

    def is_rack(self) -> bool:
        """Return whether this is the folder of a rack, up or not."""
        try:
            return bool(json.loads(self.marker.read_text())["format"] == _FORMAT)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def machine_id(self, device: str) -> str:
        """Return a device's machine id, the same each time that this folder's rack is started."""
        name = f"{self.path.resolve()}\0{device}"
        return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]

    def write_marker(self) -> None:
        """Write the file that marks the folder as that of a rack."""
        text = {"format": _FORMAT, "kind": "virtual rack", "name": self.name}
        self.marker.write_text(json.dumps(text) + "\n")

    def remove(self) -> None:
        """Remove the rack's files, and the folder if it is then empty."""
        self.clear()
        with suppress(OSError):
            self.path.rmdir()

    def clear(self) -> None:
        """Remove the rack's files."""
        for folder in (self.host_key(""), self.guest, self.inbox):
            shutil.rmtree(folder, ignore_errors=True)
        files = (
            self.inventory, self.layout, self.key, self.public_key, self.password,
            self.known_hosts, self.ssh_config, self.init, self.console, self.socket, self.marker,
        )  # fmt: skip
        for file in files:
            file.unlink(missing_ok=True)


def racks_folder() -> Path:
    """Return the default parent folder of racks."""
    return state_folder("racks")


def limitations() -> list[str]:
    """Return sentences about what does not work on the rack's devices on this machine."""
    lldpd = which("lldpd")
    lldpctl = Path(lldpd).with_name("lldpctl") if lldpd else None
    if lldpctl and lldpctl.exists() and not os.access(lldpctl, os.X_OK):
        return [
            f"you may not execute {lldpctl}, so the devices cannot tell who their neighbours are: "
            "become a member of its group (usermod -aG adm)"
        ]
    return []


def which(program: str) -> str | None:
    """Return the path of a program of this machine, also in the folders for administrators."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def require_programs(layout: Layout) -> None:
    """Check that the devices' programs are installed. Raises NotReadyError with the packages."""
    sonic, roce = _SONIC_PROGRAMS if layout.sonic else {}, _ROCE_PROGRAMS if layout.roce else {}
    package_of = {**_PROGRAMS, **sonic, **roce}
    if layout.image:
        package_of = {name: package_of[name] for name in _MACHINE_PROGRAMS}
    missing = [name for name in package_of if not which(name)]
    if missing:
        packages = " ".join(dict.fromkeys(package_of[name] for name in missing))
        raise NotReadyError(
            f"a rack's devices need programs that are not installed: {', '.join(missing)}",
            f"apt-get install {packages}",
        )


def write_folder(rack_folder: RackFolder, layout: Layout) -> None:
    """Write all files that the guest and the rack's users need, with new keys."""
    from inventory.ansible import write_rack

    rack_folder.clear()
    rack_folder.write_marker()
    rack_folder.layout.write_text(json.dumps(layout.to_json()))
    new_key(rack_folder.key, "controller")
    rack_folder.password.touch(0o600)
    rack_folder.password.write_text(secrets.token_urlsafe(12) + "\n")
    known = []
    for folder in (rack_folder.host_key(""), rack_folder.guest, rack_folder.inbox):
        folder.mkdir(mode=0o700)
    for device, address in layout.address.items():
        key = rack_folder.host_key(device)
        new_key(key, device)
        known.append(f"{address} {public_words(key)}\n")
    rack_folder.known_hosts.write_text("".join(known))
    rack_folder.ssh_config.write_text(_ssh_config(rack_folder, layout))
    write_rack(layout.rack(rack_folder.key, rack_folder.known_hosts), rack_folder.inventory)
    rack_folder.init.write_text(_init_script(rack_folder, layout))
    rack_folder.init.chmod(0o755)


def python_path() -> str:
    """Return a PYTHONPATH with this project first."""
    return os.pathsep.join(filter(None, (str(PROJECT_ROOT), os.environ.get("PYTHONPATH"))))


def _init_script(rack_folder: RackFolder, layout: Layout) -> str:
    return (
        "#!/bin/sh\n"
        f"export CLOSLOOP_RACK_FOLDER={shlex.quote(str(rack_folder.path))}\n"
        f"export {RACK_CLOCK}={layout.clock}\n"
        f"export PYTHONPATH={shlex.quote(python_path())} PYTHONDONTWRITEBYTECODE=1\n"
        "export PYTHONUNBUFFERED=1 LANG=C.UTF-8\n"
        f"export PATH={SBIN}:/usr/local/bin:/usr/bin:/bin\n"
        f"exec {shlex.quote(sys.executable)} -P -m orchestration.virtual_rack.guest\n"
    )


def _ssh_config(rack_folder: RackFolder, layout: Layout) -> str:
    rack = layout.rack(rack_folder.key, rack_folder.known_hosts)
    return "".join(
        f"Host {name}\n  HostName {access.address}\n  User {access.user}\n"
        f'  IdentityFile "{rack_folder.key}"\n  UserKnownHostsFile "{rack_folder.known_hosts}"\n'
        for name, access in rack.access.items()
    )
