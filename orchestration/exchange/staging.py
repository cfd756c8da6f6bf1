"""Writes a folder of files whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestration.model.errors import InputError, NotReadyError


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Give a hidden folder to write into; it becomes `folder` if nothing was raised.

    Raises InputError if `folder` is there already and NotReadyError if it cannot be written.
    """
    if folder.exists():
        raise InputError.single(str(folder), "is there already", "choose another place with -o")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise NotReadyError(
            f"{folder} cannot be written: {error.strerror or error}",
            "make room there or make it writable, or choose another place with -o",
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
