"""Compiles the BPF programs on the host, once, into the user's cache.

    ~/.cache/closloop/bpf/<source>-<hash>.o

The hash is that of source and flags; $XDG_CACHE_HOME replaces ~/.cache. Programs that the package
closloop-kernel contains are not compiled.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestration.core import files as user_folders
from orchestration.core.errors import NotReadyError
from orchestration.core.files import BPF, packaged_folder

COMPILER, PACKAGE = "bpf-gcc", "gcc-bpf"
FLOW_TABLE = Path(__file__).with_name("flow_table.bpf.c")
PATH_CHOICE = Path(__file__).with_name("path_choice.bpf.c")
DCTCP = Path(__file__).with_name("dctcp.bpf.c")
RED_LAW = Path(__file__).with_name("red_law.bpf.c")
_FLAGS = ("-O2", "-mcpu=v3", "-Wall", "-Wextra", "-Werror")
# A switch's table has 1 << ENTRY_BITS entries.
ENTRY_BITS = 12


def flow_table_object(entry_bits: int = ENTRY_BITS, *, on_a_rack: bool = False) -> Path:
    """Return the path of the compiled flow table. Raises NotReadyError as `compiled` does."""
    return compiled(
        FLOW_TABLE, (f"-DENTRY_BITS={entry_bits}", *(("-DON_A_RACK",) if on_a_rack else ()))
    )


def path_choice_object(entry_bits: int) -> Path:
    """Return the path of the compiled program by which Linux switches choose paths.

    Its flowlet table has 2**entry_bits entries. Raises NotReadyError as `compiled` does.
    """
    return compiled(PATH_CHOICE, (f"-DENTRY_BITS={entry_bits}",))


def compiled(source: Path, extra_flags: tuple[str, ...] = (), *included: Path) -> Path:
    """Return the object file of a C source, after compiling it if it is not in the cache.

    `included` are the files that the source includes. Raises NotReadyError if there is no compiler,
    the cache cannot be written, or compiling failed.
    """
    flags = (*_FLAGS, *extra_flags)
    text = b"".join(item.read_bytes() for item in (source, *included)) + " ".join(flags).encode()
    name = f"{source.stem}-{hashlib.sha256(text).hexdigest()[:12]}.o"
    package = packaged_folder(BPF)
    if package is not None and (package / name).is_file():
        return package / name
    target = cache_folder() / name
    if not target.is_file():
        _compile(source, flags, target)
    return target


def _compile(source: Path, flags: tuple[str, ...], target: Path) -> None:
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise NotReadyError(
            f"{source.name} is a BPF program and needs a compiler: no {COMPILER}",
            f"apt-get install --no-install-recommends {PACKAGE}",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            output = Path(work) / target.name
            command = [compiler, *flags, "-c", "-o", str(output), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotReadyError(
                    f"{COMPILER} does not compile {source.name}: {done.stderr.strip()[:2000]}",
                    f"install the {PACKAGE} of Debian 12 or newer",
                )
            output.replace(target)
    except OSError as error:
        raise NotReadyError(
            f"the cache folder cannot be written: {error}", "set XDG_CACHE_HOME to one that can"
        ) from error


def cache_folder() -> Path:
    """Return the folder of compiled programs, which may not exist yet."""
    return user_folders.cache_folder("bpf")
