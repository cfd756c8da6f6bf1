"""`closloop clean`: what is left of killed racks goes, what is alive or somebody else's stays."""

import json
import os
import subprocess
import sys

import pytest

from orchestration.virtual_rack import interface_leases
from orchestration.virtual_rack.cleanup import cleanup_items
from orchestration.virtual_rack.folder import RackFolder, racks_folder
from orchestration.virtual_rack.interfaces import InterfaceState


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(interface_leases, "LEASES_FOLDER", tmp_path / "lent")


@pytest.fixture
def rack():
    """The folder of a rack that was killed."""
    rack_folder = RackFolder(racks_folder() / "dead")
    rack_folder.make()
    rack_folder.write_marker()
    rack_folder.console.write_text("its last words")
    return rack_folder


def clean(*options):
    program = "from orchestration.cli.main import main; main()"
    argv = [sys.executable, "-c", program, "clean", "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = [row for row in json.loads(done.stdout) if row["kind"] == "rack"]
    return done.returncode, [(row["name"], row["done"]) for row in found]


@pytest.mark.slow
def test_a_dead_rack_s_folder_goes_and_nothing_else_does(rack):
    theirs = racks_folder() / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    assert clean("--dry-run") == (0, [("dead", "would be removed")])
    assert rack.is_rack()
    assert clean() == (0, [("dead", "removed")])
    assert not rack.path.exists()
    assert clean() == (0, [])
    assert (theirs / "file").exists()


@pytest.mark.slow
def test_an_empty_folder_is_a_rack_s_that_was_killed_at_once():
    RackFolder(racks_folder() / "unborn").make()
    (racks_folder() / "file").touch()
    assert clean() == (0, [("unborn", "removed")])
    assert [path.name for path in racks_folder().iterdir()] == ["file"]


@pytest.mark.slow
def test_a_rack_whose_supervisor_lives_is_left_alone(rack):
    with rack.locked() as lock:
        # as `rack up` starts a supervisor, and is killed then
        supervisor = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        assert clean() == (0, [("dead", "left alone")])
        assert rack.is_rack()
    finally:
        supervisor.kill()
        supervisor.wait()
    assert clean() == (0, [("dead", "removed")])


def test_what_cannot_be_removed_is_said(rack, monkeypatch):
    (row,) = cleanup_items()
    with rack.locked(), pytest.raises(Exception, match="started by another process"):
        row.remove()


STATE = InterfaceState("enp3s0", 7, "02:00:00:00:00:01", "", 1500, 1000, "default", (), (), (), {})


def write(boot, owner=(1, "0")):
    lease = interface_leases.InterfaceLease("enp3s0", "h1", "eth0", "/rack", owner, boot, STATE)
    lease.folder.mkdir(parents=True)
    (lease.folder / "record.json").write_text(json.dumps(interface_leases.asdict(lease)))
    lease.namespace.touch()
    return lease


def test_a_record_comes_back_as_it_was_written_and_an_earlier_boot_s_is_forgotten(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    written = write("an earlier boot")
    assert interface_leases.leases() == [written]
    (row,) = cleanup_items()
    assert (row.kind, row.name, row.in_use_by) == ("interface", "enp3s0", "")
    assert row.remove() == "the machine has booted since"
    assert interface_leases.leases() == []
    assert not interface_leases.LEASES_FOLDER.exists()


def test_what_a_living_rack_has_stays_and_giving_back_takes_root(monkeypatch):
    own = interface_leases.Process.of(os.getpid())
    write(interface_leases.this_boot(), tuple(own))
    (row,) = cleanup_items()
    assert "rack down" in row.in_use_by
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Exception, match="only root"):
        row.remove()


def test_half_a_record_is_none_and_goes_with_the_next_look(monkeypatch):
    (interface_leases.LEASES_FOLDER / ".enp3s0.partial").mkdir(parents=True)
    assert interface_leases.leases() == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    lease = write("an earlier boot")
    interface_leases.return_interface(lease)
    assert not interface_leases.LEASES_FOLDER.exists()
