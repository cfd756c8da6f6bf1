"""Policies that campaigns name: versions that stay, one of them in force, and the way back.

    $XDG_STATE_HOME/closloop/policies/NAME/       or ~/.local/state
      versions/0001-DIGEST.c        never changed; 0001-DIGEST.json beside it if it was compiled
      ledger.jsonl                  one entry a line, on the disk before what it says is done
      current                       the version in force, replaced whole

A campaign says `{program: deployed:NAME}`, or `deployed:NAME@1` for one version.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestration.core.errors import InputError, suggest, unwritable
from orchestration.core.files import state_folder, sync_path, write_whole

PREFIX = "deployed:"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\Z")


@dataclass(frozen=True)
class Version:
    """A version of a policy: its number from 1 on, and its file."""

    number: int
    path: Path

    @property
    def digest(self) -> str:
        """The first digits of its content's SHA-256."""
        return self.path.stem.partition("-")[2]


def store_folder() -> Path:
    """Return where policies are deployed to."""
    return state_folder("policies")


def deployed_names() -> list[str]:
    """Return the names of the policies that have a version in force."""
    return sorted(path.parent.name for path in store_folder().glob("*/current"))


def program_path(folder: str | Path, name: str) -> Path:
    """Return the file of a campaign's program: a deployed one, or one beside the campaign file.

    Raises InputError for a deployed one that is not there.
    """
    if not name.startswith(PREFIX):
        return Path(os.path.normpath(os.path.join(folder, name)))
    wanted, at, number = name.removeprefix(PREFIX).partition("@")
    policy = DeployedPolicy(wanted)
    found = policy.current() if not at else policy.version(number)
    if found is None:
        known = deployed_names()
        raise InputError.single(
            name,
            "no such policy is deployed",
            f"{suggest(wanted, known)}deploy it: closloop deploy my_policy.c --name {wanted}"
            if not at
            else f"it has the versions {', '.join(str(v.number) for v in policy.versions())}",
        )
    return found.path


class DeployedPolicy:
    """A policy in the store. Raises InputError for what cannot be a name."""

    def __init__(self, name: str) -> None:
        if not _NAME.match(name):
            raise InputError.single(
                name, "is no name of a policy", "use lower-case letters, digits, _ and -"
            )
        self.name = name
        self._folder = store_folder() / name
        self._ledger = self._folder / "ledger.jsonl"
        self._current = self._folder / "current"

    def versions(self) -> list[Version]:
        """Return all versions, the oldest first."""
        found = sorted((self._folder / "versions").glob("*-*.c"))
        return [Version(int(path.name.partition("-")[0]), path) for path in found]

    def version(self, number: str) -> Version | None:
        """Return the version of a number, None if there is none."""
        return next((item for item in self.versions() if str(item.number) == number), None)

    def current(self) -> Version | None:
        """Return the version in force, None if there is none."""
        with suppress(OSError):
            return self.version(self._current.read_text().strip())
        return None

    def deploy(self, source: str, about: str = "") -> Version:
        """Put a source in force as a new version; `about` is the JSON beside it.

        What is in force already stays the version that it is. Raises NotReadyError if the store
        cannot be written; then the former version stays in force.
        """
        with self._locked():
            digest = hashlib.sha256(source.encode()).hexdigest()[:12]
            known = self.versions()
            before = self.current()
            made = next((item for item in known if item.digest == digest), None)
            if made is None:
                number = known[-1].number + 1 if known else 1
                path = self._folder / "versions" / f"{number:04}-{digest}.c"
                path.parent.mkdir(exist_ok=True)
                if about:
                    write_whole(path.with_suffix(".json"), about)
                write_whole(path, source)
                sync_path(path)
                made = Version(number, path)
            if made != before:
                self._record("deployed", before, made)
                write_whole(self._current, f"{made.number}\n")
            return made

    def undo(self) -> Version | None:
        """Put the version back in force that was so before the last deployment; return it.

        None if nothing was. Raises InputError if there is nothing to undo.
        """
        with self._locked():
            now = self.current()
            entries = [json.loads(line) for line in self._lines()]
            undone = 0
            for entry in reversed(entries):
                if entry["what"] == "undone":
                    undone += 1
                elif undone:
                    undone -= 1
                else:
                    before = self.version(str(entry["before"]))
                    self._record("undone", now, before)
                    if before is None:
                        self._current.unlink(missing_ok=True)
                    else:
                        write_whole(self._current, f"{before.number}\n")
                    return before
        raise InputError.single(
            self.name,
            "there is no deployment to undo",
            "`closloop deploy --list` shows what there is",
        )

    def _lines(self) -> list[str]:
        try:
            return self._ledger.read_text().splitlines()
        except FileNotFoundError:
            return []

    def _record(self, what: str, before: Version | None, after: Version | None) -> None:
        entry = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": what,
            "before": before.number if before else 0,
            "after": after.number if after else 0,
        }
        with self._ledger.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        sync_path(self._ledger)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the policy."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)
        except OSError as error:
            raise unwritable(
                self._folder,
                error,
                "make room or correct its rights, or set XDG_STATE_HOME to another place",
            ) from error
