"""Compiling, caching and loading the packet engine, with a small engine in the real one's place."""

import json
import multiprocessing
import shutil
import stat

import pytest

from orchestration.core.errors import InputError, NotReadyError
from orchestration.datapath import engine_build, library
from orchestration.datapath.library import load_engine
from tests.sanitizers import run_sanitized

STRUCTS = ("cl_fabric", "cl_device", "cl_port", "cl_nics", "cl_flow", "cl_flow_result")
STRUCTS += ("cl_queue_state", "cl_pause_state", "cl_buffer_state", "cl_nic_state")
STRUCTS += ("cl_incident", "cl_counts")


def loaded_again(monkeypatch):
    """Load the engine as a new process does."""
    monkeypatch.setattr(library, "_loaded", {})
    return load_engine()


def compiler(monkeypatch, folder, script):
    """Let $CC name a shell script."""
    path = folder / "my-cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(path))


def libraries(tmp_path):
    return sorted((tmp_path / "cache").rglob("library.so"))


def test_it_is_compiled_once_and_says_of_what(monkeypatch, engine, tmp_path):
    calls = tmp_path / "calls"
    compiler(monkeypatch, tmp_path, f'echo "$@" >>{calls}; exec gcc "$@"')
    about = load_engine().about
    assert about["engine"] == engine_build.engine_source().hash()
    assert about["abi"] == load_engine().lib.CL_API_VERSION == 1
    assert "gcc" in about["compiler"]
    assert loaded_again(monkeypatch).about == about
    compiled = [line for line in calls.read_text().splitlines() if "-shared" in line]
    assert len(compiled) == len(libraries(tmp_path)) == 1


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_each_compiler_has_its_own_library(monkeypatch, engine, tmp_path, name):
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    load_engine()
    monkeypatch.setenv("CC", f"{name} -DOTHER")
    about = loaded_again(monkeypatch).about
    assert name in about["compiler"]
    assert len(libraries(tmp_path)) == 2


def test_what_it_includes_makes_another_engine(monkeypatch, engine, tmp_path):
    first = load_engine().about["engine"]
    (engine / "unused.h").write_text("#error nobody includes this\n")
    assert loaded_again(monkeypatch).about["engine"] == first
    with (tmp_path / "versions.h").open("a") as header:
        header.write("/* another one */\n")
    assert loaded_again(monkeypatch).about["engine"] != first
    assert len(libraries(tmp_path)) == 2


def _load(send):
    library._loaded.clear()
    send.send(dict(load_engine().about))


def test_processes_that_start_together_compile_once(monkeypatch, engine, tmp_path):
    calls = tmp_path / "calls"
    compiler(monkeypatch, tmp_path, f'echo "$@" >>{calls}; sleep 0.2; exec gcc "$@"')
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [context.Process(target=_load, args=(send,)) for _, send in pipes]
    for process in processes:
        process.start()
    abouts = [receive.recv() for receive, _ in pipes]
    for process in processes:
        process.join()
    assert abouts == [abouts[0]] * 3
    assert sum("-shared" in line for line in calls.read_text().splitlines()) == 1
    assert {path.name for path in (tmp_path / "cache/closloop/engine").iterdir()} == {
        "lock",
        libraries(tmp_path)[0].parent.name,
    }


def test_a_user_who_waits_is_told_why(monkeypatch, engine, tmp_path):
    lines = []
    load_engine(lines.append)
    assert lines == []
    monkeypatch.setattr(engine_build, "_SILENT_S", 0.05)
    compiler(monkeypatch, tmp_path, 'sleep 0.1; exec gcc "$@"')
    monkeypatch.setattr(library, "_loaded", {})
    load_engine(lines.append)
    assert lines == [f"compiling the packet engine with {tmp_path}/my-cc, once ..."]


def test_without_a_compiler_the_command_is_named(monkeypatch, engine, tmp_path):
    built = load_engine().about
    monkeypatch.setenv("PATH", str(tmp_path))
    # what was compiled from this source before is as good
    assert loaded_again(monkeypatch).about == built
    (tmp_path / "versions.h").write_text("#define VERSION 1\n")
    with pytest.raises(NotReadyError, match="no C compiler was found") as caught:
        loaded_again(monkeypatch)
    assert "apt-get install gcc" in caught.value.remedy
    monkeypatch.setenv("CC", "mycc -m64")
    with pytest.raises(NotReadyError, match=r"\$CC names mycc, which is not installed"):
        loaded_again(monkeypatch)


def test_what_does_not_compile_is_shown_and_leaves_nothing(engine, tmp_path):
    (engine / "library.c").write_text("/* mine */\n#error no such machine\n")
    with pytest.raises(NotReadyError, match=r"library\.c:2:2: error: #error no such machine"):
        load_engine()
    cache = tmp_path / "cache" / "closloop" / "engine"
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_another_version_of_the_interface_is_refused(engine, tmp_path):
    (tmp_path / "versions.h").write_text("#define VERSION 7\n")
    with pytest.raises(NotReadyError, match=r"version 7 of its interface .* needs version 1"):
        load_engine()


def test_a_wheels_library_is_taken_if_it_is_of_this_source(monkeypatch, engine, tmp_path):
    load_engine()
    made = libraries(tmp_path)[0].parent
    manifest = json.loads((made / engine_build.MANIFEST).read_text())
    wheels = engine / engine_build.LIBRARY

    def in_the_wheel(source, content):
        """Install a wheel; return how many libraries are in the cache after loading the engine."""
        about = json.dumps({**manifest, "source": source})
        (engine / engine_build.MANIFEST).write_text(about)
        wheels.write_bytes(content)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        assert loaded_again(monkeypatch).about["engine"] == manifest["source"]
        return len(libraries(tmp_path))

    library_bytes = libraries(tmp_path)[0].read_bytes()
    assert in_the_wheel("0" * 12, library_bytes) == 1
    # for a newer C library than this machine has, say
    assert in_the_wheel(manifest["source"], b"not a library") == 1
    assert in_the_wheel(manifest["source"], library_bytes) == 0


def test_an_array_of_structs_has_the_compilers_layout(engine):
    with (engine / "library.c").open("a") as source:
        source.writelines(f"int {s}_size(void) {{ return sizeof(struct {s}); }}\n" for s in STRUCTS)
    loaded = load_engine()
    loaded.ffi.cdef("".join(f"int {struct}_size(void);" for struct in STRUCTS))
    for struct in STRUCTS:
        assert loaded.dtype(struct).itemsize == getattr(loaded.lib, f"{struct}_size")()
    incident = loaded.dtype("cl_incident")
    assert incident["queue"].shape == (loaded.lib.CL_INCIDENT_QUEUES,)
    assert incident.fields["queue"][1] == loaded.ffi.offsetof("struct cl_incident", "queue")


def test_an_unknown_build_is_refused(monkeypatch, engine):
    monkeypatch.setenv(library.BUILD_VARIABLE, "fast")
    with pytest.raises(InputError, match="no build 'fast'") as caught:
        load_engine()
    assert "checked" in caught.value.remedy


LOAD = """
import sys
from pathlib import Path
from orchestration.datapath import engine_build, library
engine_build.ENGINE = Path(sys.argv[1])
loaded = library.load_engine()
loaded.ffi.cdef("int fault(int kind);")
print("loaded", flush=True)
loaded.lib.fault(int(sys.argv[2]))
"""
FAULTS = """
#include <stdlib.h>
#ifndef CL_CHECK
#error conservation is to be checked
#endif
int fault(int kind);
int fault(int kind)
{
	volatile int *memory = malloc(sizeof(int));

	*memory = 0x7fffffff;
	if (kind == 1)
		free((void *)memory);
	return *memory + kind / 2;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "finding"),
    [("0", ""), ("1", "heap-use-after-free"), ("2", "signed integer overflow")],
)
def test_sanitizers_see_the_engine(engine, kind, finding):
    with (engine / "library.c").open("a") as source:
        source.write(FAULTS)
    ended = run_sanitized(LOAD, str(engine), kind)
    assert ended.stdout == "loaded\n", ended.stderr
    assert (ended.returncode == 0) == (not finding)
    assert finding in ended.stderr
