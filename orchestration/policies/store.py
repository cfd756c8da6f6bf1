"""The store of deployed policies: all versions, which of them is in force, and how to go back.

    $XDG_STATE_HOME/closloop/policies/NAME/       or below ~/.local/state
      versions/0001-DIGEST.c        never changed; with 0001-DIGEST.json if a model was compiled
      ledger.jsonl                  one entry per line, written to disk before it is acted on
      current                       the number of the version in force, replaced atomically

A campaign names the version in force as `{program: deployed:NAME}`, or one version as
`deployed:NAME@1`.
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
    """A version of a policy: its number, counted from 1, and its file."""

    number: int
    path: Path

    @property
    def digest(self) -> str:
        """The first digits of its content's SHA-256."""
        return self.path.stem.partition("-")[2]


def store_folder() -> Path:
    """Return the folder with a subfolder for each deployed policy."""
    return state_folder("policies")


def deployed_names() -> list[str]:
    """Return the names of the policies that have a version in force."""
    return sorted(path.parent.name for path in store_folder().glob("*/current"))


def program_path(folder: str | Path, name: str) -> Path:
    """Return the file of a campaign's program.

    `name` is a path relative to the campaign file's `folder`, or `deployed:NAME`. Raises InputError
    for a deployed policy or version that does not exist.
    """
    if not name.startswith(PREFIX):
        return Path(os.path.normpath(os.path.join(folder, name)))
    policy_name, at, number = name.removeprefix(PREFIX).partition("@")
    policy = DeployedPolicy(policy_name)
    version = policy.current() if not at else policy.version(number)
    if version is None:
        known = deployed_names()
        raise InputError.single(
            name,
            "no such policy is deployed",
            f"{suggest(policy_name, known)}deploy it: "
            f"closloop deploy my_policy.c --name {policy_name}"
            if not at
            else f"it has the versions {', '.join(str(v.number) for v in policy.versions())}",
        )
    return version.path


class DeployedPolicy:
    """A policy in the store. Raises InputError for a name that no policy can have."""

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
        paths = sorted((self._folder / "versions").glob("*-*.c"))
        return [Version(int(path.name.partition("-")[0]), path) for path in paths]

    def version(self, number: str) -> Version | None:
        """Return the version with this number; None if there is none."""
        return next((item for item in self.versions() if str(item.number) == number), None)

    def current(self) -> Version | None:
        """Return the version in force; None if there is none."""
        with suppress(OSError):
            return self.version(self._current.read_text().strip())
        return None

    def deploy(self, source: str, metadata: str = "") -> Version:
        """Put a C source in force as a new version, and return the version.

        A source that is a version already is not stored twice: that version is put in force.
        `metadata` is the JSON of a compiled model. Raises NotReadyError if the store cannot be
        written; then the former version stays in force.
        """
        with self._locked():
            digest = hashlib.sha256(source.encode()).hexdigest()[:12]
            known = self.versions()
            before = self.current()
            version = next((item for item in known if item.digest == digest), None)
            if version is None:
                number = known[-1].number + 1 if known else 1
                path = self._folder / "versions" / f"{number:04}-{digest}.c"
                path.parent.mkdir(exist_ok=True)
                if metadata:
                    write_whole(path.with_suffix(".json"), metadata)
                write_whole(path, source)
                sync_path(path)
                version = Version(number, path)
            if version != before:
                self._record("deployed", before, version)
                write_whole(self._current, f"{version.number}\n")
            return version

    def undo(self) -> Version | None:
        """Put the version in force that was in force before the last deployment; return it.

        Returns None if there was none. Raises InputError if there is nothing to undo.
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

    def _record(self, event: str, before: Version | None, after: Version | None) -> None:
        entry = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": event,
            "before": before.number if before else 0,
            "after": after.number if after else 0,
        }
        with self._ledger.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        sync_path(self._ledger)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow only one process at a time to change the policy. Raises NotReadyError."""
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
                "make room or correct its rights, or set XDG_STATE_HOME to another folder",
            ) from error
