"""Measures what learning costs per episode, and what ACC's idle rule saves."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.model.errors import NotReadyError
from orchestration.model.trial import IncastSpec, PoissonSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, Run, run_trial
from orchestration.training.files import Round
from orchestration.training.learners import names
from orchestration.training.request import TrainRequest, find_scenario
from orchestration.training.train import train

_MILLISECOND = 1_000_000
_EPISODES = 4


def training_cost() -> Outcome:
    """Wall time of training episodes of 25 ms, with learning against without."""
    figures = []
    data = {}
    for tuner in names():
        rounds = _rounds(tuner)
        act_s = statistics.median(item.act_s for item in rounds)
        learn_s = statistics.median(item.learn_s for item in rounds)
        ratio = (act_s + learn_s) / act_s
        what = f"{tuner}: an episode plays for {act_s:.1f} s, learning takes {learn_s:.1f} s: ratio"
        figures.append(Figure(what, f"{ratio:.2f}", "2", ratio <= 2))
        data[tuner] = [[item.act_s, item.learn_s] for item in rounds]
    return Outcome(
        "Training: GraphCC's scenario, episodes of 25 ms, one at a time",
        tuple(figures),
        ("the guest keeps what the learner needs either way: that is in the time of playing",),
        data,
    )


def _rounds(tuner: str) -> list[Round]:
    rounds: list[Round] = []
    request = TrainRequest(
        tuner, find_scenario("graphcc"), "emulated", episodes=_EPISODES, actors=1
    )
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        train(
            request,
            EmulatedBackend(),
            Path(folder) / "training",
            1,
            lambda round_, episodes: rounds.append(round_),
        )
    return rounds


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
    from tuners.checkpoint import pretrained

    if "acc" not in pretrained():
        raise NotReadyError("there is no pretrained acc", "train it: closloop train acc")
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
