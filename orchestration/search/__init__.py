"""Search for the best static setting of a campaign, and of each of its conditions."""

from orchestration.core.verb import EXPERIMENTS, Verb

VERBS = (
    Verb(
        "search",
        "Search for the best static setting of a campaign, and of each of its conditions.",
        "orchestration.search.verbs:search",
        EXPERIMENTS,
    ),
)
