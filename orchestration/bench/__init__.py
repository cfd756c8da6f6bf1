"""Benchmarks that check the project's claims: `closloop bench`.

A benchmark is a function that returns an `Outcome`, named in `registry`.
Must not import: closloop.
"""

from orchestration.core.verb import STUDIES, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "bench",
        "Measure what the project claims.",
        "orchestration.bench.verbs:bench",
        STUDIES,
    ),
)
