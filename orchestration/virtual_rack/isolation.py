"""Isolation of a device: its own file tree and users, and what its root user cannot change.

The file tree is the machine's or an image's, with a layer on top of it that takes what the device
writes. The device's first process mounts it, in its new namespaces. A device's users:

root        logs in with a key only
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
from orchestration.virtual_rack.folder import PROJECT_ROOT
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
    """Make the machine's settings read-only below a device's root, and mount a /dev of its own.

    /proc and /sys must be mounted below `root`. The new /dev has folders for `pts` and `shm`.
    """
    for name in ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs"):
        path = root / name
        if path.exists():
            bind(str(path), str(path))
            _remount(path, _MS_RDONLY)
    _remount(root / "sys", _MS_RDONLY)
    # it would inherit read-only from /proc/sys, but a device has network settings of its own
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


def _remount(path: Path, flags: int) -> None:
    """Change the flags of one mount, but not of other mounts of the same file system."""
    mount("none", str(path), flags=_MS_REMOUNT | MS_BIND | flags)


# The size of a device's disk, which includes its /tmp and /run.
DISK_BYTES = 64 << 20
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
LAYOUT_FILE = "/etc/closloop/layout.json"
SSHD_CONFIG = "/etc/ssh/sshd_config"
_DEVICE_FOLDER = Path("/run/device")
_FOLDERS = ("upper", "work", "root", "run", "tmp", "var_tmp")

# sntrup761 keys would take half of the CPU time of an SSH connection. They protect against future
# decryption of recorded traffic, which does not matter within a rack.
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
# The groups of the user admin on SONiC.
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
class DeviceIdentity:
    """The identity of a device, and the credentials of its users.

    `authorized` is the public key with which all users log in, `host_key` the device's private host
    key, and `password` that of admin and operator. `machine_id` is the same each time that this
    rack is started, and differs from every other rack's.
    """

    authorized: str
    host_key: str
    password: str
    machine_id: str


@dataclass(frozen=True)
class FileTree:
    """A device's file tree, mounted at `root`, below the folder `path`.

    `upper` has the files that differ from the tree below. `binds` are pairs: a path on the device,
    and the folder outside of the overlay that is mounted there, for files that often change.
    """

    path: Path
    upper: Path
    root: Path
    binds: tuple[tuple[str, Path], ...]


def mount_device_tree(
    layout: Layout, device: str, identity: DeviceIdentity, lower: Path
) -> FileTree:
    """Mount a device's file tree on top of `lower`. Call it in the device's mount namespace."""
    tree = mount_tree(lower, _files(layout, device, identity, lower))
    _make_homes(tree.upper, identity)
    for name in ("sshd", "lldpd", "lock"):
        (dict(tree.binds)["/run"] / name).mkdir()
    return tree


def mount_tree(lower: Path, files: Mapping[str, tuple[str, int]]) -> FileTree:
    """Mount a layer in memory over the tree `lower`.

    `files` are the files in that layer: text and mode by path.
    """
    # an earlier device may have created it; `runc exec` wants a folder at the root's path, which it
    # does not use
    (_DEVICE_FOLDER / "root").mkdir(parents=True, exist_ok=True)
    mount("tmpfs", str(_DEVICE_FOLDER), "tmpfs", options=f"size={DISK_BYTES},mode=755")
    upper, work, root, run, tmp, var_tmp = (_DEVICE_FOLDER / name for name in _FOLDERS)
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
    # files below an overlay must not change, but those in the machine's /var/tmp do
    return FileTree(
        _DEVICE_FOLDER, upper, root, (("/run", run), ("/tmp", tmp), ("/var/tmp", var_tmp))
    )


def enter_device_root(layout: Layout, device: str, identity: DeviceIdentity) -> int:
    """Make the device's file tree the root of this process.

    Returns a descriptor of the folder of the files that differ from the machine's tree.
    """
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    tree = mount_device_tree(layout, device, identity, Path("/"))
    root = tree.root
    mount_kernel_files(str(root))
    if layout.clock == "real":
        isolate_machine(root)
    else:
        mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2")
        bind("/dev", f"{root}/dev")
    mount("devpts", f"{root}/dev/pts", "devpts", options="mode=620,ptmxmode=666")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", options=f"size={DISK_BYTES}")
    for where, folder in tree.binds:
        bind(str(folder), f"{root}{where}")
    for path in {PROJECT_ROOT, Path(sys.prefix), Path(sys.base_prefix)}:
        # an overlay of the root does not contain other mounted file systems
        if path.is_relative_to("/tmp") or path.stat().st_dev != Path("/").stat().st_dev:
            (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
            bind(str(path), f"{root}{path}")
    differences = os.open(tree.upper, os.O_PATH | os.O_DIRECTORY)
    enter_root(str(root))
    socket.sethostname(device)
    return differences


def _files(
    layout: Layout, device: str, identity: DeviceIdentity, lower: Path
) -> dict[str, tuple[str, int]]:
    """Return the files that a device has on top of the tree below: path -> (text, mode)."""
    users = passwd_file((lower / "etc/passwd").read_text(errors="replace"))
    groups = group_file((lower / "etc/group").read_text(errors="replace"))
    ports = "Ethernet*" if device in layout.sonic else "eth*"
    return {
        "/etc/hostname": (f"{device}\n", 0o644),
        "/etc/hosts": (f"127.0.0.1 localhost\n{layout.address[device]} {device}\n", 0o644),
        "/etc/machine-id": (f"{identity.machine_id}\n", 0o444),
        "/etc/passwd": (users, 0o644),
        "/etc/shadow": (shadow_file(password_hash(identity.password), users), 0o600),
        "/etc/group": (groups, 0o644),
        "/etc/gshadow": ("", 0o600),
        "/etc/sudoers": (SUDOERS, 0o440),
        "/etc/pam.d/sudo": (PAM_SUDO, 0o644),
        SSHD_CONFIG: (_SSHD.format(address=layout.address[device]), 0o644),
        HOST_KEY: (identity.host_key, 0o600),
        LAYOUT_FILE: (json.dumps(layout.to_json()), 0o644),
        "/etc/lldpd.conf": (_LLDPD.format(ports=ports), 0o644),
        **bluefield_files(layout.pcc_device(device)),
    }


def _make_homes(upper: Path, identity: DeviceIdentity) -> None:
    for home, uid in user_homes().values():
        folder = upper / home.lstrip("/")
        (folder / ".ssh").mkdir(parents=True)
        (folder / ".ssh" / "authorized_keys").write_text(identity.authorized)
        for path in (folder, folder / ".ssh", folder / ".ssh" / "authorized_keys"):
            shutil.chown(path, uid, uid)
            path.chmod(0o600 if path.is_file() else 0o700)


def password_hash(password: str) -> str:
    """Return the hash of a password for /etc/shadow, or `*` (no login) if there is no libcrypt."""
    try:
        crypt = ctypes.CDLL("libcrypt.so.1").crypt
    except OSError:
        return "*"
    crypt.restype = ctypes.c_char_p
    hashed: bytes | None = crypt(password.encode(), b"$5$rounds=1000$closloop$")
    return hashed.decode() if hashed else "*"


def user_homes() -> dict[str, tuple[str, int]]:
    """Return home folder and uid of each user that can log in; the gid is equal to the uid."""
    return {
        "root": ("/home/root", 0),
        ADMIN: (f"/home/{ADMIN}", _FIRST_UID),
        OPERATOR: (f"/home/{OPERATOR}", _FIRST_UID + 1),
    }


def passwd_file(machine: str) -> str:
    """Return a device's /etc/passwd: the system users of the machine's file, and its own."""
    lines = [f"root:x:0:0:root:{user_homes()['root'][0]}:/bin/bash"]
    lines += _system_lines(machine, {*user_homes()})
    lines += [
        f"{name}:x:{uid}:{uid}::{home}:/bin/bash"
        for name, (home, uid) in user_homes().items()
        if uid
    ]
    return "\n".join(lines) + "\n"


def shadow_file(password_hash: str, passwd_text: str) -> str:
    """Return a device's /etc/shadow: `password_hash` for admin and operator, `*` for the others.

    It is not `!`, because sshd refuses such accounts as locked.
    """
    names = (line.split(":", 1)[0] for line in passwd_text.splitlines())
    secret = {ADMIN: password_hash, OPERATOR: password_hash}
    return "".join(f"{name}:{secret.get(name, '*')}:20000:0:99999:7:::\n" for name in names)


def group_file(machine: str) -> str:
    """Return a device's /etc/group: the system groups of the machine's file, and its own."""
    own = {*_ADMIN_GROUPS, ADMIN, OPERATOR}
    lines = _system_lines(machine, own)
    known = {line.split(":")[0]: _number(line) for line in _lines(machine)}
    free = (number for number in range(900, 1000) if number not in known.values())
    for name in _ADMIN_GROUPS:
        lines.append(f"{name}:x:{known.get(name) or next(free)}:{ADMIN}")
    lines += [f"{name}:x:{uid}:" for name, (_, uid) in user_homes().items() if uid]
    return "\n".join(lines) + "\n"


def _system_lines(text: str, left_out: Collection[str]) -> list[str]:
    def is_kept(name: str, number: int) -> bool:
        return name not in left_out and (number < _FIRST_UID or number == _NOBODY)

    return [line for line in _lines(text) if is_kept(line.split(":")[0], _number(line))]


def _number(line: str) -> int:
    return int(line.split(":")[_ID_FIELD])


def _lines(text: str) -> list[str]:
    """Return the lines of passwd or group that are well-formed, with a numeric id."""
    lines = (line for line in text.splitlines() if line.count(":") > _ID_FIELD)
    return [line for line in lines if line.split(":")[_ID_FIELD].isdigit()]
