"""The quickstart runs where a container grants nothing, with a C compiler and no other program."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLOSLOOP = Path(sys.executable).with_name("closloop")
# Each tries one thing that such a container refuses, and exits with 0 if it worked.
GRANTED = {
    "a namespace": "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) < 0)",
    "anonymous memory": "import os; os.memfd_create('x')",
    "a virtual machine": "import fcntl; fcntl.ioctl(open('/dev/kvm', 'rb+'), 0xAE01, 0)",
    "a capability": "import os; os.chroot('/')",
}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")


def in_container(*argv, path=os.environ["PATH"], **more):
    entered = [sys.executable, ROOT / "tests" / "bare_container.py", *argv]
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ}
    return subprocess.run(
        entered, env={**kept, "PATH": path, **more}, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("what", GRANTED)
def test_the_container_grants_nothing(what):
    assert in_container(sys.executable, "-c", GRANTED[what]).returncode


@pytest.mark.slow
def test_the_quickstart_runs_there_and_needs_a_c_compiler_only(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cc", "as", "ld"):
        (programs / name).symlink_to(shutil.which(name))
    cache, runs = tmp_path / "cache", tmp_path / "runs"
    campaign = ROOT / "examples" / "quickstart.yml"
    words = (CLOSLOOP, "run", campaign, "--repeats", "2", "--out", runs)
    done = in_container(*words, path=str(programs), XDG_CACHE_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    assert "valid      8 of 8 trials" in done.stdout
    assert "secn1" in done.stdout.partition("judged by")[0]
    assert f"page: {runs / 'quickstart' / 'report.html'}" in done.stderr
    # the packet engine was compiled there, and no kernel was built
    assert [path.name for path in (cache / "closloop").iterdir()] == ["engine"]
