"""Replays: make a campaign from a run, with its flows, actions and testbed as files."""

from orchestration.core.verb import EXPERIMENTS, Verb

VERBS = (
    Verb(
        "replay",
        "Replay a run: the same flows at the same times, with the same or another tuner.",
        "orchestration.replay.verbs:replay",
        EXPERIMENTS,
    ),
)
