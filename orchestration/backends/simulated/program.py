"""The C++ program that runs a trial in ns-3: compiled once, kept in the user's cache, and run.

~/.cache/closloop/ns3/<hash>/closloop-ns3     or under $XDG_CACHE_HOME

The hash covers the sources, ns-3's version and location, and the compilers' options. The program
contains the policies (congestion control) of RoCE NICs, from the same C sources as the emulated
fabric's kernel. A user's own policy is C source, too. It is compiled together with
ns3/own_policy.c, which gives it what the guest gives a BPF program, as a library that the program
loads.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from orchestration.core.errors import InputError, NotReadyError, TrialError, not_installed
from orchestration.core.files import cache_folder
from orchestration.core.records import Ints
from orchestration.core.trial import TrialSpec

PROGRAM = "closloop-ns3"
COMPILER = "g++"
_SOURCE = Path(__file__).parent / "ns3"
POLICIES = Path(__file__).parents[2] / "datapath"
_FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra")
_C_FLAGS = ("-O2", "-Wall", "-c")
_MODULES = ("core", "network", "internet", "traffic-control", "stats", "bridge")
_SHOWN_LINES = 12
_POLICY_WRAPPER = Path(__file__).parent / "ns3" / "own_policy.c"
# These define what BPF defines and C leaves undefined: sums that overflow, words that are read as
# other types.
_LIBRARY_FLAGS = ("-O2", "-fwrapv", "-fno-strict-aliasing", "-shared", "-fPIC")


@dataclass(frozen=True)
class Wheel:
    """The installed Python package ns3. Its libraries are called lib`prefix`-core.so and so on."""

    version: str
    folder: Path
    prefix: str


@dataclass(frozen=True)
class Program:
    """The compiled program. `hash` names its folder."""

    path: Path
    hash: str
    ns3_version: str


def find_wheel() -> Wheel | None:
    """Return the installed package ns3, None without one. Does not import it."""
    try:
        distribution = metadata.distribution("ns3")
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("ns3")))
    for library in sorted((folder / "lib64").glob("libns3*-core.so")):
        prefix = library.name.removeprefix("lib").removesuffix("-core.so")
        return Wheel(distribution.version, folder, prefix)
    return None


def find_program() -> Program | None:
    """Return the program; None if it is not compiled, or ns-3 is not installed."""
    wheel = find_wheel()
    if wheel is None:
        return None
    program = _program(wheel)
    return program if program.path.is_file() else None


def require_program() -> Program:
    """Return the program; compile it first if necessary, which takes some seconds.

    Raises NotReadyError without ns-3, without a compiler, or if it does not compile.
    """
    wheel = find_wheel()
    if wheel is None:
        raise not_installed("the simulated backend", "ns3", "sim")
    program = _program(wheel)
    if not program.path.is_file():
        _compile(wheel, program.path)
    return program


def policy_names() -> tuple[str, ...]:
    """Return the names of the policies of RoCE NICs, numbered as in the program."""
    return tuple(word.replace("_", "-") for word in _policy_sources())


def _policy_sources() -> dict[str, Path]:
    """Return the policies' C sources by their names in C."""
    sources = {
        file.stem.removeprefix("policy_"): file for file in sorted(POLICIES.glob("policy_*.c"))
    }
    del sources["program"]  # how the kernel runs a user's BPF program as a policy
    return sources


def _program(wheel: Wheel) -> Program:
    flags = (wheel.version, str(wheel.folder), _FLAGS, _C_FLAGS)
    digest = hashlib.sha256(repr(flags).encode())
    own = [file for file in sorted(_SOURCE.iterdir()) if file.suffix in (".cc", ".h")]
    for file in (*own, *sorted(POLICIES.glob("*.h")), *_policy_sources().values()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    key = digest.hexdigest()[:12]
    return Program(cache_folder("ns3", key, PROGRAM), key, wheel.version)


def compile_argvs(wheel: Wheel, output: Path) -> tuple[list[str], list[str]]:
    """Return two commands: the first compiles the policies, the second the program `output`.

    The first must run in the folder of `output`, where it leaves its object files.
    """
    libraries = wheel.folder / "lib64"
    sources = _policy_sources()
    listed = " ".join(f"X({name})" for name in sources)
    policies = [word for file in sources.values() for word in ("-x", "c", str(file))]
    return [COMPILER, *_C_FLAGS, *policies], [
        COMPILER,
        *_FLAGS,
        *("-isystem", str(wheel.folder / "include")),
        *("-I", str(POLICIES)),
        f"-DCLOSLOOP_POLICIES(X)={listed}",
        *("-o", str(output)),
        str(_SOURCE / "main.cc"),
        *(str(output.parent / f"{file.stem}.o") for file in sources.values()),
        f"-L{libraries}",
        *(f"-l{wheel.prefix}-{module}" for module in _MODULES),
        f"-Wl,-rpath,{libraries}",
        "-ldl",
    ]


def _compile(wheel: Wheel, path: Path) -> None:
    if shutil.which(COMPILER) is None:
        raise NotReadyError(
            f"the simulated backend needs a C++ compiler, and {COMPILER} is not installed",
            "apt-get install g++",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Safe when two processes compile at the same time: each writes to its own temporary folder.
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=path.parent) as folder:
        partial = Path(folder) / PROGRAM
        for argv in compile_argvs(wheel, partial):
            done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                errors = "\n".join(done.stderr.splitlines()[:_SHOWN_LINES])
                raise NotReadyError(
                    f"the ns-3 program does not compile with ns3 {wheel.version}:\n{errors}",
                    "pip install 'closloop[sim]' installs the version for which it was written",
                )
        os.replace(partial, path)


def policy_library(source: Path, folder: Path) -> Path:
    """Compile a policy's C source to a library in `folder`; return the library's path.

    Raises InputError for a file that is not C source or does not compile, NotReadyError without a
    compiler.
    """
    if source.suffix != ".c":
        raise InputError.single(
            str(source), "ns-3 needs a policy's C source", "give the .c file, or run --on emulated"
        )
    if shutil.which(COMPILER) is None:
        raise NotReadyError(
            f"your own policy needs a compiler for ns-3, and {COMPILER} is not installed",
            "apt-get install g++",
        )
    library = folder / "policy.so"
    wrapper = ("-x", "c", str(_POLICY_WRAPPER))
    sources = ("-I", str(POLICIES), f'-DPROGRAM="{source.absolute()}"', *wrapper)
    argv = [COMPILER, *_LIBRARY_FLAGS, *sources, "-o", str(library)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        reason = errors[0].partition("error: ")[2] if errors else done.stderr.strip()[:2000]
        raise InputError.single(
            str(source), f"the compiler refuses it: {reason}", "correct it: see docs/policies.md"
        )
    return library


def check_own_policies(trials: Sequence[TrialSpec]) -> None:
    """Compile the policies that trials name; raise as `policy_library` does."""
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        with tempfile.TemporaryDirectory(prefix="closloop-policy-") as folder:
            policy_library(Path(program), Path(folder))


# A request runs at most one sample period: a program that does not answer for so long hangs.
SILENCE_S = 900.0
_CONSOLE = "ns3.log"
_CONSOLE_LINES = 40
_WORD_BYTES = 8


class Operation(IntEnum):
    """The requests to the program; `ns3/wire.h` has the same numbers."""

    BUILD, RUN, READ, THRESHOLDS, LINKS, ROUTES, FLOWS, FLOW_TABLE = range(1, 9)
    NICS, BUFFERS, INCIDENTS, PAUSE, PARAMETERS, COUNTERS, PATHS, PAIRS = range(9, 17)


class Simulation:
    """A running program, as a context manager that ends it.

    ns-3 ends its process at any error. So it runs in a process of its own, and the first lines of
    its output, which goes to a file in `folder`, become the trial's error. `policy` is a library
    with a policy that replaces the trial's, and an argument for that policy.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        silence_s: float = SILENCE_S,
        policy: tuple[Path, str] | None = None,
    ) -> None:
        self._argv = [str(program.path), *map(str, policy or ())]
        self._console = folder / _CONSOLE
        self._silence_s = silence_s

    def __enter__(self) -> Simulation:
        """Start the program."""
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                bufsize=0,
            )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        """End the program."""
        self._selector.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    def ask(self, operation: Operation, *arrays: ArrayLike) -> Ints:
        """Send a request with these arrays of integers; return the answer, shape (words,).

        Raises TrialError, with the output of ns-3, if the program ends or hangs instead.
        """
        parts = [np.atleast_1d(np.asarray(array, dtype=np.int64)) for array in arrays]
        words = sum(1 + len(part) for part in parts)
        request = np.empty(2 + words, dtype=np.int64)
        request[:2] = operation, words
        start = 2
        for part in parts:
            request[start] = len(part)
            request[start + 1 : start + 1 + len(part)] = part
            start += 1 + len(part)
        self._send(request.tobytes())
        (count,) = np.frombuffer(self._receive(_WORD_BYTES), dtype=np.int64)
        return np.frombuffer(self._receive(_WORD_BYTES * int(count)), dtype=np.int64)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        chunks = []
        while size:
            begin = time.monotonic()
            if not self._selector.select(self._silence_s):
                if time.monotonic() - begin < self._silence_s:
                    continue
                raise TrialError(
                    f"ns-3 hangs: it has not answered for {self._silence_s:.0f} s",
                    "use fewer hosts, a lower rate or a shorter sampling period",
                    self._output(),
                )
            chunk = self._process.stdout.read(size)
            if not chunk:
                raise self._ended()
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def _ended(self) -> TrialError:
        """Return the error for a program that has ended before its time."""
        code = self._process.wait()
        output = self._output()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        first = next((line for line in output.splitlines() if line.strip()), "it printed nothing")
        return TrialError(
            f"ns-3 {how}: {first}",
            "if memory was short, run fewer trials side by side with --jobs; a failed assertion is "
            "an error in ns-3: run the same campaign with --on emulated",
            output,
        )

    def _output(self) -> str:
        text = self._console.read_text(errors="replace")
        return "\n".join(text.splitlines()[:_CONSOLE_LINES])
