"""A trial again with one decision changed: what did the change do to every flow?

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import EXPERIMENTS, TUNERS, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "whatif",
        "Replay a trial to the bit with one decision changed: what did it do to every flow?",
        "orchestration.counterfactuals.verbs:whatif",
        EXPERIMENTS,
    ),
    Verb(
        "credit",
        "Does a tuner's reward rank its decisions as flow completion does?",
        "orchestration.counterfactuals.verbs:credit",
        TUNERS,
    ),
)
