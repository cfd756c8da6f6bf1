"""Files: written atomically, either complete or not there; their digests, and where they are.

Files are written under a hidden name in the same folder, then renamed. A killed process leaves at
most the hidden name behind, and the next writer reuses it.

Devices have this module without the package: what only the controller calls imports that later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

PARTIAL_SUFFIX = ".partial"


def partial_of(path: str | Path) -> str:
    """Return the hidden name under which `path` is written: `.name.partial` beside it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{PARTIAL_SUFFIX}")


def write_whole(path: str | Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace the file `path` by `data`, text as UTF-8. Raises OSError.

    A reader sees either the old bytes or the new ones. Nothing is synced to the disk. No system
    call fails in the normal case, since in a guest each failure costs a microsecond of virtual
    time.
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
    """Yield a hidden path to write to. It becomes `path`, or is removed if an error is raised."""
    partial = Path(partial_of(path))
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`; create parents, and remove it at the end."""
    import shutil  # brings compression, and guests write files only

    partial = Path(partial_of(path))
    shutil.rmtree(partial, ignore_errors=True)  # left by a writer that was killed
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def whole_folder(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a hidden folder to write into. It becomes `path`, or is removed on an error.

    With `sync`, its files and both folders are on the disk before this returns. Raises OSError,
    also if `path` is a folder that is not empty.
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
    """Wait until a file, or a folder's list of names, is on the disk. Raises OSError."""
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
    import hashlib  # guests write files only

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Names the folder below which a user's files stand on a machine that they were brought to.
COPIED_FILES_ROOT = "CLOSLOOP_BROUGHT"


def local_path(path: str) -> str:
    """Return where an absolute path's file is on this machine; other paths as they are.

    A trial names files by their paths on the machine that planned it, wherever it runs. A relative
    path starts at the working folder, which was brought as well.
    """
    root = os.environ.get(COPIED_FILES_ROOT, "")
    brought = root + path
    return brought if root and os.path.isabs(path) and os.path.exists(brought) else path


def cache_folder(*parts: str) -> Path:
    """Return a folder of what can be made again: in $XDG_CACHE_HOME/closloop, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "closloop", *parts)


def state_folder(*parts: str) -> Path:
    """Return a folder of what must be kept: in $XDG_STATE_HOME/closloop, or in ~/.local/state."""
    return Path(
        os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "closloop", *parts
    )


# The wheel that `closloop kernel wheel` makes, and its folders, which are those of the cache.
PACKAGE = "closloop_kernel"
KERNEL, BPF, SOURCES = "kernel", "bpf", "sources"


def packaged_folder(part: str) -> Path | None:
    """Return the folder of that name of the package closloop-kernel; None without the package."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / part
    return folder if folder.is_dir() else None
