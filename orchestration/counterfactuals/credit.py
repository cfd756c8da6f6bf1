"""Does a tuner's reward rank its decisions as flows' completion does?

Each counterfactual has one decision of the tuner replaced for one of its periods. It gives the
change of the tuner's reward, and that of the flows' completion, against the trial as it was.
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

# A queue is at work if it sends this share of its port's rate: below, nothing there waits, and the
# learners do not learn from it either (`tuners.learning.q_learning.at_work`).
_AT_WORK = 0.1
# The share of the sample where packets stand in the queue: where none do, thresholds seldom matter
# within a period, so that fewer such decisions say as much.
_NONEMPTY_SHARE = 0.75


def tuner_with_reward(decisions: Decisions) -> HasReward:
    """Return the trial's tuner. Raises InputError if it does not say what its reward is."""
    spec = decisions.trial.spec
    remedy = "choose a trial of acc, pet or graphcc, or of a tuner that has `rewards`, `choices`"
    where = str(decisions.trial.folder)
    try:
        tuner = create(spec.tuner)
    except ValueError as error:
        raise InputError.single(where, f"its tuner cannot be made: {error}", remedy) from error
    if not isinstance(tuner, HasReward):
        what = f"its tuner, {spec.tuner.name}, does not say what its reward is"
        raise InputError.single(where, what, remedy)
    return tuner


def draw_cases(
    decisions: Decisions, tuner: HasReward, count: int, alternatives: int, seed: int
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
        decision = decisions.find(find_target(trial.testbed, ECN, labels[queue]), int(times[row]))
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
    asked = decisions.tuner_call_times_ns
    asked = asked[(asked + decisions.period_ns <= min(spec.duration_ns, int(at[-1])))]
    rows = np.searchsorted(at, asked)
    after = np.searchsorted(at, asked + decisions.period_ns)
    rate_bps = np.array([queue.rate_bps for queue in decisions.trial.testbed.queues])
    sent = ports.tx_bytes[after] - ports.tx_bytes[rows]
    busy = 8e9 * sent > _AT_WORK * rate_bps * float(decisions.period_ns)
    when, queue = np.nonzero(busy)
    return asked[when], queue.astype(np.int64), ports.qlen_bytes[rows[when], queue]


def _strata(rng: np.random.Generator, nonempty: NDArray[np.bool_], count: int) -> Ints:
    """Return `count` places, in order: `_NONEMPTY_SHARE` of them standing, or as many as there are."""
    groups = [rng.permutation(np.flatnonzero(nonempty)), rng.permutation(np.flatnonzero(~nonempty))]
    first = min(len(groups[0]), max(round(_NONEMPTY_SHARE * count), count - len(groups[1])))
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


# Rewards that are discounted below this share count no more.
_NEGLIGIBLE = 1e-3
_MAX_STEPS = 50
# Flows that were under way within so many decisions are those that a decision is most about.
_NEAR_STEPS = 5


@dataclass(frozen=True)
class Plan:
    """A campaign of counterfactuals to be run, and what each of its trials is."""

    replay: Replay
    decisions: Decisions
    tuner: HasReward
    cases: tuple[Case, ...]
    then: Then
    seed: int


@dataclass(frozen=True)
class Credit:
    """All counterfactuals of a trial, and how its tuner's reward ranks them.

    `differing` has the columns in which the unchanged trial is not its parent: none, if all is
    well. `invalid` counts the counterfactuals that are not judged as their trials are invalid.
    """

    plan: Plan
    measured: tuple[MeasuredCase, ...]
    rankings: tuple[Ranking, ...]
    changes: tuple[MeanChange, ...]
    differing: tuple[str, ...]
    invalid: int

    @property
    def misleading(self) -> tuple[MeasuredCase, ...]:
        """Cases whose return says the opposite of mean slowdown, the largest harm first."""
        found = [one for one in self.measured if one.returned * one.slowdown > 0]
        return tuple(sorted(found, key=lambda one: -abs(one.slowdown)))

    @property
    def wall_ratio(self) -> float:
        """What a counterfactual took, in wall times of the unchanged trial; NaN if unknown."""
        walls = [one.wall_s for one in self.measured if one.wall_s > 0]
        parent = float(self.plan.decisions.trial.facts.get("wall_s") or 0)
        return float(np.mean(walls)) / parent if walls and parent else math.nan


def plan_credit(request: CreditRequest, out: Path, *, fresh: bool = False) -> Plan:
    """Draw decisions and alternatives, and write their campaign. Raises InputError."""
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
    told = [
        (c.label, c.decision.at_ns, c.decision.target.label, *c.setting.values()) for c in cases
    ]
    mark = hashlib.sha256(f"{trial.spec.id} {then} {told}".encode()).hexdigest()[:6]
    name = request.name or campaign_name_of(trial.spec, "credit", then, mark)
    replay = build_counterfactuals(decisions, variants, name, out, then=then, fresh=fresh)
    return Plan(replay, decisions, tuner, cases, then, request.seed)


def measure(plan: Plan, folder: Path) -> Credit:
    """Read the finished campaign and rank. Raises InputError if no counterfactual is valid."""
    parent = plan.decisions.trial
    trials = trials_by_label(folder)
    own = _Rewards(plan, parent)
    valid = {label: trial for label, trial in trials.items() if trial.stamp.valid}
    found = [_measured(plan, c, own, valid[c.label]) for c in plan.cases if c.label in valid]
    invalid = len(plan.cases) - len(found)
    if not found:
        raise InputError.single(str(folder), "no counterfactual is valid", "see its report")
    same = trials.get(UNCHANGED)
    differing = tuple(differing_tables(parent, same)) if same else ("it did not run",)
    ranked, changes = tuple(rankings(found, plan.seed)), tuple(mean_changes(found))
    return Credit(plan, tuple(found), ranked, changes, differing, invalid)


def _measured(plan: Plan, case: Case, own: _Rewards, trial: TrialResult) -> MeasuredCase:
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
    """The rewards of a trial's queues, from its samples."""

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
