"""Building the virtual-time kernel: source, configuration, compilation, a first boot, the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from orchestration.backends.emulated.kernel import cache
from orchestration.backends.emulated.kernel.archive import Archive, system_mirror
from orchestration.backends.emulated.kernel.check import check_kernel
from orchestration.backends.emulated.kernel.config import (
    FRAGMENT,
    config_hash,
    unmet_options,
    with_prelude,
)
from orchestration.backends.emulated.kernel.process import LoggedRunner
from orchestration.backends.emulated.kernel.source import makefile_version, require_version
from orchestration.model.errors import InputError, NotReadyError

# Program, and the Debian package that has it.
BUILD_TOOLS = {
    "gcc": "gcc libc6-dev",
    "make": "make",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "xz": "xz-utils",
    "tar": "tar",
}
SPACE_BYTES = 2 * 10**9
# Lines that make prints for compiled files, counted with Linux 7.3: only the bar depends on it.
COMPILED_FILES = 930

_TAR_FLAGS = {".xz": "--xz", ".gz": "--gzip", ".tgz": "--gzip", ".bz2": "--bzip2", ".tar": ""}
# Nothing of this can be in a user-mode kernel, and it is half of the tree. Kconfig and make files
# stay, for the rest refers to them.
_NOT_UNPACKED = (
    "*/Documentation/*/*",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/testing/*",
)
# A make or a user's shell around us must not speak to the kernel's make.
_MAKE_VARIABLES = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "GNUMAKEFLAGS", "ARCH", "CROSS_COMPILE", "O")
_MAKE_PREFIXES = ("KBUILD_", "KCONFIG_", "KCFLAGS", "KCPPFLAGS")


class Progress(Protocol):
    """Who watches a build."""

    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Tell that a phase starts; `total`, in `unit`, when its end can be foreseen."""

    def advance(self, done: int) -> None:
        """Tell how much of the phase's total is done."""


@dataclass(frozen=True)
class Result:
    """The kernel, and whether it was there already."""

    kernel: cache.Kernel
    reused: bool


@dataclass(frozen=True)
class _Tree:
    """Source ready to be built, and what exactly it is."""

    path: Path
    version: str
    origin: str


def build_kernel(
    progress: Progress, *, source: Path | None = None, jobs: int = 0, force: bool = False
) -> Result:
    """Build the virtual-time kernel into the user's cache, unless it is there.

    Without `source`, a tree or a tarball, the newest one of the Debian archive is taken. A tarball
    is known by its content, a tree is built every time. `jobs` 0 is one a CPU. `force` builds
    again. Takes some minutes and 2 GB, of which 10 MB stay.

    Raises:
        InputError: `source` is not a kernel's.
        NotReadyError: something that a build needs is missing, or a step of it failed.
    """
    _require_machine()
    with cache.build_lock(lambda: progress.phase("waiting for another build to end")) as folder:
        origin = _origin(source) if source else None
        if not force and (kernel := _built_from(origin)):
            return Result(kernel, reused=True)
        progress.phase("checking tools and space")
        _require_tools()
        _require_space(folder)
        log = folder / "build.log"
        log.write_text("")
        runner = LoggedRunner(log, build_environment(dict(os.environ)))
        with _work_folder(folder) as work:
            start = time.monotonic()
            if source and origin:
                tree = _given_tree(source, origin, work, runner, progress)
            else:
                tree = _archive_tree(folder, work, runner, progress)
            binary = _compile(tree, work, runner, progress, jobs or len(os.sched_getaffinity(0)))
            progress.phase("booting it")
            report = check_kernel(binary)
            manifest = cache.Manifest(
                version=tree.version,
                release=report.release,
                config_hash=config_hash(),
                origin=tree.origin,
                compiler=runner.run(["gcc", "--version"], what="gcc").splitlines()[0],
                built_at=datetime.now(UTC).isoformat(timespec="seconds"),
                build_s=round(time.monotonic() - start, 1),
            )
            kernel = cache.install(binary, log, manifest)
        log.unlink()
        shutil.rmtree(folder / "download", ignore_errors=True)
        return Result(kernel, reused=False)


def build_environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment for apt and for the kernel's make."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _MAKE_VARIABLES and not name.startswith(_MAKE_PREFIXES)
    }
    sbin = [part for part in ("/usr/sbin", "/sbin") if part not in kept.get("PATH", "").split(":")]
    return {
        **kept,
        "PATH": ":".join([kept.get("PATH", "/usr/bin:/bin"), *sbin]),
        "KBUILD_BUILD_USER": "closloop",
        "KBUILD_BUILD_HOST": "closloop",
    }


def missing_tools() -> dict[str, str]:
    """Return the build tools that are not installed, with the packages that have them."""
    return {tool: package for tool, package in BUILD_TOOLS.items() if shutil.which(tool) is None}


def is_compiled_line(line: str) -> bool:
    """Return whether make's line tells of a compiled file."""
    return line.startswith("  CC ")


def _require_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NotReadyError(
            f"user-mode Linux runs on 64-bit x86 Linux, this is {sys.platform} on "
            f"{platform.machine()}",
            "use another machine, or the fake backend",
        )


def _require_tools() -> None:
    missing = missing_tools()
    if missing:
        raise NotReadyError(
            f"building a kernel needs {', '.join(missing)}",
            f"apt-get install {' '.join(missing.values())}",
        )


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < SPACE_BYTES:
        raise NotReadyError(
            f"building a kernel needs {SPACE_BYTES / 1e9:.1f} GB, {folder} has {free / 1e9:.1f} GB",
            "make room, or set XDG_CACHE_HOME to a folder on a larger disk",
        )


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Make the folder that a build happens in, and remove it whatever comes.

    The lock is held, so one that is there was left by a build that was killed.
    """
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _built_from(origin: str | None) -> cache.Kernel | None:
    """Return the newest kernel built from `origin`, or from whatever source when that is None."""
    for kernel in reversed(cache.built_kernels()):
        if kernel.manifest and origin in (None, kernel.manifest.origin):
            return kernel
    return None


def _origin(source: Path) -> str | None:
    """Return what identifies the content of a source, or for a tree, its path."""
    if source.is_dir():
        return f"tree:{source.resolve()}"
    if not source.is_file():
        raise InputError.single(
            "--source", f"{source} is neither a folder nor a file", "name a kernel's source"
        )
    with source.open("rb") as file:
        return f"SHA256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
