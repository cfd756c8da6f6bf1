"""The other side of `start`: sudo's prompts and messages, as an SSH channel without SSH.

Taken from sudo 1.9.17 (src/tgetpass.c, plugins/sudoers/check.c, logging.c, sudoers.c, auth/pam.c,
auth/sudo_auth.c) and sudo-rs 0.2 (src/pam/converse.rs, src/pam/error.rs, src/common/error.rs).
"""

import random
import shlex
import sys
import traceback
from dataclasses import dataclass, field
from types import SimpleNamespace

from orchestration.device.bundle import STARTER

LECTURE = (
    "We trust you have received the usual lecture from the local System\n"
    "Administrator. It usually boils down to these three things:\n\n"
    "    #1) Respect the privacy of others.\n    #2) Think before you type.\n\n"
)
DENIALS = {
    "tty": "sudo: sorry, you must have a tty to run sudo\n",
    "sudoers": "ann is not in the sudoers file.\n",
    "host": "ann is not allowed to run sudo on leaf1.\n",
    "command": "Sorry, user ann is not allowed to execute '/usr/bin/python3 -c x' as root on l.\n",
    "expired": 'sudo: Account expired or PAM config lacks an "account" section for sudo, contact '
    "your system administrator\n",
    "locked": "sudo: account validation failure, is your account locked?\n",
    "password-expired": "sudo: Password expired, contact your system administrator\n",
    "change": "sudo: Account or password is expired, reset your password and try again\n"
    "sudo: unable to change expired password: Authentication token manipulation error\n",
    "pam": "sudo: PAM authentication error: System error\n",
    "setuid": "sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set\n",
    "none": "sh: 1: sudo: not found\n",
    "rs-denied": "sudo: I'm sorry ann. I'm afraid I can't do that\n",
}


@dataclass
class Policy:
    """What this sudo does: `question` comes after the password, `echo` repeats what was typed."""

    password: str = "swordfish"
    nopasswd: bool = False
    denial: str = ""
    rust: bool = False
    lecture: bool = False
    tries: int = 3
    question: str = ""
    pam_prompt: str = ""
    echo: bool = False
    warning: str = ""
    after: str = ""
    silent: bool = False
    python: tuple = field(default_factory=lambda: sys.version_info[:2])


class Blocked(Exception):  # noqa: N818 (names what is so)
    """The starter waits for input."""


class Channel:
    """One session: `typed` is what sudo read, `given` what the command found on its input."""

    def __init__(self, policy, dice=None):
        self.policy, self.dice = policy, dice or random.Random(1)
        self.typed, self.given = b"", b""
        self._input, self._output, self._process = b"", b"", None
        self._needs_input = self.ended = False

    def set_combine_stderr(self, combine):
        return not combine

    def settimeout(self, seconds):
        assert seconds > 0

    def close(self):
        self.ended = True

    def exec_command(self, command):
        words = shlex.split(command)
        self._process = self._login(words)
        self._step()

    def sendall(self, data):
        self._input += data
        self._step()

    def recv(self, size):
        if not self._output:
            self._step()
        if not self._output:
            if self._process is None:
                return b""
            raise TimeoutError
        size = min(size, self.dice.choice((1, 7, 40, size)))
        piece, self._output = self._output[:size], self._output[size:]
        return piece

    def _step(self):
        """Run the process until it waits or ends."""
        while self._process is not None:
            if self._needs_input and b"\n" not in self._input:
                return
            try:
                if self._needs_input:
                    line, _, self._input = self._input.partition(b"\n")
                    self.typed += line + b"\n"
                    self._needs_input = False
                    said = self._process.send(line)
                else:
                    said = next(self._process)
            except StopIteration:
                self._process = None
                return
            if said is None:
                self._needs_input = True
            elif said == b"":
                return
            else:
                self._output += said

    def _login(self, words):
        if self.policy.silent:
            while True:
                yield b""
        if words[:2] == ["env", "LC_ALL=C"]:
            words = words[2:]
        if words[0] == "sudo":
            allowed = yield from self._sudo(words[1:])
            if not allowed:
                return
        yield from self._python()

    def _sudo(self, words):
        policy = self.policy
        options = words[: words.index("--")]
        prompt = (
            options[options.index("-p") + 1] if "-p" in options else "[sudo] password for ann: "
        )
        if policy.warning:
            yield policy.warning.encode(errors="surrogateescape")
        if policy.denial in ("tty", "none"):
            yield DENIALS[policy.denial].encode(errors="surrogateescape")
            return False
        if not policy.nopasswd:
            if "-n" in options:
                yield (
                    b"sudo: interactive authentication is required\n" if policy.rust
                    else b"sudo: a password is required\n"
                )  # fmt: skip
                return False
            if policy.lecture:
                yield LECTURE.encode(errors="surrogateescape")
            for number in range(policy.tries):
                if number:
                    again = "sudo: Authentication failed, try again.\n" if policy.rust else ""
                    yield (again or "Sorry, try again.\n").encode(errors="surrogateescape")
                asked = policy.pam_prompt or prompt
                if policy.rust:
                    asked = f"[sudo: {prompt}] {policy.pam_prompt or 'Password: '}"
                yield asked.encode(errors="surrogateescape")
                line = yield None
                if policy.echo:
                    yield b"\n" + line + b" is what you typed: " + line * 3 + b"\n"
                if line == policy.password.encode(errors="surrogateescape"):
                    break
            else:
                yield (
                    b"sudo: maximum %d incorrect authentication attempts\n" % policy.tries
                    if policy.rust
                    else b"sudo: %d incorrect password attempt%s\n"
                    % (policy.tries, b"s" * (policy.tries > 1))
                )
                return False
            if policy.question:
                yield policy.question.encode(errors="surrogateescape")
                yield None
                return False
        if policy.denial:
            yield DENIALS[policy.denial].encode(errors="surrogateescape")
            return False
        if policy.after:
            yield policy.after.encode(errors="surrogateescape")
        return True

    def _python(self):
        """Run the starter itself on what is on its input, until that has no more."""
        printed = 0
        while True:
            self.given += self._input
            self._input = b""
            text, waits = starter(self.given, self.policy.python)
            yield text[printed:].encode(errors="surrogateescape")
            printed = len(text)
            if not waits:
                return
            yield b""


def starter(given, python):
    """Return what the starter prints for an input, and whether it waits for more of it."""
    printed = []
    at = 0

    def read(size):
        nonlocal at
        if at + size > len(given):
            raise Blocked
        at += size
        return given[at - size : at]

    def readline():
        nonlocal at
        line, end, _ = given[at:].partition(b"\n")
        if not end:
            raise Blocked
        at += len(line) + 1
        return line + end

    def leave(*_):
        raise SystemExit

    system = SimpleNamespace(
        version_info=python,
        stdout=SimpleNamespace(flush=lambda: None),
        stdin=SimpleNamespace(buffer=SimpleNamespace(read=read, readline=readline)),
        exit=leave,
    )
    builtins = {
        "__import__": lambda *_: system, "print": printed.append, "int": int,
        "compile": lambda text, *_: text, "exec": lambda text: None,
    }  # fmt: skip
    try:
        exec(STARTER, {"__builtins__": builtins})
    except Blocked:
        return "".join(f"{line}\n" for line in printed), True
    except SystemExit:
        pass
    except Exception:
        printed.append(traceback.format_exc())
    return "".join(f"{line}\n" for line in printed), False
