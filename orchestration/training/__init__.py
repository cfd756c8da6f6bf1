"""Trains learned tuners: episodes side by side on a backend, a learner, its checkpoints."""

from orchestration.core.verb import TUNERS, Verb

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
