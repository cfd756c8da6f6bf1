"""The ledger: on the disk before anything happens, and readable whatever happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.core.errors import NotReadyError


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Ledger.of("rack 1", tmp_path / "rack.yml")


def again(ledger: Ledger) -> Ledger:
    """The ledger as another process sees it."""
    return Ledger(ledger.folder, "rack 1", "rack.yml")


def test_a_run_that_was_not_closed_is_found_with_what_it_changed(ledger: Ledger) -> None:
    run = ledger.open_run("ann")
    ledger.snapshot(run, "leaf1", {"a": 1})
    ledger.snapshot(run, "leaf2", {"a": 2})
    ledger.change(run, "leaf1", "thresholds", "as in the snapshot", "many values")
    ledger.change(run, "leaf2", "thresholds", "as in the snapshot", "many values")
    ledger.restored(run, "leaf2", [], "was restored")
    ledger.release(run)

    (found,) = again(ledger).open_runs()

    assert (found.run, found.holder, found.alive) == (run, "ann", False)
    assert found.inventory.endswith("rack.yml")
    assert found.changed == {"leaf1", "leaf2"}
    assert found.outstanding == ["leaf1"]
    assert ledger.load_snapshot(found.snapshots["leaf1"]) == {"a": 1}


def test_a_closed_run_is_no_longer_open_and_leaves_no_lock(ledger: Ledger) -> None:
    run = ledger.open_run("ann")
    ledger.close_run(run)

    assert ledger.open_runs() == []
    assert not list(ledger.folder.glob("*.lock"))


def test_a_run_lives_as_long_as_its_process(ledger: Ledger) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from orchestration.backends.hardware.safety.ledger import Ledger\n"
        "Ledger(Path(sys.argv[1]), 'rack 1', '').open_run('bob')\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(ledger.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert [run.alive for run in ledger.open_runs()] == [True]
        process.kill()
        process.wait()
        assert [run.alive for run in ledger.open_runs()] == [False]


def test_a_torn_last_line_hides_nothing_before_or_after_it(ledger: Ledger) -> None:
    first = ledger.open_run("ann")
    with (ledger.folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"at": "2026", "run": "x", "entry": "run-op')
    second = ledger.open_run("bob")

    assert [run.run for run in ledger.open_runs()] == [first, second]


@pytest.mark.parametrize("keep", range(0, 200, 7))
def test_any_beginning_of_the_file_can_be_read(ledger: Ledger, keep: int) -> None:
    run = ledger.open_run("ann")
    ledger.snapshot(run, "leaf1", {})
    path = ledger.folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:keep])

    assert len(ledger.open_runs()) <= 1
    ledger.open_run("bob")
    assert ledger.open_runs()[-1].holder == "bob"


def test_the_same_snapshot_is_stored_once_and_only_its_owner_reads_it(ledger: Ledger) -> None:
    run = ledger.open_run("ann")
    for device in ("leaf1", "leaf2"):
        ledger.snapshot(run, device, {"same": [1, 2]})

    (path,) = ledger.folder.glob("*.json")
    assert json.loads(path.read_text()) == {"same": [1, 2]}
    assert path.stat().st_mode & 0o077 == 0
    assert (ledger.folder / "ledger.jsonl").stat().st_mode & 0o077 == 0


def test_a_damaged_or_lost_snapshot_is_refused(ledger: Ledger) -> None:
    run = ledger.open_run("ann")
    ledger.snapshot(run, "leaf1", {"a": 1})
    name = ledger.open_runs()[0].snapshots["leaf1"]
    path = ledger.folder / f"{name}.json"

    path.write_text('{"a":2}')
    with pytest.raises(NotReadyError, match="is damaged"):
        ledger.load_snapshot(name)
    path.unlink()
    with pytest.raises(NotReadyError, match="cannot be read: No such file"):
        ledger.load_snapshot(name)
    with pytest.raises(NotReadyError, match="has an invalid snapshot"):
        ledger.load_snapshot("../../etc/passwd")


def test_a_full_disk_stops_the_run_before_anything_changes(ledger: Ledger) -> None:
    run = ledger.open_run("ann")
    path = ledger.folder / "ledger.jsonl"
    path.unlink()
    path.symlink_to("/dev/full")

    with pytest.raises(NotReadyError, match="cannot be written: No space left on device"):
        ledger.change(run, "leaf1", "thresholds", "", "")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="cannot be written: Not a directory"):
        Ledger(tmp_path / "file" / "x", "rack", "").open_run("ann")


@pytest.mark.parametrize("name", ["../evil", "", ".hidden", "a/b", "x" * 300])
def test_names_that_are_no_file_names_stay_inside(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = Ledger.of(name, tmp_path).folder
    assert folder.parent == tmp_path / "closloop" / "ledgers"
    assert os.path.normpath(folder) == str(folder)


def test_inventories_of_one_name_write_to_two_ledgers_and_one_file_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    files = [tmp_path / lab / "rack.yml" for lab in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    one, other = (Ledger.of("rack", file) for file in files)
    assert one.folder != other.folder
    link = tmp_path / "link.yml"
    link.symlink_to(files[0])
    monkeypatch.chdir(files[0].parent)
    for way in (link, Path("rack.yml"), Path("../a/rack.yml")):
        assert Ledger.of("rack", way).folder == one.folder

    # either finds the other's open runs, with its snapshots, and can close them
    run = one.open_run("ann")
    one.snapshot(run, "leaf1", {"a": 1, "identity": {"machine_id": "x"}})
    one.change(run, "leaf1", "thresholds", "", "")
    one.release(run)
    (found,) = other.open_runs()
    assert (found.inventory, found.identities) == (str(files[0]), {"leaf1": {"machine_id": "x"}})
    assert other.load_snapshot(found.snapshots["leaf1"], run)["a"] == 1
    other.restored(run, "leaf1", [], "x")
    other.close_run(run)
    assert one.open_runs() == other.open_runs() == []
    assert not other.folder.exists()
    assert not list(one.folder.glob("*.lock"))
