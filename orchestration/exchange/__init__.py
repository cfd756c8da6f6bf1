"""Exchange with other tools: imports their results and flows, exports trials as their input.

An importer or exporter is a function in one file, offered in the entry-point group
`closloop.importers` or `closloop.exporters`; its parameters are the options and its docstring the
help (docs/extending.md has an example). An importer returns an `Imported`, which becomes a trial in
a campaign's folder.
Must not import: orchestration.bench, orchestration.papers, orchestration.search.
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
