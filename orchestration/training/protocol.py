"""The protocol of training, read from `protocol.yml`: budget, stopping rule, seeds, scenarios."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inventory.strictyaml import StrictModel, read
from orchestration.core.errors import InputError
from orchestration.core.trial import Scalar, TunerSpec

FILE = Path(__file__).with_name("protocol.yml")


class Training(StrictModel):
    """The training scenario and the held-out scenario of some tuners under a transport."""

    tuners: tuple[str, ...]
    transport: str
    scenario: str
    held_out: str


class Protocol(StrictModel):
    """The content of `protocol.yml`, which describes each field."""

    version: int
    decisions: int
    explore_decay: float
    evaluations: int
    patience: int
    choosing_seeds: int
    judging_seeds: int
    min_seeds: int
    share_above: float
    trainings: tuple[Training, ...]
    placebos: dict[str, dict[str, Scalar]]

    def training(self, tuner: str, transport: str = "") -> Training:
        """Return the scenarios of a tuner, by default under its first transport.

        Raises InputError if there are none.
        """
        trainings = [training for training in self.trainings if tuner in training.tuners]
        for training in trainings:
            if transport in ("", training.transport):
                return training
        if not trainings:
            raise InputError.single(
                tuner,
                f"the protocol has no training of {tuner}",
                "train it without the protocol, with --episodes",
            )
        known = ", ".join(training.transport for training in trainings)
        raise InputError.single(
            "--transport", f"{tuner} is not trained under {transport!r}", f"use {known}"
        )

    def placebo(self, tuner: str) -> TunerSpec:
        """Return the placebo of a tuner that the protocol trains."""
        params = dict(self.placebos[tuner])
        return TunerSpec(str(params.pop("name")), params)

    def rule(self, tuner: str, held_out: str, decisions: int = 0) -> Rule:
        """Return the rule for a tuner. `held_out` is the held-out scenario, a campaign file.

        `decisions`, if not 0, replaces the protocol's budget: for a trial run.
        """
        return Rule(
            protocol=self.version,
            decisions=decisions or self.decisions,
            explore_decay=self.explore_decay,
            evaluations=self.evaluations,
            patience=self.patience,
            choosing_seeds=self.choosing_seeds,
            judging_seeds=self.judging_seeds,
            held_out=held_out,
            placebo=self.placebo(tuner),
        )


@dataclass(frozen=True)
class Rule:
    """How long to train, when to stop, and which network to keep. See `protocol.yml`.

    `decisions` counts queue decisions, and `held_out` is the path of a campaign file.
    """

    protocol: int
    decisions: int
    explore_decay: float
    evaluations: int
    patience: int
    choosing_seeds: int
    judging_seeds: int
    held_out: str
    placebo: TunerSpec

    def due(self, decisions: int) -> int:
        """Return how many evaluations are due after so many queue decisions."""
        return min(self.evaluations, decisions * self.evaluations // self.decisions)

    def in_words(self) -> str:
        """Return the rule as a sentence, for the card."""
        return (
            f"{self.decisions:,} queue decisions at most; after each of {self.evaluations} equal "
            f"parts the network plays {self.choosing_seeds} held-out seeds greedily; the one with "
            "the lowest mean logarithm of the mean slowdown, over conditions and seeds, is kept; "
            f"{self.patience} evaluations in a row without a better one end the training; the kept "
            f"one is judged on {self.judging_seeds} further held-out seeds"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rule as JSON-ready data, without the path of the held-out scenario."""
        data = {key: value for key, value in vars(self).items() if key != "held_out"}
        return {**data, "placebo": {"name": self.placebo.name, **self.placebo.params}}


@cache
def load_protocol() -> Protocol:
    """Return the packaged protocol. Raises InputError if its file is wrong."""
    protocol, problems = read(FILE).check(Protocol)
    if protocol is None or problems:
        raise InputError(problems)
    return protocol
