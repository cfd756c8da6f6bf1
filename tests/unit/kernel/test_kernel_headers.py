"""The script between make and gcc that has headers read once: real compilations of small files."""

import subprocess
from pathlib import Path

import pytest

from orchestration.kernel.build import FIRST, write_compiler_wrapper

HEADER = """
#ifndef COMMON
#define COMMON
#ifdef DEBUG
#define MESSAGE "in detail"
#else
#define MESSAGE "in short"
#endif
static inline int twice(int x) { return 2 * x; }
#endif
"""
FLAGS = ("-D__KERNEL__", "-O2")


@pytest.fixture
def tree(tmp_path):
    """A folder with a header, the file that make begins with, and the script, which has seen it."""
    script = write_compiler_wrapper(tmp_path / "headers")
    (tmp_path / "headers" / "headers.h").write_text('#include "common.h"\n')
    (tmp_path / "common.h").write_text(HEADER)
    first = tmp_path / FIRST.replace(".o", ".c")
    first.parent.mkdir()
    first.write_text('#include "common.h"\nint first(void) { return twice(1); }\n')
    done = run(script, tmp_path, first, "exit")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "headers" / "headers.h.gch").exists()
    return tmp_path, script


def run(script: Path, folder: Path, file: Path, name: str, *more: str):
    own = (f"-Wp,-MMD,{folder}/{name}.d", f'-DKBUILD_MODNAME="{name}"', f"-I{folder}")
    words = (*FLAGS, *more, *own, "-c", "-o", f"{folder}/{name}.o", str(file))
    return subprocess.run([script, *words], capture_output=True, text=True)


def test_a_file_is_compiled_with_the_headers_that_were_read_and_its_own_name(tree):
    folder, script = tree
    # whoever reads the header's text now fails
    (folder / "headers" / "headers.h").write_text("#error read again\n")
    file = folder / "own.c"
    file.write_text('#include "common.h"\nconst char *name(void) { return KBUILD_MODNAME; }\n')
    done = run(script, folder, file, "own")
    assert (done.returncode, done.stderr) == (0, "")
    assert b"own" in (folder / "own.o").read_bytes()
    # what make will look at is there
    words = (folder / "own.d").read_text().split(":", 1)[1].replace("\\\n", " ").split()
    assert all(Path(word).exists() for word in words)
    assert not list((folder / "headers" / "macros").iterdir())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        # gcc does not take the headers with other flags, and two functions of a name do not compile
        (("-O1",), '#include "common.h"\nint f(void) { return twice(2); }\n'),
        ((), "#define twice(x) (3 * (x))\nint twice_of_mine;\nint g(void) { return twice(2); }\n"),
        ((), "static int twice(int x) { return x; }\nint h(void) { return twice(2); }\n"),
    ],
)
def test_what_does_not_go_that_way_is_compiled_as_ever(tree, more, text):
    folder, script = tree
    file = folder / "other.c"
    file.write_text(text)
    done = run(script, folder, file, "other", *more)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "other.o").exists()
    assert not list((folder / "headers" / "macros").iterdir())


def test_what_a_file_defines_before_it_includes_anything_changes_what_it_includes(tree):
    folder, script = tree
    for defined, said in (("DEBUG", b"in detail"), ("pr_fmt(x) x", b"in short")):
        file = folder / "says.c"
        file.write_text(f'#define {defined}\n#include "common.h"\nconst char *m = MESSAGE;\n')
        assert run(script, folder, file, "says").returncode == 0
        assert said in (folder / "says.o").read_bytes()


def test_an_error_is_said_once_by_the_compiler_itself(tree):
    folder, script = tree
    file = folder / "wrong.c"
    file.write_text("int f(void) { return nothing; }\n")
    done = run(script, folder, file, "wrong")
    assert done.returncode == 1
    assert (
        done.stderr.count("'nothing' undeclared") + done.stderr.count("‘nothing’ undeclared") == 1
    )
    assert not list((folder / "headers" / "macros").iterdir())


def test_headers_that_a_source_does_not_have_are_no_error(tmp_path):
    script = write_compiler_wrapper(tmp_path / "headers")
    first = tmp_path / FIRST.replace(".o", ".c")
    first.parent.mkdir()
    first.write_text("int first(void) { return 1; }\n")
    done = run(script, tmp_path, first, "exit")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "headers" / "headers.h.gch").exists()
