"""`closloop compile`: makes a congestion control from a CatBoost model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError, TrialError


@verb(
    "Examples:  closloop compile model.json -o my_policy.c  |  "
    "closloop compile model.json --target bpf  |  closloop compile model.json --target doca"
)
def compile(
    model: Annotated[Path, 'A CatBoost regressor, saved with format="json".'],
    target: Annotated[str, "What to make: c, bpf, library or doca."] = "c",
    output: Annotated[
        Path | None, "--output", "-o", "The file; default: the model's name, in this folder."
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a congestion control from a CatBoost model: C, BPF, a library or DOCA PCC.

    A campaign runs it: `host: {congestion_control: {program: my_policy.c, parameters: [64, 1500,
    0, 1000]}}`. NAME.policy.json, beside it, has the trees, the model's hash and the bound on the
    error.

    Exit code: 0 it is made, 2 the model is refused, 3 a compiler is missing.
    """
    from orchestration.policies.compile import compile_model, known_target

    made = compile_model(model, known_target(target), output, check_loads)
    facts = {
        "name": made.name,
        "hash": made.model.hash,
        "error_bound": made.model.error_bound,
        "trees": len(made.model.trees),
        "leaves": sum(len(tree.leaves) for tree in made.model.trees),
        "files": [str(path) for path in made.files],
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"{facts['name']}: model {facts['hash']}, {facts['trees']} trees with {facts['leaves']} "
        f"leaves; an action is at most {made.model.error_bound:.2g} from the model's"
    )
    for path in made.files:
        typer.echo(f"  {path}")


def check_loads(program: Path) -> None:
    """Load a BPF object into a guest's kernel, if there is one. Raises InputError if it fails."""
    from collectors.bpf.policy import PolicyError
    from orchestration.backends.emulated.bpf_programs import load_in_guest
    from orchestration.kernel.cache import find_kernel

    if find_kernel() is None:
        typer.echo(
            "the program was not loaded to check it, as there is no virtual-time kernel: "
            "closloop kernel build",
            err=True,
        )
        return
    try:
        load_in_guest(program)
    except (PolicyError, TrialError) as error:
        raise InputError(problem.at(program.name) for problem in error.problems) from error
