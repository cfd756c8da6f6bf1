"""Compares runs of the papers' campaigns with the numbers that the papers print."""

from orchestration.core.verb import STUDIES, Verb

VERBS = (
    Verb(
        "fidelity",
        "Run the scenarios on both backends, what is not finished, and write the page.",
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
        "Show what any tuner could win: the loss of the best static setting, by condition.",
        "orchestration.papers.verbs:headroom",
        STUDIES,
    ),
)
