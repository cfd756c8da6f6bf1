"""Problems: what is wrong, where, what to do about it, and a code that programs can act on.

A problem stays an object until it is shown, and only this module turns it into text: `in_words` for
people, `to_json` for programs. Code that passes a problem on may add its own location with `at`; it
does not take the text apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import zip_longest
from typing import Any

# Further problems are counted, not shown: in all, and of problems with the same text.
MAX_SHOWN = 50
_MAX_SIMILAR_SHOWN = 5
_ARROW = "  -> "


class Code(Enum):
    """The kinds of problems. The values are stable; `about` is a sentence about each."""

    about: str

    def __new__(cls, value: str, about: str) -> Code:
        """Create a member from its value and the sentence about it."""
        code = object.__new__(cls)
        code._value_ = value
        code.about = about
        return code

    BAD_INPUT = "bad-input", "A file, an option or an argument is wrong in another way."
    NO_SUCH_FILE = "no-such-file", "A file or folder that is named does not exist."
    UNREADABLE_FILE = "unreadable-file", "A file is there and cannot be read as text."
    NOT_YAML = "not-yaml", "A file is not YAML as it is read here."
    UNKNOWN_FIELD = "unknown-field", "A file has a field that nothing reads."
    MISSING_FIELD = "missing-field", "A file lacks a field."
    WRONG_VALUE = "wrong-value", "A field's value is of another type, or out of its bounds."
    UNKNOWN_NAME = "unknown-name", "A name is not among the known ones."
    DAMAGED_FILE = "damaged-file", "A file that closloop wrote is cut off, changed or unknown."
    TOO_MANY = "too-many", "There are more problems than are collected at once."
    NOT_READY = "not-ready", "This machine or testbed cannot run it as it is."
    MISSING_SOFTWARE = "missing-software", "A package, program or kernel is not installed."
    NO_ROOM = "no-room", "Memory or disk space does not suffice."
    UNWRITABLE = "unwritable", "A file or folder cannot be written."
    IN_USE = "in-use", "Another run or user holds it."
    DEVICE_REFUSED = "device-refused", "A device refuses a request, or answers badly."
    DEVICE_GONE = "device-gone", "A device's connection is lost, or it does not answer in time."
    LOGIN_REFUSED = "login-refused", "A device refuses the login, or its host key is unknown."
    POLICY_REFUSED = "policy-refused", "A congestion control does not compile, or is refused."
    TRIAL_FAILED = "trial-failed", "A trial failed while it ran; the others continue."
    INTERRUPTED = "interrupted", "The run was interrupted; the same command continues it."
    USAGE = "usage", "The command line is not one of the verb's."
    INTERNAL = "internal", "A fault of closloop itself."


@dataclass(frozen=True, order=True)
class Problem:
    """Something wrong.

    `where` is `file:line` of a text file, or else a file, a device or an option; it may be "".
    """

    where: str
    what: str
    remedy: str = ""
    code: Code = field(default=Code.BAD_INPUT, compare=False)

    @property
    def text(self) -> str:
        """Where and what, without the remedy."""
        return f"{self.where}: {self.what}" if self.where else self.what

    @property
    def line(self) -> str:
        """All on one line, with the remedy in brackets, to be one of several in a sentence."""
        return f"{self.text} ({self.remedy})" if self.remedy else self.text

    @property
    def in_one_sentence(self) -> str:
        """What is wrong and, after a colon, the remedy. `of_text` reads this form."""
        return f"{self.text}: {self.remedy}"

    def __str__(self) -> str:
        return in_words([self])

    def at(self, where: str) -> Problem:
        """Return the problem with the location `where`; its former location joins the text."""
        return replace(self, where=where, what=self.text)

    def with_end(self, end: str, more: str = "") -> Problem:
        """Return the problem with texts appended to what is wrong and to the remedy."""
        return replace(self, what=f"{self.what}{end}", remedy=f"{self.remedy}{more}")

    def relocated(self, where: str) -> Problem:
        """Return the problem with the location `where` in place of its former one."""
        return replace(self, where=where)

    @property
    def parts(self) -> tuple[str, str, Code]:
        """The text with the location, the remedy and the code, for a problem elsewhere."""
        return self.text, self.remedy, self.code

    def to_json(self) -> dict[str, Any]:
        """Return the problem as JSON-ready data."""
        return {**vars(self), "code": self.code.value}


class WrongValue(ValueError):  # noqa: N818 (names what is so)
    """A value is wrong. Its `problem` has no location yet: a caller that knows it adds it."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.problem = Problem("", what, remedy, Code.WRONG_VALUE)


def of_value(error: ValueError, where: str = "", otherwise: str = "") -> Problem:
    """Return the problem of a wrong value; `otherwise` is the remedy if the error has none.

    In the text of a ValueError that is not a `WrongValue`, the remedy follows the last colon. It is
    the last, because the value, which comes before it, may contain colons.
    """
    if isinstance(error, WrongValue):
        problem = error.problem.relocated(where)
    else:
        what, _, remedy = str(error).rpartition(": ")
        problem = Problem(where, what or remedy, remedy if what else "", Code.WRONG_VALUE)
    return problem if problem.remedy else replace(problem, remedy=otherwise)


def of_text(text: str, where: str = "") -> Problem:
    """Return the problem that a tuner or a driver describes as `what: remedy`."""
    what, _, remedy = text.partition(": ")
    return Problem(where, what, remedy, Code.WRONG_VALUE)


def unexpected(error: BaseException, remedy: str = "") -> Problem:
    """Return the problem for an exception that was not raised on purpose."""
    return Problem("", f"unexpected {type(error).__name__}: {error}", remedy, Code.INTERNAL)


def message_and_remedy(problems: Iterable[Problem], key: str = "message") -> dict[str, str]:
    """Return problems as two texts, for the journal and for messages between processes.

    The texts of the problems are lines under `key`; their remedies, each once, are under "remedy".
    """
    all_problems = list(problems)
    remedies = dict.fromkeys(problem.remedy for problem in all_problems if problem.remedy)
    return {
        key: "\n".join(problem.text for problem in all_problems),
        "remedy": "; ".join(remedies),
    }


def in_words(problems: Iterable[Problem], width: int | None = None) -> str:
    """Return problems as text; a remedy that several in a row share is shown once, after them.

    With a `width`, lines are wrapped between words, and nothing is cut. At most `MAX_SHOWN`
    problems are shown, and fewer of those that differ only in the folder; the others are counted.
    """
    shown = _without_similar(problems)
    lines: list[str] = []
    for problem, following in zip_longest(shown[:MAX_SHOWN], shown[1:MAX_SHOWN]):
        lines += wrapped(problem.text, width)
        if problem.remedy and not (following and following.remedy == problem.remedy):
            lines += wrapped(problem.remedy, width, _ARROW)
    if len(shown) > MAX_SHOWN:
        lines.append(f"and {len(shown) - MAX_SHOWN} more problems: correct these first")
    return "\n".join(lines)


def _without_similar(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first of the problems that differ only in the folder, and count the others."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        folder, _, name = problem.where.rpartition("/")
        # libraries repeat the path in their messages, and remedies may name the folder
        texts = (problem.what, problem.remedy)
        key = (name, *(text.replace(folder, "") if folder else text for text in texts))
        groups.setdefault(key, []).append(problem)
    shown = []
    for similar in groups.values():
        shown += similar[:_MAX_SIMILAR_SHOWN]
        if (more := len(similar) - _MAX_SIMILAR_SHOWN) > 0:
            shown[-1] = shown[-1].relocated(f"{shown[-1].where} (and {more} more like it)")
    return shown


def wrapped(text: str, width: int | None, mark: str = "") -> list[str]:
    """Return the lines of a text, wrapped between words; the first line begins with `mark`."""
    lines = text.split("\n")
    if width is not None:
        fill = textwrap.TextWrapper(
            max(20, width - len(mark)),
            subsequent_indent="" if mark else " " * len(_ARROW),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = [piece for line in lines for piece in fill.wrap(line) or [""]]
    return [f"{mark}{lines[0]}", *(f"{' ' * len(mark)}{line}" for line in lines[1:])]


def to_json(problems: Sequence[Problem], exit_code: int) -> dict[str, Any]:
    """Return the data that a verb with `--json` prints when it fails."""
    return {"exit_code": exit_code, "problems": [problem.to_json() for problem in problems]}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the known word nearest to `word`, "" if none is near."""
    from difflib import get_close_matches  # guests never need it

    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def unknown(
    where: str,
    what: str,
    name: str,
    known: Iterable[str],
    use: str = "use one of ",
    end: str = "",
) -> Problem:
    """Return the problem of a name that is not among the `known` ones.

    The remedy names the nearest known name and then, between `use` and `end`, all of them.
    """
    names = list(known)
    remedy = f"{suggest(name, names)}{use}{', '.join(names) or 'none'}{end}"
    return Problem(where, what, remedy, Code.UNKNOWN_NAME)
