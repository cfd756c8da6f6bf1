"""A user's own classes by reference: `path/file.py:Name`, or the name of an entry point.

An installed package offers a class in an entry-point group such as `closloop.tuners`. A file is
loaded by its path, as written in the campaign file. It cannot import modules from its own folder.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from orchestration.core.errors import InputError
from orchestration.core.files import local_path
from orchestration.core.problems import WrongValue, of_value

Declared = TypeVar("Declared")
# Where problems of a package are, in messages.
_ENTRY_POINTS = "entry points"


class PluginError(WrongValue):
    """A reference that leads to no class."""


def is_file(reference: str) -> bool:
    """Return whether a reference names a Python file and something in it."""
    return ".py:" in reference


def file_of(reference: str) -> str:
    """Return the file of a reference that names one."""
    return reference.rpartition(":")[0]


def short_name(reference: str) -> str:
    """Return a short name for a reference: what it names in its file, or the reference itself."""
    return reference.rpartition(":")[2] if is_file(reference) else reference


# The entry points of a group, each `module:name` by its name.
_OFFERED: dict[str, dict[str, str]] = {}


def offered(group: str) -> dict[str, str]:
    """Return the entry points of a group, each `module:name` by its name, not loaded."""
    if group not in _OFFERED:
        from importlib.metadata import entry_points

        set_entry_points(
            group, {one.name: f"{one.module}:{one.attr}" for one in entry_points(group=group)}
        )
    return _OFFERED[group]


def set_entry_points(group: str, points: dict[str, str]) -> None:
    """Take the entry points of a group from `offered` in another process, not looking for them.

    That takes longer than a guest takes to boot.
    """
    _OFFERED[group] = points


def load(reference: str, group: str) -> Any:
    """Return what a reference names. Raises PluginError if it does not exist."""
    if is_file(reference):
        path, _, name = reference.rpartition(":")
        return _attribute(_module(local_path(str(Path(path).absolute()))), name, path)
    if reference not in offered(group):
        what = f"no entry point of {group} is called {reference!r}"
        raise PluginError(what, "install its package")
    try:
        return resolve_name(offered(group)[reference])
    except Exception as error:
        what = f"{reference!r} of {group} cannot be loaded ({error})"
        raise PluginError(what, "correct its package") from error


def load_declaration(name: str, group: str, kind: type[Declared]) -> Declared:
    """Return what an entry point declares. Raises InputError if that is not of the kind."""
    try:
        declared = load(name, group)
    except PluginError as error:
        raise InputError([of_value(error, _ENTRY_POINTS)]) from error
    if not isinstance(declared, kind):
        what = f"{name!r} of {group} is no {kind.__name__}"
        raise InputError.single(_ENTRY_POINTS, what, "correct its package")
    return declared


def load_all(group: str) -> dict[str, Callable[[], Any]]:
    """Return the names of a group, each with a function that loads it, as `load` does."""
    return {name: partial(load, name, group) for name in offered(group)}


@cache
def _module(path: str) -> Any:
    if not Path(path).is_file():
        raise PluginError(f"there is no file {path}", "correct the path, as seen from the campaign")
    name = f"closloop_plugin_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # the dataclass decorator looks its module up here
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        what = f"{path} cannot be imported ({type(error).__name__}, {error})"
        raise PluginError(what, "correct it") from error
    return module


def _attribute(module: Any, name: str, path: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = [
            word
            for word, value in vars(module).items()
            if not word.startswith("_")
            and not isinstance(value, ModuleType)
            and (not isinstance(value, type | FunctionType) or value.__module__ == module.__name__)
        ]
        remedy = f"it has {', '.join(own) or 'no public names'}"
        raise PluginError(f"{path} has no {name!r}", remedy) from None
