"""What was there before the first change, in a file on the device that only root may read.

It is written before anything is changed and goes away with the undo. What it says of a thing is
never overwritten: the first state found is the one to go back to.
"""

from __future__ import annotations

import contextlib
import json
import os

FOLDER = "/var/lib/closloop/provision"
_FORMAT = 1


class Saved:
    """The former values of one module's things, by their keys."""

    def __init__(self, name: str, folder: str = FOLDER) -> None:
        self.path = os.path.join(folder, name + ".json")
        self.there = False
        self.values: dict = {}

    def load(self) -> None:
        """Read the file, if there is one. Raises ValueError if it is not one of ours."""
        try:
            with open(self.path, encoding="utf-8") as file:
                data = json.load(file)
        except FileNotFoundError:
            return
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(self.path + " was written by another version of closloop")
        if not isinstance(data.get("values"), dict):
            raise ValueError(self.path + " is damaged")
        self.there, self.values = True, data["values"]

    def store(self) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        folder = os.path.dirname(self.path)
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        new = self.path + ".new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({"format": _FORMAT, "values": self.values}, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        self.there = True

    def remove(self) -> None:
        """Take the file away, and its folders if nothing else is in them."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        folder = os.path.dirname(self.path)
        with contextlib.suppress(OSError):
            os.rmdir(folder)
            os.rmdir(os.path.dirname(folder))
        self.there, self.values = False, {}
