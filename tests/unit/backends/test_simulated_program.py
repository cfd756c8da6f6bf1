"""Finding, compiling and ending the ns-3 program, with stand-ins for ns-3 and for the program."""

import os
import shutil
import stat
from importlib import metadata
from pathlib import Path

import pytest

from orchestration.backends.simulated import program as program_module
from orchestration.backends.simulated.program import (
    Operation,
    Program,
    Simulation,
    Wheel,
    compile_argvs,
    find_program,
    find_wheel,
    policy_names,
    require_program,
)
from orchestration.core.errors import NotReadyError, TrialError


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """An ns-3 without its headers."""
    made = Wheel("3.44.post0", tmp_path / "ns3", "ns3.44")
    monkeypatch.setattr(program_module, "find_wheel", lambda: made)
    return made


def test_without_ns3_the_one_command_is_named(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert find_wheel() is None
    assert find_program() is None
    with pytest.raises(NotReadyError, match="not installed") as caught:
        require_program()
    assert caught.value.remedy == "pip install 'closloop[sim]'"


def test_without_a_compiler_the_one_command_is_named(monkeypatch, wheel):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NotReadyError, match="g\\+\\+ is not installed") as caught:
        require_program()
    assert caught.value.remedy == "apt-get install g++"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_what_does_not_compile_is_shown_and_leaves_nothing(wheel, tmp_path):
    with pytest.raises(NotReadyError, match=r"does not compile with ns3 3\.44\.post0") as caught:
        require_program()
    assert "ns3/" in caught.value.message
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_another_ns3_is_another_program(monkeypatch, wheel):
    folders = set()
    for version in ("3.44.post0", "3.44.post1"):
        other = Wheel(version, wheel.folder, wheel.prefix)
        path = program_module._program(other).path
        folders.add(path.parent)
        monkeypatch.setattr(program_module, "find_wheel", lambda other=other: other)
        assert find_program() is None
        path.parent.mkdir(parents=True)
        path.touch()
        assert find_program().path == path == require_program().path
    assert len(folders) == 2


def test_the_program_finds_its_libraries_by_itself(wheel):
    policies, argv = compile_argvs(wheel, Path("folder/out"))
    # the guest's sources, as C, and linked
    assert [Path(word).name for word in policies if word.endswith(".c")] == [
        f"policy_{name.replace('-', '_')}.c" for name in policy_names()
    ]
    assert "dcqcn" in policy_names()
    assert "folder/policy_dcqcn.o" in argv
    assert f"-Wl,-rpath,{wheel.folder}/lib64" in argv
    assert "-lns3.44-internet" in argv
    source = next(word for word in argv if word.endswith("main.cc"))
    assert Path(source).is_file()


def stand_in(folder, script):
    path = folder / "program"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Program(path, "0" * 12, "3.44")


def ask(simulation, *request):
    with simulation:
        simulation.ask(*request)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_ns3_says_as_it_ends_becomes_the_error(tmp_path):
    said = 'NS_ASSERT failed, cond="true == false", file=tcp-socket-base.cc, line=1763'
    program = stand_in(tmp_path, f"head -c 24 >/dev/null\necho '{said}' >&2\nkill -6 $$\n")
    simulation = Simulation(program, tmp_path)
    with pytest.raises(TrialError, match="was killed by signal 6: NS_ASSERT failed") as caught:
        ask(simulation, Operation.RUN, 1)
    assert said in caught.value.console
    assert "--on emulated" in caught.value.remedy
    assert not is_running(simulation.pid)


def test_a_program_that_hangs_is_ended(tmp_path):
    program = stand_in(tmp_path, "exec sleep 60\n")
    simulation = Simulation(program, tmp_path, silence_s=0.05)
    with pytest.raises(TrialError, match="ns-3 hangs"):
        ask(simulation, Operation.READ)
    assert not is_running(simulation.pid)


def test_an_interruption_leaves_no_process(monkeypatch, tmp_path):
    def interrupt(size):
        raise KeyboardInterrupt

    program = stand_in(tmp_path, "exec sleep 60\n")
    simulation = Simulation(program, tmp_path)
    monkeypatch.setattr(simulation, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(simulation, Operation.READ)
    assert not is_running(simulation.pid)
