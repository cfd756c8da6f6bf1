"""A device's file tree: the machine's, with a layer of the device's own that takes all it writes.

Runs in the device's first process, in its new namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestration.virtual_rack import accounts
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.system import MS_PRIVATE, MS_REC, bind, enter_root, mount

# All that a device can write, its /tmp and /run too, before its disk is full.
DISK_BYTES = 64 << 20
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
LAYOUT_FILE = "/etc/closloop/layout.json"
PROJECT = Path(__file__).resolve().parents[2]
SSHD_CONFIG = "/etc/ssh/sshd_config"
_PLACE = Path("/run/device")

_SSHD = f"""\
HostKey {HOST_KEY}
ListenAddress {{address}}
UsePAM no
UseDNS no
PidFile none
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication yes
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
"""
_LLDPD = """\
configure lldp portidsubtype ifname
configure system interface pattern {ports}
"""


@dataclass(frozen=True)
class Keys:
    """What a device's users log in with: a public key, and the password of those who have one."""

    authorized: str
    host_key: str
    password: str


def enter_device_root(layout: Layout, device: str, keys: Keys) -> int:
    """Make the device's file tree this process's root.

    Returns a descriptor of the folder that has what differs from the machine's tree.
    """
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    _PLACE.mkdir(exist_ok=True)  # made by an earlier device, whose mount is not seen here
    mount("tmpfs", str(_PLACE), "tmpfs", options=f"size={DISK_BYTES},mode=755")
    upper, work, root, run, tmp = (_PLACE / n for n in ("upper", "work", "root", "run", "tmp"))
    for folder in (upper, work, root, run, tmp):
        folder.mkdir()
        folder.chmod(0o1777 if folder == tmp else 0o755)
    _write(upper, _files(layout, device, keys))
    _homes(upper, keys)
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    mount("overlay", str(root), "overlay", options=options)
    mount("proc", f"{root}/proc", "proc")
    mount("sysfs", f"{root}/sys", "sysfs")
    bind("/dev", f"{root}/dev")
    mount("devpts", f"{root}/dev/pts", "devpts", options="mode=620,ptmxmode=666")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", options=f"size={DISK_BYTES}")
    bind(str(run), f"{root}/run")
    bind(str(tmp), f"{root}/tmp")
    for path in {PROJECT, Path(sys.prefix), Path(sys.base_prefix)}:
        if path.is_relative_to("/tmp"):
            (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
            bind(str(path), f"{root}{path}")
    for name in ("sshd", "lldpd", "lock"):
        (run / name).mkdir()
    differences = os.open(upper, os.O_PATH | os.O_DIRECTORY)
    enter_root(str(root))
    socket.sethostname(device)
    return differences


def _files(layout: Layout, device: str, keys: Keys) -> dict[str, tuple[str, int]]:
    """Text and mode of each file that a device has instead of the machine's."""
    users = accounts.passwd(Path("/etc/passwd").read_text(errors="replace"))
    groups = accounts.group(Path("/etc/group").read_text(errors="replace"))
    secret = password_hash(keys.password)
    number = list(layout.address).index(device)
    ports = "Ethernet*" if device in layout.sonic else "eth*"
    return {
        "/etc/hostname": (f"{device}\n", 0o644),
        "/etc/hosts": (f"127.0.0.1 localhost\n{layout.address[device]} {device}\n", 0o644),
        "/etc/machine-id": (f"{number:032x}\n", 0o444),
        "/etc/passwd": (users, 0o644),
        "/etc/shadow": (accounts.shadow(secret, users), 0o600),
        "/etc/group": (groups, 0o644),
        "/etc/gshadow": ("", 0o600),
        "/etc/sudoers": (accounts.SUDOERS, 0o440),
        "/etc/pam.d/sudo": (accounts.PAM_SUDO, 0o644),
        SSHD_CONFIG: (_SSHD.format(address=layout.address[device]), 0o644),
        HOST_KEY: (keys.host_key, 0o600),
        LAYOUT_FILE: (json.dumps(layout.to_json()), 0o644),
        "/etc/lldpd.conf": (_LLDPD.format(ports=ports), 0o644),
    }


def _write(upper: Path, files: Mapping[str, tuple[str, int]]) -> None:
    for path, (text, mode) in files.items():
        file = upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)


def _homes(upper: Path, keys: Keys) -> None:
    for home, uid in accounts.homes().values():
        folder = upper / home.lstrip("/")
        (folder / ".ssh").mkdir(parents=True)
        (folder / ".ssh" / "authorized_keys").write_text(keys.authorized)
        for path in (folder, folder / ".ssh", folder / ".ssh" / "authorized_keys"):
            shutil.chown(path, uid, uid)
            path.chmod(0o600 if path.is_file() else 0o700)


def password_hash(password: str) -> str:
    """Return the password as /etc/shadow has it, or `*` (nobody's) where there is no libcrypt."""
    try:
        crypt = ctypes.CDLL("libcrypt.so.1").crypt
    except OSError:
        return "*"
    crypt.restype = ctypes.c_char_p
    made: bytes | None = crypt(password.encode(), b"$5$rounds=1000$closloop$")
    return made.decode() if made else "*"
