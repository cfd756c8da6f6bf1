"""Finds the kernel's source: versions, apt's sources and answers, all as pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestration.core.errors import NotReadyError

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

    Raises:
        NotReadyError: `version` is older than 6.16.
    """
    if version_key(version)[:2] < OLDEST:
        raise NotReadyError(
            f"Linux {version} is too old: 6.16 brought user-mode Linux its seccomp mode, without "
            "which every system call costs several times more",
            "use a source of 6.16 or newer",
        )


def makefile_version(makefile: str) -> str:
    """Return the version in a kernel's top `Makefile`, as `make kernelversion` does.

    Raises:
        NotReadyError: it has none, so this is not a kernel's source.
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

    Raises:
        NotReadyError: there is none, or only ones that are too old.
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

    Raises:
        NotReadyError: the answer names none.
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
        lines = [
            "Types: deb",
            f"URIs: {self.uri}",
            f"Suites: {' '.join(suites)}",
            "Components: main",
        ]
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
        for uri in fields.get("uris", "").split():
            mirrors.append(
                Mirror(uri, suites, _key_file(fields.get("signed-by", "")), _yes(fields, "trusted"))
            )
    return mirrors


def parse_one_line(text: str) -> list[Mirror]:
    """Return the archives in a `sources.list`: `deb [option=value …] URI SUITE COMPONENT …`."""
    mirrors = []
    for line in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)", line)
        if match is None:
            continue
        given = dict(part.split("=", 1) for part in (match[1] or "").split() if "=" in part)
        mirrors.append(
            Mirror(
                match[2], (match[3],), _key_file(given.get("signed-by", "")), _yes(given, "trusted")
            )
        )
    return mirrors


def main_mirror(mirrors: Iterable[Mirror], codename: str) -> Mirror:
    """Return the archive that carries the release `codename` itself, not its security updates.

    Raises:
        NotReadyError: no source provides it over the network.
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


def _key_file(signed_by: str) -> str:
    """Return the key file that Signed-By names; "" for an inline key."""
    return signed_by if signed_by.startswith("/") else ""


def _yes(fields: dict[str, str], name: str) -> bool:
    return fields.get(name, "no").lower() in ("yes", "true", "1", "on", "with", "enable")
