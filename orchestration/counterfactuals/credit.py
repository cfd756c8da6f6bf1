"""Does a tuner's reward put its decisions in the same order as flow completion does?

Each counterfactual replaces one decision of the tuner for one of its periods. Against the trial as
it was, it gives the change of the tuner's reward, and the change of flow completion times.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.analysis.flow_metrics import in_class
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN, Bounds
from orchestration.core.records import Floats, Ints, Observation
from orchestration.counterfactuals.ask import (
    UNCHANGED,
    Then,
    Variant,
    build_counterfactuals,
    campaign_name_of,
    parse_then,
    single_trial,
    trials_by_label,
)
from orchestration.counterfactuals.decisions import (
    Decision,
    Decisions,
    Setting,
    check_repeatable,
    find_target,
)
from orchestration.counterfactuals.effects import (
    differing_tables,
    flow_changes,
    sampling_times,
    totals,
)
from orchestration.counterfactuals.question import CreditRequest
from orchestration.counterfactuals.ranking import (
    Case,
    MeanChange,
    MeasuredCase,
    Ranking,
    mean_changes,
    rankings,
)
from orchestration.replay.build import Replay
from orchestration.results.reader import TrialResult
from tuners.learning.replay_buffer import HasReward
from tuners.registry import create

# A queue is at work if it sends at least this share of its port's rate. Below that no packet waits,
# and the learners do not learn from it either (`tuners.learning.q_learning.worth_learning_from`).
_AT_WORK = 0.1
# The share of the drawn decisions at which the queue is not empty. At an empty queue, thresholds
# seldom matter within a period, so that few such decisions are enough.
_NONEMPTY_SHARE = 0.75


def tuner_with_reward(decisions: Decisions) -> HasReward:
    """Return the trial's tuner. Raises InputError if the tuner does not offer its reward."""
    spec = decisions.trial.spec
    remedy = "choose a trial of acc, pet or graphcc, or of a tuner with `rewards` and `choices`"
    where = str(decisions.trial.folder)
    try:
        tuner = create(spec.tuner)
    except ValueError as error:
        raise InputError.single(where, f"its tuner cannot be made: {error}", remedy) from error
    if not isinstance(tuner, HasReward):
        what = f"its tuner, {spec.tuner.name}, does not offer its reward"
        raise InputError.single(where, what, remedy)
    return tuner


def draw_cases(
    decisions: Decisions, tuner: HasReward, count: int, alternatives: int, seed: int
) -> tuple[Case, ...]:
    """Return `alternatives` settings in place of each of `count` decisions, drawn by `seed`.

    The decisions are drawn from those on queues that are at work in the interval that follows,
    while flows arrive. At three quarters of them, if there are that many, the queue was not empty.
    The alternatives are drawn evenly from the tuner's action space. The cases are in order of time.
    Raises InputError if there is nothing to draw.
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
        decision = decisions.find(find_target(trial.testbed, ECN, labels[queue]), int(times[row]))
        others = _others(decision, bounds, table)
        drawn = rng.choice(len(others), size=min(alternatives, len(others)), replace=False)
        for alternative, other in enumerate(drawn.tolist(), start=1):
            label = f"d{number:03}-{alternative}"
            cases.append(Case(label, number, decision, others[other], int(lengths[row])))
    return tuple(cases)


def _at_work(decisions: Decisions) -> tuple[Ints, Ints, Ints]:
    """Return time, queue and queue length of each decision that may be drawn: (decisions,) each."""
    spec, ports = decisions.trial.spec, decisions.trial.ports
    at = sampling_times(ports.t_ns, spec.sample_period_ns)
    calls_ns = decisions.tuner_call_times_ns
    calls_ns = calls_ns[(calls_ns + decisions.period_ns <= min(spec.duration_ns, int(at[-1])))]
    rows = np.searchsorted(at, calls_ns)
    after = np.searchsorted(at, calls_ns + decisions.period_ns)
    rate_bps = np.array([queue.rate_bps for queue in decisions.trial.testbed.queues])
    sent = ports.tx_bytes[after] - ports.tx_bytes[rows]
    busy = 8e9 * sent > _AT_WORK * rate_bps * float(decisions.period_ns)
    when, queue = np.nonzero(busy)
    return calls_ns[when], queue.astype(np.int64), ports.qlen_bytes[rows[when], queue]


def _strata(rng: np.random.Generator, nonempty: NDArray[np.bool_], count: int) -> Ints:
    """Return `count` indices in order, `_NONEMPTY_SHARE` of them nonempty, if there are as many."""
    groups = [rng.permutation(np.flatnonzero(nonempty)), rng.permutation(np.flatnonzero(~nonempty))]
    first = min(len(groups[0]), max(round(_NONEMPTY_SHARE * count), count - len(groups[1])))
    return np.sort(np.concatenate([groups[0][:first], groups[1][: count - first]]))


def _others(decision: Decision, bounds: Bounds, table: Mapping[str, NDArray[Any]]) -> list[Setting]:
    """Return the other settings that the tuner could have chosen, as a device takes them."""
    others: dict[tuple[float, ...], Setting] = {}
    now = tuple(round(float(decision.setting[name]), 6) for name in ECN.column_names)
    for row in range(len(table[ECN.column_names[0]])):
        choice = {name: table[name][row].item() for name in ECN.column_names}
        change, _ = bounds.clamp(ECN.change([decision.target.index], **choice))
        setting = {name: change.values[name][0].item() for name in ECN.column_names}
        key = tuple(round(float(value), 6) for value in setting.values())
        if key != now:
            others.setdefault(key, setting)
    return list(others.values())


# Rewards that are discounted to less than this share are left out.
_NEGLIGIBLE = 1e-3
_MAX_STEPS = 50
# A decision is most about the flows that run within this many decision periods after it.
_NEAR_STEPS = 5


@dataclass(frozen=True)
class Plan:
    """A campaign of counterfactuals to be run, and the case that each of its trials is."""

    replay: Replay
    decisions: Decisions
    tuner: HasReward
    cases: tuple[Case, ...]
    then: Then
    seed: int


@dataclass(frozen=True)
class Credit:
    """The measured counterfactuals of a trial, and the rank correlations of its tuner's reward.

    `differing` has the columns in which the unchanged trial differs from its parent, which should
    be none. `invalid` counts the counterfactuals that are left out because their trial is invalid.
    """

    plan: Plan
    measured: tuple[MeasuredCase, ...]
    rankings: tuple[Ranking, ...]
    changes: tuple[MeanChange, ...]
    differing: tuple[str, ...]
    invalid: int

    @property
    def misleading(self) -> tuple[MeasuredCase, ...]:
        """The cases whose return contradicts mean slowdown, the largest change of that first.

        A higher return should come with a lower slowdown; here both rise, or both fall.
        """
        cases = [case for case in self.measured if case.returned * case.slowdown > 0]
        return tuple(sorted(cases, key=lambda case: -abs(case.slowdown)))

    @property
    def wall_ratio(self) -> float:
        """The mean wall time of a counterfactual over that of the parent; NaN if unknown."""
        walls = [case.wall_s for case in self.measured if case.wall_s > 0]
        parent = float(self.plan.decisions.trial.facts.get("wall_s") or 0)
        return float(np.mean(walls)) / parent if walls and parent else math.nan


def plan_credit(request: CreditRequest, out: Path, *, fresh: bool = False) -> Plan:
    """Draw decisions and alternatives, and write their campaign.

    Raises InputError for a trial that cannot be repeated, and for a tuner without a reward.
    """
    trial = single_trial(request.run, request.trial)
    check_repeatable(trial)
    decisions = Decisions(trial)
    tuner, then = tuner_with_reward(decisions), parse_then(request.then)
    cases = draw_cases(decisions, tuner, request.decisions, request.alternatives, request.seed)
    variants = [
        Variant(case.label, case.decision, case.setting, case.decision.at_ns + decisions.period_ns)
        for case in cases
    ]
    first = cases[0].decision
    variants.append(Variant(UNCHANGED, first, first.setting))
    content = [
        (c.label, c.decision.at_ns, c.decision.target.label, *c.setting.values()) for c in cases
    ]
    digest = hashlib.sha256(f"{trial.spec.id} {then} {content}".encode()).hexdigest()[:6]
    name = request.name or campaign_name_of(trial.spec, "credit", then, digest)
    replay = build_counterfactuals(decisions, variants, name, out, then=then, fresh=fresh)
    return Plan(replay, decisions, tuner, cases, then, request.seed)


def measure(plan: Plan, folder: Path) -> Credit:
    """Read the finished campaign and compute the rank correlations.

    Raises InputError if no counterfactual is valid.
    """
    parent = plan.decisions.trial
    trials = trials_by_label(folder)
    own = _Rewards(plan, parent)
    valid = {label: trial for label, trial in trials.items() if trial.stamp.valid}
    measured = [_measured(plan, c, own, valid[c.label]) for c in plan.cases if c.label in valid]
    invalid = len(plan.cases) - len(measured)
    if not measured:
        raise InputError.single(str(folder), "no counterfactual is valid", "see its report")
    same = trials.get(UNCHANGED)
    differing = tuple(differing_tables(parent, same)) if same else ("it did not run",)
    ranked, changes = tuple(rankings(measured, plan.seed)), tuple(mean_changes(measured))
    return Credit(plan, tuple(measured), ranked, changes, differing, invalid)


def _measured(plan: Plan, case: Case, own: _Rewards, trial: TrialResult) -> MeasuredCase:
    """Return how a counterfactual's trial differs from its parent, whose rewards are `own`."""
    at_ns, period_ns = case.decision.at_ns, plan.decisions.period_ns
    queue, discount = case.decision.target.index, plan.tuner.discount
    first, then = own.after(at_ns), _Rewards(plan, trial).after(at_ns)
    steps = min(len(first), len(then))
    change = then[:steps] - first[:steps]
    weight = discount ** np.arange(steps)
    flows = flow_changes(plan.decisions.trial, trial)
    near = flows.running_between(at_ns, at_ns + _NEAR_STEPS * period_ns)
    small = in_class(flows.size_bytes, "small")
    every = totals(flows)
    return MeasuredCase(
        case,
        reward=float(change[0, queue]),
        returned=float(weight @ change[:, queue]),
        fabric=float(weight @ change.mean(axis=1)),
        slowdown=every.mean_slowdown,
        slowdown_near=totals(flows, near).mean_slowdown,
        fct_small_ns=totals(flows, small).mean_fct_ns,
        fct_rest_ns=totals(flows, ~small).mean_fct_ns,
        changed=every.changed,
        unfinished=every.no_longer - every.only_now,
        wall_s=float(trial.facts.get("wall_s") or 0),
    )


class _Rewards:
    """Computes the tuner's rewards from a trial's samples of queues."""

    def __init__(self, plan: Plan, trial: TrialResult) -> None:
        self._tuner, self._testbed = plan.tuner, trial.testbed
        self._ports = trial.ports
        self._at = sampling_times(trial.ports.t_ns, trial.spec.sample_period_ns)
        self._period_ns = plan.decisions.period_ns
        discount = plan.tuner.discount
        steps = 1 if discount <= 0 else 1 + math.ceil(math.log(_NEGLIGIBLE) / math.log(discount))
        self._steps = min(steps, _MAX_STEPS)

    def after(self, at_ns: int) -> Floats:
        """Return the rewards (steps, queues) of the intervals that follow a decision."""
        rows = []
        for step in range(self._steps):
            begin_ns = at_ns + step * self._period_ns
            if begin_ns + self._period_ns > self._at[-1]:
                break
            before = self._reading(begin_ns, begin_ns)
            after = self._reading(begin_ns, begin_ns + self._period_ns)
            rows.append(self._tuner.rewards(self._testbed, before, after))
        return np.array(rows)

    def _reading(self, begin_ns: int, at_ns: int) -> Observation:
        row = int(np.searchsorted(self._at, at_ns))
        since = self._ports.qlen_bytes[(self._at > begin_ns) & (self._at <= at_ns)]
        values = {name: column[row] for name, column in self._ports.values.items()}
        mean = since.mean(axis=0) if len(since) else values["qlen_bytes"].astype(np.float64)
        age_ns = np.zeros(len(mean), dtype=np.int64)
        return Observation(at_ns, age_ns, {**values, "qlen_mean_bytes": mean})
