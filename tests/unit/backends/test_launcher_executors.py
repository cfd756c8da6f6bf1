"""The folder in which guests reserve CPUs, in a place that all users share: others may be first."""

import os
from pathlib import Path

import pytest

from orchestration.backends.emulated import launcher
from orchestration.core.errors import NotReadyError

SOMEBODY = 64_203


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launcher.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"closloop-cpu-{os.getuid()}"


def test_a_guest_has_a_cpu_of_its_own_and_another_the_next(place: Path) -> None:
    with launcher._reserved_cpu() as first, launcher._reserved_cpu() as second:
        assert {first, second} <= os.sched_getaffinity(0)
        assert first != second or len(os.sched_getaffinity(0)) == 1


def test_a_link_in_a_lock_files_place_is_not_followed(place: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    place.mkdir(0o700)
    for cpu in os.sched_getaffinity(0):
        (place / str(cpu)).symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"), launcher._reserved_cpu():
        pass
    assert theirs.read_text() == "precious"


def test_a_folder_that_another_user_has_made_is_refused(place: Path, tmp_path: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    with (
        pytest.raises(NotReadyError, match="does not belong to this user alone"),
        launcher._reserved_cpu(),
    ):
        pass
    place.rmdir()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(NotReadyError, match="does not belong to this user alone"),
        launcher._reserved_cpu(),
    ):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away takes root")
def test_a_folder_of_another_user_is_refused_with_who_it_is(place: Path) -> None:
    place.mkdir(0o755)
    os.chown(place, SOMEBODY, SOMEBODY)
    with pytest.raises(NotReadyError, match=f"user id {SOMEBODY}"), launcher._reserved_cpu():
        pass
