"""Judges networks on the held-out trials, and says by the rule when that is due."""

from __future__ import annotations

import math
import time
from pathlib import Path

from orchestration.model.records import Floats
from orchestration.training.files import Round
from orchestration.training.held_out import Gain, HeldOut, Play, References
from orchestration.training.outcome import Result
from orchestration.training.request import TrainRequest
from orchestration.training.selection import Evaluation, Selection


class Judge:
    """Plays networks on the held-out trials and compares them with the references."""

    def __init__(
        self,
        request: TrainRequest,
        held_out: HeldOut,
        references: References,
        work: Path,
        play: Play,
    ) -> None:
        if request.rule is None:
            raise ValueError("a training without a rule has no judge: give it one")
        self._request, self._rule = request, request.rule
        self._held_out, self._references = held_out, references
        self._work, self._play = work, play

    def due(self, decisions: int, selection: Selection) -> bool:
        """Return whether an evaluation comes before the next round."""
        last = selection.evaluations[-1].decisions if selection.evaluations else 0
        return self._rule.due(decisions) > self._rule.due(last)

    def over(self, decisions: int, selection: Selection) -> bool:
        """Return whether the training is at its end."""
        return decisions >= self._rule.decisions or selection.exhausted

    def evaluate(self, checkpoint: Path, decisions: int, episodes: int) -> Evaluation | None:
        """Play a network on the choosing seeds; None if interrupted."""
        seeds = self._held_out.choosing
        ours = self._figures(checkpoint, seeds)
        if ours is None:
            return None
        return Evaluation(
            decisions,
            episodes,
            float(ours.mean()),
            Gain.of(ours, self._references.placebo(seeds)).mean,
            Gain.of(ours, self._references.static(seeds)).mean,
        )

    def result(
        self, checkpoint: Path, last: Round, selection: Selection, begin_s: float
    ) -> Result | None:
        """Play the network that is kept on the judging seeds; None if interrupted."""
        seeds = self._held_out.judging
        ours = self._figures(checkpoint, seeds)
        if ours is None or selection.best is None:
            return None
        placebo, static = self._references.placebo(seeds), self._references.static(seeds)
        way = float((placebo - static).mean())
        return Result(
            seed=self._request.seed,
            decisions=last.decisions,
            episodes=last.episodes,
            stopped="budget" if last.decisions >= self._rule.decisions else "patience",
            kept_at=selection.best.decisions,
            over_placebo=Gain.of(ours, placebo),
            over_static=Gain.of(ours, static),
            best_static=self._references.best_static(),
            share=float((placebo - ours).mean()) / way if way > 0 else math.nan,
            wall_s=round(time.monotonic() - begin_s, 1),
        )

    def _figures(self, checkpoint: Path, seeds: range) -> Floats | None:
        tuner = self._held_out.network(checkpoint)
        return self._held_out.figures(tuner, seeds, self._work, self._play)
