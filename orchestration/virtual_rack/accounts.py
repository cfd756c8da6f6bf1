"""Users of a rack's devices, and the files of /etc that make them: pure.

root        by key only
admin       as on SONiC: by key or password, sudo for everything without one
operator    by key or password, no sudo
"""

from __future__ import annotations

from collections.abc import Iterable

ADMIN, OPERATOR = "admin", "operator"
_FIRST_UID = 1000
# Groups of SONiC's user.
_ADMIN_GROUPS = ("sudo", "redis", "docker")
_NOBODY = 65_534
# The user's or group's number, in a line of either file.
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


def homes() -> dict[str, tuple[str, int]]:
    """Home folder and uid (and gid) of each user that logs in."""
    return {
        "root": ("/home/root", 0),
        ADMIN: (f"/home/{ADMIN}", _FIRST_UID),
        OPERATOR: (f"/home/{OPERATOR}", _FIRST_UID + 1),
    }


def passwd(machine: str) -> str:
    """Return a device's /etc/passwd from the machine's: its system users, and ours."""
    lines = [f"root:x:0:0:root:{homes()['root'][0]}:/bin/bash"]
    lines += _system_lines(machine, {*homes()})
    lines += [
        f"{name}:x:{uid}:{uid}::{home}:/bin/bash" for name, (home, uid) in homes().items() if uid
    ]
    return "\n".join(lines) + "\n"


def shadow(password_hash: str, passwd_text: str) -> str:
    """Return a device's /etc/shadow: `password_hash` for admin and operator, none for the others.

    `*` and not `!`, which sshd takes for a locked account.
    """
    names = (line.split(":", 1)[0] for line in passwd_text.splitlines())
    secret = {ADMIN: password_hash, OPERATOR: password_hash}
    return "".join(f"{name}:{secret.get(name, '*')}:20000:0:99999:7:::\n" for name in names)


def group(machine: str) -> str:
    """Return a device's /etc/group from the machine's: its system groups, and ours."""
    own = {*_ADMIN_GROUPS, ADMIN, OPERATOR}
    lines = _system_lines(machine, own)
    known = {line.split(":")[0]: int(line.split(":")[_ID_FIELD]) for line in _lines(machine)}
    taken = {*known.values()}
    free = (number for number in range(900, 1000) if number not in taken)
    for name in _ADMIN_GROUPS:
        lines.append(f"{name}:x:{known.get(name) or next(free)}:{ADMIN}")
    lines += [f"{name}:x:{uid}:" for name, (_, uid) in homes().items() if uid]
    return "\n".join(lines) + "\n"


def _system_lines(text: str, left_out: Iterable[str]) -> list[str]:
    result = []
    for line in _lines(text):
        fields = line.split(":")
        number = int(fields[_ID_FIELD])
        if fields[0] not in left_out and (number < _FIRST_UID or number == _NOBODY):
            result.append(line)
    return result


def _lines(text: str) -> list[str]:
    """Lines of passwd or group that are whole: with a number where one belongs."""
    lines = (line for line in text.splitlines() if line.count(":") > _ID_FIELD)
    return [line for line in lines if line.split(":")[_ID_FIELD].isdigit()]
