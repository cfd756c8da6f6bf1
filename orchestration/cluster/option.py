"""The executor behind `--cluster`: a Ray cluster that is joined, or started for the run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.core.errors import InputError

if TYPE_CHECKING:
    from orchestration.run.place import Place

_ADDRESS = re.compile(r"(?!-)[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


@contextmanager
def executor(cluster: str) -> Iterator[Place]:
    """Yield the cluster that an option names; leave or stop it at the end.

    Raises InputError for what names none, NotReadyError for one that is not ready.
    """
    from orchestration.cluster.authentication import admitted
    from orchestration.cluster.cluster import Cluster, disconnect, require_ray
    from orchestration.cluster.started import joined, started

    require_ray()
    with ExitStack() as ends:
        address = cluster
        if cluster.endswith((".yml", ".yaml")):
            from inventory.ansible import load_machines
            from orchestration.device.ssh import Secrets

            machines = load_machines(Path(cluster))
            address = ends.enter_context(started(machines, Secrets.of_environment(), _say))
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
    print(text, file=sys.stderr, flush=True)
