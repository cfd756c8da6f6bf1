"""The wheel: C sources always, and the packet engine's library if there was a compiler."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestration.datapath import engine_build

ROOT = Path(__file__).parents[3]
INSIDE = engine_build.ENGINE.relative_to(ROOT)
LOAD = """
import json
from orchestration.datapath.library import load_engine
library = load_engine()
print(json.dumps(library.about))
"""


def python(*arguments, **environment):
    """Run Python with these variables besides; return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done


def build_wheel(folder, **environment):
    pytest.importorskip("hatchling")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_an_installed_wheel_needs_no_compiler(tmp_path):
    wheel = build_wheel(tmp_path)
    assert "-py3-none-any" not in wheel.name
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    variables = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CC": ""}
    # -P and -I would hide the wheel; the script's folder comes first, and is empty
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n{LOAD}\nprint(library.__class__)"
    about = json.loads(python("-c", code, **variables).stdout.splitlines()[0])
    assert about["engine"] == engine_build.engine_source().hash()
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_a_wheel_of_a_machine_without_a_compiler_has_the_sources(tmp_path):
    wheel = build_wheel(tmp_path, PATH=str(tmp_path), CC="")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(file.relative_to(ROOT)) for file in engine_build.engine_source().files()}
    assert sources <= names
    assert str(INSIDE / engine_build.LIBRARY) not in names
