"""Starting, finding and talking to a virtual rack, without one."""

import base64
import io
import os
import re
import select
import signal
import socket
import threading

import pytest

from inventory.files import load_testbed
from orchestration.core.errors import InputError, NotReadyError
from orchestration.virtual_rack import attach, control, folder
from orchestration.virtual_rack.control import RackHandle, RackProcess, ask
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.layout import make_layout
from orchestration.virtual_rack.messages import GuestInbox, GuestOutbox, MessageDecoder, encode
from orchestration.virtual_rack.programs import GuestProgram, exit_code

GRAPHCC = load_testbed("graphcc")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(control.RACK_VARIABLE, raising=False)
    return tmp_path / "state"


def test_messages_come_through_in_any_pieces():
    stream = b"noise\n" + encode({"id": 1}) + b"more" + b"\n" + encode({"id": 2, "end": True})
    lines = MessageDecoder()
    found = [message for n in range(len(stream)) for message in lines.feed(stream[n : n + 1])]
    assert found == [{"id": 1}, {"id": 2, "end": True}]


@pytest.mark.parametrize("line", [b"@rack [1]\n", b"@rack {\n"])
def test_what_is_marked_must_be_a_message(line):
    with pytest.raises(ValueError):
        MessageDecoder().feed(line)


def test_messages_to_the_guest_are_files_that_go_once_read(tmp_path):
    out, into = GuestOutbox(tmp_path), GuestInbox(tmp_path)
    line = out.put({"id": 1}) + out.put({"id": 2, "text": "x" * 100_000})
    assert len(line) == 4
    assert list(into.take(line[:3])) == [{"id": 1}]
    assert list(into.take(line[3:])) == [{"id": 2, "text": "x" * 100_000}]
    assert list(tmp_path.iterdir()) == []


def run_command(argv, control=(), terminal=None, **more):
    """Run a command as the guest does; return its exit code and output by stream."""
    said = {1: b"", 2: b""}

    def say(message):
        said[message["out"]] += base64.b64decode(message["data"])

    request = {"argv": argv, "cwd": "/", "env": dict(os.environ), "terminal": terminal, **more}
    command = GuestProgram(7, request, say)
    for message in control:
        command.control(message)
    while command.outputs:
        wanted = [command.input] if command.blocked else []
        readable, writable, _ = select.select(list(command.outputs), wanted, [])
        if writable:
            command.flush()
        for fd in readable:
            if not command.read(fd):
                command.drop(fd)
    _, status = os.waitpid(command.pid, 0)
    command.close()
    return exit_code(status), said[1], said[2]


END = {"input": ""}


def text(data):
    return {"input": base64.b64encode(data).decode()}


def test_a_commands_streams_and_exit_code():
    result = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], [END])
    assert result == (3, b"out\n", b"err\n")


def test_a_commands_input_however_large():
    big = os.urandom(300_000)
    assert run_command(["cat"], [text(big), END]) == (0, big, b"")


def test_input_that_nobody_takes_is_dropped():
    assert run_command(["true"], [text(bytes(300_000)), END])[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_goes_to_the_group(number):
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)  # of the caller, not the program
    try:
        code, _, _ = run_command(["sh", "-c", "sleep 1000; true"], [{"signal": int(number)}])
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert code == 128 + number


def test_a_command_on_a_terminal():
    program = "stty size; test -t 0 && test -t 1 && echo terminal"
    code, out, _ = run_command(["sh", "-c", program], terminal=[33, 77])
    assert code == 0
    assert out == b"33 77\r\nterminal\r\n"


def test_what_cannot_be_run():
    code, _, err = run_command(["no-such-program"])
    assert (code, err) == (127, b"closloop rack: no-such-program: no such program in the rack\n")
    code, _, err = run_command(["true"], cwd="/no/such/folder")
    assert (code, err) == (126, b"closloop rack: /no/such/folder: No such file or directory\n")
    assert run_command(["/etc"])[0] == 126


def test_no_rack_is_up():
    with pytest.raises(NotReadyError, match="no rack is up"):
        control.find_rack()
    with pytest.raises(NotReadyError, match="the rack graphcc is not up"):
        control.find_rack("graphcc")
    assert control.racks_up() == []


def test_an_inventory_that_is_no_virtual_racks(tmp_path, monkeypatch):
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all:\n")
    assert attach.run_inside(inventory, ["plan"]) is None
    folder = RackFolder(tmp_path)
    folder.write_marker()
    assert attach.run_inside(tmp_path / "other.yml", ["plan"]) is None
    with pytest.raises(NotReadyError, match="is not up"):
        attach.run_inside(inventory, ["plan"])
    monkeypatch.setenv(control.RACK_VARIABLE, "lab")
    assert control.in_rack()
    assert attach.run_inside(inventory, ["plan"]) is None


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="contains other files"):
        RackFolder(tmp_path).make()


def test_what_a_rack_writes_is_its_owners_and_is_removed_again(tmp_path):
    rack_folder = RackFolder(tmp_path / "lab")
    rack_folder.make()
    folder.write_folder(rack_folder, make_layout(GRAPHCC, ("spine1",), ()))
    assert rack_folder.is_rack()
    assert rack_folder.path.stat().st_mode & 0o777 == 0o700
    for secret in (rack_folder.key, rack_folder.password, rack_folder.host_key("h1")):
        assert secret.stat().st_mode & 0o077 == 0
    assert len(rack_folder.known_hosts.read_text().splitlines()) == len(GRAPHCC.devices)
    assert rack_folder.password.read_text().strip() not in rack_folder.inventory.read_text()
    assert (
        "Host spine1\n  HostName 10.255.0.30\n  User admin\n" in rack_folder.ssh_config.read_text()
    )
    (rack_folder.path / "mine").write_text("x")
    rack_folder.remove()
    assert [file.name for file in rack_folder.path.iterdir()] == ["mine"]


def test_one_start_at_a_time(tmp_path):
    rack_folder = RackFolder(tmp_path)
    with (
        rack_folder.locked(),
        pytest.raises(NotReadyError, match="is being started"),
        rack_folder.locked(),
    ):
        pass
    with rack_folder.locked():
        pass


def test_a_rack_that_has_not_ended_yet_keeps_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "_END_S", 0.0)
    rack_folder = RackFolder(tmp_path / "one")
    rack_folder.make()
    rack = RackHandle(rack_folder)
    with (
        rack_folder.locked(),
        pytest.raises(NotReadyError, match="has not ended within 0 s"),
    ):  # as it does
        rack.down()
    assert rack_folder.path.exists()
    rack.down()
    assert not rack_folder.path.exists()


def test_missing_programs_are_named_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(folder, "SBIN", str(tmp_path))
    for name in ("ip", "tc", "sshd", "ssh-keygen"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(NotReadyError, match="lldpd, redis-server, redis-cli, sudo") as found:
        folder.require_programs(make_layout(GRAPHCC, ("spine1",), ()))
    assert found.value.remedy == "apt-get install lldpd redis-server redis-tools sudo"
    with pytest.raises(NotReadyError, match="not installed: lldpd"):
        folder.require_programs(make_layout(GRAPHCC, (), ()))


def test_lldp_that_only_others_may_ask(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(folder, "SBIN", str(tmp_path))
    assert folder.limitations() == []
    for name in ("lldpd", "lldpctl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert folder.limitations() == []
    (tmp_path / "lldpctl").chmod(0o644)
    assert "you may not execute" in folder.limitations()[0]


class FakeSupervisor:
    """Answers one client with what it is given, in a rack's folder."""

    def __init__(self, folder, *answers):
        self.folder = RackFolder(folder)
        folder.mkdir(parents=True)
        self._listener = socket.socket(socket.AF_UNIX)
        before = os.getcwd()
        os.chdir(folder)
        self._listener.bind(self.folder.socket.name)
        os.chdir(before)
        self._listener.listen()
        self.heard = []
        self._thread = threading.Thread(target=self._serve, args=answers)
        self._thread.start()

    def _serve(self, *answers):
        line, _ = self._listener.accept()
        with line:
            self.heard += MessageDecoder().feed(line.recv(65_536))
            for answer in answers:
                line.sendall(encode(answer))

    def done(self):
        self._thread.join()
        self._listener.close()


def test_a_request_its_progress_and_its_answer(tmp_path):
    deep = tmp_path / ("x" * 90) / ("y" * 90)
    supervisor = FakeSupervisor(
        deep, {"stage": "devices", "done": 1, "of": 2}, {"end": True, "ok": [1]}
    )
    stages = []
    answer = ask(supervisor.folder, {"do": "await"}, lambda *stage: stages.append(stage))
    supervisor.done()
    assert (answer, stages, supervisor.heard) == ([1], [("devices", 1, 2)], [{"do": "await"}])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [{"end": True, "error": "h1: there is no event", "remedy": "see"}],
            "h1: there is no event",
        ),
        ([], "the rack went down"),
    ],
)
def test_a_request_that_fails(tmp_path, answers, message):
    supervisor = FakeSupervisor(tmp_path / "lab", *answers)
    with pytest.raises(NotReadyError, match=message):
        ask(supervisor.folder, {"do": "pass"})
    supervisor.done()


def test_a_programs_output_goes_where_it_is_asked_to():
    here, there = socket.socketpair()
    out, err = io.BytesIO(), io.BytesIO()
    process = RackProcess(here, out, err)
    for stream, data in ((1, b"a"), (2, b"b"), (1, b"c")):
        there.sendall(encode({"out": stream, "data": base64.b64encode(data).decode()}))
    there.sendall(encode({"end": True, "code": 130}))
    assert process.wait() == 130
    assert (out.getvalue(), err.getvalue()) == (b"ac", b"b")
    there.close()


def test_the_environment_of_a_program_in_the_rack(tmp_path):
    rack_folder = RackFolder(tmp_path / "lab")
    made = control.RackHandle(rack_folder)._environment(
        {"HOME": "/home/ada", "PATH": "/x", "SSH_AUTH_SOCK": "/s", "COLOUR": "red"}
    )
    assert made["HOME"] == "/run/home"
    assert made["XDG_STATE_HOME"] == "/home/ada/.local/state"
    assert made["PATH"].startswith("/x:")
    assert made["COLOUR"] == "red"
    assert made[control.RACK_VARIABLE] == "lab"
    assert "SSH_AUTH_SOCK" not in made


def test_a_device_is_the_same_machine_whenever_its_rack_is_started_and_no_other_racks(tmp_path):
    one, two = RackFolder(tmp_path / "one"), RackFolder(tmp_path / "two")
    found = [folder.machine_id(name) for folder in (one, two) for name in ("leaf1", "leaf2")]
    assert len({*found}) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in found)
    assert RackFolder(tmp_path / "one").machine_id("leaf1") == found[0]
