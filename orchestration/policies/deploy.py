"""Puts a policy in force for campaigns: a C source, or a model that is compiled to one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from collectors.bpf.policy import PolicyError, policy_object
from orchestration.model.errors import InputError
from orchestration.policies.compile import compile_model
from orchestration.policies.store import DeployedPolicy, Version

# Looks at a BPF object as the kernel would, and raises InputError if that refuses it.
Check = Callable[[Path], object]


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
        except (PolicyError, UnicodeDecodeError) as error:
            what = error.message if isinstance(error, PolicyError) else "is no text"
            raise InputError.single(str(source), what, getattr(error, "remedy", "")) from error
    return policy.deploy(text, about)


def model_of(version: Version) -> str:
    """Return the hash of the model that a version was compiled from, "" for a source."""
    path = version.path.with_suffix(".json")
    return str(json.loads(path.read_text())["hash"]) if path.exists() else ""
