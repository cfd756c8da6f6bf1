"""Problems: what is wrong, where, what to do about it, and a code that programs can act on.

A problem is an object until it is shown, and this module alone shows it: `in_words` for people,
`to_json` for programs. Whoever passes a problem on moves it with `at`, and never takes it apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import zip_longest
from typing import Any

# More problems than these are counted, not shown.
MAX_SHOWN = 50
_ALIKE_SHOWN = 5
_ARROW = "  -> "


class Code(Enum):
    """The kinds of problems; the values are stable. `about` is a sentence on each."""

    about: str

    def __new__(cls, value: str, about: str) -> Code:
        """Return a member with its sentence."""
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
    TRIAL_FAILED = "trial-failed", "A trial failed while it ran; the others go on."
    INTERRUPTED = "interrupted", "The run was interrupted; the same command goes on with it."
    USAGE = "usage", "The command line is not one of the verb's."
    INTERNAL = "internal", "A fault of closloop itself."


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong. `where` is `file:line` of a YAML file, else a file, device or option."""

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
        """All on one line, as one of several in a sentence."""
        return f"{self.text} ({self.remedy})" if self.remedy else self.text

    @property
    def in_one_sentence(self) -> str:
        """What is wrong and, after a colon, the remedy: what `of_text` reads."""
        return f"{self.text}: {self.remedy}"

    def __str__(self) -> str:
        return in_words([self])

    def at(self, where: str) -> Problem:
        """Return it as a problem of `where`, which has it from where it was found."""
        return replace(self, where=where, what=self.text)

    def with_end(self, end: str, more: str = "") -> Problem:
        """Return it with an end to what is wrong, and with more to the remedy."""
        return replace(self, what=f"{self.what}{end}", remedy=f"{self.remedy}{more}")

    def relocated(self, where: str) -> Problem:
        """Return it as a problem of `where`, whatever it was of before."""
        return replace(self, where=where)

    @property
    def parts(self) -> tuple[str, str, Code]:
        """What is wrong and where, the remedy, and the code: for a problem of another place."""
        return self.text, self.remedy, self.code

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {**vars(self), "code": self.code.value}


class WrongValue(ValueError):  # noqa: N818 (names what is so)
    """A value is wrong: what, and the remedy. Whoever knows where it stands makes it a problem."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.problem = Problem("", what, remedy, Code.WRONG_VALUE)


def of_value(error: ValueError, where: str = "", otherwise: str = "") -> Problem:
    """Return the problem of a value; `otherwise` is the remedy if the error has none.

    In a ValueError that is no `WrongValue` the remedy stands after the last colon, as the value,
    which may have colons, stands before it.
    """
    if isinstance(error, WrongValue):
        found = error.problem.relocated(where)
    else:
        what, _, remedy = str(error).rpartition(": ")
        found = Problem(where, what or remedy, remedy if what else "", Code.WRONG_VALUE)
    return found if found.remedy else replace(found, remedy=otherwise)


def of_text(text: str, where: str = "") -> Problem:
    """Return the problem of a sentence `what: remedy`, as a tuner or a driver says it."""
    what, _, remedy = text.partition(": ")
    return Problem(where, what, remedy, Code.WRONG_VALUE)


def unexpected(error: BaseException, remedy: str = "") -> Problem:
    """Return the problem of an error that nobody raised on purpose."""
    return Problem("", f"unexpected {type(error).__name__}: {error}", remedy, Code.INTERNAL)


def message_and_remedy(problems: Iterable[Problem], key: str = "message") -> dict[str, str]:
    """Return problems as two texts, as the journal and messages between processes have them."""
    every = list(problems)
    remedies = dict.fromkeys(one.remedy for one in every if one.remedy)
    return {key: "\n".join(one.text for one in every), "remedy": "; ".join(remedies)}


def in_words(problems: Iterable[Problem], width: int | None = None) -> str:
    """Return problems as text: each with its remedy, said once for several in a row.

    With a `width`, lines are wrapped at blanks: nothing is cut. Of problems alike, and of all, the
    first ones are shown and the others counted.
    """
    every = _without_the_alike(problems)
    lines: list[str] = []
    for one, later in zip_longest(every[:MAX_SHOWN], every[1:MAX_SHOWN]):
        lines += wrapped(one.text, width)
        if one.remedy and not (later and later.remedy == one.remedy):
            lines += wrapped(one.remedy, width, _ARROW)
    if len(every) > MAX_SHOWN:
        lines.append(f"and {len(every) - MAX_SHOWN} more problems: correct these first")
    return "\n".join(lines)


def _without_the_alike(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first problems of each kind; the last of them says how many more there are."""
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for one in problems:
        folder, _, name = one.where.rpartition("/")
        # libraries repeat the path, and remedies name the folder
        texts = [text.replace(folder, "") if folder else text for text in (one.what, one.remedy)]
        kinds.setdefault((name, *texts), []).append(one)
    shown = []
    for alike in kinds.values():
        shown += alike[:_ALIKE_SHOWN]
        if (more := len(alike) - _ALIKE_SHOWN) > 0:
            shown[-1] = shown[-1].relocated(f"{shown[-1].where} (and {more} more like it)")
    return shown


def wrapped(text: str, width: int | None, mark: str = "") -> list[str]:
    """Return the lines of a text, wrapped between words; `mark` begins the first of them."""
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
    """Return what a verb with `--json` prints when it fails."""
    return {"exit_code": exit_code, "problems": [problem.to_json() for problem in problems]}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the known word nearest to `word`, "" if none is near."""
    from difflib import get_close_matches  # guests never misspell

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
    """Return the problem of a name that is none of the `known` ones.

    The remedy names the nearest of them and then, between `use` and `end`, all.
    """
    names = list(known)
    remedy = f"{suggest(name, names)}{use}{', '.join(names) or 'none'}{end}"
    return Problem(where, what, remedy, Code.UNKNOWN_NAME)
