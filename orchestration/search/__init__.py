"""The best static settings of a campaign, by successive halving: `closloop search`.

Must not import: orchestration.bench, orchestration.papers, orchestration.training.
"""

from orchestration.core.verb import EXPERIMENTS, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "search",
        "Search for the best static setting of a campaign, and of each of its conditions.",
        "orchestration.search.verbs:search",
        EXPERIMENTS,
    ),
)
