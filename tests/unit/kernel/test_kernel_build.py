"""Building the kernel: everything about it that takes no compiler."""

from pathlib import Path

import pytest

from orchestration.core.errors import InputError, NotReadyError
from orchestration.kernel import boot, build, cache, patches
from orchestration.kernel import fetch as source
from orchestration.kernel import patches as config
from orchestration.kernel.fetch import copy_source, tree_version

MAKEFILE = "# SPDX\nVERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nEXTRAVERSION =\nNAME = x\n"
DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
ONE_LINE = """\
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
"""
# what apt-cache and apt-get answered on Debian 12, November 2026
SEARCH = """\
linux-source-7.2 - Linux kernel source for version 7.2 with Debian patches
linux-source-7.3 - Linux kernel source for version 7.3 with Debian patches
"""
URIS = (
    "'http://mirror.example/debian/pool/main/l/linux/linux-source-7.3_7.3.4-1%7ebpo13+1_all.deb' "
    "linux-source-7.3_7.3.4-1~bpo13+1_all.deb 166780612 "
    "SHA256:0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9\n"
)


def make_tree(folder: Path) -> Path:
    files: dict[str, str] = {"Makefile": MAKEFILE}
    for change in patches.REPLACEMENTS:
        files[change.file] = files.get(change.file, "begin\n") + change.old + "end\n"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_newest_package_is_chosen_by_number():
    assert source.newest_package(SEARCH) == "linux-source-7.3"
    assert source.newest_package("linux-source-6.19 - x\nlinux-source-6.9 - x\n")[-4:] == "6.19"
    package = source.parse_print_uris(URIS)
    assert (package.version, package.size_bytes) == ("7.3.4-1~bpo13+1", 166_780_612)


@pytest.mark.parametrize("answer", ["", "linux-source-6.1 - Linux kernel source\n"])
def test_an_archive_without_a_fit_source_says_what_to_do(answer):
    with pytest.raises(NotReadyError) as caught:
        source.newest_package(answer)
    assert caught.value.remedy


@pytest.mark.parametrize("mirrors", [source.parse_deb822(DEB822), source.parse_one_line(ONE_LINE)])
def test_the_mirror_is_the_systems_own(mirrors):
    mirror = source.main_mirror(mirrors, "bookworm")
    assert mirror.uri == "http://mirror.example/debian"
    text = mirror.deb822(("sid",))
    assert "Suites: sid\n" in text
    assert "Signed-By: /" in text


def test_versions_are_read_and_old_ones_refused(tmp_path):
    assert source.makefile_version(MAKEFILE) == "7.3.4"
    with pytest.raises(NotReadyError, match="too old"):
        source.require_version("6.1.170")
    with pytest.raises(InputError, match="no kernel source"):
        tree_version(tmp_path)


def test_patches_change_a_mirror_and_not_the_users_tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / ".git").mkdir()
    (tree / "include-prefixes").symlink_to(tree / "arch")
    before = {path: path.read_text() for path in tree.rglob("*") if path.is_file()}
    patches.mirror_tree(tree, tmp_path / "mirror")
    patches.patch_tree(tmp_path / "mirror")
    for change in patches.REPLACEMENTS:
        assert change.new in (tmp_path / "mirror" / change.file).read_text()
    assert {path: path.read_text() for path in before} == before
    assert (tmp_path / "mirror" / "Makefile").is_symlink()
    assert (tmp_path / "mirror" / "include-prefixes" / "um").is_dir()
    assert not (tmp_path / "mirror" / ".git").exists()


def test_a_source_that_the_patches_do_not_fit_is_refused_unchanged(tmp_path):
    tree = make_tree(tmp_path / "tree")
    last = tree / patches.REPLACEMENTS[-1].file
    last.write_text("something else\n")
    with pytest.raises(NotReadyError, match="not as expected"):
        patches.patch_tree(tree)
    first = patches.REPLACEMENTS[0]
    assert first.old in (tree / first.file).read_text()


def test_a_source_may_be_a_tree_or_a_tarball_and_nothing_else(tmp_path):
    tree = make_tree(tmp_path / "linux-7.3")
    runner = build.LoggedRunner(tmp_path / "log", {"PATH": "/usr/bin:/bin"})
    import tarfile

    with tarfile.open(tmp_path / "linux-7.3.tar.gz", "w:gz") as archive:
        archive.add(tree, "linux-7.3")
    for number, given in enumerate((tree, tmp_path / "linux-7.3.tar.gz")):
        to = tmp_path / f"work{number}" / "source"
        copy_source(given, to, runner, lambda done, total: None)
        assert tree_version(to) == "7.3.4"
    with pytest.raises(InputError, match="no file or folder"):
        copy_source(tmp_path / "none", tmp_path / "w", runner, lambda done, total: None)


def test_a_broken_tarball_is_named(tmp_path):
    broken = tmp_path / "linux.tar.xz"
    broken.write_bytes(b"not xz")
    runner = build.LoggedRunner(tmp_path / "log", {"PATH": "/usr/bin:/bin"})
    with pytest.raises(NotReadyError, match=r"linux\.tar\.xz"):
        copy_source(broken, tmp_path / "w", runner, lambda done, total: None)


def test_unmet_options_are_told():
    text = "\n".join(f"{name}={value}" for name, value in config.fragment_options().items())
    taken = text.replace("=n", "").replace(
        "CONFIG_NET_SCH_RED=y", "# CONFIG_NET_SCH_RED is not set"
    )
    assert config.unmet_options(taken) == ["CONFIG_NET_SCH_RED=n instead of y"]


def test_the_hash_covers_options_and_patches(monkeypatch):
    before = config.config_hash()
    monkeypatch.setattr(config, "REPLACEMENTS", patches.REPLACEMENTS[1:])
    assert config.config_hash() != before


def test_the_command_line_boots_in_virtual_time_with_the_hosts_tree():
    argv = boot.guest_argv(Path("/k/linux"), memory_bytes=1 << 30, init=Path("/tmp/i"))
    assert argv[0] == "/k/linux"
    for word in (
        "time-travel=inf-cpu",
        "seccomp=on",
        "mem=1024M",
        "rootfstype=hostfs",
        "init=/tmp/i",
    ):
        assert word in argv
    assert boot.pinned_argv(argv, 1)[-len(argv) :] == argv
    assert "--cpu-list" in boot.pinned_argv(argv, 1)


def test_too_little_memory_is_said_before_anything_starts():
    with pytest.raises(NotReadyError, match="memory"):
        boot.memory_dir(1 << 60)


def test_missing_tools_are_named_with_their_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotReadyError) as caught:
        build.build_kernel(None, 1, False, None)
    assert "flex" in caught.value.message
    assert "xz-utils" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_built_kernel_is_found_again_until_the_configuration_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CLOSLOOP_KERNEL", raising=False)
    assert cache.find_kernel() is None
    with pytest.raises(NotReadyError, match="closloop kernel build"):
        cache.require_kernel()
    with cache.build_lock(lambda: None) as folder:
        work = folder / "work"
        work.mkdir()
        (work / "linux").write_text("binary")
        (work / "log").write_text("log")
        manifest = cache.Manifest("7.3.4", "7.3.4", config.config_hash(), "o", "gcc", "now", 1.0)
        made = cache.install(work / "linux", work / "log", manifest)
    assert cache.find_kernel() == made
    monkeypatch.setattr(cache, "config_hash", lambda: "another")
    assert cache.find_kernel() is None


def test_an_outer_make_does_not_speak_to_the_kernels(monkeypatch):
    for name in ("MAKEFLAGS", "MAKELEVEL", "KBUILD_OUTPUT", "ARCH"):
        monkeypatch.setenv(name, "x")
    environment = build._environment()
    assert "PATH" in environment
    assert not {"MAKEFLAGS", "MAKELEVEL", "KBUILD_OUTPUT", "ARCH"} & set(environment)


def test_another_machine_is_refused_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(NotReadyError, match="aarch64"):
        build.build_kernel(None, 1, True, None)
