"""Trains learned tuners: episodes side by side on a backend, a learner, its checkpoints.

Must not import: orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import TUNERS, Verb

__all__ = ["VERBS", "files", "outcome", "protocol", "request", "rlcc", "seeds", "train"]

VERBS = (
    Verb(
        "train",
        "Train a tuner. Given again after Ctrl-C or a crash, it goes on where it was.",
        "orchestration.training.verbs:train",
        TUNERS,
    ),
    Verb(
        "distill",
        "Distil RL-CC's network into boosted trees, which a NIC computes.",
        "orchestration.training.verbs:distill",
        TUNERS,
    ),
)
