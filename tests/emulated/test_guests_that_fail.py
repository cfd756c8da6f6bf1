"""A guest that fails, dies or hangs: one clear error with the end of its console, nothing left."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from orchestration.backends.emulated import launcher
from orchestration.core.errors import TrialError
from orchestration.kernel.cache import require_kernel

MEMORY = 512 * 1024 * 1024


def guests(folder: Path) -> list[int]:
    """The processes of guests that were started on `folder`: its name is on their command line."""
    init = f"init={folder}/init".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if init in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def wait_for(condition) -> bool:
    until = time.monotonic() + 120
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    return condition()


def run(folder: Path, program: str, monkeypatch, silence_s: float = 60.0) -> TrialError:
    script = folder / "program.py"
    script.write_text(program)

    def init_script(job: Path, clock: str) -> str:
        return f"#!/bin/sh\nexec {sys.executable} {script}\n"

    monkeypatch.setattr(launcher, "init_script", init_script)
    with pytest.raises(TrialError) as caught:
        launcher.run_guest(require_kernel(), folder, MEMORY, lambda message: None, silence_s)
    assert wait_for(lambda: not guests(folder))
    return caught.value


def test_a_guest_without_a_job_says_what_is_missing(tmp_path):
    with pytest.raises(TrialError, match="failed") as caught:
        launcher.run_guest(require_kernel(), tmp_path, MEMORY, lambda message: None)
    assert "at stage 'boot'" in caught.value.message
    assert "job.pickle" in caught.value.console


def test_a_guest_that_dies(tmp_path, monkeypatch):
    program = "print('the last words', flush=True)\nraise SystemExit(3)\n"
    error = run(tmp_path, program, monkeypatch)
    assert "died" in error.message
    assert "the last words" in error.console


def test_a_guest_that_hangs(tmp_path, monkeypatch):
    program = "print('spinning', flush=True)\nwhile True:\n    pass\n"
    error = run(tmp_path, program, monkeypatch, silence_s=3.0)
    assert "hangs" in error.message
    assert "spinning" in error.console


def test_a_killed_launcher_leaves_no_guest(tmp_path):
    """SIGKILL to the process that launched a guest ends the guest."""
    program = (
        "from pathlib import Path\n"
        "from orchestration.backends.emulated import launcher\n"
        "from orchestration.kernel.cache import require_kernel\n"
        f"script = Path({str(tmp_path / 'spin.py')!r})\n"
        "script.write_text('while True: pass')\n"
        f"text = '#!/bin/sh\\nexec {sys.executable} ' + str(script) + '\\n'\n"
        "launcher.init_script = lambda job, clock: text\n"
        f"launcher.run_guest(require_kernel(), Path({str(tmp_path)!r}), {MEMORY}, print)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=dict(os.environ))
    assert wait_for(lambda: bool(guests(tmp_path)))
    process.kill()
    process.wait()
    assert wait_for(lambda: not guests(tmp_path))
