"""Read the state of a running campaign from its folder, for `closloop watch`."""

from orchestration.core.verb import EXPERIMENTS, Verb

VERBS = (
    Verb(
        "watch",
        "Watch a run: trials, queues and links of the fabric, marks, the tuner's "
        "actions, warnings.",
        "orchestration.watch.verbs:watch",
        EXPERIMENTS,
    ),
)
