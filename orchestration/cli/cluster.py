"""Where the trials of a verb run: this machine, or a Ray cluster that `--cluster` names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.model.errors import InputError

if TYPE_CHECKING:
    from orchestration.runner.place import Place

ClusterOption = Annotated[
    str,
    "--cluster",
    "Run trials on a Ray cluster: HOST:PORT, auto, or an inventory to start one on.",
]
_ADDRESS = re.compile(r"(?!-)[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


@contextmanager
def place_of(cluster: str) -> Iterator[Place]:
    """Yield the place that an option names, "" for this machine; leave or stop it at the end.

    Raises InputError for what names none, NotReadyError for one that is not ready.
    """
    if not cluster:
        from orchestration.runner.place import THIS_MACHINE

        yield THIS_MACHINE
        return
    from orchestration.cluster.authentication import admitted
    from orchestration.cluster.cluster import Cluster, disconnect, require_ray
    from orchestration.cluster.started import joined, started

    require_ray()
    with ExitStack() as ends:
        address = cluster
        if cluster.endswith((".yml", ".yaml")):
            from inventory.ansible import load_machines
            from orchestration.cli.options import Passwords

            machines = load_machines(Path(cluster))
            address = ends.enter_context(started(machines, Passwords().secrets(), _say))
        elif _ADDRESS.fullmatch(cluster):
            ends.enter_context(joined(cluster, _say))
        elif cluster == "auto":
            ends.enter_context(admitted(cluster, _say))
        else:
            raise InputError.single(
                "--cluster",
                f"{cluster!r} is no cluster",
                "use HOST:PORT of a Ray cluster, auto for this machine's, or an inventory's .yml",
            )
        ends.callback(disconnect)
        place = Cluster(address)
        _say(place.in_words())
        yield place


def _say(text: str) -> None:
    typer.echo(text, err=True)
