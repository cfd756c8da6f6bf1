"""Files that a user names as outputs: refused if they would replace an input, written whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from orchestration.core.errors import Problem, raise_any, unwritable
from orchestration.core.files import write_whole

CHOOSE_ANOTHER = "choose another with -o"


def check_outputs(
    outputs: Iterable[str | Path], inputs: Iterable[str | Path], remedy: str = CHOOSE_ANOTHER
) -> None:
    """Refuse outputs that are inputs, have one in them, or are one another; nothing is written.

    `outputs` are all paths that are about to be written, those derived from the user's included; a
    folder is one that is replaced with all that it holds. A path is compared by what it leads to:
    through links, hard links and other spellings. Inputs that do not exist are passed over. Raises
    InputError with every such output.
    """
    written: dict[object, str | Path] = {}
    problems = []
    for path in outputs:
        key = _identity(path)
        if key in written:
            what = f"would be written twice, as {written[key]} too"
            problems.append(Problem(str(path), what, remedy))
        written[key] = path
    there = {key: path for key, path in written.items() if os.path.exists(os.path.realpath(path))}
    folders = [(os.path.realpath(path), path) for path in there.values() if os.path.isdir(path)]
    if there:
        for path in inputs:
            if not os.path.exists(path):
                continue
            if (output := there.get(_identity(path))) is not None:
                what = f"is {_named(path, output)}, which is read: it would be overwritten"
                problems.append(Problem(str(output), what, remedy))
            problems += [
                Problem(str(folder), f"has {path} in it, which is read", remedy)
                for real, folder in folders
                if os.path.realpath(path).startswith(real + os.sep)
            ]
    raise_any(problems)


def write_output(path: Path, data: str | bytes, remedy: str = CHOOSE_ANOTHER) -> None:
    """Replace a file that the user named, whole: a failure leaves the former one as it was.

    A link stays, and the file that it leads to is replaced; a device or a pipe is written to.
    Raises NotReadyError.
    """
    try:
        place = os.path.realpath(path)
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
        else:
            write_whole(place, data)
    except OSError as error:
        raise unwritable(path, error, remedy) from error


def _identity(path: str | Path) -> object:
    """Return what is the same for all names of a file, there or not."""
    place = os.path.realpath(path)  # also of new/../name, where new is a folder yet to be made
    try:
        found = os.stat(place)
    except OSError:
        return place
    if stat.S_ISCHR(found.st_mode):  # what goes to a terminal or to /dev/null replaces nothing
        return object()
    return found.st_dev, found.st_ino


def _named(path: str | Path, output: str | Path) -> str:
    return "the file" if str(path) == str(output) else str(path)
