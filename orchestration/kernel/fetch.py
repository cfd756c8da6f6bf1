"""A kernel's source: found by apt's sources and answers, and copied into a work folder.

It comes from a tree, a tarball, or Debian's archive.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestration.core.errors import InputError, NotReadyError
from orchestration.kernel.patches import mirror_tree
from orchestration.kernel.process import LoggedRunner

OLDEST = (6, 16)
SUITES = ("trixie-backports", "sid")
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE_REMEDY = (
    "give a kernel source, a tree or a tarball: closloop kernel build --source linux-X.Y.tar.xz"
)


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, for comparison: `7.3.4-1~bpo13+1` is (7, 3, 4, 1, 13, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def require_version(version: str) -> None:
    """Refuse a kernel without the seccomp mode of UML.

    Raises NotReadyError if `version` is older than 6.16.
    """
    if version_key(version)[:2] < OLDEST:
        raise NotReadyError(
            f"Linux {version} is too old: 6.16 brought user-mode Linux its seccomp mode, without "
            "which every system call costs several times more",
            "use a source of 6.16 or newer",
        )


def makefile_version(makefile: str) -> str:
    """Return the version in a kernel's top `Makefile`, as `make kernelversion` does.

    Raises NotReadyError if it has none, so this is not a kernel's source.
    """
    fields: dict[str, str] = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)\s*=[ \t]*(.*)$", makefile, re.M)
    )
    if not (fields.get("VERSION") and fields.get("PATCHLEVEL")):
        raise NotReadyError("the source's Makefile states no kernel version", SOURCE_REMEDY)
    sublevel = f".{fields['SUBLEVEL']}" if fields.get("SUBLEVEL") else ""
    extra = fields.get("EXTRAVERSION", "")
    return f"{fields['VERSION']}.{fields['PATCHLEVEL']}{sublevel}{extra}"


def newest_package(search: str) -> str:
    """Return the newest `linux-source-X.Y` in the answer of `apt-cache search`.

    Raises NotReadyError if there is none, or only ones that are too old.
    """
    names = re.findall(r"^(linux-source-\d+\.\d+)\s", search, re.MULTILINE)
    if not names:
        raise NotReadyError("the archive offers no linux-source package", SOURCE_REMEDY)
    newest: str = max(names, key=version_key)
    require_version(newest.removeprefix("linux-source-"))
    return newest


@dataclass(frozen=True)
class Package:
    """A package in the archive, as `apt-get download --print-uris` describes it."""

    file_name: str
    size_bytes: int
    digest: str

    @property
    def version(self) -> str:
        """Return the package's version: `7.3.4-1~bpo13+1`."""
        return self.file_name.split("_")[1]


def parse_print_uris(answer: str) -> Package:
    """Return the package in an answer of `apt-get download --print-uris`.

    Raises NotReadyError if the answer names none.
    """
    match = re.search(r"^'\S+' (\S+_\S+_\S+\.deb) (\d+) (\S+:[0-9a-f]+)\s*$", answer, re.MULTILINE)
    if match is None:
        raise NotReadyError("apt-get named nothing to download", SOURCE_REMEDY)
    return Package(match[1], int(match[2]), match[3])


@dataclass(frozen=True)
class Mirror:
    """One archive in the system's apt sources."""

    uri: str
    suites: tuple[str, ...]
    signed_by: str = ""
    trusted: bool = False

    def deb822(self, suites: Iterable[str]) -> str:
        """Return an apt source, in deb822 format, for `suites` on this mirror."""
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {' '.join(suites)}"]
        lines.append("Components: main")
        if self.signed_by:
            lines.append(f"Signed-By: {self.signed_by}")
        if self.trusted:
            lines.append("Trusted: yes")
        return "\n".join(lines) + "\n"


def parse_deb822(text: str) -> list[Mirror]:
    """Return the archives in a `*.sources` file, without disabled stanzas and `deb-src`."""
    mirrors = []
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", kept):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled") == "no":
            continue
        suites = tuple(fields.get("suites", "").split())
        mirrors += [_mirror(uri, suites, fields) for uri in fields.get("uris", "").split()]
    return mirrors


def parse_one_line(text: str) -> list[Mirror]:
    """Return the archives in a `sources.list`: `deb [option=value …] URI SUITE COMPONENT …`."""
    mirrors = []
    for line in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)", line)
        if match is None:
            continue
        given = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
        mirrors.append(_mirror(match[2], (match[3],), given))
    return mirrors


def main_mirror(mirrors: Iterable[Mirror], codename: str) -> Mirror:
    """Return the archive that carries the release `codename` itself, not its security updates.

    Raises NotReadyError if no source provides it over the network.
    """
    for mirror in mirrors:
        if codename in mirror.suites and urlsplit(mirror.uri).scheme not in ("", "cdrom"):
            return mirror
    raise NotReadyError(f"apt's sources name no mirror of {codename or 'Debian'}", SOURCE_REMEDY)


def os_release(text: str) -> dict[str, str]:
    """Return the fields of an `/etc/os-release` file."""
    return {name: value.strip("\"'") for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M)}


def _fields(stanza: str) -> dict[str, str]:
    """Return a stanza's fields by lower-case name, continuation lines joined."""
    joined = re.sub(r"\n[ \t]+", " ", stanza)
    pairs = re.findall(r"^([\w-]+):[ \t]*(.*)$", joined, re.MULTILINE)
    return {name.lower(): value.strip() for name, value in pairs}


def _mirror(uri: str, suites: tuple[str, ...], options: dict[str, str]) -> Mirror:
    """Return an archive, whose key file is "" where Signed-By has an inline key."""
    key = options.get("signed-by", "")
    trusted = options.get("trusted", "no").lower() in ("yes", "true", "1", "on", "with", "enable")
    return Mirror(uri, suites, key if key.startswith("/") else "", trusted)


Step = Callable[[int, int], None]


def tree_version(tree: Path) -> str:
    """Return the version of a source tree.

    Raises InputError if it is not a kernel source.
    """
    try:
        version = makefile_version((tree / "Makefile").read_text())
    except OSError as error:
        raise InputError.single("--source", f"{tree} is no kernel source: {error}") from error
    require_version(version)
    return version


def copy_source(given: Path, to: Path, runner: LoggedRunner, step: Step) -> None:
    """Make `to` a modifiable source tree, from the user's tree or tarball.

    Raises InputError if `given` is neither.
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

    def _apt(self, program: str, *rest: str, **how: Any) -> str:
        """Run a program of apt; `how` is as for `LoggedRunner.run`."""
        options = {
            "Dir::Etc::sourcelist": self.folder / "archive.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
        }
        argv = [program, *(word for k, v in options.items() for word in ("-o", f"{k}={v}")), *rest]
        return self.runner.run(argv, remedy=SOURCE_REMEDY, cwd=self.folder, **how)
