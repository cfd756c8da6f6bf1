"""Exchange with other tools: import their results and flows, export trials as their input."""

from orchestration.core.verb import RESULTS, Verb

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
