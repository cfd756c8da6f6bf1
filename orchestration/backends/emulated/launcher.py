"""Boots a guest that runs the job in a folder, reads its console, and makes sure that it ends.

In real time there is no guest: the job runs in namespaces of the machine's own kernel, whose first
process sends the same messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from orchestration.backends.emulated.host_kernel import own_namespaces_argv
from orchestration.backends.emulated.remote_tuner import QUESTION
from orchestration.backends.emulated.system import MESSAGE_PREFIX
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.files import COPIED_FILES_ROOT
from orchestration.core.trial import REAL
from orchestration.kernel.boot import guest_argv, launch, memory_dir
from orchestration.kernel.cache import Kernel

# A guest sends a message every few milliseconds of virtual time. A guest that is silent for this
# long hangs: something in it spins without a system call, and virtual time stands still.
SILENCE_S = 180.0
_CONSOLE_LINES = 40
_ROOT = Path(__file__).resolve().parents[3]

# Variables that make this host act like another CPU (`closloop bench run repeatable`); the guest
# gets them as well.
OTHER_CPU = (
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "GLIBC_TUNABLES",
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
)

# The kernel's command line has no quoting and holds 4 KB.
_PLAIN = re.compile(r"[\w./+-]{1,1000}")

Listener = Callable[[dict[str, Any]], None]


def run_guest(
    kernel: Kernel,
    folder: Path,
    memory_bytes: int,
    listener: Listener,
    silence_s: float = SILENCE_S,
) -> None:
    """Run the job in `folder` to its end; `listener` gets the guest's messages.

    The guest is stopped while `listener` answers a question (a message with `QUESTION`).

    Raises TrialError, with the end of its console, if the guest failed, died or hung,
    NotReadyError if there is no space for its memory.
    """
    memory = memory_dir(memory_bytes)
    with _plain_folder(folder.absolute()) as plain, _reserved_cpu() as cpu:
        init = _write_init(plain, folder)
        argv = guest_argv(kernel.path, memory_bytes=memory_bytes, init=init)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        process = launch(argv, cpu=cpu, cwd=plain, memory_dir=memory, **pipes)
        _relay_messages(process, listener, silence_s, suspends=True)


def run_on_host_kernel(folder: Path, listener: Listener) -> None:
    """Run the job in `folder` in namespaces of this machine's kernel, which end with this thread.

    `listener` gets the messages of their first process, which goes on running meanwhile. Raises
    TrialError as `run_guest` does.
    """
    init = _write_init(folder, folder, REAL)
    process = subprocess.Popen(
        own_namespaces_argv(init.absolute()),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    _relay_messages(process, listener, SILENCE_S, suspends=False)


def _relay_messages(
    process: subprocess.Popen[bytes], listener: Listener, silence_s: float, *, suspends: bool
) -> None:
    """Pass a guest's messages on until its end; raise TrialError unless the last one is `done`.

    With `suspends`, the guest is stopped while `listener` answers a question.
    """
    console: deque[str] = deque(maxlen=_CONSOLE_LINES)
    stage, ended = "start", ""
    last_message: dict[str, Any] = {}
    try:
        for line in _lines(process, silence_s, console):
            if line.startswith(MESSAGE_PREFIX):
                message = json.loads(line[len(MESSAGE_PREFIX) :])
                if message.get("stage") in ("done", "failed"):
                    ended, last_message = message["stage"], message
                else:
                    stage = message.get("stage", stage)
                with _suspended(process) if suspends and QUESTION in message else nullcontext():
                    listener(message)
                if ended == "done":
                    break  # the guest would only power off now
            else:
                console.append(line)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.read()  # until the last of its processes has ended
        process.stdout.close()
    if "error" in last_message:
        raise TrialError(last_message["error"], last_message["remedy"], "\n".join(console))
    if ended != "done":
        end = ended or f"died (exit code {process.returncode})"
        raise TrialError(
            f"the guest {end} at stage {stage!r}",
            "the end of its console says why; if it was killed, memory was probably too small",
            "\n".join(console),
        )


@contextmanager
def _suspended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop the guest's processes meanwhile: they would spin on a CPU that the host needs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGSTOP)
    yield
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)


def _write_init(folder: Path, job: Path, clock: str = "") -> Path:
    init = folder / "init"
    init.write_text(init_script(job.absolute(), clock))
    init.chmod(0o755)
    return init


def init_script(job: Path, clock: str = "") -> str:
    """Return the script that is the guest's process 1.

    It runs `guest.py` with this Python and the argument `clock`. `job` is the job's folder.
    """
    python = shlex.quote(sys.executable)
    return (
        "#!/bin/sh\n"
        f"cd {shlex.quote(os.getcwd())}\n"  # a tuner's files are named relative to this folder
        f"export CLOSLOOP_JOB={shlex.quote(str(job))} PYTHONPATH={shlex.quote(str(_ROOT))}\n"
        "export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"
        "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1\n"
        "export PYTHONHASHSEED=0\n"  # the order of sets must not differ between guests
        + "".join(
            f"export {name}={shlex.quote(os.environ[name])}\n"
            for name in (*OTHER_CPU, COPIED_FILES_ROOT)
            if name in os.environ
        )
        + f"exec {python} -P -m orchestration.backends.emulated.guest {clock}".rstrip()
        + "\n"
    )


@contextmanager
def _plain_folder(folder: Path) -> Iterator[Path]:
    """Yield `folder`, or a temporary folder if its name cannot be on a kernel's command line."""
    if _PLAIN.fullmatch(str(folder)):
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="closloop-guest-", dir="/tmp") as plain:
            yield Path(plain)


def _lines(
    process: subprocess.Popen[bytes], silence_s: float, console: deque[str]
) -> Iterator[str]:
    """Yield the console's lines until it closes. Raises TrialError after `silence_s` of silence."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            begin = time.monotonic()
            if not selector.select(silence_s) and time.monotonic() - begin >= silence_s:
                raise TrialError(
                    f"the guest hangs: it has sent no message for {silence_s:.0f} s",
                    "something in it spins without a system call; the end of its console may show "
                    "what",
                    "\n".join(console),
                )
            chunk = os.read(fd, 65_536)
            if not chunk:
                if pending:
                    yield pending.decode(errors="replace")
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")


@contextmanager
def _reserved_cpu() -> Iterator[int]:
    """Reserve a CPU that no other guest of this user has; yield a shared one if none is free.

    A guest's processes switch to each other at each system call. On one CPU that costs a fraction
    of what it costs between two CPUs (docs/kernel.md).
    """
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    folder = _own_folder(Path(tempfile.gettempdir()) / f"closloop-cpu-{os.getuid()}")
    try:
        for cpu in cpus:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(str(cpu), flags, 0o600, dir_fd=folder)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield cpu
                return
            finally:
                os.close(lock)
        yield cpus[os.getpid() % len(cpus)]
    finally:
        os.close(folder)


def _own_folder(path: Path) -> int:
    """Open a folder of this user in a folder that all users share; make it if it does not exist.

    Raises NotReadyError if another user has made it, perhaps with links to this user's files.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with suppress(NotADirectoryError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        about = os.fstat(handle)
        if about.st_uid == os.getuid() and not about.st_mode & 0o022:
            return handle
        os.close(handle)
    raise NotReadyError(
        f"{path} does not belong to this user alone: user id {path.lstat().st_uid} has made it",
        "remove it, or set TMPDIR to a folder of your own",
    )
