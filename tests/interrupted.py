"""A process that is killed before one of its writes, whichever: in this process, by a hook."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

_CHANGING = ("mkdir", "open", "rename", "replace", "rmdir", "unlink")


class Killed(BaseException):
    """The process has ended."""


class Writes:
    """Counts writes. With `kill_before`, that one and all later ones do not happen.

    Nothing that cleans up after the kill writes either, as after a SIGKILL.
    """

    def __init__(self, kill_before: int | None = None) -> None:
        self.count, self.kill_before = 0, kill_before

    def next(self) -> None:
        """Count a write that is about to happen. Raises Killed."""
        if self.count == self.kill_before:
            raise Killed
        self.count += 1

    def before(self, function: Callable) -> Callable:
        """Return the function as one that writes."""

        def counted(*arguments, **named):
            self.next()
            return function(*arguments, **named)

        return counted

    @contextmanager
    def to_files(self) -> Iterator[None]:
        """Count what changes files: making, opening to write, renaming and removing."""

        def opened(path, flags, *arguments, **named):
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.next()
            return plain(path, flags, *arguments, **named)

        plain = os.open
        counted = {name: self.before(getattr(os, name)) for name in _CHANGING}
        with patch.multiple(os, **{**counted, "open": opened}):
            yield


def points(run: Callable[[Writes], object]) -> Iterator[Writes]:
    """Yield a hook for each write of a run, and after the last; `run` is the undisturbed one."""
    whole = Writes()
    run(whole)
    for point in range(whole.count + 1):
        yield Writes(point)
