"""Loads the packet engine's library, and reads its interface from `engine/api.h` itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.core.errors import InputError, NotReadyError
from orchestration.datapath.engine_build import (
    BUILDS,
    Built,
    Report,
    engine_source,
    packaged,
    report_on_stderr,
    require_built,
)

# Names the build to load in place of the release: one of `BUILDS`.
BUILD_VARIABLE = "CLOSLOOP_ENGINE_BUILD"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_NUMBER = re.compile(r"#define[ \t]+\w+[ \t]+(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")


@dataclass(frozen=True)
class EngineLibrary:
    """The loaded engine.

    `lib` has the functions of api.h, and its numbers by their names; `ffi` is cffi's. `about` is
    for provenance: "engine" (the source's hash, 12 digits), "compiler" (the first line of its
    version), and "abi" (the interface's version).
    """

    ffi: Any
    lib: Any
    about: Mapping[str, str | int]
    _dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict, repr=False)

    def dtype(self, struct: str) -> np.dtype[Any]:
        """Return the dtype of a struct of api.h, of the same layout, e.g. of "cl_queue_state"."""
        if struct not in self._dtypes:
            self._dtypes[struct] = struct_dtype(self.ffi, self.ffi.typeof(f"struct {struct}"))
        return self._dtypes[struct]


def load_engine(report: Report = report_on_stderr) -> EngineLibrary:
    """Return the engine's library; compile it first if necessary, which takes seconds.

    `report` takes a line of text if it takes longer than two seconds. $CLOSLOOP_ENGINE_BUILD may
    name another build than the release. Raises NotReadyError if there is no library and none can be
    compiled, or if it has another interface than this version of closloop; InputError for an
    unknown build.
    """
    build = os.environ.get(BUILD_VARIABLE) or "release"
    if build not in BUILDS:
        raise InputError.single(
            f"${BUILD_VARIABLE}", f"no build {build!r}", f"use one of {', '.join(BUILDS)}"
        )
    return _load(build, report)


_loaded: dict[str, EngineLibrary] = {}


def _load(build: str, report: Report) -> EngineLibrary:
    """Return a build's library, which a process loads once."""
    if build not in _loaded:
        source = engine_source(build)
        header = source.main.with_name("api.h")
        built = packaged(source)
        try:
            library = open_library(built, header) if built else None
        except OSError:  # for a newer C library than this machine's, for example
            library = None
        if library is None:
            built = require_built(source, report)
            try:
                library = open_library(built, header)
            except OSError as error:
                raise NotReadyError(
                    f"the packet engine cannot be loaded: {error}",
                    f"remove {built.path.parent}: it is compiled again",
                ) from error
        _loaded[build] = library
    return _loaded[build]


def open_library(built: Built, header: Path) -> EngineLibrary:
    """Load a compiled engine, with the interface that `header` declares.

    Raises OSError if it cannot be loaded, NotReadyError if it has another interface.
    """
    ffi = new_ffi(header)
    lib = ffi.dlopen(str(built.path))
    has, needs = lib.cl_api_version(), lib.CL_API_VERSION
    if has != needs:
        raise NotReadyError(
            f"the packet engine {built.path} has version {has} of its interface "
            f"(cl_api_version), and this closloop needs version {needs}",
            "remove it, or install closloop again: pip install --force-reinstall closloop",
        )
    return EngineLibrary(ffi, lib, {"engine": built.source, "compiler": built.compiler, "abi": has})


def new_ffi(*headers: Path) -> Any:
    """Return cffi's `FFI` with what C headers declare, and their macros that are whole numbers."""
    import cffi

    ffi = cffi.FFI()
    for header in headers:
        ffi.cdef(_declarations(header))
    return ffi


def _declarations(header: Path) -> str:
    text = _COMMENT.sub(" ", header.read_text()).replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line[:1] != "#" or _NUMBER.fullmatch(line))


def struct_dtype(ffi: Any, ctype: Any) -> np.dtype[Any]:
    """Return the dtype of a C type: a struct, an array, or an integer like uint32_t."""
    if ctype.kind == "struct":
        members = dict(ctype.fields)
        return np.dtype(
            {
                "names": list(members),
                "formats": [struct_dtype(ffi, member.type) for member in members.values()],
                "offsets": [member.offset for member in members.values()],
                "itemsize": ffi.sizeof(ctype),
            }
        )
    if ctype.kind == "array":
        return np.dtype((struct_dtype(ffi, ctype.item), (ctype.length,)))
    name: str = ctype.cname
    return np.dtype(name.removesuffix("_t"))
