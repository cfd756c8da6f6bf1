"""Exchange with other tools: import their results and flows, export trials as their input.

An importer is a function in one file, and `closloop import NAME` its command line. A package
offers it, ours as a user's, in the entry-point group `closloop.importers`:

    [project.entry-points."closloop.importers"]
    mine = "my_importer:import_mine"

Its parameters are the options (`orchestration.cli.options.verb` says how they are annotated), its
docstring is the help, and what it returns, an `Imported`, becomes a trial in a campaign's folder:
`--out`, `--label`, `--seed`, `--repeat` and `--json` are added. One that makes something else, like
a file of flows to replay, returns None, and declares all of its options itself. A file that cannot
be read raises `InputError`.

    from orchestration.exchange import Imported, ImportedFlows

    def import_mine(
        file: Annotated[Path, "The simulator's log."],
        *,
        rate: Annotated[str, "The rate of hosts' links."] = "25Gbps",
    ) -> Imported:
        \"\"\"Take over a run of my simulator.\"\"\"
        ...
        return Imported("mine", testbed, flows, inputs={}, results={"log": file})

An exporter is a function in the group `closloop.exporters`. It declares all of its options, and
writes what it makes.
"""

from typing import Any

from orchestration.core.verb import RESULTS, Verb

__all__ = ["VERBS", "Imported", "ImportedFlows"]

VERBS = (
    Verb(
        "import",
        "Take over others' results as run folders, flows out of captures and flow "
        "records, or a containerlab lab as a testbed.",
        "orchestration.exchange.verbs:importer",
        RESULTS,
    ),
    Verb(
        "export",
        "Write a run's or campaign's flows in others' formats, or a testbed as a containerlab lab.",
        "orchestration.exchange.verbs:exporter",
        RESULTS,
    ),
)


def __getattr__(name: str) -> Any:
    # NumPy and tables are loaded when an importer is, not for the help
    if name not in __all__:
        raise AttributeError(name)
    from orchestration.exchange import imported

    return getattr(imported, name)
