"""Packs a built kernel as the wheel `closloop-kernel`: whoever installs it need not build one.

The wheel also contains the BPF programs of flow tables, the patches and sources that were added to
Linux, and the licence (GPL-2.0). The rest of the kernel's source is Debian's; the manifest has its
digest.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from collectors.bpf.compile import FLOW_TABLE, flow_table_object
from orchestration.core.errors import NotReadyError
from orchestration.core.files import BPF, KERNEL, PACKAGE, SOURCES
from orchestration.core.provenance import versions
from orchestration.kernel import build, patches
from orchestration.kernel.cache import BINARY, MANIFEST, Kernel, Manifest
from orchestration.kernel.patches import FRAGMENT

_DISTRIBUTION = "closloop-kernel"
_LICENCE = Path(__file__).parent / "GPL-2.0-only.txt"
_ABOUT = """\
The kernel `{key}` is Linux {version} of Debian ({origin}), with

- the replacements of patches.py in the files that it names,
- net_closloop/ as net/closloop,
- the configuration `make ARCH=um defconfig` with config.fragment merged into it,

built by {compiler}, with headers.sh in its place for make. `closloop kernel build` of closloop
{closloop} does all of it. These files are under the GNU General Public License, version 2, as Linux
is: GPL-2.0-only.txt. The BPF programs are under the licence that each names.
"""


def make_wheel(kernel: Kernel, folder: Path) -> Path:
    """Write the wheel of a kernel into `folder`, and return the wheel's path.

    A wheel of the same name is replaced. Raises NotReadyError if closloop did not build the kernel,
    or if the library `wheel` is not installed.
    """
    if kernel.manifest is None:
        raise NotReadyError(
            f"{kernel.path} was not built by closloop, so its source is not known",
            "unset CLOSLOOP_KERNEL, and build a kernel: closloop kernel build",
        )
    try:
        from wheel.wheelfile import WheelFile
    except ImportError as error:
        raise NotReadyError("packing needs the library wheel", "pip install wheel") from error
    closloop = versions()["closloop"]
    version = f"{closloop}+linux{kernel.manifest.version}".replace("-", ".").replace("~", ".")
    tag = f"py3-none-linux_{platform.machine()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE}-{version}-{tag}.whl"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _fill(Path(work) / PACKAGE, kernel.path, kernel.manifest, closloop)
        info = Path(work) / f"{PACKAGE}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {_DISTRIBUTION}\nVersion: {version}\n"
            "Summary: The virtual-time kernel of closloop, built\n"
            "License-Expression: GPL-2.0-only\n"
        )
        (info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: closloop\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        with WheelFile(path, "w") as wheel:
            wheel.write_files(work)
    return path


def _fill(package: Path, binary: Path, manifest: Manifest, closloop: str) -> None:
    built = package / KERNEL / manifest.key
    built.mkdir(parents=True)
    (package / "__init__.py").write_text('"""The virtual-time kernel of closloop."""\n')
    for name in (BINARY, MANIFEST, "build.log"):
        shutil.copy(binary.with_name(name), built)
    programs = package / BPF
    programs.mkdir()
    for program in (flow_table_object(), flow_table_object(on_a_rack=True)):
        shutil.copy(program, programs)
    sources = package / SOURCES
    (sources / "net_closloop").mkdir(parents=True)
    for source in patches.DATA_PATH:
        shutil.copy(source, sources / "net_closloop")
    scripts = (Path(patches.__file__), Path(build.__file__), build.SCRIPT)
    for source in (*scripts, FRAGMENT, FLOW_TABLE, _LICENCE):
        shutil.copy(source, sources)
    (sources / "README.md").write_text(
        _ABOUT.format(
            key=manifest.key,
            version=manifest.version,
            origin=manifest.origin,
            compiler=manifest.compiler,
            closloop=closloop,
        )
    )
