"""Measures what a training by the protocol takes, and what ACC's idle rule saves."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.model.trial import IncastSpec, PoissonSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, Run, run_trial
from orchestration.training.episodes import Players
from orchestration.training.files import Round
from orchestration.training.held_out import HeldOut, figure_of
from orchestration.training.protocol import Training, load_protocol
from orchestration.training.request import TrainRequest, find_scenario
from orchestration.training.train import train

_MILLISECOND = 1_000_000
_EPISODES = 6
_MINUTES = 20


def training_cost() -> Outcome:
    """Time of a training by the protocol, one core: playing, learning, and what is held out."""
    protocol = load_protocol()
    figures, data = [], {}
    for planned in protocol.trainings:
        held_out_s = _held_out_s(planned)
        for tuner in planned.tuners:
            rounds = _rounds(tuner, planned)
            act_s, learn_s = (sum(getattr(item, key) for item in rounds) for key in _PARTS)
            decisions = rounds[-1].decisions
            minutes = (protocol.decisions / decisions * (act_s + learn_s) + held_out_s) / 60
            name = f"{tuner}, {planned.transport}"
            parts = f"{act_s / (act_s + learn_s):.0%} of it playing"
            rate = decisions / (act_s + learn_s)
            figures += [
                Figure(f"{name}: queue decisions a second", f"{rate:,.0f}, {parts}"),
                Figure(
                    f"{name}: minutes of the standard budget, of which held out",
                    f"{minutes:.1f}, {held_out_s / 60:.1f}",
                    f"{_MINUTES}",
                    minutes <= _MINUTES,
                ),
            ]
            data[name] = [dataclasses.asdict(item) for item in rounds]
    return Outcome(
        f"Training by the protocol: {protocol.decisions:,} queue decisions, on one core",
        tuple(figures),
        (
            f"from {_EPISODES} episodes of each scenario, and one evaluation by the placebo",
            "placebo and static settings are played once for all seeds of a network: not counted",
        ),
        data,
    )


_PARTS = ("act_s", "learn_s")


def _rounds(tuner: str, planned: Training) -> list[Round]:
    rounds: list[Round] = []
    request = TrainRequest(tuner, find_scenario(planned.scenario), episodes=_EPISODES, actors=1)
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        train(
            request,
            EmulatedBackend(),
            Path(folder) / "training",
            1,
            lambda round_, episodes: rounds.append(round_),
        )
    return rounds


def _held_out_s(planned: Training) -> float:
    """Return the time that the held-out trials of a training take."""
    tuner = planned.tuners[0]
    rule = load_protocol().rule(tuner, find_scenario(planned.held_out))
    held_out = HeldOut(TrainRequest(tuner, find_scenario(planned.scenario), rule=rule), rule)
    players = Players(EmulatedBackend(), 1, figure_of)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        try:
            held_out.figures(
                rule.placebo,
                held_out.choosing,
                Path(folder),
                lambda jobs: players.play(jobs, lambda: True),
            )
        finally:
            players.close()
    once_s = time.monotonic() - begin
    return once_s * (rule.evaluations + rule.judging_seeds / rule.choosing_seeds)


def idle_rule() -> Outcome:
    """What ACC's rule for idle queues saves: inferences, and what the tables lose by it."""
    with_rule, without = (_acc(idle_rule=on) for on in (True, False))
    made, skipped = (
        int(with_rule.record.facts["tuner"][name]) for name in ("inferences", "inferences_skipped")
    )
    share = skipped / (made + skipped)
    return Outcome(
        "ACC's idle rule: graphcc, FB_Hadoop at 60 % and 16:1 incasts, 10 ms",
        (
            Figure("inferences that it saves", f"{share:.0%}", "some", share > 0),
            Figure("wall time with the rule", f"{with_rule.wall_s:.2f} s"),
            Figure("wall time without", f"{without.wall_s:.2f} s"),
            Figure("mean queue with the rule", f"{_mean_queue_kb(with_rule):.1f} KB"),
            Figure("mean queue without", f"{_mean_queue_kb(without):.1f} KB"),
        ),
        ("one seed: for what the rule does to flows see the papers' campaigns",),
        {"inferences": made, "skipped": skipped},
    )


def _acc(*, idle_rule: bool) -> Run:
    return run_trial(
        "graphcc",
        (
            PoissonSpec("FB_Hadoop", 0.6, 0, 10 * _MILLISECOND),
            IncastSpec(16, 500_000, 1_600_000, 0, 10 * _MILLISECOND),
        ),
        TunerSpec("acc", {"idle_rule": idle_rule}),
        duration_ns=10 * _MILLISECOND,
    )


def _mean_queue_kb(run: Run) -> float:
    return float(run.record.ports.qlen_bytes[:100].mean()) / 1e3
