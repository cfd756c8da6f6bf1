"""Files that are written atomically: complete or not there. Also their digests and locations.

A file is written under a hidden name in the same folder and then renamed. A killed process leaves
at most the hidden file behind, and the next writer reuses its name.

This module is also copied to devices, on its own. So it imports at the top only the few standard
modules that every caller needs; functions that only the controller calls import the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

PARTIAL_SUFFIX = ".partial"
# The copy of a campaign's file in its run folder.
CAMPAIGN_FILE = "campaign.yml"


def partial_of(path: str | Path) -> str:
    """Return the hidden name under which `path` is written: `.name.partial` beside it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{PARTIAL_SUFFIX}")


def write_whole(path: str | Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace the file `path` with `data`; text is encoded as UTF-8. Raises OSError.

    A reader sees either the old bytes or the new ones. Nothing is synced to the disk. In the normal
    case no system call fails, because in a guest each failure costs a microsecond of virtual time.
    """
    partial = partial_of(path)
    left = memoryview(data.encode() if isinstance(data, str) else data)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
        os.rename(partial, path)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a hidden path to write to. It is renamed to `path`, or removed on an error."""
    partial = Path(partial_of(path))
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`, and remove it at the end.

    Missing parent folders are created.
    """
    import shutil  # it imports compression modules, and guests never need it

    partial = Path(partial_of(path))
    shutil.rmtree(partial, ignore_errors=True)  # left by a writer that was killed
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def whole_folder(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a hidden folder to write into. It is renamed to `path`, or removed on an error.

    With `sync`, its files, the folder and its parent are synced to the disk before this returns.
    Raises OSError, also if `path` is a folder that is not empty.
    """
    with partial_folder(path) as partial:
        yield partial
        if sync:
            for item in (*sorted(partial.iterdir()), partial):
                sync_path(item)
        partial.rename(path)
        if sync:
            sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is synced to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: str | Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits. Raises OSError."""
    import hashlib  # guests never need it

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The environment variable that names a folder on a worker machine: below it, the user's files have
# the same absolute paths as on the machine that planned the trial.
COPIED_FILES_ROOT = "CLOSLOOP_BROUGHT"


def local_path(path: str) -> str:
    """Return the path on this machine of a file that a trial names by an absolute path.

    A trial names files by their paths on the machine that planned it, even if it runs elsewhere. A
    relative path is returned unchanged: it starts at the working folder, which was copied as well.
    """
    root = os.environ.get(COPIED_FILES_ROOT, "")
    copy = root + path
    return copy if root and os.path.isabs(path) and os.path.exists(copy) else path


def cache_folder(*parts: str) -> Path:
    """Return a folder for what can be made again: in $XDG_CACHE_HOME/closloop, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "closloop", *parts)


def state_folder(*parts: str) -> Path:
    """Return a folder for files to keep: in $XDG_STATE_HOME/closloop, or in ~/.local/state."""
    return Path(
        os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "closloop", *parts
    )


# The package in the wheel that `closloop kernel wheel` makes. It has the same folders as the cache.
PACKAGE = "closloop_kernel"
KERNEL, BPF, SOURCES = "kernel", "bpf", "sources"


def packaged_folder(part: str) -> Path | None:
    """Return a folder of the package closloop-kernel; None if it or the package is not there."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent / part
    return folder if folder.is_dir() else None
