"""A run while it runs: queues, ports and hosts in the terminal.

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import EXPERIMENTS, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "watch",
        "Watch a run: trials, queues and links of the fabric, marks, the tuner's "
        "actions, warnings.",
        "orchestration.watch.verbs:watch",
        EXPERIMENTS,
    ),
)
