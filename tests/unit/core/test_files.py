"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestration.core import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_the_old_bytes_or_the_new_ones(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_whole(path, "grün")
    files.write_whole(path, b"new" * 100)
    assert path.read_bytes() == b"new" * 100
    monkeypatch.setattr(os, "rename", lambda old, new: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        files.write_whole(path, b"newer")
    assert (path.read_bytes(), names(tmp_path)) == (b"new" * 100, ["a.json"])


def test_a_file_is_written_on_when_the_system_takes_a_part(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:3])))
    files.write_whole(tmp_path / "a", b"0123456789", mode=0o600)
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_what_raises_leaves_no_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def write_half() -> None:
        with files.whole_file(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])
    with files.whole_file(path) as partial:
        partial.write_text("new")
    assert (path.read_text(), names(tmp_path)) == ("new", ["a"])


@pytest.mark.parametrize("sync", [False, True])
def test_a_folder_appears_at_the_end(tmp_path, sync):
    path = tmp_path / "runs" / "one"
    left = Path(files.partial_of(path))
    left.mkdir(parents=True)
    (left / "of-a-kill").touch()
    with files.whole_folder(path, sync=sync) as partial:
        (partial / "table").write_text("1")
        assert (partial, path.exists()) == (left, False)
    assert (names(path.parent), names(path)) == (["one"], ["table"])

    def write_half() -> None:
        with files.whole_folder(path.with_name("two")) as partial:
            (partial / "table").touch()
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert names(path.parent) == ["one"]


def test_a_folder_that_holds_something_stays(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "kept").touch()
    with pytest.raises(OSError), files.whole_folder(tmp_path / "one") as partial:
        (partial / "new").touch()
    assert (names(tmp_path), names(tmp_path / "one")) == (["one"], ["kept"])


def test_syncing_reaches_every_file_before_the_folder_has_its_name(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        files, "sync_path", lambda path: seen.append((path.name, (tmp_path / "one").exists()))
    )
    with files.whole_folder(tmp_path / "one", sync=True) as partial:
        (partial / "b").touch()
        (partial / "a").touch()
    hidden = ".one.partial"
    assert seen == [("a", False), ("b", False), (hidden, False), (tmp_path.name, True)]


def test_nothing_else_renames_what_it_wrote_into_place():
    """What stands here runs on devices, syncs each step, compiles, or puts aside what is whole."""
    root = Path(__file__).resolve().parents[3]
    others = {
        "collectors/bpf/compile.py",
        "collectors/sinks/spool.py",
        "orchestration/kernel/cache.py",
        "orchestration/backends/hardware/safety/ledger.py",
        "orchestration/backends/simulated/program.py",
        "orchestration/cluster/host.py",
        "orchestration/cluster/tasks.py",
        "orchestration/agent/safety/lease.py",
        "orchestration/replay/build.py",
        "orchestration/run/folder.py",
        "orchestration/papers/claims.py",
        "orchestration/virtual_rack/image.py",
        "orchestration/virtual_rack/interface_leases.py",
    }
    found = {
        str(path.relative_to(root))
        for folder in ("collectors", "inventory", "orchestration", "traffic", "tuners")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\bos\.(replace|rename)\(|\.rename\(|\bmade\.replace\(", path.read_text())
    }
    assert found - others == {"orchestration/core/files.py"}
