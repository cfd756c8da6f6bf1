"""Copies a kernel's source into a work folder: from a tree, a tarball, or Debian's archive."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.errors import InputError, NotReadyError
from orchestration.kernel.patches import mirror_tree
from orchestration.kernel.process import LoggedRunner
from orchestration.kernel.source import (
    DEBIAN_KEYRING,
    SOURCE_REMEDY,
    SUITES,
    Mirror,
    Package,
    main_mirror,
    makefile_version,
    newest_package,
    os_release,
    parse_deb822,
    parse_one_line,
    parse_print_uris,
    require_version,
)

Step = Callable[[int, int], None]


def tree_version(tree: Path) -> str:
    """Return the version of a source tree.

    Raises:
        InputError: it is not a kernel source.
    """
    try:
        version = makefile_version((tree / "Makefile").read_text())
    except OSError as error:
        raise InputError.single("--source", f"{tree} is no kernel source: {error}") from error
    require_version(version)
    return version


def take_source(given: Path, to: Path, runner: LoggedRunner, step: Step) -> None:
    """Make `to` a modifiable source tree, from the user's tree or tarball.

    Raises:
        InputError: `given` is neither.
    """
    if given.is_dir():
        tree_version(given)
        mirror_tree(given.absolute(), to)
    elif given.is_file():
        _unpack(given, to, runner, step)
    else:
        raise InputError.single(
            "--source", f"no file or folder {given}", "name a tree or a tarball"
        )


def _unpack(tarball: Path, to: Path, runner: LoggedRunner, step: Step) -> None:
    size = tarball.stat().st_size
    to.mkdir(parents=True)
    compression = {".xz": "--xz", ".gz": "--gzip", ".zst": "--zstd", ".bz2": "--bzip2"}
    argv = ["tar", "--extract", "--directory", str(to), "--strip-components=1"]
    argv += [compression[tarball.suffix]] if tarball.suffix in compression else []
    with tarball.open("rb") as source:
        runner.feed(
            argv,
            source,
            what=f"unpacking {tarball.name}",
            remedy="is it a whole tarball of a Linux source?",
            on_bytes=lambda done: step(done, size),
        )


@dataclass(frozen=True)
class Archive:
    """Debian's archive through apt, with our own package lists and cache: no root, no traces."""

    folder: Path
    runner: LoggedRunner

    def newest(self) -> tuple[str, Package]:
        """Return the name of the newest kernel source package, and the package to download."""
        if not shutil.which("apt-get"):
            raise NotReadyError("this system has no apt-get to fetch a source with", SOURCE_REMEDY)
        for name in ("lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "archive.sources").write_text(self._mirror().deb822(SUITES))
        # A mirror may lack one of the suites; those that it has are enough.
        self._apt("apt-get", "update", what="reading the archive's index", check=False)
        found = self._apt(
            "apt-cache", "search", "--names-only", "^linux-source-[0-9]", what="the search"
        )
        name = newest_package(found)
        answer = self._apt(
            "apt-get", "download", "--print-uris", name, what="looking the package up"
        )
        return name, parse_print_uris(answer)

    def fetch(self, name: str, package: Package, to: Path, step: Step) -> None:
        """Download the package and unpack its source to `to`."""

        def percent(line: str) -> None:
            if match := re.match(r"dlstatus:\d+:([0-9.]+):", line):
                step(round(float(match[1]) * 10), 1000)

        status = ("-o", "APT::Status-Fd=1")
        what = f"the download of {name}"
        self._apt("apt-get", *status, "download", name, what=what, on_line=percent)
        holder = self.folder / "package"
        self.runner.run(
            ["dpkg-deb", "--extract", package.file_name, str(holder)],
            what=f"unpacking {package.file_name}",
            cwd=self.folder,
        )
        (self.folder / package.file_name).unlink()
        (tarball,) = (holder / "usr/src").glob("linux-source-*.tar.*")
        _unpack(tarball, to, self.runner, step)

    def _mirror(self) -> Mirror:
        mirrors = []
        parts = sorted(Path("/etc/apt/sources.list.d").glob("*"))
        for path in [Path("/etc/apt/sources.list"), *parts]:
            if path.suffix == ".list" and path.is_file():
                mirrors += parse_one_line(path.read_text())
            elif path.suffix == ".sources":
                mirrors += parse_deb822(path.read_text())
        told = Path("/etc/os-release")
        release = os_release(told.read_text() if told.exists() else "")
        mirror = main_mirror(mirrors, release.get("VERSION_CODENAME", ""))
        key = mirror.signed_by or (DEBIAN_KEYRING if os.path.exists(DEBIAN_KEYRING) else "")
        return Mirror(mirror.uri, mirror.suites, key, mirror.trusted)

    def _apt(
        self,
        *words: str,
        what: str,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        program, *rest = words
        options = {
            "Dir::Etc::sourcelist": self.folder / "archive.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
        }
        argv = [program, *(word for k, v in options.items() for word in ("-o", f"{k}={v}")), *rest]
        return self.runner.run(
            argv,
            what=what,
            remedy=SOURCE_REMEDY,
            cwd=self.folder,
            on_line=on_line,
            check=check,
        )
