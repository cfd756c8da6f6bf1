"""Built kernels in the user's cache: where they are, which one fits, how one is installed.

A kernel from the package closloop-kernel is used just like one from the cache.

~/.cache/closloop/kernel/           or under $XDG_CACHE_HOME
  <hash>/linux kernel.json build.log
  work/ build.log lock              while a kernel is being built
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestration.core.engines import KERNEL as KERNEL_ENGINE
from orchestration.core.engines import engine_facts
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.files import KERNEL, cache_folder, packaged_folder
from orchestration.kernel.fetch import version_key
from orchestration.kernel.patches import config_hash

OVERRIDE = "CLOSLOOP_KERNEL"
BINARY = "linux"
MANIFEST = "kernel.json"
_FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What a built kernel was made of; the content of `kernel.json`.

    `version` is the version of the source, `release` what `uname -r` prints on the kernel, `origin`
    the exact source (`SHA256:…` or a tree's path), `built_at` an ISO 8601 time in UTC.
    """

    version: str
    release: str
    config_hash: str
    origin: str
    compiler: str
    built_at: str
    build_s: float

    @property
    def key(self) -> str:
        """Return the name of the kernel's folder: a hash of its configuration and its source."""
        text = f"{self.config_hash} {self.version} {self.origin}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Kernel:
    """A virtual-time kernel that can be booted.

    `manifest` is None for the kernel that $CLOSLOOP_KERNEL names: how it was built is not known.
    """

    path: Path
    version: str
    hash: str
    manifest: Manifest | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the kernel that the records of its trials have."""
        return engine_facts(KERNEL_ENGINE, self.hash)


def kernel_folder() -> Path:
    """Return the folder of built kernels, which may not exist yet."""
    return cache_folder("kernel")


def find_kernel() -> Kernel | None:
    """Return the kernel to boot, or None if there is none.

    That is $CLOSLOOP_KERNEL if it is set. Otherwise it is the kernel of the newest source among
    those with the configuration and patches of this version of closloop.

    Raises InputError if $CLOSLOOP_KERNEL is not a user-mode Linux kernel.
    """
    if override := os.environ.get(OVERRIDE):
        return _overridden(Path(override).expanduser().absolute())
    kernels = built_kernels()
    return kernels[-1] if kernels else None


def require_kernel() -> Kernel:
    """Return the kernel to boot.

    Raises NotReadyError if there is none, InputError as `find_kernel` does.
    """
    kernel = find_kernel()
    if kernel is None:
        raise NotReadyError(
            "no virtual-time kernel has been built for this version of closloop",
            "build it, which takes some minutes: closloop kernel build",
        )
    return kernel


def built_kernels() -> list[Kernel]:
    """Return the kernels with the current configuration and patches, the newest source last."""
    current = config_hash()
    kernels = []
    folders = [folder for folder in (packaged_folder(KERNEL), kernel_folder()) if folder]
    for path in (path for folder in folders for path in folder.glob(f"*/{MANIFEST}")):
        manifest = _read_manifest(path)
        binary = path.with_name(BINARY)
        if manifest and manifest.config_hash == current and binary.is_file():
            kernel = Kernel(binary, manifest.version, manifest.key, manifest)
            kernels.append(((version_key(manifest.version), manifest.built_at), kernel))
    return [kernel for _, kernel in sorted(kernels, key=lambda keyed: keyed[0])]


def install(binary: Path, log: Path, manifest: Manifest) -> Kernel:
    """Move a built kernel and its log into the cache atomically, and return it.

    `binary` must be on the cache's file system. A kernel with the same key is replaced.
    """
    final = kernel_folder() / manifest.key
    staged = binary.parent / "staged"
    staged.mkdir()
    binary.replace(staged / BINARY)
    shutil.copy(log, staged / "build.log")
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=2)
    (staged / MANIFEST).write_text(text + "\n")
    if final.exists():
        final.rename(binary.parent / "replaced")
    staged.rename(final)
    return Kernel(final / BINARY, manifest.version, manifest.key, manifest)


@contextmanager
def build_lock(on_wait: Callable[[], None]) -> Iterator[Path]:
    """Hold the cache's build lock; yield the folder of built kernels, made if it did not exist.

    If another process holds the lock, `on_wait` is called, then waits for it.
    """
    folder = kernel_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise NotReadyError(
            f"the cache folder cannot be written: {error}",
            "set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _read_manifest(path: Path) -> Manifest | None:
    """Return a kernel's manifest, or None if its format is different."""
    try:
        fields = json.loads(path.read_text())
        return Manifest(**fields) if fields.pop("format") == _FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _overridden(path: Path) -> Kernel:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except (OSError, subprocess.SubprocessError, UnicodeError) as error:
        raise InputError.single(
            f"${OVERRIDE}",
            f"{path} is not a user-mode Linux kernel: {error}",
            f"name such a kernel in {OVERRIDE}, or unset it and use: closloop kernel build",
        ) from error
    return Kernel(path, answer.stdout.strip(), digest)
