"""Programs that tests start: closloop itself, a Redis server, and what a guest runs."""

import io
import shlex
import shutil
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from orchestration.backends.emulated import launcher
from orchestration.bench.red import run_probe
from orchestration.core.errors import TrialError


def closloop(*arguments, cwd):
    """Run `closloop ARGUMENTS` in a process of its own; return what it prints."""
    program = "from orchestration.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Ended(NamedTuple):
    """A command line that has ended."""

    returncode: int
    stdout: str
    stderr: str


def closloop_in_process(*arguments, cwd=".", given=""):
    """Run `closloop ARGUMENTS` in this process; `given` is its standard input.

    A process of its own takes half a second more, most of it for imports.
    """
    from orchestration.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setenv("CLOSLOOP_DEBUG", "")
        patch.setattr(sys, "argv", ["closloop", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main() takes another one
        with pytest.raises(SystemExit) as end:
            main()
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Ended(end.value.code or 0, *printed)


def start_redis(path):
    """Start a Redis server at a socket."""
    program = shutil.which("redis-server", path="/usr/bin:/usr/sbin")
    words = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(path.parent)]
    return subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)


def in_a_guest(script):
    """Run a Python script as a guest's only program; return its messages."""
    messages = []
    original = launcher.init_script

    def init_script(job, clock=""):
        usual = original(job).rsplit("exec ", 1)[0]
        return f"{usual}exec {shlex.quote(sys.executable)} -P {shlex.quote(str(script))}\n"

    launcher.init_script = init_script
    try:
        with pytest.raises(FileNotFoundError):  # the program is no probe, and leaves no result
            run_probe("graphcc", {"kind": "none"}, messages.append)
    except TrialError as error:
        pytest.fail(error.console)
    finally:
        launcher.init_script = original
    return messages
