"""Tasks for nodes, and the files that they need. This module does not use Ray.

cache folder of the node's user ($XDG_CACHE_HOME)
  closloop/cluster/<hash>/closloop/kernel/…    what trials need of the cache, kept for later runs
temporary folder
  closloop-node-<user>-…/                      of one host process, which removes it when it ends
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
    """What all tasks of a kind have in common.

    `pickled` is (backend, what to do with a job). `folder` is the working folder of the machine
    that plans. `variables` are environment variables, and `file_variables` those that name a file
    of the node's `cache`. Nodes must have the same `versions`.
    """

    pickled: bytes
    folder: str
    versions: Mapping[str, str]
    variables: Mapping[str, str]
    file_variables: Mapping[str, str]
    cache: str


@dataclass(frozen=True)
class Task:
    """A trial to be run, or without a trial, a check whether the backend is ready on the node.

    `files` are the contents of the trial's own files, by their absolute paths on the machine that
    plans. `cache` is the folder on the node with the files of the kind's cache.
    """

    kind: TaskKind
    testbed: Testbed
    trial: TrialSpec | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    cache: str = ""


@lru_cache(maxsize=1)
def code_versions() -> dict[str, str]:
    """Return the versions that all nodes must have, with a digest of closloop's own files.

    The version of the machine's kernel is not among them, because trials do not depend on it.
    """
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    versions_found = {**versions(), "files": digest.hexdigest()[:12]}
    del versions_found["host_kernel"]
    return versions_found


def input_files(trial: TrialSpec) -> list[Path]:
    """Return the user's files that a trial needs, including the JSON file beside a network."""
    names = [name.removeprefix(ACTIONS) for name in trial.files if not name.startswith(CHECKPOINT)]
    network = checkpoint_of(trial.tuner.name, trial.tuner.params) or ""
    paths = [Path(of_repeat(name, trial.repeat)) for name in (*names, network) if name]
    beside = [path.with_suffix(".json") for path in paths if path.suffix == ".safetensors"]
    return [path for path in dict.fromkeys((*paths, *beside)) if path.is_file()]


def cache_name(digests: Mapping[str, str]) -> str:
    """Return the name of the folder, in any cache, for files with these SHA-256 digests."""
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return os.path.join("closloop", "cluster", hashlib.sha256(text.encode()).hexdigest()[:12])


def node_cache(kind: TaskKind) -> Path:
    """Return the folder on this machine for the cached files of a kind of tasks."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / kind.cache


def missing_in(cache: Path, names: Iterable[str]) -> list[str]:
    """Return the names of files that are not in a cache folder yet."""
    return [name for name in names if not (cache / name).is_file()]


def write_executable(path: Path, content: bytes) -> None:
    """Write a file that its owner can execute. It appears complete, by a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, _EXECUTABLE)
    os.replace(name, path)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files of a folder, by their paths below it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with these files, as `read_files` returns them; it appears complete.

    Raises OSError.
    """
    with whole_folder(folder, sync=True) as partial:
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
