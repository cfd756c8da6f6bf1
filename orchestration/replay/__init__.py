"""A run again: makes a campaign from a run, with its flows, actions and testbed as files.

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import EXPERIMENTS, Verb

__all__ = ["VERBS", "build", "campaign_file", "engines", "request", "specs", "traces"]

VERBS = (
    Verb(
        "replay",
        "Replay a run: the same flows at the same times, with the same or another tuner.",
        "orchestration.replay.verbs:replay",
        EXPERIMENTS,
    ),
)
