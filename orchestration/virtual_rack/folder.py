"""The folder of a rack: everything that it keeps on the machine, under names that are known here.

~/.local/state/closloop/racks/NAME       or under $XDG_STATE_HOME, or where the user says
  inventory.yml  rack.json  layout.json
  key  key.pub  password  known_hosts  ssh_config  host_keys/DEVICE{,.pub}
  init  guest/  inbox/  console.log  socket
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestration.model.errors import InputError, NotReadyError

_FORMAT = 1


@dataclass(frozen=True)
class RackFolder:
    """A rack's folder, which need not exist yet. What is secret in it only its owner can read."""

    path: Path

    @property
    def name(self) -> str:
        """The rack's name."""
        return self.path.name

    @property
    def inventory(self) -> Path:
        """The Ansible inventory of the rack."""
        return self.path / "inventory.yml"

    @property
    def mark(self) -> Path:
        """The file that tells a virtual rack's inventory from others."""
        return self.path / "rack.json"

    @property
    def layout(self) -> Path:
        """What the rack consists of (`layout.Layout`)."""
        return self.path / "layout.json"

    @property
    def key(self) -> Path:
        """The controller's private key."""
        return self.path / "key"

    @property
    def public_key(self) -> Path:
        """The key that every device's users can be logged in to with."""
        return self.path / "key.pub"

    @property
    def password(self) -> Path:
        """The password of the devices' users admin and operator."""
        return self.path / "password"

    @property
    def known_hosts(self) -> Path:
        """Every device's host key."""
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """Settings by which `ssh DEVICE` works in the rack."""
        return self.path / "ssh_config"

    def host_key(self, device: str) -> Path:
        """A device's own private key."""
        return self.path / "host_keys" / device

    @property
    def init(self) -> Path:
        """The script that the guest begins with."""
        return self.path / "init"

    @property
    def guest(self) -> Path:
        """The guest's working folder, where its kernel keeps files of its own."""
        return self.path / "guest"

    @property
    def inbox(self) -> Path:
        """Messages to the guest that it has not read yet."""
        return self.path / "inbox"

    @property
    def console(self) -> Path:
        """What the guest's kernel and its processes print."""
        return self.path / "console.log"

    @property
    def socket(self) -> Path:
        """Where the supervisor listens; there only while the rack is up."""
        return self.path / "socket"

    def make(self) -> None:
        """Make the folder. Raises InputError if something else is in it."""
        if self.path.exists() and not self.is_rack() and any(self.path.iterdir()):
            raise InputError.single(
                "--folder",
                f"{self.path} has other files in it",
                "name a new folder, or an empty one",
            )
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody else start a rack here. Raises NotReadyError if somebody does."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise NotReadyError(
                f"the rack {self.name} is being started by another process",
                "wait for it; see: closloop rack status",
            ) from error
        finally:
            os.close(folder)

    def is_rack(self) -> bool:
        """True if the folder is a rack's, up or not."""
        try:
            return bool(json.loads(self.mark.read_text())["format"] == _FORMAT)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def sign(self) -> None:
        """Write the mark."""
        text = {"format": _FORMAT, "kind": "virtual rack", "name": self.name}
        self.mark.write_text(json.dumps(text) + "\n")

    def remove(self) -> None:
        """Remove what a rack has made, and the folder if nothing else is in it."""
        self.clear()
        with suppress(OSError):
            self.path.rmdir()

    def clear(self) -> None:
        """Remove what a rack has made."""
        for folder in (self.host_key(""), self.guest, self.inbox):
            shutil.rmtree(folder, ignore_errors=True)
        made = (
            self.inventory, self.layout, self.key, self.public_key, self.password,
            self.known_hosts, self.ssh_config, self.init, self.console, self.socket, self.mark,
        )  # fmt: skip
        for file in made:
            file.unlink(missing_ok=True)


def racks_folder() -> Path:
    """Return the folder of racks that were given no other."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "closloop" / "racks"
