"""Plug-ins by reference: `path/file.py:Name`, or the name of an entry point.

An installed package offers a class or a declaration in an entry-point group such as
`closloop.tuners`. A file is loaded by the path that the campaign file has. It cannot import other
modules from its own folder.
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
# What messages name as the location of a package's problem.
_ENTRY_POINTS = "entry points"


class PluginError(WrongValue):
    """A reference does not lead to what it should name."""


def is_file(reference: str) -> bool:
    """Return whether a reference has the form `path/file.py:Name`."""
    return ".py:" in reference


def file_of(reference: str) -> str:
    """Return the path in a reference of the form `path/file.py:Name`."""
    return reference.rpartition(":")[0]


def short_name(reference: str) -> str:
    """Return the part after the file's path, or the whole reference if it names no file."""
    return reference.rpartition(":")[2] if is_file(reference) else reference


# By group, the entry points: `module:name` by the entry point's name.
_OFFERED: dict[str, dict[str, str]] = {}


def offered(group: str) -> dict[str, str]:
    """Return the entry points of a group: `module:name` by name. Nothing is loaded."""
    if group not in _OFFERED:
        from importlib.metadata import entry_points

        points = entry_points(group=group)
        set_entry_points(group, {point.name: f"{point.module}:{point.attr}" for point in points})
    return _OFFERED[group]


def set_entry_points(group: str, points: dict[str, str]) -> None:
    """Set the entry points of a group to those that `offered` returned in another process.

    To search for them would take longer than a guest takes to boot.
    """
    _OFFERED[group] = points


def load(reference: str, group: str) -> Any:
    """Import and return the object that a reference names. Raises PluginError if that fails."""
    if is_file(reference):
        path, _, name = reference.rpartition(":")
        return _attribute(_module(local_path(str(Path(path).absolute()))), name, path)
    if reference not in offered(group):
        what = f"no installed package has an entry point {reference!r} in {group}"
        raise PluginError(what, "install its package")
    try:
        return resolve_name(offered(group)[reference])
    except Exception as error:
        what = f"{reference!r} of {group} cannot be loaded ({error})"
        raise PluginError(what, "correct its package") from error


def load_declaration(name: str, group: str, kind: type[Declared]) -> Declared:
    """Return the declaration that an entry point names.

    Raises InputError if it cannot be loaded, or is not an instance of `kind`.
    """
    try:
        declared = load(name, group)
    except PluginError as error:
        raise InputError([of_value(error, _ENTRY_POINTS)]) from error
    if not isinstance(declared, kind):
        what = f"{name!r} of {group} is not a {kind.__name__}"
        raise InputError.single(_ENTRY_POINTS, what, "correct its package")
    return declared


def load_all(group: str) -> dict[str, Callable[[], Any]]:
    """Return for each entry point of a group a function that loads it, as `load` does."""
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
        public_names = [
            public_name
            for public_name, value in vars(module).items()
            if not public_name.startswith("_")
            and not isinstance(value, ModuleType)
            and (not isinstance(value, type | FunctionType) or value.__module__ == module.__name__)
        ]
        remedy = f"it has {', '.join(public_names) or 'no public names'}"
        raise PluginError(f"{path} has no {name!r}", remedy) from None
