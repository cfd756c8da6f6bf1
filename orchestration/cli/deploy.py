"""`closloop deploy`: puts a congestion control in force under a name, for campaigns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.compile import loads
from orchestration.cli.options import verb


@verb(
    "Examples:  closloop deploy my_policy.c --name edge  |  closloop deploy model.json  |  "
    "closloop deploy --undo edge  |  closloop deploy --list"
)
def deploy(
    source: Annotated[Path | None, typer.Argument(help="my_policy.c, or model.json.")] = None,
    name: Annotated[str, "Under this name; default: the file's."] = "",
    undo: Annotated[str, "Put back in force what was before, under this name."] = "",
    show: Annotated[bool, "--list", "Show what is deployed."] = False,
) -> None:
    """Put a congestion control in force under a name, for campaigns; reversible.

    A campaign says `host: {congestion_control: {program: deployed:NAME, parameters: […]}}`. What
    the kernel refuses leaves the former version in force.

    Exit code: 0 in force, 2 refused, 3 a compiler is missing or the store cannot be written.
    """
    from orchestration.model.errors import InputError
    from orchestration.policies.deploy import deploy as put
    from orchestration.policies.deploy import model_of
    from orchestration.policies.store import DeployedPolicy, deployed_names

    if sum([source is not None, bool(undo), show]) != 1:
        raise InputError.single(
            "deploy", "one of a file, --undo and --list is needed", "closloop deploy --help"
        )
    if source is not None:
        called = name or source.stem
        made = put(source, called, loads)
        typer.echo(f"{called}: version {made.number} is in force ({made.digest})")
    elif undo:
        back = DeployedPolicy(undo).undo()
        typer.echo(
            f"{undo}: version {back.number} is in force again ({back.digest})"
            if back
            else f"{undo}: none is in force, as before"
        )
    else:
        for known in deployed_names():
            policy = DeployedPolicy(known)
            current = policy.current()
            for version in policy.versions():
                model = model_of(version)
                words = [f"{known}@{version.number}", version.digest]
                words += [f"model {model}"] if model else []
                words += ["in force"] if version == current else []
                typer.echo("  ".join(words))
