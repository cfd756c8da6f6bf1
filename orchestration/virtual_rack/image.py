"""The image of devices that are containers: built once from Debian's packages, then kept.

~/.cache/closloop/images/           or under $XDG_CACHE_HOME
  <hash>/tree/ image.json build.log     the hash is that of the definition, `device-image.sh`
  .building-<pid>-<start>/ lock         while an image is being built
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.files import cache_folder
from orchestration.virtual_rack.control_groups import has_ended, own_mark
from orchestration.virtual_rack.folder import which

DEFINITION = Path(__file__).with_name("device-image.sh")
BUILDER = "mmdebstrap"
_PACKAGES = f"{BUILDER} debian-archive-keyring"
_FORMAT = 1
_BUILDING = ".building-"
# `mmdebstrap` prints one line per step, which begins with "I: ".
_STEPS = 9
_MAX_ERROR_LINES = 3
# A build runs in namespaces of its own. If it is killed, the kernel ends its processes and mounts.
_ISOLATION_ARGV = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"),
    *("--kill-child=KILL", "--propagation", "private"),
)


def images_folder() -> Path:
    """Return the folder that images are kept in. It may not exist yet."""
    return cache_folder("images")


def image_tree() -> Path:
    """Return the folder in which this version's image has its files once it is built."""
    text = DEFINITION.read_bytes() + platform.machine().encode()
    return images_folder() / hashlib.sha256(text).hexdigest()[:12] / "tree"


def is_built(tree: Path) -> bool:
    """Return whether the image of this file tree is complete: only then it has a manifest."""
    try:
        return bool(json.loads((tree.parent / "image.json").read_text())["format"] == _FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def require_builder() -> None:
    """Check that there is an image, or the program that builds one. Raises NotReadyError."""
    if not is_built(image_tree()) and not which(BUILDER):
        raise NotReadyError(
            f"there is no image of a device yet, and no {BUILDER} to build it",
            f"apt-get install {_PACKAGES}; or use plain namespaces: --plain",
        )


def require_image(
    *, mirror: str = "", progress: Callable[[str, int, int], None] = lambda *_: None
) -> Path:
    """Return the folder with the image's file tree; build the image first if there is none.

    `mirror` is the address of a Debian mirror. `progress` is called with "image", the number of
    steps that are done, and their total.

    Raises:
        InputError: `mirror` is not an address.
        NotReadyError: the image cannot be built here.
    """
    if mirror and not urlsplit(mirror).scheme:
        raise InputError.single(
            "--mirror",
            f"{mirror!r} is not an address",
            "write it like http://deb.debian.org/debian",
        )
    tree = image_tree()
    if is_built(tree):
        return tree
    require_builder()
    if os.geteuid():
        raise NotReadyError("only root can build an image", "run the command with sudo")
    images_folder().mkdir(parents=True, exist_ok=True)
    with _held():
        if not is_built(tree):
            _build(tree, mirror, progress)
    return tree


def _build(tree: Path, mirror: str, progress: Callable[[str, int, int], None]) -> None:
    for path in abandoned_builds():
        shutil.rmtree(path, ignore_errors=True)
    build_folder = images_folder() / f"{_BUILDING}{own_mark()}"
    build_folder.mkdir()
    begin = time.monotonic()
    argv = [
        *_ISOLATION_ARGV,
        "/bin/sh",
        str(DEFINITION),
        str(build_folder / tree.name),
        *filter(None, [mirror]),
    ]
    output: list[str] = []
    try:
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line.strip())
                steps = sum(text.startswith("I: ") for text in output)
                progress("image", min(steps, _STEPS), _STEPS)
        if process.returncode:
            errors = [text for text in output if text.startswith(("E: ", "W: "))] or output
            raise NotReadyError(
                f"the image of a device cannot be built: {'; '.join(errors[-_MAX_ERROR_LINES:])}",
                "name a Debian mirror that this machine reaches: closloop rack image --mirror URL; "
                "or use plain namespaces: --plain",
            )
        (build_folder / "build.log").write_text("\n".join(output) + "\n")
        manifest = {"format": _FORMAT, "build_s": round(time.monotonic() - begin, 1)}
        (build_folder / "image.json").write_text(json.dumps(manifest) + "\n")
        shutil.rmtree(tree.parent, ignore_errors=True)
        build_folder.rename(tree.parent)
    finally:
        shutil.rmtree(build_folder, ignore_errors=True)


@contextmanager
def _held() -> Iterator[None]:
    """Hold the lock of the folder of images, so that an image is not built twice at a time."""
    with (images_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def abandoned_builds() -> list[Path]:
    """Return the folders of builds that were killed."""
    found = sorted(images_folder().glob(f"{_BUILDING}*"))
    return [path for path in found if has_ended(path.name.removeprefix(_BUILDING))]
