"""From a model's file to a policy: C, a BPF object, a shared library, or a DOCA PCC algorithm.

Beside what is made lies `<name>.policy.json`: the integer trees, the model's hash, the bound on the
error, and the SHA-256 of each file. Files are replaced one by one and whole; if anything is
refused, nothing is. A policy that is deployed, a C source or a model, is compiled too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collectors.bpf.policy import HEADERS, PolicyError, policy_object
from orchestration.core.errors import InputError, NotReadyError, Problem, raise_any, unwritable
from orchestration.core.outputs import check_outputs, write_output
from orchestration.policies.catboost_model import read_model
from orchestration.policies.render_c import policy_name, render_policy
from orchestration.policies.render_doca import render_doca
from orchestration.policies.store import DeployedPolicy, Version
from orchestration.policies.trees import IntegerTrees

Target = Literal["c", "bpf", "library", "doca"]
_SUFFIXES: dict[Target, str] = {"c": ".c", "bpf": ".bpf.o", "library": ".so", "doca": "_doca"}
TARGETS = tuple(_SUFFIXES)
# What stands beside a policy. Earlier versions called it NAME.json, as models are called.
_ABOUT = ".policy.json"
COMPILER = "gcc"
_LIBRARY_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
# Looks at a BPF object as the kernel would, and raises if that refuses it.
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Compiled:
    """What was made of a model: its files, of which the last is the JSON beside them."""

    name: str
    model: IntegerTrees
    files: tuple[Path, ...]


def compile_model(
    source: Path, target: Target, output: Path | None = None, check: Check | None = None
) -> Compiled:
    """Read a model, and write it to `output` (default: the model's name with the target's ending).

    `check` is asked before a BPF object replaces an earlier one. Raises InputError for a model that
    cannot be a policy, or if what is written would replace the model or, under the default name, a
    file that was not compiled; NotReadyError without a compiler or if a file cannot be written, and
    what `check` raises.
    """
    is_default = output is None
    output = output or Path(source.stem + _SUFFIXES[target])
    stem = output.name.partition(".")[0]
    # a source of closloop's own is called policy_NAME.c
    name = policy_name(stem.removesuffix("_doca").removeprefix("policy_"))
    about = (output if target == "doca" else output.parent) / f"{name}{_ABOUT}"
    model = read_model(source)
    text = render_policy(model, name)
    if target == "doca":
        made = {output / file: body.encode() for file, body in render_doca(model, name).items()}
    elif target == "c":
        made = {output: text.encode()}
    else:
        with tempfile.TemporaryDirectory(prefix="closloop-compile-") as folder:
            written = Path(folder, f"{name}.c")
            written.write_text(text)
            made = {output: _built(written, target, check)}
    check_outputs([*made, about], [source])
    if is_default:
        _keep_hand_written(made, (about, about.with_name(f"{name}.json")))
    facts = {
        "name": name,
        "target": target,
        "files": {path.name: hashlib.sha256(body).hexdigest() for path, body in made.items()},
        **model.to_json(),
    }
    made[about] = (json.dumps(facts, indent=1) + "\n").encode()
    _write(made)
    return Compiled(name, model, tuple(made))


def build_library(source: Path, made: Path, *flags: str) -> None:
    """Compile a policy's C to a shared library with `rlcc_infer_all` and `rlcc_happen_all`.

    Raises NotReadyError without gcc.
    """
    if shutil.which(COMPILER) is None:
        raise NotReadyError(
            f"a library needs a C compiler, and there is no {COMPILER}", "apt-get install gcc"
        )
    command = [
        COMPILER,
        *_LIBRARY_FLAGS,
        "-shared",
        "-fPIC",
        "-DRLCC_LIBRARY",
        f"-I{HEADERS}",
        *flags,
    ]
    answer = subprocess.run(
        [*command, "-o", str(made), str(source)], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise NotReadyError(
            f"{COMPILER} does not compile {source.name}: {answer.stderr.strip()[:2000]}",
            "use the gcc of Debian 12 or newer",
        )


def _built(source: Path, target: Target, check: Check | None) -> bytes:
    if target == "library":
        made = source.with_suffix(".so")
        build_library(source, made)
    else:
        made = policy_object(source)
        if check is not None:
            check(made)
    return made.read_bytes()


def _keep_hand_written(paths: Iterable[Path], abouts: Iterable[Path]) -> None:
    """Raise InputError for files that are there and are not as a compilation left them.

    `abouts` are the JSON files that may say what one left, of this version or an earlier one.
    """
    left: dict[str, str] = {}
    for about in abouts:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            left |= json.loads(about.read_text())["files"]
    problems = [
        Problem(
            str(path),
            "is there already, and not as `closloop compile` left it",
            f"say where with -o, or -o {path} to replace it",
        )
        for path in paths
        if path.exists() and left.get(path.name) != hashlib.sha256(path.read_bytes()).hexdigest()
    ]
    raise_any(problems)


def _write(made: dict[Path, bytes]) -> None:
    for path, body in made.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error, "choose another with -o") from error
        write_output(path, body)


def known_target(text: str) -> Target:
    """Return a target by its name. Raises InputError for an unknown one."""
    for target in TARGETS:
        if text == target:
            return target
    raise InputError.single("--target", f"no target {text!r}", f"use {', '.join(TARGETS)}")


def deploy(source: Path, name: str, check: Check) -> Version:
    """Compile a policy, have the kernel look at it, and put it in force as `name`.

    Raises InputError for a model or source that cannot be a policy, NotReadyError without a
    compiler. The former version stays in force then.
    """
    policy = DeployedPolicy(name)
    with tempfile.TemporaryDirectory(prefix="closloop-deploy-") as folder:
        written, about = source, ""
        if source.suffix == ".json":
            written = Path(folder, "policy.c")
            about = compile_model(source, "c", written).files[-1].read_text()
        elif source.suffix != ".c":
            raise InputError.single(
                str(source), "is neither a policy's C nor a model", "give a .c or a .json file"
            )
        try:
            check(policy_object(written))
            text = written.read_text()
        except PolicyError as error:
            raise InputError(one.relocated(str(source)) for one in error.problems) from error
        except UnicodeDecodeError as error:
            raise InputError.single(str(source), "is no text") from error
    return policy.deploy(text, about)


def model_of(version: Version) -> str:
    """Return the hash of the model that a version was compiled from, "" for a source."""
    path = version.path.with_suffix(".json")
    return str(json.loads(path.read_text())["hash"]) if path.exists() else ""
