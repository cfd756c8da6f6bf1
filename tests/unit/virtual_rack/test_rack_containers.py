"""Devices as containers: refused before anything is made, and what a runtime is told."""

import os
import subprocess
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.core.errors import InputError, NotReadyError
from orchestration.virtual_rack import cleanup, containers, control, control_groups, folder, image
from orchestration.virtual_rack import layout as layouts
from orchestration.virtual_rack.isolation import FileTree
from orchestration.virtual_rack.layout import Layout, make_layout

SEVEN = load_testbed("rlcc-7")
# The first process of the next boot at the earliest: a process that has ended.
GONE = "4194304-1"


@pytest.fixture
def a_machine(monkeypatch, tmp_path):
    """Return a function that gives this machine programs, control groups and an image."""
    cache, bin_folder, cgroup = (tmp_path / name for name in ("cache", "bin", "cgroup"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(folder, "SBIN", str(bin_folder))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(layouts, "missing_parts", lambda: ())
    monkeypatch.setattr(control_groups, "ROOT", cgroup)
    bin_folder.mkdir()

    def has(*programs, hybrid=False, built=False):
        for name in programs:
            (bin_folder / name).write_text("#!/bin/sh\n")
            (bin_folder / name).chmod(0o755)
        for place in ("cpu", "unified") if hybrid else ("",):
            (cgroup / place).mkdir(parents=True)
            (cgroup / place / "cgroup.procs").touch()
            if place != "cpu":
                (cgroup / place / "cgroup.controllers").touch()
        if built:
            image.image_tree().mkdir(parents=True)
            (image.image_tree().parent / "image.json").write_text('{"format": 1}')

    return has


NEEDED = ("ip", "tc", "ssh-keygen")


def refused(tmp_path):
    with pytest.raises(NotReadyError) as found:
        control.up(SEVEN, clock="real", containers=True, folder=tmp_path / "rack")
    assert found.value.exit_code == 3
    assert not (tmp_path / "rack").exists()
    assert "--plain" in found.value.remedy
    return f"{found.value.message}: {found.value.remedy}"


def test_no_runtime(a_machine, tmp_path):
    a_machine(*NEEDED)
    assert "no container runtime (runc, crun): apt-get install runc" in refused(tmp_path)


def test_crun_where_control_groups_are_of_both_versions(a_machine, tmp_path):
    a_machine(*NEEDED, "crun", hybrid=True, built=True)
    said = refused(tmp_path)
    assert "crun does not support this machine's control groups" in said
    assert "apt-get install runc" in said


def test_crun_serves_where_they_are_of_one_version(a_machine):
    a_machine("crun")
    assert containers.require_runtime().endswith("/crun")


def test_no_image_and_nothing_that_builds_it(a_machine, tmp_path):
    a_machine(*NEEDED, "runc")
    said = refused(tmp_path)
    assert "no image of a device yet" in said
    assert "apt-get install mmdebstrap debian-archive-keyring" in said


def test_a_machine_that_does_not_start_containers(a_machine, tmp_path, monkeypatch):
    a_machine(*NEEDED, "runc", built=True)
    said = 'runc: level=error msg="unable to apply caps: operation not permitted"\n'
    done = subprocess.CompletedProcess([], 1, "", f"a warning\n{said}")
    monkeypatch.setattr(containers.subprocess, "run", lambda *_, **__: done)
    assert "runc does not start containers here: runc: level=error" in refused(tmp_path)


def test_what_the_builder_says_is_passed_on_and_nothing_half_is_kept(a_machine, monkeypatch):
    a_machine("mmdebstrap")
    script = Path(os.environ["PATH"]) / "definition"
    script.write_text("#!/bin/sh\n/bin/mkdir $1\necho 'I: going'\necho 'E: no mirror'\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(image, "DEFINITION", script)
    monkeypatch.setattr(image, "_ISOLATION_ARGV", ())
    with pytest.raises(NotReadyError, match="cannot be built: E: no mirror") as found:
        image.require_image()
    assert "--mirror" in found.value.remedy
    assert [path.name for path in image.images_folder().iterdir()] == ["lock"]


def test_an_image_is_built_once_and_again_for_another_definition(a_machine, monkeypatch):
    a_machine("mmdebstrap")
    script = Path(os.environ["PATH"]) / "definition"
    monkeypatch.setattr(image, "DEFINITION", script)
    monkeypatch.setattr(image, "_ISOLATION_ARGV", ())
    trees, steps = [], []
    for text in ("one", "one", "two"):
        script.write_text(f"#!/bin/sh\n/bin/mkdir $1; echo I: {text} $2\n")
        script.chmod(0o755)
        tree = image.require_image(
            mirror="http://m.example/debian", progress=lambda *step: steps.append(step)
        )
        assert (tree.parent / "build.log").read_text() == f"I: {text} http://m.example/debian\n"
        trees.append(tree)
    assert trees[0] == trees[1] != trees[2]
    assert len(steps) == 2
    with pytest.raises(InputError, match=r"--mirror: 'm\.example' is not an address"):
        image.require_image(mirror="m.example")


def test_only_what_carries_the_mark_of_a_process_that_has_ended_is_removed(a_machine, tmp_path):
    a_machine()
    images, root = image.images_folder(), tmp_path / "cgroup"
    kept = [
        root / "system.slice",
        root / control_groups.own_group(),
        root / f"{control_groups.PREFIX}mine",
    ]
    kept += [images / "abc" / "tree", images / f".building-{control_groups.own_mark()}"]
    left = [root / f"{control_groups.PREFIX}{GONE}", images / f".building-{GONE}"]
    for path in (*kept, *left):
        (path / "h1").mkdir(parents=True)
    kinds = (cleanup.find_control_groups, cleanup.find_unfinished_images)
    assert cleanup.remove_orphaned(*kinds) == [str(path) for path in left]
    assert not any(path.exists() for path in left)
    assert cleanup.remove_orphaned(*kinds) == []
    assert all((path / "h1").is_dir() for path in kept)


def test_a_container_gets_what_the_rack_has_and_no_more(tmp_path):
    place = FileTree(tmp_path, tmp_path / "upper", tmp_path / "root", (("/run", tmp_path / "run"),))
    some = 1 << 12 | 1 << 21  # of NET_ADMIN, SYS_ADMIN and SYS_RESOURCE a machine keeps the last
    told = containers.oci_config(
        place, "h1", "closloop-rack-1-2/h1", init=("x",), unified=True, held_capabilities=some
    )
    assert told["process"]["capabilities"]["bounding"] == ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]
    assert "rlimits" not in told["process"]
    assert told["linux"]["cgroupsPath"] == "/closloop-rack-1-2/h1"
    assert told["annotations"]["closloop.rack"] == "closloop-rack-1-2"
    mounts = {row["destination"]: row for row in told["mounts"]}
    assert mounts["/sys"]["options"] == ["ro"]
    assert mounts["/sys/fs/cgroup"]["type"] == "cgroup2"
    assert mounts["/run"]["source"] == str(tmp_path / "run")
    read_only = told["linux"]["readonlyPaths"]
    assert {"/proc/sys/vm", "/proc/sys/kernel", "/proc/sysrq-trigger"} < {*read_only}
    assert "/proc/sys/net" not in read_only
    bare = containers.oci_config(
        place, "h1", "g/h1", init=("x",), unified=False, held_capabilities=some
    )
    assert "/sys/fs/cgroup" not in {row["destination"] for row in bare["mounts"]}


def test_a_layout_says_which_image_and_an_older_one_has_none():
    data = make_layout(SEVEN, (), ()).to_json()
    assert Layout.from_json({**data, "image": "/i/tree"}).image == "/i/tree"
    del data["image"]
    assert Layout.from_json(data).image == ""
