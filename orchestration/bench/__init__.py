"""Benchmarks that check the project's claims: `closloop bench`."""

from orchestration.core.verb import STUDIES, Verb

VERBS = (
    Verb(
        "bench",
        "Measure what the project claims.",
        "orchestration.bench.verbs:bench",
        STUDIES,
    ),
)
