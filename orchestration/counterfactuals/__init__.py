"""Counterfactuals: a trial with one decision changed, and what the change did."""

from orchestration.core.verb import EXPERIMENTS, TUNERS, Verb

VERBS = (
    Verb(
        "whatif",
        "Replay a trial to the bit with one decision changed: what did it do to every flow?",
        "orchestration.counterfactuals.verbs:whatif",
        EXPERIMENTS,
    ),
    Verb(
        "credit",
        "Does a tuner's reward rank its decisions as flows' completion does?",
        "orchestration.counterfactuals.verbs:credit",
        TUNERS,
    ),
)
