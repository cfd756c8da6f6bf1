"""Starts the agent's Python on a device, as root through sudo if the inventory says so.

Before the starter has reported that it runs, nothing is sent but the sudo password, and only to
sudo. `sudo -n` is tried first with the same command, so that a password is sent only if that
command needs one: if sudo needs none, it does not read its input, and the command would read the
password. It is sent once, after a random prompt that sudo was given.

The messages and prompts are those of sudo 1.8 to 1.9.17 (src/tgetpass.c, plugins/sudoers/logging.c,
sudoers.c, auth/pam.c) and of sudo-rs 0.2 (src/common/error.rs, src/pam/converse.rs, error.rs).
"""

from __future__ import annotations

import re
import secrets as random
import shlex
import time
from collections.abc import Callable
from typing import Any

from inventory.rack import Access
from orchestration.agent import OLDEST_PYTHON
from orchestration.device.bundle import STARTED, STARTER
from orchestration.device.errors import DeviceError, DeviceGone, lost, silent
from orchestration.device.ssh import Secrets

SUDO = "sudo"
START_TIMEOUT_S = 60.0
# A prompt has no end of line, so it is recognised by a time without output. After a wrong password
# PAM waits some seconds, but prints nothing before.
QUIET_S = 5.0
_READ_BYTES = 1 << 16
_MAX_BYTES = 1 << 20
# Linux-PAM's PAM_MAX_RESP_SIZE. Of a longer password, the command would read the rest.
_PASSWORD_BYTES = 512

_WANTS_PASSWORD = re.compile(
    rb"a password is required|nteracti(?:on|ve authentication) is required|no password was provided"
    rb"|terminal is required to (?:read the password|authenticate)"
)
_PAM_PROMPT = re.compile(rb"\] .*(?i:password).*: ?")
_WRONG = (
    rb"ncorrect (?:password|authentication) attempt|try again",
    "sudo refuses the password of {user}",
    "give the right one with --ask-become-pass",
)
_REFUSALS = (
    (
        rb"you must have a tty",
        "sudo there runs on a terminal only (requiretty)",
        "write `Defaults:{user} !requiretty` into its sudoers (visudo)",
    ),
    (
        rb"ccount (?:or password is |has )?expired|assword (?:has )?expired|is your account locked"
        rb"|[Pp]assword change required|unable to change expired password",
        "the account of {user} or its password has expired there, or is locked",
        "renew it there (chage, passwd), or log in as another user",
    ),
    (
        rb"not in the sudoers file|is not allowed to|may not run|I'm afraid I can't do that",
        "{user} may not use sudo for this",
        "allow it in its sudoers: {user} ALL=(root) ALL",
    ),
    (
        rb"sudo.{0,8}: (?:command )?not found|sudo.{0,4}: No such file",
        "has no sudo",
        "install it, or log in as root without ansible_become",
    ),
    (
        rb"python3.{0,12}: (?:command )?not found|python3.{0,12}: No such file",
        "has no {python}",
        "install it (apt-get install python3), or correct ansible_python_interpreter",
    ),
)


class _PasswordNeeded(Exception):  # noqa: N818 (names a state)
    """Sudo needs a password for this command."""


def start(open_channel: Callable[[], Any], access: Access, secrets: Secrets) -> Any:
    """Return the channel to a Python that waits for the agent's bundle on its standard input.

    Raises DeviceError if Python is missing or too old there, or if sudo refuses; DeviceGone if the
    connection is lost or nothing answers.
    """
    command = f"{shlex.quote(access.python)} -c {shlex.quote(STARTER)}"
    if not access.become:
        return _Start(access, secrets).run(open_channel, command)
    # its messages and PAM's prompts in English
    sudo = f"env LC_ALL=C {SUDO}"
    try:
        return _Start(access, secrets).run(open_channel, f"{sudo} -n -- {command}")
    except _PasswordNeeded:
        _check_password(access, secrets)
    prompt = f"closloop-{random.token_hex(8)}:"
    command = f"{sudo} -S -p {prompt} -- {command}"
    return _Start(access, secrets, prompt.encode()).run(open_channel, command)


def _check_password(access: Access, secrets: Secrets) -> None:
    """Raise DeviceError if there is no password, or one that sudo cannot read to its end."""
    if not secrets.become:
        raise DeviceError(
            access.device,
            f"sudo is refused to {access.user}: it wants a password",
            "let the user run sudo without a password, or give one with --ask-become-pass",
        ) from None
    size = len(secrets.become.encode(errors="surrogateescape"))
    if {"\n", "\r", "\0"} & set(secrets.become) or size >= _PASSWORD_BYTES:
        raise DeviceError(
            access.device,
            f"the sudo password is {_PASSWORD_BYTES} bytes or longer, or has more than one line",
            "give the right one with --ask-become-pass, or in CLOSLOOP_BECOME_PASSWORD",
        ) from None


class _Start:
    """One attempt to start the command; `prompt` is the prompt that sudo was given."""

    def __init__(self, access: Access, secrets: Secrets, prompt: bytes = b"") -> None:
        self._access, self._secrets, self._prompt = access, secrets, prompt
        self._output = b""
        # how much of the output came before the password was sent, 0 if it was not
        self._answered = 0

    def run(self, open_channel: Callable[[], Any], command: str) -> Any:
        """Return the channel once the starter runs. Raises as `start`, or _PasswordNeeded."""
        from paramiko import SSHException

        problem = None
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            channel = open_channel()
            # prompts come on standard error: one stream keeps the order of the output
            channel.set_combine_stderr(True)
            channel.exec_command(command)
            while (started := STARTED.search(self._output)) is None:
                self._read(channel, deadline)
            channel.set_combine_stderr(False)
        except (SSHException, OSError, EOFError) as error:
            problem = lost(self._access.device, self._secrets.hide(str(error)))
        if problem is not None:
            # outside of any handler: a traceback would show what was sent
            raise problem
        assert started is not None
        if (int(started[1]), int(started[2])) < OLDEST_PYTHON:
            raise self._error(
                f"has Python {started[1].decode()}.{started[2].decode()}; "
                f"the agent needs {'.'.join(map(str, OLDEST_PYTHON))} or newer",
                "install a newer one beside it, and name it in the inventory: "
                "ansible_python_interpreter: /usr/bin/python3.9",
            )
        return channel

    def _read(self, channel: Any, deadline: float) -> None:
        """Answer sudo's prompt if there is one, then read more output."""
        if self._prompt and self._is_prompted():
            if self._answered:
                raise self._error(*_WRONG[1:])
            self._answered = len(self._output)
            channel.sendall(self._secrets.become.encode(errors="surrogateescape") + b"\n")
        channel.settimeout(max(0.001, min(QUIET_S, deadline - time.monotonic())))
        try:
            piece = channel.recv(_READ_BYTES)
        except TimeoutError:
            piece = None
        problem: Exception | None = None
        if piece is None:
            problem = self._silent(deadline)
        elif not piece or len(self._output) > _MAX_BYTES:
            problem = self._ended()
        else:
            self._output += piece
        piece = None
        if problem is not None:
            raise problem

    def _is_prompted(self) -> bool:
        """Return whether the output ends with sudo's prompt for the password."""
        _, prompt, after = self._output[self._answered :].rpartition(self._prompt)
        # sudo-rs puts the prompt in brackets, before PAM's: `[sudo: PROMPT] Password: `
        return bool(prompt) and (not after or _PAM_PROMPT.fullmatch(after) is not None)

    def _silent(self, deadline: float) -> DeviceError | None:
        """Return the error after a time without output, None if it may still come."""
        question = self._output[self._answered :].rpartition(b"\n")[2].strip()
        if self._prompt and question:
            if (known := self._known()) is not None:
                return known
            text = self._secrets.hide(question.replace(self._prompt, b""))
            return self._error(
                f"sudo asks for something other than the password: {text}",
                "let {user} run sudo without being asked (NOPASSWD), or log in as root",
            )
        if time.monotonic() < deadline:
            return None
        text = self._secrets.hide(self._output)
        what = f"its agent does not start: {text}" if text else "its agent does not answer"
        return silent(self._access.device, what)

    def _ended(self) -> Exception:
        """Return the error that says why the command has ended before the starter ran."""
        if (known := self._known()) is not None:
            return known
        if re.search(_WRONG[0], self._output):
            return self._error(*_WRONG[1:])
        if not self._prompt and _WANTS_PASSWORD.search(self._output):
            return _PasswordNeeded()
        text = self._secrets.hide(self._output[self._answered :])
        if self._access.become and b"sudo" in self._output:
            return self._error(f"sudo is refused to {{user}}: {text}", "see its sudoers (visudo)")
        what = f"its agent ended: {text}" if text else "its agent has ended or was killed"
        return DeviceGone(
            self._access.device, what, "run `python3 -V` there by SSH, and see what is in the way"
        )

    def _known(self) -> DeviceError | None:
        """Return the error for a known message in the output, None if there is none."""
        for pattern, what, remedy in _REFUSALS:
            if re.search(pattern, self._output):
                return self._error(what, remedy)
        return None

    def _error(self, what: str, remedy: str) -> DeviceError:
        for name, value in (("{user}", self._access.user), ("{python}", self._access.python)):
            what, remedy = what.replace(name, value), remedy.replace(name, value)
        return DeviceError(self._access.device, what, remedy)
