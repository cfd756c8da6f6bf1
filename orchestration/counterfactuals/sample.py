"""A random sample of a tuner's decisions, and of what it could have decided instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN, Bounds
from orchestration.core.records import Ints
from orchestration.counterfactuals.decisions import Decision, Decisions, Setting, target_of
from orchestration.counterfactuals.effects import sampling_times
from orchestration.counterfactuals.ranking import Case
from tuners.learning.rewarded import Rewarded
from tuners.registry import create

# A queue is at work if it sends this share of its port's rate: below, nothing there waits, and the
# learners do not learn from it either (`tuners.learning.q_learning.at_work`).
_AT_WORK = 0.1
# The share of the sample where packets stand in the queue: where none do, thresholds seldom matter
# within a period, so that fewer such decisions say as much.
_STANDING = 0.75


def rewarded(decisions: Decisions) -> Rewarded:
    """Return the trial's tuner. Raises InputError if it does not say what its reward is."""
    spec = decisions.trial.spec
    remedy = "choose a trial of acc, pet or graphcc, or of a tuner that has `rewards`, `choices`"
    where = str(decisions.trial.folder)
    try:
        tuner = create(spec.tuner)
    except ValueError as error:
        raise InputError.single(where, f"its tuner cannot be made: {error}", remedy) from error
    if not isinstance(tuner, Rewarded):
        what = f"its tuner, {spec.tuner.name}, does not say what its reward is"
        raise InputError.single(where, what, remedy)
    return tuner


def draw_cases(
    decisions: Decisions, tuner: Rewarded, count: int, alternatives: int, seed: int
) -> tuple[Case, ...]:
    """Return `alternatives` settings in place of each of `count` decisions, drawn by `seed`.

    Decisions are those on queues at work in the interval that follows, while flows arrive: three
    quarters of them, if there are so many, where packets stood in the queue. Alternatives are drawn
    evenly from what the tuner chooses from. In order of time. Raises InputError if there is nothing
    to draw.
    """
    trial = decisions.trial
    if count < 1 or alternatives < 1:
        raise InputError.single("--decisions", "nothing would be tried", "use 1 or more")
    rng = np.random.default_rng([seed, count, alternatives])
    times, queues, lengths = _at_work(decisions)
    chosen = _strata(rng, lengths > 0, count)
    if not len(chosen):
        raise InputError.single(
            str(trial.folder),
            "no decision was on a queue at work while flows arrived",
            "choose a longer trial, or one under more load",
        )
    bounds, table = ECN.bounds(trial.testbed), tuner.choices()
    labels = [queue.label for queue in trial.testbed.queues]
    cases: list[Case] = []
    for number, row in enumerate(chosen.tolist(), start=1):
        queue = int(queues[row])
        decision = decisions.find(target_of(trial.testbed, ECN, labels[queue]), int(times[row]))
        others = _others(decision, bounds, table)
        drawn = rng.choice(len(others), size=min(alternatives, len(others)), replace=False)
        for place, other in enumerate(drawn.tolist(), start=1):
            label = f"d{number:03}-{place}"
            cases.append(Case(label, number, decision, others[other], int(lengths[row])))
    return tuple(cases)


def _at_work(decisions: Decisions) -> tuple[Ints, Ints, Ints]:
    """Return time, queue and queue length of each decision that may be drawn; (decisions,) each."""
    spec, ports = decisions.trial.spec, decisions.trial.ports
    at = sampling_times(ports.t_ns, spec.sample_period_ns)
    asked = decisions.asked_ns
    asked = asked[(asked + decisions.period_ns <= min(spec.duration_ns, int(at[-1])))]
    rows = np.searchsorted(at, asked)
    after = np.searchsorted(at, asked + decisions.period_ns)
    rate_bps = np.array([queue.rate_bps for queue in decisions.trial.testbed.queues])
    sent = ports.tx_bytes[after] - ports.tx_bytes[rows]
    busy = 8e9 * sent > _AT_WORK * rate_bps * float(decisions.period_ns)
    when, queue = np.nonzero(busy)
    return asked[when], queue.astype(np.int64), ports.qlen_bytes[rows[when], queue]


def _strata(rng: np.random.Generator, standing: NDArray[np.bool_], count: int) -> Ints:
    """Return `count` places, in order: `_STANDING` of them standing, or as many as there are."""
    groups = [rng.permutation(np.flatnonzero(standing)), rng.permutation(np.flatnonzero(~standing))]
    first = min(len(groups[0]), max(round(_STANDING * count), count - len(groups[1])))
    return np.sort(np.concatenate([groups[0][:first], groups[1][: count - first]]))


def _others(decision: Decision, bounds: Bounds, table: Mapping[str, NDArray[Any]]) -> list[Setting]:
    """Return what could have been decided instead, as the device would have it, each once."""
    found: dict[tuple[float, ...], Setting] = {}
    now = tuple(round(float(decision.setting[name]), 6) for name in ECN.column_names)
    for row in range(len(table[ECN.column_names[0]])):
        asked = {name: table[name][row].item() for name in ECN.column_names}
        change, _ = bounds.clamp(ECN.change([decision.target.index], **asked))
        setting = {name: change.values[name][0].item() for name in ECN.column_names}
        key = tuple(round(float(value), 6) for value in setting.values())
        if key != now:
            found.setdefault(key, setting)
    return list(found.values())
