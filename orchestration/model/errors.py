"""The error tree. Every error that the program raises on purpose is a `ClosloopError`.

    ClosloopError            what went wrong and what to do about it
      InputError        2    the user's file or arguments; nothing was started
      NotReadyError     3    this machine or testbed cannot run it as it is
      TrialError        1    one trial failed; the others go on
      Interrupted     130    Ctrl-C; the same command resumes

The number is the exit code that the command line maps it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


class ClosloopError(Exception):
    """Base of every error raised on purpose: a message and a remedy."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, order=True)
class Problem:
    """One fault of an input file: where it is, what it is, what to do."""

    where: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}"
        return f"{text}\n  -> {self.remedy}" if self.remedy else text


class InputError(ClosloopError):
    """The user's input is wrong. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        told = [
            # what several in a row ask for is said once, after the last
            str(Problem(one.where, one.what) if later and later.remedy == one.remedy else one)
            for one, later in zip_longest(self.problems, self.problems[1:])
        ]
        super().__init__("\n".join(told))

    @classmethod
    def single(cls, where: str, what: str, remedy: str = "") -> InputError:
        """Return an error for one problem."""
        return cls([Problem(where, what, remedy)])


class NotReadyError(ClosloopError):
    """The machine or the testbed is not ready; nothing was started."""

    exit_code = 3


class TrialError(ClosloopError):
    """A trial failed while it ran. `console` holds the end of its guest's output."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "", console: str = "") -> None:
        super().__init__(message, remedy)
        self.console = console


class Interrupted(ClosloopError):  # noqa: N818 (an interruption is not an error)
    """The user pressed Ctrl-C; finished trials are kept."""

    exit_code = 130


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the known word nearest to `word`, "" if none is near."""
    from difflib import get_close_matches  # guests never misspell

    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
