"""The image of devices that are containers: built once of Debian's packages, then kept.

~/.cache/closloop/images/           or under $XDG_CACHE_HOME
  <hash>/tree/ image.json build.log     the hash is of the definition, `device-image.sh`
  .building-<pid>-<start>/ lock         while it is being built
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
from orchestration.virtual_rack.folder import which
from orchestration.virtual_rack.groups import has_ended, own_mark

DEFINITION = Path(__file__).with_name("device-image.sh")
BUILDER = "mmdebstrap"
_PACKAGES = f"{BUILDER} debian-archive-keyring"
_FORMAT = 1
_BUILDING = ".building-"
# `mmdebstrap` says one line a step.
_STEPS = 9
_SAID_LINES = 3
# The kernel ends and unmounts what a killed build has left.
_OWN = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"),
    *("--kill-child=KILL", "--propagation", "private"),
)


def images_folder() -> Path:
    """Return the folder of images, which may not exist yet."""
    return cache_folder("images")


def image_tree() -> Path:
    """Return where the files of this version's image are once it is built."""
    text = DEFINITION.read_bytes() + platform.machine().encode()
    return images_folder() / hashlib.sha256(text).hexdigest()[:12] / "tree"


def is_built(tree: Path) -> bool:
    """Return True if there is a whole image; an unfinished one has no manifest."""
    try:
        return bool(json.loads((tree.parent / "image.json").read_text())["format"] == _FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def require_builder() -> None:
    """Check that an image is there or can be built. Raises NotReadyError."""
    if not is_built(image_tree()) and not which(BUILDER):
        raise NotReadyError(
            f"there is no image of a device yet, and no {BUILDER} to build it",
            f"apt-get install {_PACKAGES}; or have plain namespaces: --plain",
        )


def require_image(
    *, mirror: str = "", progress: Callable[[str, int, int], None] = lambda *_: None
) -> Path:
    """Return the files of the image, built now if they are not there.

    `mirror` is the address of a mirror of Debian.

    Raises:
        InputError: `mirror` is no address.
        NotReadyError: the image cannot be built here.
    """
    if mirror and not urlsplit(mirror).scheme:
        raise InputError.single(
            "--mirror", f"{mirror!r} is no address", "like http://deb.debian.org/debian"
        )
    tree = image_tree()
    if is_built(tree):
        return tree
    require_builder()
    if os.geteuid():
        raise NotReadyError("an image is built by root", "run it with sudo")
    images_folder().mkdir(parents=True, exist_ok=True)
    with _held():
        if not is_built(tree):
            _build(tree, mirror, progress)
    return tree


def _build(tree: Path, mirror: str, progress: Callable[[str, int, int], None]) -> None:
    for path in leftovers():
        shutil.rmtree(path, ignore_errors=True)
    place = images_folder() / f"{_BUILDING}{own_mark()}"
    place.mkdir()
    begin = time.monotonic()
    argv = [*_OWN, "/bin/sh", str(DEFINITION), str(place / tree.name), *filter(None, [mirror])]
    said: list[str] = []
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
                said.append(line.strip())
                steps = sum(text.startswith("I: ") for text in said)
                progress("image", min(steps, _STEPS), _STEPS)
        if process.returncode:
            wrong = [text for text in said if text.startswith(("E: ", "W: "))] or said
            raise NotReadyError(
                f"the image of a device cannot be built: {'; '.join(wrong[-_SAID_LINES:])}",
                "it takes a mirror of Debian: closloop rack image --mirror URL; "
                "or have plain namespaces: --plain",
            )
        (place / "build.log").write_text("\n".join(said) + "\n")
        manifest = {"format": _FORMAT, "build_s": round(time.monotonic() - begin, 1)}
        (place / "image.json").write_text(json.dumps(manifest) + "\n")
        shutil.rmtree(tree.parent, ignore_errors=True)
        place.rename(tree.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _held() -> Iterator[None]:
    """Hold the lock, so that two builds of one image are one after the other."""
    with (images_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def leftovers() -> list[Path]:
    """Return the folders of builds that were killed."""
    found = sorted(images_folder().glob(f"{_BUILDING}*"))
    return [path for path in found if has_ended(path.name.removeprefix(_BUILDING))]
