"""The error tree. Every error that the program raises on purpose is a `ClosloopError`.

    ClosloopError            what went wrong and what to do about it: its problems
      InputError        2    the user's file or arguments; nothing was started
      NotReadyError     3    this machine or testbed cannot run it as it is
      TrialError        1    one trial failed; the others go on
      Interrupted     130    Ctrl-C; the same command resumes

The number is the exit code that the command line maps it to: see `EXIT_CODES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from orchestration.core.problems import Code as Code
from orchestration.core.problems import Problem as Problem
from orchestration.core.problems import in_words, message_and_remedy
from orchestration.core.problems import suggest as suggest
from orchestration.core.problems import unknown as unknown

Item = TypeVar("Item")
Result = TypeVar("Result")


EXIT_CODES: Mapping[int, str] = {
    0: "Done.",
    1: "A trial failed or is invalid, or closloop itself has a fault.",
    2: "The input is wrong; nothing was started.",
    3: "The machine or testbed is not ready, or another run or user holds it.",
    130: "Interrupted; the same command continues.",
}


class ClosloopError(Exception):
    """Base of every error raised on purpose: a message and a remedy, or several problems."""

    exit_code = 1
    code = Code.INTERNAL

    def __init__(
        self, what: str | Iterable[Problem], remedy: str = "", code: Code | None = None
    ) -> None:
        problems = [Problem("", what, remedy, code or self.code)] if isinstance(what, str) else what
        self.problems = tuple(problems)
        super().__init__(self.problems)

    @property
    def message(self) -> str:
        """What is wrong, without remedies: a line for each problem."""
        return message_and_remedy(self.problems)["message"]

    @property
    def remedy(self) -> str:
        """What to do."""
        return message_and_remedy(self.problems)["remedy"]

    def __str__(self) -> str:
        return in_words(self.problems)

    def __reduce__(self) -> Any:
        return self.__class__.__new__, (self.__class__, *self.args), self.__dict__


class InputError(ClosloopError):
    """The user's input is wrong. Carries every problem found, not only the first."""

    exit_code = 2
    code = Code.BAD_INPUT

    @classmethod
    def single(
        cls, where: str, what: str, remedy: str = "", code: Code = Code.BAD_INPUT
    ) -> InputError:
        """Return an error for one problem."""
        return cls([Problem(where, what, remedy, code)])


def no_such_file(path: str | Path, remedy: str = "check the path") -> InputError:
    """Return the error for a file that does not exist."""
    return InputError.single(str(path), "no such file", remedy, Code.NO_SUCH_FILE)


def reason_of(error: OSError) -> str:
    """Return the system's reason why a file cannot be read or written."""
    return (error.strerror or str(error)).lower()


def unreadable(path: str | Path, error: OSError, remedy: str = "check the path") -> InputError:
    """Return the error for a file that cannot be read."""
    what = f"cannot be read: {reason_of(error)}"
    return InputError.single(str(path), what, remedy, Code.UNREADABLE_FILE)


class NotReadyError(ClosloopError):
    """The machine or the testbed is not ready; nothing was started."""

    exit_code = 3
    code = Code.NOT_READY


def not_installed(who: str, what: str | None, extra: str) -> NotReadyError:
    """Return the error that `who` needs a program or package, which an `extra` installs."""
    text = f"{who} needs {what}, which is not installed"
    return NotReadyError(text, f"pip install 'closloop[{extra}]'", Code.MISSING_SOFTWARE)


@contextmanager
def needs(who: str, extra: str) -> Iterator[None]:
    """Raise NotReadyError if an import in the block fails; an `extra` installs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise not_installed(who, error.name, extra) from error


def unwritable(
    path: str | Path,
    error: OSError,
    remedy: str = "make room there, or make it writable",
    kind: Callable[[Iterable[Problem]], ClosloopError] = NotReadyError,
) -> ClosloopError:
    """Return the error, of class `kind`, for a file or folder that cannot be written."""
    what = f"cannot be written: {reason_of(error)}"
    return kind([Problem(str(path), what, remedy, Code.UNWRITABLE)])


class TrialError(ClosloopError):
    """A trial failed while it ran. `console` holds the end of its guest's output."""

    exit_code = 1
    code = Code.TRIAL_FAILED

    def __init__(self, what: str | Iterable[Problem], remedy: str = "", console: str = "") -> None:
        super().__init__(what, remedy)
        self.console = console


class Interrupted(ClosloopError):  # noqa: N818 (an interruption is not an error)
    """The user pressed Ctrl-C; finished trials are kept."""

    exit_code = 130
    code = Code.INTERRUPTED


def raise_any(problems: Iterable[Problem]) -> None:
    """Raise InputError if there are problems; a repeated problem is reported once."""
    if distinct := tuple(dict.fromkeys(problems)):
        raise InputError(distinct)


def check_known(
    where: str, what: str, names: Iterable[str], known: Iterable[str], use: str = "use one of "
) -> None:
    """Raise InputError for names that are not `known`; `{!r}` in `what` becomes the name."""
    known_names = list(known)
    strange = [name for name in names if name not in known_names]
    raise_any(unknown(where, what.format(name), name, known_names, use) for name in strange)


def gather(read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `read` with each item; return the results.

    Raises InputError with the problems of all items, not only of the first that has one.
    """
    results: list[Result] = []
    problems: list[Problem] = []
    for item in items:
        try:
            results.append(read(item))
        except InputError as error:
            problems += error.problems
    raise_any(problems)
    return results
