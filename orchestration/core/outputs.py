"""The output files of a verb: they never overwrite its inputs, and are complete or not there."""

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
    """Refuse an output that is an input, contains an input, or is the same as another output.

    `outputs` are all paths that are about to be written, also those derived from the user's. A
    folder among them is one that is replaced with everything in it. Paths are compared by the file
    that they lead to, through symbolic links, hard links and other spellings. Inputs that do not
    exist are ignored. Nothing is written here. Raises InputError with every such output.
    """
    written: dict[object, str | Path] = {}
    problems = []
    for path in outputs:
        key = _identity(path)
        if key in written:
            what = f"would be written twice: {written[key]} is the same file"
            problems.append(Problem(str(path), what, remedy))
        written[key] = path
    existing = {
        key: path for key, path in written.items() if os.path.exists(os.path.realpath(path))
    }
    folders = [(os.path.realpath(path), path) for path in existing.values() if os.path.isdir(path)]
    if existing:
        for path in inputs:
            if not os.path.exists(path):
                continue
            if (output := existing.get(_identity(path))) is not None:
                what = f"is {_named(path, output)}, which is read: it would be overwritten"
                problems.append(Problem(str(output), what, remedy))
            problems += [
                Problem(str(folder), f"has {path} in it, which is read", remedy)
                for real, folder in folders
                if os.path.realpath(path).startswith(real + os.sep)
            ]
    raise_any(problems)


def write_output(path: Path, data: str | bytes, remedy: str = CHOOSE_ANOTHER) -> None:
    """Replace a file that the user named. After a failure, the former file is still there.

    If `path` is a link, the file that it leads to is replaced. A device or a pipe is written to.
    Raises NotReadyError.
    """
    try:
        target = os.path.realpath(path)
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
        else:
            write_whole(target, data)
    except OSError as error:
        raise unwritable(path, error, remedy) from error


def _identity(path: str | Path) -> object:
    """Return a key that is equal for all paths of one file, whether it exists or not."""
    target = os.path.realpath(path)  # resolves new/../name too, if the folder new is not there yet
    try:
        status = os.stat(target)
    except OSError:
        return target
    if stat.S_ISCHR(status.st_mode):  # writing to a terminal or to /dev/null replaces nothing
        return object()
    return status.st_dev, status.st_ino


def _named(path: str | Path, output: str | Path) -> str:
    return "the file" if str(path) == str(output) else str(path)
