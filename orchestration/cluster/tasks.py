"""What a node is told to do, and the files that go with it. Nothing here knows Ray.

cache folder of the node's user ($XDG_CACHE_HOME)
  closloop/cluster/<hash>/closloop/kernel/…    what trials need of the cache, kept for next time
temporary folder
  closloop-node-<user>-…/                      of one host process, gone with it
    brought/<path on the machine that plans>   the trial's own files, and its working folder
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from orchestration.core.files import whole_folder
from orchestration.core.pattern import of_repeat
from orchestration.core.provenance import versions
from orchestration.core.topology import Testbed
from orchestration.core.trial import ACTIONS, CHECKPOINT, TrialSpec
from tuners.registry import checkpoint_of

_EXECUTABLE = 0o700
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("closloop", "collectors", "inventory", "orchestration", "traffic", "tuners")


@dataclass(frozen=True)
class TaskKind:
    """What is the same for all jobs of a kind.

    `pickled` is (backend, what to do with a job). `folder` is the working folder of the machine
    that plans. `variables` are environment variables, and `named` those that name a file of the
    node's `cache`. Nodes must have the same `versions`.
    """

    pickled: bytes
    folder: str
    versions: Mapping[str, str]
    variables: Mapping[str, str]
    named: Mapping[str, str]
    cache: str


@dataclass(frozen=True)
class Task:
    """A trial to be run, or without one the question whether the backend is ready there.

    `files` are the contents of the trial's own files by their absolute paths where it was planned.
    `cache` is the folder that the duty's cache is in.
    """

    duty: TaskKind
    testbed: Testbed
    trial: TrialSpec | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    cache: str = ""


@lru_cache(maxsize=1)
def described() -> dict[str, str]:
    """Return what must be the same on all nodes: versions, and a digest of closloop's own files.

    The kernel of the machine is not among it: trials do not depend on it.
    """
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    found = {**versions(), "files": digest.hexdigest()[:12]}
    del found["host_kernel"]
    return found


def own_files(trial: TrialSpec) -> list[Path]:
    """Return the user's files that a trial is made from, those beside a network included."""
    named = [name.removeprefix(ACTIONS) for name in trial.files if not name.startswith(CHECKPOINT)]
    network = checkpoint_of(trial.tuner.name, trial.tuner.params) or ""
    paths = [Path(of_repeat(name, trial.repeat)) for name in (*named, network) if name]
    beside = [path.with_suffix(".json") for path in paths if path.suffix == ".safetensors"]
    return [path for path in dict.fromkeys((*paths, *beside)) if path.is_file()]


def cache_name(digests: Mapping[str, str]) -> str:
    """Return the name of the folder for files with these SHA-256 digests, of any cache."""
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return os.path.join("closloop", "cluster", hashlib.sha256(text.encode()).hexdigest()[:12])


def node_cache(duty: TaskKind) -> Path:
    """Return where this machine keeps what jobs of this duty need of a cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / duty.cache


def missing_in(cache: Path, names: Iterable[str]) -> list[str]:
    """Return which files are not in a cache folder yet."""
    return [name for name in names if not (cache / name).is_file()]


def put(path: Path, content: bytes) -> None:
    """Write a file, executable by its user. Who looks for it finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, _EXECUTABLE)
    os.replace(name, path)


def packed(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their names below it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def unpack(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder, whole and on the disk, from what `packed` returned. Raises OSError."""
    with whole_folder(folder, sync=True) as partial:
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
