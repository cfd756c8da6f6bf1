"""Gets a kernel's source into a work folder: from a tree, a tarball, or Debian's archive.

Debian's archive is reached through apt, with the mirror that the system's own apt sources name.
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

MIN_VERSION = (6, 16)
SUITES = ("trixie-backports", "sid")
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE_REMEDY = (
    "give a kernel source, a tree or a tarball: closloop kernel build --source linux-X.Y.tar.xz"
)


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, for comparison: `7.3.4-1~bpo13+1` is (7, 3, 4, 1, 13, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def require_version(version: str) -> None:
    """Raise NotReadyError if `version` is older than 6.16, which brought UML's seccomp mode."""
    if version_key(version)[:2] < MIN_VERSION:
        raise NotReadyError(
            f"Linux {version} is too old: only from 6.16 on has user-mode Linux a seccomp mode, "
            "and without that every system call takes several times longer",
            "use a source of Linux 6.16 or newer",
        )


def makefile_version(makefile: str) -> str:
    """Return the version in a kernel's top `Makefile`, as `make kernelversion` does.

    Raises NotReadyError if it states none: then this is not a kernel's source.
    """
    fields: dict[str, str] = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)\s*=[ \t]*(.*)$", makefile, re.M)
    )
    if not (fields.get("VERSION") and fields.get("PATCHLEVEL")):
        raise NotReadyError("the source's Makefile states no kernel version", SOURCE_REMEDY)
    sublevel = f".{fields['SUBLEVEL']}" if fields.get("SUBLEVEL") else ""
    extra = fields.get("EXTRAVERSION", "")
    return f"{fields['VERSION']}.{fields['PATCHLEVEL']}{sublevel}{extra}"


def newest_package(listing: str) -> str:
    """Return the newest `linux-source-X.Y` in the output of `apt-cache search`.

    Raises NotReadyError if it lists none, or if the newest is too old.
    """
    names = re.findall(r"^(linux-source-\d+\.\d+)\s", listing, re.MULTILINE)
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


def parse_print_uris(output: str) -> Package:
    """Return the package in the output of `apt-get download --print-uris`.

    Raises NotReadyError if the output names none.
    """
    match = re.search(r"^'\S+' (\S+_\S+_\S+\.deb) (\d+) (\S+:[0-9a-f]+)\s*$", output, re.MULTILINE)
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
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", uncommented):
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
        options = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
        mirrors.append(_mirror(match[2], (match[3],), options))
    return mirrors


def main_mirror(mirrors: Iterable[Mirror], codename: str) -> Mirror:
    """Return the archive that carries the release `codename` itself, not its security updates.

    Raises NotReadyError if no mirror provides it over the network.
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
    """Return an archive. An inline key in Signed-By is ignored: `signed_by` is then ""."""
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


def copy_source(source: Path, to: Path, runner: LoggedRunner, step: Step) -> None:
    """Make `to` a source tree that may be modified, from the user's tree or tarball.

    Raises InputError if `source` is neither.
    """
    if source.is_dir():
        tree_version(source)
        mirror_tree(source.absolute(), to)
    elif source.is_file():
        _unpack(source, to, runner, step)
    else:
        raise InputError.single(
            "--source", f"no file or folder {source}", "name a tree or a tarball"
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
            activity=f"unpacking {tarball.name}",
            remedy="is it a complete tarball of a Linux source?",
            on_bytes=lambda done: step(done, size),
        )


@dataclass(frozen=True)
class Archive:
    """Debian's archive through apt, without root and without changing the system.

    apt's package lists and its cache are kept in `folder`.
    """

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
        self._apt("apt-get", "update", activity="reading the archive's index", check=False)
        listing = self._apt(
            "apt-cache", "search", "--names-only", "^linux-source-[0-9]", activity="the search"
        )
        name = newest_package(listing)
        output = self._apt(
            "apt-get", "download", "--print-uris", name, activity="looking the package up"
        )
        return name, parse_print_uris(output)

    def fetch(self, name: str, package: Package, to: Path, step: Step) -> None:
        """Download the package and unpack its source to `to`."""

        def percent(line: str) -> None:
            if match := re.match(r"dlstatus:\d+:([0-9.]+):", line):
                step(round(float(match[1]) * 10), 1000)

        status = ("-o", "APT::Status-Fd=1")
        activity = f"the download of {name}"
        self._apt("apt-get", *status, "download", name, activity=activity, on_line=percent)
        extracted = self.folder / "package"
        self.runner.run(
            ["dpkg-deb", "--extract", package.file_name, str(extracted)],
            activity=f"unpacking {package.file_name}",
            cwd=self.folder,
        )
        (self.folder / package.file_name).unlink()
        (tarball,) = (extracted / "usr/src").glob("linux-source-*.tar.*")
        _unpack(tarball, to, self.runner, step)

    def _mirror(self) -> Mirror:
        mirrors = []
        parts = sorted(Path("/etc/apt/sources.list.d").glob("*"))
        for path in [Path("/etc/apt/sources.list"), *parts]:
            if path.suffix == ".list" and path.is_file():
                mirrors += parse_one_line(path.read_text())
            elif path.suffix == ".sources":
                mirrors += parse_deb822(path.read_text())
        release_file = Path("/etc/os-release")
        release = os_release(release_file.read_text() if release_file.exists() else "")
        mirror = main_mirror(mirrors, release.get("VERSION_CODENAME", ""))
        key = mirror.signed_by or (DEBIAN_KEYRING if os.path.exists(DEBIAN_KEYRING) else "")
        return Mirror(mirror.uri, mirror.suites, key, mirror.trusted)

    def _apt(self, program: str, *arguments: str, **settings: Any) -> str:
        """Run a program of apt; `settings` are passed on to `LoggedRunner.run`."""
        options = {
            "Dir::Etc::sourcelist": self.folder / "archive.sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = [program, *words, *arguments]
        return self.runner.run(argv, remedy=SOURCE_REMEDY, cwd=self.folder, **settings)
