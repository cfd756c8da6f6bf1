"""What Ansible says when a device cannot be reached or refuses, as a message and a remedy."""

from __future__ import annotations

from inventory.rack import Access
from orchestration.device.errors import printable

BROKEN = "Data could not be sent to remote host"
# What to look for in ssh's, sudo's and Ansible's words; the first found counts.
_KNOWN = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another than the known one: somebody may be in between",
        "find out why; if the device was reinstalled, take its old key out of known_hosts",
    ),
    (
        "Host key verification failed",
        "its host key is not known",
        "compare its key with one you trust, then: ssh-keyscan -p {port} {address} >> known_hosts",
    ),
    (
        "Permission denied",
        "it refuses the login of {user}",
        "check ansible_user and ansible_ssh_private_key_file, or give the password with --ask-pass",
    ),
    (
        "Missing sudo password",
        "sudo wants a password of {user}",
        "give it with --ask-become-pass",
    ),
    (
        "Incorrect sudo password",
        "sudo refuses the password of {user}",
        "give the right one with --ask-become-pass",
    ),
    (
        "is not in the sudoers file",
        "{user} may not use sudo",
        "log in as another user, or allow it in the device's sudoers",
    ),
    (
        "not allowed to",
        "{user} may not use sudo for this",
        "log in as another user, or allow it in the device's sudoers",
    ),
    (
        "No space left on device",
        "its disk is full",
        "make room on the device, then provision again",
    ),
    (
        "No usable temporary directory",
        "its disk is full, or nothing can be written to its /tmp",
        "make room on the device, then provision again",
    ),
    (
        "not responding",
        "it has stopped answering",
        "see whether it still runs; `closloop provision --undo` takes back what was changed",
    ),
    (
        "Connection refused",
        "nothing listens at {address} port {port}",
        "see whether sshd runs, and whether ansible_host and ansible_port are right",
    ),
    (
        "Connection timed out",
        "it does not answer at {address}",
        "see whether it runs, and whether its address in the inventory is right",
    ),
    (
        "No route to host",
        "there is no route to {address}",
        "see whether it runs, and whether its address in the inventory is right",
    ),
    (
        "Network is unreachable",
        "there is no route to {address}",
        "correct ansible_host in the inventory, or this machine's routes",
    ),
    (
        "Could not resolve hostname",
        "the name {address} is not known",
        "correct ansible_host in the inventory",
    ),
    (
        "closed by remote host",
        "it has closed the connection",
        "see whether it still runs; what was changed stays, `closloop provision --undo` takes it "
        "back",
    ),
    (
        "/usr/bin/python3: not found",
        "it has no /usr/bin/python3",
        "install Python 3.9 or later on it",
    ),
    (
        "/usr/bin/python3: No such file",
        "it has no /usr/bin/python3",
        "install Python 3.9 or later on it",
    ),
    (
        # Ansible wrote to ssh while ssh was ending, and does not tell what ssh said
        BROKEN,
        "the connection broke: it refuses the login of {user}, or cannot be reached",
        "check user, key and password (--ask-pass), and whether the device can be reached",
    ),
)
_OTHERWISE = "see the device's log; `closloop provision --limit {device}` tries it alone"


def explain(access: Access, said: str, remedy: str = "") -> tuple[str, str]:
    """Return message and remedy for what was said of a device.

    With a `remedy`, the device's module has found the fault itself. All of it is data: it is shown
    as one line, whatever it holds.
    """
    values = {
        "device": access.device,
        "address": access.address,
        "port": access.port,
        "user": access.user,
    }
    if remedy:
        return printable(said), printable(remedy)
    for words, message, known_remedy in _KNOWN:
        if words in said:
            return message.format(**values), known_remedy.format(**values)
    return printable(said) or "it failed without a word", _OTHERWISE.format(**values)
