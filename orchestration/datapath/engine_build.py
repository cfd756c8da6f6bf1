"""Compiles the packet engine's C into a shared library, once, into the user's cache.

    ~/.cache/closloop/engine/<hash>/library.so, library.json     or under $XDG_CACHE_HOME

The hash is that of the sources, the options, the compiler's version and the machine. A wheel that
was made where a compiler was has the library, too, beside the sources. The build of wheels uses
this module, so it imports the standard library and the error tree only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestration.core.errors import NotReadyError
from orchestration.core.files import cache_folder, whole_folder
from orchestration.core.problems import Code

ENGINE = Path(__file__).parent / "engine"
LIBRARY, MANIFEST = "library.so", "library.json"
# Tried in this order, if $CC does not name one.
COMPILERS = ("cc", "gcc", "clang")
INSTALL = "apt-get install gcc libc6-dev"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default")
# A function that is nowhere is the linker's error, not the loader's.
_ENGINE_FLAGS = (*FLAGS, "-Wl,-z,defs")
# What tests may load in place of the release. What the sanitizers find ends the process.
_CHECKED = ("-O1", "-g", "-DCL_CHECK")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUILDS: Mapping[str, tuple[str, ...]] = {
    "release": (),
    "checked": _CHECKED,
    "sanitized": (*_CHECKED, "-fno-omit-frame-pointer", *_SANITIZERS),
}
_FORMAT = 1
_SHOWN_LINES = 12
_SILENT_S = 2.0
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)

Report = Callable[[str], None]


class CompileError(NotReadyError):
    """The compiler refuses the source. `output` is what it printed."""

    def __init__(self, what: str, remedy: str, output: str) -> None:
        super().__init__(what, remedy)
        self.output = output


@dataclass(frozen=True)
class Compiler:
    """A C compiler: how it is called, and the first line of what it says of its version."""

    argv: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Source:
    """The C source of a shared library, which is one translation unit.

    `what` names the library in messages. Headers are searched in `headers` too. `program` is a
    file that `main` includes by the macro PROGRAM. `flags` are all options of the compiler.
    """

    what: str
    main: Path
    flags: tuple[str, ...]
    headers: Path | None = None
    program: Path | None = None

    def files(self) -> tuple[Path, ...]:
        """Return the source's files: each one, and then what it includes, once each."""
        found: dict[Path, None] = {}
        for path in (self.main, self.program):
            if path is not None:
                self._add(path, found)
        return tuple(found)

    def _add(self, path: Path, found: dict[Path, None]) -> None:
        if path in found:
            return
        found[path] = None
        for name in _INCLUDE.findall(path.read_bytes()):
            for folder in (path.parent, self.headers):
                included = Path(os.path.normpath(folder / os.fsdecode(name))) if folder else None
                if included is not None and included.is_file():
                    self._add(included, found)
                    break

    def hash(self) -> str:
        """Return the first 12 hexadecimal digits of the SHA-256 of all files."""
        digest = hashlib.sha256()
        for file in self.files():
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return digest.hexdigest()[:12]

    def argv(self, compiler: Compiler, output: Path) -> list[str]:
        """Return the command that compiles the library `output`."""
        return [
            *compiler.argv,
            *self.flags,
            *(("-I", str(self.headers)) if self.headers else ()),
            *((f'-DPROGRAM="{self.program.absolute()}"',) if self.program else ()),
            *("-o", str(output)),
            str(self.main),
            "-lm",
        ]


@dataclass(frozen=True)
class Built:
    """A compiled library: its file, the hash of its source, and what compiled it where."""

    path: Path = field(compare=False)
    source: str
    compiler: str
    machine: str
    flags: tuple[str, ...]


def engine_source(build: str = "release") -> Source:
    """Return the engine's source, to be compiled as one of `BUILDS`."""
    return Source("the packet engine", ENGINE / "library.c", (*_ENGINE_FLAGS, *BUILDS[build]))


def find_compiler() -> Compiler:
    """Return the C compiler that $CC names, or else the first of `COMPILERS` that is installed.

    Raises NotReadyError without one.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for argv in [named] if named else [[name] for name in COMPILERS]:
        if path := shutil.which(argv[0]):
            return Compiler((path, *argv[1:]), _version((path, *argv[1:])))
    if named:
        raise NotReadyError(
            f"no C compiler was found: $CC names {named[0]}, which is not installed",
            "unset CC, or set it to a C compiler",
            Code.MISSING_SOFTWARE,
        )
    raise NotReadyError(
        f"no C compiler was found: no {', '.join(COMPILERS)}",
        f"{INSTALL}; or install a wheel of closloop that contains the library",
        Code.MISSING_SOFTWARE,
    )


def _version(argv: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*argv, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError, UnicodeError) as error:
        raise NotReadyError(
            f"the C compiler {argv[0]} does not run: {error}", "set CC to another one"
        ) from error
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), argv[0])


def report_on_stderr(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def compile_library(
    source: Source, compiler: Compiler, output: Path, report: Report = report_on_stderr
) -> None:
    """Compile a library; `report` what goes on if it takes longer than two seconds.

    Raises CompileError with the compiler's first lines, OSError if a file cannot be written.
    """
    process = subprocess.Popen(
        source.argv(compiler, output),
        cwd=output.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        try:
            printed, _ = process.communicate(timeout=_SILENT_S)
        except subprocess.TimeoutExpired:
            report(f"compiling {source.what} with {compiler.argv[0]}, once ...")
            printed, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        lines = "\n".join(printed.splitlines()[:_SHOWN_LINES])
        raise CompileError(
            f"{source.what} does not compile with {compiler.version}:\n{lines}",
            f"{INSTALL}, or set CC to another C compiler",
            printed,
        )


def find_built(source: Source) -> Built | None:
    """Return a library of the cache for this source and machine, by whatever compiler."""
    wanted = (source.hash(), platform.machine(), source.flags)
    for folder in sorted(cache_folder("engine").glob("*/")):
        built = read_built(folder)
        if built and (built.source, built.machine, built.flags) == wanted:
            return built
    return None


def packaged(source: Source) -> Built | None:
    """Return the library of a wheel, if it was compiled from this very source."""
    built = read_built(ENGINE)
    fits = built and (built.source, built.flags) == (source.hash(), source.flags)
    return built if fits else None


def require_built(source: Source, report: Report = report_on_stderr) -> Built:
    """Return a library from the cache; compile it first if necessary, which takes seconds.

    Processes that need the same library at once wait for the first of them. Without a compiler,
    what any other one has compiled from the same source is taken. Raises NotReadyError.
    """
    try:
        compiler = find_compiler()
    except NotReadyError:
        if built := find_built(source):
            return built
        raise
    made = _built(source, compiler)
    folder = cache_folder("engine", _key(made))
    built = read_built(folder)
    if built == made:
        return built
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if read_built(folder) != made:
                _install(source, compiler, folder, report)
    except OSError as error:
        raise NotReadyError(
            f"the cache folder cannot be written: {error}",
            "set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    built = read_built(folder)
    assert built is not None
    return built


def _key(built: Built) -> str:
    words = (built.source, built.compiler, built.machine, built.flags)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:12]


def _install(source: Source, compiler: Compiler, folder: Path, report: Report) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # another format, or a file is missing
    with whole_folder(folder) as staged:
        build_into(staged, source, compiler, report)


def build_into(
    folder: Path, source: Source, compiler: Compiler, report: Report = report_on_stderr
) -> None:
    """Compile a library into a folder, with a manifest. Raises as `compile_library` does."""
    compile_library(source, compiler, folder / LIBRARY, report)
    about: dict[str, Any] = {"format": _FORMAT, **asdict(_built(source, compiler))}
    del about["path"]
    (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n")


def _built(source: Source, compiler: Compiler) -> Built:
    return Built(Path(), source.hash(), compiler.version, platform.machine(), source.flags)


def read_built(folder: Path) -> Built | None:
    """Return the library in a folder; None if there is none, or its manifest differs in format."""
    try:
        about = json.loads((folder / MANIFEST).read_text())
        if about.pop("format") != _FORMAT or not (folder / LIBRARY).is_file():
            return None
        return Built(path=folder / LIBRARY, **{**about, "flags": tuple(about["flags"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
