"""The papers' experiments: campaigns, the claims that they test, results, headroom, fidelity.

Headroom means here how much the best setting for each condition gains over one setting for all.
Must not import: orchestration.bench, closloop.
"""

from orchestration.core.verb import STUDIES, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "fidelity",
        "Compare two backends on four scenarios: run what is not finished, and write a page.",
        "orchestration.papers.verbs:fidelity",
        STUDIES,
    ),
    Verb(
        "papers",
        "Run the papers' campaigns and compare.",
        "orchestration.papers.verbs:papers",
        STUDIES,
    ),
    Verb(
        "headroom",
        "Show what a tuner can win at most, by condition, over the best static setting.",
        "orchestration.papers.verbs:headroom",
        STUDIES,
    ),
)
