"""Starting the agent: sudo's prompts, refusals and passwords, and Pythons that are too old."""

import dataclasses
import logging
import random
import string
import subprocess
import sys
import traceback
from pathlib import Path

import paramiko
import pytest
from fabric import Connection

from inventory.rack import Access
from orchestration.agent import OLDEST_PYTHON
from orchestration.device import start as starting
from orchestration.device.bundle import STARTED, STARTER
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError, DeviceGone, LoginRefused, printable
from orchestration.device.ssh import Secrets, connect
from orchestration.device.start import start

sys.path.insert(0, str(Path(__file__).parent))
from sudos import DENIALS, Channel, Policy

PASSWORD = "swordfish"
ANN = Access("leaf1", "127.0.0.1", user="ann", become=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(starting, "START_TIMEOUT_S", 0.02)


class Device:
    """Sessions on a device with this sudo."""

    def __init__(self, policy, dice=None):
        self.policy, self.dice, self.sessions = policy, dice, []

    def __call__(self):
        self.sessions.append(Channel(self.policy, self.dice))
        return self.sessions[-1]

    @property
    def typed(self):
        return b"".join(session.typed for session in self.sessions)

    @property
    def given(self):
        return b"".join(session.given for session in self.sessions)


def outcome(policy, password=PASSWORD, access=ANN):
    device = Device(policy)
    return device, attempt(start, device, access, Secrets(become=password))[1]


def attempt(work, *given):
    """What `work` returns, and the DeviceError that it raises."""
    try:
        return work(*given), None
    except DeviceError as error:
        return None, error


def test_where_sudo_needs_no_password_none_is_sent():
    device, error = outcome(Policy(nopasswd=True))
    assert (error, device.typed, device.given) == (None, b"", b"")
    assert len(device.sessions) == 1


@pytest.mark.parametrize("rust", [False, True])
@pytest.mark.parametrize("lecture", [False, True])
@pytest.mark.parametrize("password", [PASSWORD, "12", "Ünïcode pass", "pass word ", "é\udce9"])
def test_a_password_goes_to_sudo_and_nowhere_else(rust, lecture, password):
    policy = Policy(
        password, rust=rust, lecture=lecture,
        warning="sudo: unable to resolve host leaf1: Name or service not known\n",
    )  # fmt: skip
    device, error = outcome(policy, password)
    assert error is None
    assert device.typed == password.encode(errors="surrogateescape") + b"\n"
    assert device.given == b""


def test_a_wrong_password_is_sent_once():
    for rust in (False, True):
        for tries in (1, 3):
            device, error = outcome(Policy(rust=rust, tries=tries, echo=True), "sesame")
            assert error.what == "sudo refuses the password of ann"
            assert "--ask-become-pass" in error.remedy
            assert device.typed == b"sesame\n"


@pytest.mark.parametrize(
    ("denial", "said"),
    [
        ("tty", "sudo there runs on a terminal only (requiretty)"),
        ("sudoers", "ann may not use sudo for this"),
        ("host", "ann may not use sudo for this"),
        ("command", "ann may not use sudo for this"),
        ("rs-denied", "ann may not use sudo for this"),
        ("expired", "the account of ann or its password has expired there, or is locked"),
        ("locked", "the account of ann or its password has expired there, or is locked"),
        ("password-expired", "the account of ann or its password has expired there, or is locked"),
        ("change", "the account of ann or its password has expired there, or is locked"),
        ("none", "has no sudo"),
        ("pam", "sudo is refused to ann: sudo: PAM authentication error: System error"),
    ],
)
@pytest.mark.parametrize("nopasswd", [False, True])
def test_what_sudo_refuses_is_one_clear_message(denial, said, nopasswd):
    device, error = outcome(Policy(denial=denial, nopasswd=nopasswd))
    assert error.what.endswith(said)
    assert error.remedy
    assert "\n" not in error.what
    assert device.given == b""


def test_another_question_than_the_password_is_not_answered():
    for policy in (
        Policy(pam_prompt="Verification code: "),
        Policy(pam_prompt="Verification code: ", rust=True),
        Policy(pam_prompt="Verification code: ", lecture=True),
    ):
        device, error = outcome(policy)
        assert "sudo asks for something other than the password: " in error.what
        assert error.what.endswith("Verification code:")
        assert device.typed == b""
    device, error = outcome(Policy(question="Duo passcode or option (1-3): "))
    assert (
        error.what
        == "sudo asks for something other than the password: Duo passcode or option (1-3):"
    )
    assert device.typed == b"swordfish\n"


def test_an_expired_password_is_not_taken_for_another_question():
    """Sudo says so after the password, then PAM asks for the current one to change it."""
    device, error = outcome(
        Policy(
            question="sudo: Account or password is expired, reset your password and try again\n"
            "Changing password for ann.\n[sudo] password for %p: "
        )
    )
    assert error.what.startswith("the account of ann or its password has expired")
    assert device.typed == b"swordfish\n"


def test_without_a_password_sudo_is_asked_once():
    device, error = outcome(Policy(), "")
    assert error.what == "sudo is refused to ann: it wants a password"
    assert "--ask-become-pass" in error.remedy
    assert len(device.sessions) == 1


@pytest.mark.parametrize("password", ["two\nlines", "end\n", "re\rturn", "x" * 512, "nul\0"])
def test_a_password_that_sudo_does_not_read_whole_is_not_sent(password):
    device, error = outcome(Policy(password), password)
    assert error.what == "the sudo password is 512 bytes or longer, or has more than one line"
    assert device.typed == device.given == b""


def test_a_device_that_says_nothing_ends():
    _, error = outcome(Policy(silent=True))
    assert isinstance(error, DeviceGone)
    assert error.what == "its agent does not answer"


@pytest.mark.parametrize("python", [(2, 7), (3, 4), (3, 6), (3, 8)])
def test_an_old_python_is_named(python):
    _, error = outcome(Policy(nopasswd=True, python=python))
    assert error.what == f"has Python {python[0]}.{python[1]}; the agent needs 3.9 or newer"
    _, error = outcome(Policy(python=python), access=dataclasses.replace(ANN, become=False))
    assert "the agent needs 3.9 or newer" in error.what


def pythons():
    """Pythons of this machine: that of the tests, and others that pyenv has."""
    found = [Path(sys.executable)]
    for version in ("2.7", "3.6", "3.8", "3.13"):
        found += sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))[:1]
    return found


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.parts[-3])
def test_every_python_runs_the_starter_and_says_its_version(python):
    done = subprocess.run([python, "-c", STARTER], input=b"6\nprint(", capture_output=True)
    version = STARTED.fullmatch(done.stdout)
    assert version is not None, done.stderr
    old = (int(version[1]), int(version[2])) < OLDEST_PYTHON
    assert (done.returncode == 0 and done.stderr == b"") is old
    if not old:
        assert b"SyntaxError" in done.stderr


@pytest.mark.ssh
def test_the_inventorys_python_over_ssh(loopback, monkeypatch):
    """Real Pythons, the old ones as far as this machine has them."""
    monkeypatch.setattr(starting, "START_TIMEOUT_S", 20.0)
    access = Access("leaf1", "127.0.0.1", loopback.port, loopback.user, str(loopback.key_file))
    for python in pythons():
        version = ".".join(python.parts[-3].split(".")[:2])
        named = dataclasses.replace(access, python=str(python))
        client, error = attempt(AgentClient, named, str(loopback.known_hosts), ["kernel"])
        if client is not None:
            assert client.about["python"].split(".")[0] == "3"
            client.close()
        else:
            assert error.what == f"has Python {version}; the agent needs 3.9 or newer"
            assert "ansible_python_interpreter" in error.remedy
    missing = dataclasses.replace(access, python="/no/python3.99")
    _, error = attempt(AgentClient, missing, str(loopback.known_hosts), ["kernel"])
    assert error.what == "has no /no/python3.99"


def test_the_starter_is_the_one_that_the_stand_in_runs():
    channel = Channel(Policy(nopasswd=True))
    channel.exec_command("env LC_ALL=C sudo -n -- python3 -c x")
    told = b""
    while not told.endswith(b"\n"):
        told += channel.recv(1000)
    assert STARTED.fullmatch(told)
    channel.sendall(b"not a number\n")
    while piece := channel.recv(1000):
        told += piece
    assert b"invalid literal" in told
    assert b"not a number" in told


# Nothing of a secret anywhere: what is shown, and what somebody could make visible.


def visible(error):
    """All that a message, a traceback with its locals, and its history could show."""
    told = []
    while error is not None:
        told += [str(error), repr(error), repr(error.args), repr(getattr(error, "__dict__", {}))]
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename != __file__:
                told += [f"{name}={value!r}" for name, value in frame.f_locals.items()]
        error = error.__cause__ or error.__context__
    return "\n".join(told)


def made_up(dice):
    """A password as people, generators and keyboards make them."""
    kind = dice.randrange(5)
    size = dice.randint(6, 30)
    letters = string.ascii_letters + string.digits
    if kind == 0:
        return "".join(dice.choices(string.digits, k=size))
    if kind == 1:
        return "".join(dice.choices(letters + string.punctuation + " ", k=size))
    if kind == 2:
        return "".join(dice.choices("äöüßéèñçøåλжשع汉字😀", k=size))
    if kind == 3:
        return "".join(dice.choices(letters, k=size)) + dice.choice(["'", '"', "\\", "$HOME", "%s"])
    return "".join(dice.choices(letters, k=size)) + "\udce9\udcff"


def made_up_sudo(dice, password):
    some = dice.random
    return Policy(
        password=password if some() < 0.3 else made_up(dice),
        nopasswd=some() < 0.3,
        denial=dice.choice(list(DENIALS)) if some() < 0.4 else "",
        rust=some() < 0.3,
        lecture=some() < 0.3,
        tries=dice.choice([1, 2, 3]),
        question=dice.choice(["Code: ", f"{password}? "]) if some() < 0.2 else "",
        pam_prompt=dice.choice(["Token: ", f"OTP for {password}: "]) if some() < 0.1 else "",
        echo=some() < 0.5,
        warning=f"sudo: unable to resolve host {password}\n" if some() < 0.2 else "",
        after=f"Last login of {password}\n" if some() < 0.2 else "",
        silent=some() < 0.02,
        python=dice.choice([(2, 7), (3, 6), (3, 9), (3, 13)]),
    )


@pytest.mark.slow
def test_no_secret_in_any_output_of_1000_starts(monkeypatch, caplog, capfd):
    """Sudos with all their prompts and messages, some of which repeat what was typed.

    What the command finds on its input is never a password either, whatever sudo does.
    """
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(starting, "START_TIMEOUT_S", 0.0)
    failed = 0
    for seed in range(1000):
        dice = random.Random(seed)
        password = made_up(dice)
        device = Device(made_up_sudo(dice, password), dice)
        _, error = attempt(start, device, ANN, Secrets("", password))
        if error is not None:
            failed += 1
            assert error.remedy
            assert "\n" not in error.what
        told = visible(error) + caplog.text + "".join(capfd.readouterr())
        assert password not in told, (seed, told)
        assert printable(password) not in told, (seed, told)
        assert device.given == b"", seed
        assert device.typed.count(b"\n") <= 2 + bool(device.policy.question), seed
        caplog.clear()
    assert failed > 500


FAILURES = (
    lambda secret: paramiko.AuthenticationException(f"Authentication failed: {secret}"),
    lambda secret: paramiko.BadAuthenticationType(f"no {secret}", [secret, "publickey"]),
    lambda secret: paramiko.PasswordRequiredException(f"{secret} is needed"),
    lambda secret: paramiko.SSHException(f"Server says {secret!r}"),
    lambda secret: paramiko.SSHException(f"Server '{secret}' not found in known_hosts"),
    lambda secret: paramiko.ChannelException(2, f"Connect failed {secret}"),
    lambda secret: OSError(5, f"broken {secret}"),
    lambda secret: TimeoutError(secret),
    lambda secret: EOFError(secret),
)


@pytest.mark.slow
def test_no_secret_in_any_output_of_1000_failing_logins(monkeypatch, caplog, capfd, tmp_path):
    """Servers that repeat the password in what they say; its history is chained, as Paramiko's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    for seed in range(1000):
        dice = random.Random(seed)
        password = made_up(dice)
        failure = dice.choice(FAILURES)

        def fail(self, failure=failure, secret=password):
            options = dict(self.connect_kwargs)
            assert options["password"] == secret.encode(errors="surrogateescape")
            try:
                raise ValueError(secret)
            except ValueError as error:
                raise failure(secret) from error

        monkeypatch.setattr(Connection, "open", fail)
        with pytest.raises((LoginRefused, DeviceGone)) as caught:
            connect(ANN, "", Secrets(password, made_up(dice)))
        told = visible(caught.value) + caplog.text + "".join(capfd.readouterr())
        assert password not in told, (seed, told)
        assert repr(password)[1:-1] not in told, (seed, told)
        assert caught.value.remedy
        assert caught.value.__cause__ is caught.value.__context__ is None
        caplog.clear()


# And through a real SSH server, with a script as the device's sudo.

FAKE = """#!{python}
import os, sys
words = sys.argv[1:]
command = words[words.index("--") + 1:]
mode = {mode!r}
if mode == "nopasswd":
    os.execvp(command[0], command)
if "-n" in words:
    sys.exit("sudo: a password is required")
line, prompt = b"", words[words.index("-p") + 1]
for number in range(3):
    os.write(2, (mode.startswith("ask") and mode or prompt).encode())
    line = b""
    while not line.endswith(b"\\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit("sudo: no password was provided")
        line += byte
    if line == b"{password}\\n":
        os.execvp(command[0], command)
    os.write(2, b"Sorry, try again.\\nnot " + line)
sys.exit("sudo: 3 incorrect password attempts")
"""


@pytest.mark.ssh
@pytest.mark.parametrize(
    ("mode", "password", "said"),
    [
        ("nopasswd", PASSWORD, ""),
        ("nopasswd", "12345", ""),
        ("password", PASSWORD, ""),
        ("password", "sesame-street", "sudo refuses the password of"),
        (
            "ask your token: ",
            PASSWORD,
            "sudo asks for something other than the password: ask your token",
        ),
    ],
)
def test_sudo_over_ssh(loopback, tmp_path, monkeypatch, caplog, capfd, mode, password, said):
    caplog.set_level(logging.DEBUG)
    sudo = tmp_path / "sudo"
    sudo.write_text(FAKE.format(python=sys.executable, mode=mode, password=PASSWORD))
    sudo.chmod(0o755)
    monkeypatch.setattr(starting, "SUDO", str(sudo))
    monkeypatch.setattr(starting, "START_TIMEOUT_S", 20.0)
    monkeypatch.setattr(starting, "QUIET_S", 1.0)
    access = dataclasses.replace(
        ANN, port=loopback.port, user=loopback.user, key_file=str(loopback.key_file)
    )
    client, error = attempt(
        AgentClient, access, str(loopback.known_hosts), ["kernel"], Secrets("", password)
    )
    told = visible(error)
    assert said in (error.what if error else "")
    if client is not None:
        with open(f"/proc/{client.about['pid']}/environ", "rb") as file:
            told += file.read().decode(errors="replace")
        with open(f"/proc/{client.about['pid']}/cmdline", "rb") as file:
            told += file.read().decode(errors="replace")
        client.close()
        assert not said
    told += caplog.text + "".join(capfd.readouterr())
    assert password not in told


@pytest.mark.ssh
def test_failing_logins_over_ssh_show_no_password(loopback, tmp_path, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    access = Access("leaf1", "127.0.0.1", loopback.port, loopback.user)
    for password in ("sesame-street", "ünïcode", "not\udce9utf8"):
        with pytest.raises(LoginRefused, match="refuses the login") as caught:
            AgentClient(access, str(loopback.known_hosts), [], Secrets(password, password))
        told = visible(caught.value) + caplog.text + "".join(capfd.readouterr())
        assert password not in told
