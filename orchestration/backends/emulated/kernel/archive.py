"""The newest kernel source in the Debian archive, by apt with lists and caches of its own.

The system's apt is neither changed nor needed to be run by root; what is downloaded is verified by
the archive's signature, as any package is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from orchestration.backends.emulated.kernel.process import LoggedRunner
from orchestration.backends.emulated.kernel.source import (
    DEBIAN_KEYRING,
    SOURCE_REMEDY,
    SUITES,
    Mirror,
    Package,
    main_mirror,
    newest_package,
    os_release,
    parse_deb822,
    parse_one_line,
    parse_print_uris,
)
from orchestration.model.errors import NotReadyError

_ETC_APT = Path("/etc/apt")
_POLL_S = 0.3


def system_mirror(etc_apt: Path = _ETC_APT, release: Path = Path("/etc/os-release")) -> Mirror:
    """Return the Debian mirror that this system's apt uses.

    Raises:
        NotReadyError: the system is not Debian, or its sources name no mirror.
    """
    system = os_release(release.read_text()) if release.exists() else {}
    if system.get("ID") != "debian":
        raise NotReadyError("this system is not Debian: no source to look up", SOURCE_REMEDY)
    mirrors = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            mirrors += parse_deb822(path.read_text())
        elif path.suffix == ".list" and path.exists():
            mirrors += parse_one_line(path.read_text())
    return main_mirror(mirrors, system.get("VERSION_CODENAME", ""))


class Archive:
    """Suites newer than the system's own on its mirror, seen through a private apt in `folder`."""

    def __init__(self, folder: Path, mirror: Mirror, runner: LoggedRunner) -> None:
        self._folder = folder
        self._runner = runner
        self._mirror = mirror
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        keyring = DEBIAN_KEYRING if Path(DEBIAN_KEYRING).exists() else ""
        signed = Mirror(mirror.uri, SUITES, mirror.signed_by or keyring, mirror.trusted)
        (folder / "kernel.sources").write_text(signed.deb822(SUITES))

    def newest(self) -> str:
        """Update the lists and return the name of the newest kernel source package.

        Raises:
            NotReadyError: the archive cannot be reached or offers none new enough.
        """
        # A suite that a mirror does not carry fails the update; the others may do.
        update = self._runner.run(
            self._apt("apt-get", "update"), what="updating the package lists", check=False
        )
        found = self._runner.run(
            self._apt("apt-cache", "search", "--names-only", "^linux-source-[0-9]"),
            what="searching for a kernel source",
        )
        if not found.strip():
            raise NotReadyError(
                f"{self._mirror.uri} offers no kernel source:\n{update.rstrip()}",
                f"check the network, or {SOURCE_REMEDY}",
            )
        return newest_package(found)

    def describe(self, name: str) -> Package:
        """Return the version of the package `name` that would be downloaded."""
        return parse_print_uris(
            self._runner.run(
                self._apt("apt-get", "download", "--print-uris", name),
                what=f"looking up {name}",
                cwd=self._folder,
            )
        )

    def download(
        self, name: str, package: Package, folder: Path, on_bytes: Callable[[int], None]
    ) -> Path:
        """Download into `folder`, or keep what is there and verifies; return the package's file."""
        path = folder / package.file_name
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(path, done, on_bytes), daemon=True)
        watcher.start()
        try:
            self._runner.run(
                self._apt("apt-get", "download", name),
                what=f"downloading {package.file_name}",
                remedy=f"try again, or {SOURCE_REMEDY}",
                cwd=folder,
            )
        finally:
            done.set()
            watcher.join()
        return path

    def _apt(self, *words: str) -> list[str]:
        program, *rest = words
        settings = {
            "Dir::Etc::sourcelist": self._folder / "kernel.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache": self._folder / "cache",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        if os.geteuid() == 0:
            # The user that apt drops root's rights to cannot write to root's cache.
            settings["APT::Sandbox::User"] = "root"
        given = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return [program, *given, *rest]


def _watch(path: Path, done: threading.Event, on_bytes: Callable[[int], None]) -> None:
    """Tell how large the file at `path` is until `done`, for apt-get shows it to terminals only."""
    while not done.wait(_POLL_S):
        if path.exists():
            on_bytes(path.stat().st_size)
