"""A device's file tree: the machine's or an image's, with a layer on top for what it writes.

The device's first process sets it up, in its new namespaces. A device's users:

root        key only
admin       as on SONiC: key or password; sudo for everything, without a password
operator    key or password, no sudo
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestration.backends.emulated.system import (
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    bind,
    enter_root,
    mount,
    mount_kernel_files,
)
from orchestration.virtual_rack.bluefield.files import bluefield_files
from orchestration.virtual_rack.folder import PROJECT
from orchestration.virtual_rack.layout import Layout

_MS_RDONLY, _MS_REMOUNT = 0x1, 0x20
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def isolate_machine(root: Path) -> None:
    """Make the machine's settings read-only below a device's root, and give it devices of its own.

    /proc and /sys are mounted there. /dev gets folders for `pts` and `shm`.
    """
    for name in ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs"):
        place = root / name
        if place.exists():
            bind(str(place), str(place))
            _remount(place, _MS_RDONLY)
    _remount(root / "sys", _MS_RDONLY)
    # it inherits read-only
    bind(f"{root}/proc/sys/net", f"{root}/proc/sys/net")
    _remount(root / "proc/sys/net", 0)
    dev = root / "dev"
    mount("tmpfs", str(dev), "tmpfs", options="size=1M,mode=755")
    for name in _NODES:
        (dev / name).touch()
        bind(f"/dev/{name}", str(dev / name))
    for name, target in _LINKS.items():
        os.symlink(target, dev / name)
    for name in ("pts", "shm"):
        (dev / name).mkdir()


def _remount(place: Path, flags: int) -> None:
    """Change the flags of one mount, and of no other one of the same file system."""
    mount("none", str(place), flags=_MS_REMOUNT | MS_BIND | flags)


# The size of a device's disk, which includes its /tmp and /run.
DISK_BYTES = 64 << 20
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
LAYOUT_FILE = "/etc/closloop/layout.json"
SSHD_CONFIG = "/etc/ssh/sshd_config"
_PLACE = Path("/run/device")
_FOLDERS = ("upper", "work", "root", "run", "tmp", "var_tmp")

# Of a connection by ssh, sntrup761's keys would take half of the CPU, and nobody listens here.
_SSHD = f"""\
HostKey {HOST_KEY}
ListenAddress {{address}}
UsePAM no
UseDNS no
KexAlgorithms -sntrup*
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

ADMIN, OPERATOR = "admin", "operator"
_FIRST_UID = 1000
# Groups of SONiC's user admin.
_ADMIN_GROUPS = ("sudo", "redis", "docker")
_NOBODY = 65_534
# The field of the user or group id in a line of passwd or group.
_ID_FIELD = 2

PAM_SUDO = (
    "auth required pam_unix.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
)
SUDOERS = (
    "Defaults env_reset\n"
    'Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'
    "root ALL=(ALL:ALL) ALL\n"
    "%sudo ALL=(ALL:ALL) NOPASSWD: ALL\n"
)


@dataclass(frozen=True)
class Keys:
    """What tells a device and its users from others.

    The credentials are a public key, and the password of admin and operator. `machine_id` is the
    same whenever this rack is started, and no other rack's.
    """

    authorized: str
    host_key: str
    password: str
    machine_id: str


@dataclass(frozen=True)
class FileTree:
    """A device's file tree, mounted at `root`: `upper` has what differs from what lies below.

    `binds` are folders that changing files live in, by the path that the device has them at.
    """

    path: Path
    upper: Path
    root: Path
    binds: tuple[tuple[str, Path], ...]


def device_place(layout: Layout, device: str, keys: Keys, lower: Path) -> FileTree:
    """Mount a device's file tree, in a mount namespace of its own."""
    place = make_place(lower, _files(layout, device, keys, lower))
    _homes(place.upper, keys)
    for name in ("sshd", "lldpd", "lock"):
        (dict(place.binds)["/run"] / name).mkdir()
    return place


def make_place(lower: Path, files: Mapping[str, tuple[str, int]]) -> FileTree:
    """Mount a layer in memory over the tree `lower`, with files by their text and mode."""
    # there if an earlier device made it; `runc exec` wants a folder where the root is, for nothing
    (_PLACE / "root").mkdir(parents=True, exist_ok=True)
    mount("tmpfs", str(_PLACE), "tmpfs", options=f"size={DISK_BYTES},mode=755")
    upper, work, root, run, tmp, var_tmp = (_PLACE / name for name in _FOLDERS)
    for folder in (upper, work, root, run, tmp, var_tmp):
        folder.mkdir()
        folder.chmod(0o1777 if folder in (tmp, var_tmp) else 0o755)
    for name, (text, mode) in files.items():
        file = upper / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mount("overlay", str(root), "overlay", options=options)
    # what lies below an overlay must not change, and the machine's /var/tmp does
    return FileTree(_PLACE, upper, root, (("/run", run), ("/tmp", tmp), ("/var/tmp", var_tmp)))


def enter_device_root(layout: Layout, device: str, keys: Keys) -> int:
    """Make the device's file tree this process's root.

    Returns a descriptor of the folder with the files that differ from the machine's tree.
    """
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    place = device_place(layout, device, keys, Path("/"))
    root = place.root
    mount_kernel_files(str(root))
    if layout.clock == "real":
        isolate_machine(root)
    else:
        mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2")
        bind("/dev", f"{root}/dev")
    mount("devpts", f"{root}/dev/pts", "devpts", options="mode=620,ptmxmode=666")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", options=f"size={DISK_BYTES}")
    for where, folder in place.binds:
        bind(str(folder), f"{root}{where}")
    for path in {PROJECT, Path(sys.prefix), Path(sys.base_prefix)}:
        # an overlay of the root does not show other file systems
        if path.is_relative_to("/tmp") or path.stat().st_dev != Path("/").stat().st_dev:
            (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
            bind(str(path), f"{root}{path}")
    differences = os.open(place.upper, os.O_PATH | os.O_DIRECTORY)
    enter_root(str(root))
    socket.sethostname(device)
    return differences


def _files(layout: Layout, device: str, keys: Keys, lower: Path) -> dict[str, tuple[str, int]]:
    """Return text and mode of each file that a device has instead of those of the tree below."""
    users = passwd((lower / "etc/passwd").read_text(errors="replace"))
    groups = group((lower / "etc/group").read_text(errors="replace"))
    ports = "Ethernet*" if device in layout.sonic else "eth*"
    return {
        "/etc/hostname": (f"{device}\n", 0o644),
        "/etc/hosts": (f"127.0.0.1 localhost\n{layout.address[device]} {device}\n", 0o644),
        "/etc/machine-id": (f"{keys.machine_id}\n", 0o444),
        "/etc/passwd": (users, 0o644),
        "/etc/shadow": (shadow(password_hash(keys.password), users), 0o600),
        "/etc/group": (groups, 0o644),
        "/etc/gshadow": ("", 0o600),
        "/etc/sudoers": (SUDOERS, 0o440),
        "/etc/pam.d/sudo": (PAM_SUDO, 0o644),
        SSHD_CONFIG: (_SSHD.format(address=layout.address[device]), 0o644),
        HOST_KEY: (keys.host_key, 0o600),
        LAYOUT_FILE: (json.dumps(layout.to_json()), 0o644),
        "/etc/lldpd.conf": (_LLDPD.format(ports=ports), 0o644),
        **bluefield_files(layout.pcc_device(device)),
    }


def _homes(upper: Path, keys: Keys) -> None:
    for home, uid in homes().values():
        folder = upper / home.lstrip("/")
        (folder / ".ssh").mkdir(parents=True)
        (folder / ".ssh" / "authorized_keys").write_text(keys.authorized)
        for path in (folder, folder / ".ssh", folder / ".ssh" / "authorized_keys"):
            shutil.chown(path, uid, uid)
            path.chmod(0o600 if path.is_file() else 0o700)


def password_hash(password: str) -> str:
    """Return the hash of a password for /etc/shadow, or `*` (no login) without libcrypt."""
    try:
        crypt = ctypes.CDLL("libcrypt.so.1").crypt
    except OSError:
        return "*"
    crypt.restype = ctypes.c_char_p
    made: bytes | None = crypt(password.encode(), b"$5$rounds=1000$closloop$")
    return made.decode() if made else "*"


def homes() -> dict[str, tuple[str, int]]:
    """Return home folder and uid (equal to the gid) of each user that logs in."""
    return {
        "root": ("/home/root", 0),
        ADMIN: (f"/home/{ADMIN}", _FIRST_UID),
        OPERATOR: (f"/home/{OPERATOR}", _FIRST_UID + 1),
    }


def passwd(machine: str) -> str:
    """Return a device's /etc/passwd: the machine's system users, and ours."""
    lines = [f"root:x:0:0:root:{homes()['root'][0]}:/bin/bash"]
    lines += _system_lines(machine, {*homes()})
    lines += [
        f"{name}:x:{uid}:{uid}::{home}:/bin/bash" for name, (home, uid) in homes().items() if uid
    ]
    return "\n".join(lines) + "\n"


def shadow(password_hash: str, passwd_text: str) -> str:
    """Return a device's /etc/shadow: `password_hash` for admin and operator, `*` for the others.

    Not `!`, because sshd refuses accounts with that as locked.
    """
    names = (line.split(":", 1)[0] for line in passwd_text.splitlines())
    secret = {ADMIN: password_hash, OPERATOR: password_hash}
    return "".join(f"{name}:{secret.get(name, '*')}:20000:0:99999:7:::\n" for name in names)


def group(machine: str) -> str:
    """Return a device's /etc/group: the machine's system groups, and ours."""
    own = {*_ADMIN_GROUPS, ADMIN, OPERATOR}
    lines = _system_lines(machine, own)
    known = {line.split(":")[0]: _number(line) for line in _lines(machine)}
    free = (number for number in range(900, 1000) if number not in known.values())
    for name in _ADMIN_GROUPS:
        lines.append(f"{name}:x:{known.get(name) or next(free)}:{ADMIN}")
    lines += [f"{name}:x:{uid}:" for name, (_, uid) in homes().items() if uid]
    return "\n".join(lines) + "\n"


def _system_lines(text: str, left_out: Collection[str]) -> list[str]:
    def kept(name: str, number: int) -> bool:
        return name not in left_out and (number < _FIRST_UID or number == _NOBODY)

    return [line for line in _lines(text) if kept(line.split(":")[0], _number(line))]


def _number(line: str) -> int:
    return int(line.split(":")[_ID_FIELD])


def _lines(text: str) -> list[str]:
    """Return the well-formed lines of passwd or group, which have a numeric id."""
    lines = (line for line in text.splitlines() if line.count(":") > _ID_FIELD)
    return [line for line in lines if line.split(":")[_ID_FIELD].isdigit()]
