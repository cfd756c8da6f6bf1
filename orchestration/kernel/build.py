"""Builds the virtual-time kernel into the cache.

The steps are: get the source, patch it, configure it, run make, boot the result once as a check.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from collectors.bpf.compile import COMPILER, PACKAGE
from orchestration.core.builds import BuildProgress
from orchestration.core.errors import NotReadyError
from orchestration.kernel.boot import check_kernel
from orchestration.kernel.cache import Kernel, Manifest, build_lock, built_kernels, install
from orchestration.kernel.fetch import Archive, copy_source, tree_version
from orchestration.kernel.patches import FRAGMENT, config_hash, patch_tree, unmet_options
from orchestration.kernel.process import LoggedRunner

# Half of a build's time goes into headers that nearly all of the kernel's files include, so these
# are precompiled once. gcc accepts a precompiled header only at the beginning of a file, and only
# if no macro that the header uses has another value. So a script between make and gcc puts the
# header first, and defines the macros with the file's own name after it. Files for which gcc
# refuses the header are compiled as usual. The generated code is the same, except that the compiler
# may order instructions that do not depend on each other differently
# (docs/decisions/0002-the-kernel-has-steps-of-one-nanosecond.md). Make is first asked for
# this one file: before compiling it, the script precompiles the headers.
FIRST = "kernel/exit.o"

_HEADERS = (
    *("linux/kconfig.h", "linux/compiler_types.h", "linux/module.h", "linux/kernel.h"),
    *("linux/slab.h", "linux/fs.h", "linux/mm.h", "linux/sched.h", "linux/interrupt.h"),
    *("linux/netdevice.h", "linux/skbuff.h", "net/sock.h", "net/ip.h", "linux/bpf.h"),
    *("linux/cgroup.h", "linux/proc_fs.h", "linux/seq_file.h", "linux/uaccess.h"),
)

SCRIPT = Path(__file__).with_name("headers.sh")


def write_compiler_wrapper(folder: Path) -> Path:
    """Write the script that make runs in place of gcc into a new folder; return its path."""
    (folder / "macros").mkdir(parents=True)
    (folder / "headers.h").write_text("".join(f"#include <{name}>\n" for name in _HEADERS))
    script = folder / "gcc"
    script.write_text(SCRIPT.read_text())
    script.chmod(0o755)
    return script


_TOOLS = {
    **{name: name for name in ("gcc", "make", "flex", "bison", "bc", "tar")},
    "xz": "xz-utils",
    COMPILER: PACKAGE,
    **dict.fromkeys(("setpriv", "taskset"), "util-linux"),
}
_FREE_BYTES = 4_000_000_000
# The number of lines such as "  CC  file.o" that make prints; it varies a little by version.
_MAKE_LINES = 1_600
_MAKE_LINE = re.compile(r"^  [A-Z]+\S* +\S")


def missing_tools() -> dict[str, str]:
    """Return the missing programs that a build needs, each with the Debian package that has it."""
    return {tool: package for tool, package in _TOOLS.items() if not shutil.which(tool)}


def build_kernel(
    source: Path | None, jobs: int, force: bool, progress: BuildProgress
) -> tuple[Kernel, bool]:
    """Return a kernel for this version of closloop, and whether it had to be built.

    `source` is a tree or a tarball; None means the newest source in Debian's archive. Without
    `force`, a suitable kernel from the cache is returned if there is one: any kernel if `source` is
    None, else one that was built from that source. `jobs` is how many files make compiles at once.

    Raises NotReadyError if a tool, disk space or the source is missing, or if the build or the boot
    fails; InputError if `source` is not a kernel source.
    """
    if not force and source is None and (kernels := built_kernels()):
        return kernels[-1], False
    require_tools()
    with build_lock(lambda: progress.phase("waiting for another build")) as folder:
        if not force and source is None and (kernels := built_kernels()):
            return kernels[-1], False
        _require_space(folder)
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        log = folder / "build.log"
        log.unlink(missing_ok=True)
        try:
            runner = LoggedRunner(log, _environment())
            return _build(source, jobs, force, progress, work, runner)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _build(
    source: Path | None,
    jobs: int,
    force: bool,
    progress: BuildProgress,
    work: Path,
    runner: LoggedRunner,
) -> tuple[Kernel, bool]:
    begin = time.monotonic()
    tree, out = work / "source", work / "out"
    if source is None:
        archive = Archive(work, runner)
        progress.phase("looking for the newest source")
        name, package = archive.newest()
        origin = package.digest
        progress.phase(f"fetching {name} {package.version}")
        archive.fetch(name, package, tree, progress.step)
    else:
        origin = _origin(source)
        progress.phase(f"taking {source}")
        copy_source(source, tree, runner, progress.step)
    version = tree_version(tree)
    key = Manifest(version, "", config_hash(), origin, "", "", 0.0).key
    if not force and (same := [kernel for kernel in built_kernels() if kernel.hash == key]):
        return same[0], False
    progress.phase("patching and configuring")
    patch_tree(tree)
    _configure(tree, out, runner)
    progress.phase(f"compiling Linux {version}")
    _compile(tree, out, jobs, runner, progress.step)
    progress.phase("booting it")
    report = check_kernel(out / "linux")
    manifest = Manifest(
        version=version,
        release=report.release,
        config_hash=config_hash(),
        origin=origin,
        compiler=_compiler_version(),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(time.monotonic() - begin, 1),
    )
    return install(out / "linux", runner.log, manifest), True


def require_tools() -> None:
    """Raise NotReadyError with the programs that this machine lacks to build a kernel."""
    if platform.machine() not in ("x86_64", "i686"):
        raise NotReadyError(
            f"user-mode Linux runs on x86, this machine is {platform.machine()}",
            "use another machine, or the fluid backend: --on fluid",
        )
    if missing := missing_tools():
        packages = " ".join(sorted(set(missing.values())))
        raise NotReadyError(
            f"building a kernel needs {', '.join(missing)}", f"apt-get install {packages}"
        )


def _environment() -> dict[str, str]:
    """Return the environment without variables of an outer make or kernel build."""
    of_make = ("MAKE", "MFLAGS", "GNUMAKEFLAGS", "KBUILD_", "KCONFIG_", "ARCH", "CROSS_COMPILE")
    return {name: value for name, value in os.environ.items() if not name.startswith(of_make)}


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES:
        raise NotReadyError(
            f"{folder} has {free / 1e9:.1f} GB free, a build needs {_FREE_BYTES / 1e9:.0f} GB",
            "free some space, or set XDG_CACHE_HOME to a folder with more",
        )


def _origin(source: Path) -> str:
    """Return a source's identity: a tarball's digest, or a tree's path and modification time."""
    path = source.absolute()
    if path.is_file():
        with path.open("rb") as file:
            return f"SHA256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    makefile = path / "Makefile"
    return f"{path} {makefile.stat().st_mtime_ns if makefile.exists() else 0}"


def _make(tree: Path, out: Path) -> list[str]:
    return ["make", "-C", str(tree), "ARCH=um", f"O={out}"]


def _configure(tree: Path, out: Path, runner: LoggedRunner) -> None:
    out.mkdir()
    make = _make(tree, out)
    runner.run([*make, "defconfig"], activity="configuring")
    merge = [str(tree / "scripts/kconfig/merge_config.sh"), "-m", "-O", str(out)]
    runner.run([*merge, str(out / ".config"), str(FRAGMENT)], activity="configuring", cwd=tree)
    runner.run([*make, "olddefconfig"], activity="configuring")
    unmet = unmet_options((out / ".config").read_text())
    if unmet:
        raise NotReadyError(
            f"this source does not accept the configuration: {'; '.join(unmet)}",
            "build from another version of Linux, and report this one",
        )


def _compile(
    tree: Path, out: Path, jobs: int, runner: LoggedRunner, step: Callable[[int, int], None]
) -> None:
    done = 0

    def count(line: str) -> None:
        nonlocal done
        if _MAKE_LINE.match(line):
            done += 1
            step(min(done, _MAKE_LINES), _MAKE_LINES)

    script = write_compiler_wrapper(out / "headers")
    for target in (FIRST, "linux"):
        runner.run(
            [*_make(tree, out), f"-j{jobs}", f"CC={script}", target],
            activity="compiling",
            remedy="the log has the compiler's messages",
            on_line=count,
        )


def _compiler_version() -> str:
    done = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return f"{lines[0] if lines else 'gcc'} ({platform.machine()})"
