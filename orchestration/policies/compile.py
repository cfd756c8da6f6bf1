"""Compiles a model to a policy: C, a BPF object, a shared library, or a DOCA PCC algorithm.

Next to the output lies `<name>.policy.json`. It has the integer trees, the model's hash, the bound
on the error, and the SHA-256 of each written file. Each file is replaced atomically, and only after
all checks have passed. A policy that is deployed, whether a C source or a model, is compiled too.
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
# The ending of the JSON file next to a policy. Earlier versions called it NAME.json, as models are.
_METADATA = ".policy.json"
COMPILER = "gcc"
_LIBRARY_FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
# Checks a BPF object as the kernel would, and raises if the kernel would refuse it.
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Compiled:
    """A compiled model and the files that were written, the JSON file last."""

    name: str
    model: IntegerTrees
    files: tuple[Path, ...]


def compile_model(
    source: Path, target: Target, output: Path | None = None, check: Check | None = None
) -> Compiled:
    """Read a model, and write it to `output` (default: the model's name with the target's ending).

    `check` is called before a BPF object replaces an earlier one.

    Raises:
        InputError: the model cannot be a policy, or an output would replace the model or, under the
            default name, a file that `closloop compile` has not written.
        NotReadyError: there is no compiler, or a file cannot be written.
        Exception: what `check` raises.
    """
    is_default = output is None
    output = output or Path(source.stem + _SUFFIXES[target])
    stem = output.name.partition(".")[0]
    # closloop's own sources are called policy_NAME.c
    name = policy_name(stem.removesuffix("_doca").removeprefix("policy_"))
    metadata = (output if target == "doca" else output.parent) / f"{name}{_METADATA}"
    model = read_model(source)
    text = render_policy(model, name)
    if target == "doca":
        contents = {output / file: body.encode() for file, body in render_doca(model, name).items()}
    elif target == "c":
        contents = {output: text.encode()}
    else:
        with tempfile.TemporaryDirectory(prefix="closloop-compile-") as folder:
            rendered = Path(folder, f"{name}.c")
            rendered.write_text(text)
            contents = {output: _build(rendered, target, check)}
    check_outputs([*contents, metadata], [source])
    if is_default:
        _refuse_to_overwrite(contents, (metadata, metadata.with_name(f"{name}.json")))
    facts = {
        "name": name,
        "target": target,
        "files": {path.name: hashlib.sha256(body).hexdigest() for path, body in contents.items()},
        **model.to_json(),
    }
    contents[metadata] = (json.dumps(facts, indent=1) + "\n").encode()
    _write(contents)
    return Compiled(name, model, tuple(contents))


def build_library(source: Path, library: Path, *flags: str) -> None:
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
    completed = subprocess.run(
        [*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise NotReadyError(
            f"{COMPILER} does not compile {source.name}: {completed.stderr.strip()[:2000]}",
            "use the gcc of Debian 12 or newer",
        )


def _build(source: Path, target: Target, check: Check | None) -> bytes:
    """Return the content of the library or BPF object of a C source."""
    if target == "library":
        output = source.with_suffix(".so")
        build_library(source, output)
    else:
        output = policy_object(source)
        if check is not None:
            check(output)
    return output.read_bytes()


def _refuse_to_overwrite(paths: Iterable[Path], metadata_files: Iterable[Path]) -> None:
    """Raise InputError for files that exist and are not as `closloop compile` has left them.

    `metadata_files` are where this version or an earlier one may have written their SHA-256.
    """
    left: dict[str, str] = {}
    for metadata in metadata_files:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            left |= json.loads(metadata.read_text())["files"]
    problems = [
        Problem(
            str(path),
            "exists, and is not as `closloop compile` left it",
            f"say where with -o, or -o {path} to replace it",
        )
        for path in paths
        if path.exists() and left.get(path.name) != hashlib.sha256(path.read_bytes()).hexdigest()
    ]
    raise_any(problems)


def _write(contents: dict[Path, bytes]) -> None:
    for path, body in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error, "choose another with -o") from error
        write_output(path, body)


def known_target(text: str) -> Target:
    """Return the target of this name. Raises InputError for an unknown one."""
    for target in TARGETS:
        if text == target:
            return target
    raise InputError.single("--target", f"no target {text!r}", f"use {', '.join(TARGETS)}")


def deploy(source: Path, name: str, check: Check) -> Version:
    """Compile a policy, a `.c` source or a `.json` model, check it, and put it in force as `name`.

    Raises InputError for a model or source that cannot be a policy, NotReadyError without a
    compiler, and what `check` raises. Then the former version stays in force.
    """
    policy = DeployedPolicy(name)
    with tempfile.TemporaryDirectory(prefix="closloop-deploy-") as folder:
        rendered, metadata = source, ""
        if source.suffix == ".json":
            rendered = Path(folder, "policy.c")
            metadata = compile_model(source, "c", rendered).files[-1].read_text()
        elif source.suffix != ".c":
            raise InputError.single(
                str(source), "is neither a policy's C nor a model", "give a .c or a .json file"
            )
        try:
            check(policy_object(rendered))
            text = rendered.read_text()
        except PolicyError as error:
            problems = (problem.relocated(str(source)) for problem in error.problems)
            raise InputError(problems) from error
        except UnicodeDecodeError as error:
            raise InputError.single(str(source), "is no text") from error
    return policy.deploy(text, metadata)


def model_of(version: Version) -> str:
    """Return the hash of the model that a version was compiled from; "" for a C source."""
    path = version.path.with_suffix(".json")
    return str(json.loads(path.read_text())["hash"]) if path.exists() else ""
