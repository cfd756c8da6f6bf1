"""Summarises a campaign's finished trials: conditions, arms, estimates, comparisons.

An arm is one level of the compared factor, often a tuner; a condition is everything else about a
trial except seed and repeat (`arms`). Within a condition, arms are compared on their common seeds.
Invalid trials are listed, but never averaged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.analysis.arm_differences import Comparison, compare_arms, compare_pairs
from orchestration.analysis.arms import (
    by_condition,
    chosen_factor,
    default_judges,
    known_judges,
    order_arms,
    shared_factors,
)
from orchestration.analysis.counters import UNANSWERED
from orchestration.analysis.flow_metrics import in_class
from orchestration.analysis.metrics import METRICS, SIZE_CLASSES
from orchestration.analysis.port_metrics import queue_span
from orchestration.analysis.sequential import PLAIN, AnalysisPlan, InterimAnalysis
from orchestration.analysis.size_curves import SizeCurve, size_curves
from orchestration.analysis.statistics import Estimate, t_interval
from orchestration.analysis.trial_metrics import TrialMetrics, measure
from orchestration.core.capabilities import capabilities
from orchestration.core.condition import (
    BEST_STATIC,
    SCHEDULE,
    TUNER,
    campaign_tuner_name,
    cell_key,
    checkpoint_rotation,
    labels_of,
)
from orchestration.core.errors import InputError, gather
from orchestration.core.trial import CHECKPOINT_PARAM, Scalar, TrialSpec, TunerSpec
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.question import Question, arm_of, read_question, short_names
from orchestration.results.reader import (
    campaign_below,
    read_trial,
    trial_folders,
    without_trial_file,
)
from orchestration.results.stamp import Reason, Stamp
from tuners.registry import RECORDED


@dataclass(frozen=True)
class Trial:
    """One finished trial with its figures. Its tables are not kept in memory.

    `tuner` is the name of its tuner, `arm` that of its level of the compared factor.
    """

    folder: Path
    id: str
    spec: TrialSpec
    tuner: str
    stamp: Stamp
    versions: dict[str, str]
    facts: dict[str, object]
    metrics: TrialMetrics
    arm: str = ""


@dataclass(frozen=True)
class Arm:
    """One arm under one condition. `estimates` has every metric, over the valid repeats.

    `flows` is the smallest number of flows of any valid repeat, by flow-size class.
    """

    name: str
    trials: tuple[Trial, ...]
    valid: tuple[Trial, ...]
    estimates: dict[str, Estimate]
    flows: dict[str, int]
    by_size: SizeCurve


@dataclass(frozen=True)
class Condition:
    """A condition: the factors that its arms share, their results, and their comparisons.

    `comparisons` are with the baseline; `baselines` compare learned tuners with their placebo and
    with the best static setting. `plan` has the interim analyses, if repeats are adaptive.
    """

    label: str
    factors: dict[str, Scalar]
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    plan: AnalysisPlan = PLAIN
    baselines: tuple[Comparison, ...] = ()

    @property
    def interim(self) -> InterimAnalysis:
        """The analysis at which its intervals and p-values are read."""
        return self.plan.at(_repeats([trial for arm in self.arms for trial in arm.trials]))

    @property
    def queue_spans(self) -> str:
        """Which arms' queue lengths are of another time than while flows arrived; "" if none."""
        spans: dict[str, list[str]] = {}
        for arm in self.arms:
            for span in dict.fromkeys(queue_span(trial.facts) for trial in arm.valid):
                if span:
                    spans.setdefault(span, []).append(arm.name)
        return " ".join(f"Queues of {', '.join(names)}: {span}." for span, names in spans.items())


@dataclass(frozen=True)
class Summary:
    """The contents of a report.

    `compare` is the factor that is compared, `arms` are its levels, the baseline first, and `judge`
    the metrics that decide which arm is best.
    """

    campaign: str
    baseline: str
    trials: tuple[Trial, ...]
    conditions: tuple[Condition, ...]
    compare: str = TUNER
    arms: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()

    @property
    def parents(self) -> tuple[str, ...]:
        """The runs that the trials replay, each once; empty if they are not replays."""
        named = (trial.spec.parent.partition(" sha256:")[0] for trial in self.trials)
        return tuple(dict.fromkeys(name.rpartition("/")[0] or name for name in named if name))

    def reasons(self, trial: Trial) -> tuple[Reason, ...]:
        """Return the findings of a trial that concern what is compared.

        That no flow answers marks concerns tuners: where others are compared, thresholds are not.
        """
        reasons = trial.stamp.reasons
        if self.compare == TUNER:
            return tuple(reasons)
        return tuple(reason for reason in reasons if reason.code != UNANSWERED)

    @property
    def invalid(self) -> tuple[Trial, ...]:
        """The invalid trials; no metric counts them."""
        return tuple(trial for trial in self.trials if not trial.stamp.valid)


def summarise(
    folder: Path,
    baseline: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    compare: str = "",
    judge: Sequence[str] = (),
) -> Summary:
    """Read the finished trials at and below a folder and summarise them.

    `compare` names the factor whose levels are compared, `judge` the metrics that decide; without
    them they are those of the campaign. `baseline` names the arm to compare the others with. If "",
    it is the first in the campaign's file; of tuners the first with fixed settings, published ones
    before others or, without any, the first of all. `progress` is called with trials read and
    trials in all. Raises InputError if there are no finished trials, a file cannot be read, or no
    factor, metric or arm has that name.
    """
    folders = trial_folders(folder)
    if not folders and not folder.is_dir():
        raise InputError.single(
            str(folder), "there is no such folder", "give a campaign's: runs/<campaign>"
        )
    if not folders:
        what, remedy = "holds no finished trial", "run the campaign first: closloop run CAMPAIGN"
        raise InputError.single(str(folder), what, remedy)
    question = read_question(folders[0].parent)
    named = known_judges(judge or question.judge, "--judge" if judge else "judge")
    trials = _by_label(
        _load_all(sorted([*folders, *without_trial_file(folder, folders)]), progress, named)
    )
    factor = _compared_factor(compare, question, [trial.spec for trial in trials])
    trials = tuple(
        dataclasses.replace(trial, arm=arm_of(trial.spec, trial.tuner, factor)) for trial in trials
    )
    tuners = {trial.arm: trial.spec.tuner.name for trial in trials}
    asked = question.comparing(factor)
    order = order_arms(tuners, asked.arms, factor)
    if baseline and baseline not in order:
        what = f"no tuner {baseline!r} here" if factor == TUNER else f"no arm {baseline!r} here"
        raise InputError.single("--baseline", what, f"use one of: {', '.join(order)}")
    baseline = baseline or order[0]
    arms = (baseline, *(name for name in order if name != baseline))
    judges = named or default_judges(trials[0].spec.traffic)
    campaigns = {campaign_below(folder, trial.folder) for trial in trials}
    return Summary(
        campaign=trials[0].spec.campaign if len(campaigns) == 1 else folder.resolve().name,
        baseline=baseline,
        trials=trials,
        conditions=tuple(_conditions(folder, trials, asked, arms, judges)),
        compare=factor,
        arms=arms,
        judge=judges,
    )


def _compared_factor(name: str, question: Question, trials: Sequence[TrialSpec]) -> str:
    """Return the factor to compare: the named one, else the campaign's if all trials have it."""
    if name:
        return chosen_factor(name, trials)
    of_all = all(question.compare in trial.cell for trial in trials)
    return question.compare if of_all else TUNER


def _load_all(
    folders: Sequence[Path], progress: Callable[[int, int], None], judge: Sequence[str]
) -> tuple[Trial, ...]:
    def load(item: tuple[int, Path]) -> Trial:
        progress(item[0], len(folders))
        return _load(item[1], judge)

    trials = tuple(gather(load, enumerate(folders)))
    progress(len(folders), len(folders))
    return trials


def _load(folder: Path, judge: Sequence[str]) -> Trial:
    result = read_trial(folder)
    spec = result.spec
    return Trial(
        folder=folder,
        id=spec.id,
        spec=spec,
        # a recording has the name given by its campaign
        tuner=campaign_tuner_name(spec) if spec.tuner.name == RECORDED else tuner_label(spec.tuner),
        stamp=result.stamp,
        versions=dict(result.versions),
        facts=dict(result.facts),
        metrics=measure(result, judge),
    )


def _by_label(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials, named by the label of their campaign where it means a single tuner.

    Repeats of one tuner with several networks, which are used in rotation, are one arm.
    """
    in_rotation = checkpoint_rotation(trial.spec for trial in trials)
    tuners_of: dict[str, set[str]] = {}
    for trial in trials:
        tuners_of.setdefault(campaign_tuner_name(trial.spec), set()).add(trial.tuner)

    def known(trial: Trial) -> bool:
        called, tuner = campaign_tuner_name(trial.spec), trial.spec.tuner
        # a network that a tuner loads by default says nothing that its name does not
        telling = called != tuner.name or set(tuner.params) == {CHECKPOINT_PARAM}
        labelled = telling and len(tuners_of[called]) == 1
        return labelled or cell_key(trial.spec) in in_rotation

    return tuple(
        dataclasses.replace(trial, tuner=campaign_tuner_name(trial.spec)) if known(trial) else trial
        for trial in trials
    )


def tuner_label(tuner: TunerSpec) -> str:
    """Return `secn1` or, with parameters, `static(kmax_bytes=200000, kmin_bytes=5000)`.

    The file of recorded actions is left out, because it may differ between repeats.
    """
    if not tuner.params or tuner.name == RECORDED:
        return tuner.name
    params = ", ".join(f"{key}={value}" for key, value in sorted(tuner.params.items()))
    return f"{tuner.name}({params})"


def _by_flows(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group trials by their flows, in case a seed of an import has several schedules."""
    flows = {(trial.spec.seed, trial.spec.files.get(SCHEDULE)) for trial in trials}
    seeds = {seed for seed, _ in flows}
    if capabilities(trials[0].spec.backend).runs or len(flows) == len(seeds):
        return [list(trials)]
    return _grouped(trials, lambda trial: str(trial.spec.files.get(SCHEDULE)))


def _grouped(trials: Sequence[Trial], key: Callable[[Trial], str]) -> list[list[Trial]]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return list(groups.values())


def _conditions(
    path: Path,
    trials: Sequence[Trial],
    question: Question,
    names: Sequence[str],
    judge: Sequence[str],
) -> list[Condition]:
    """Return the conditions in the order of the levels in the campaign's file.

    Their labels name the campaign if `path` holds several.
    """
    compare = question.compare

    def key(trial: Trial) -> str:
        return f"{campaign_below(path, trial.folder)} {trial.spec.campaign}"

    def in_file(group: Sequence[Trial]) -> list[int]:
        return question.order_of(labels_of(group[0].spec))

    groups = [
        part
        for campaign in _grouped(trials, key)
        for group in sorted(by_condition(campaign, lambda trial: trial.spec, compare), key=in_file)
        for part in _by_flows(group)
    ]
    labels: dict[str, int] = {}
    conditions = []
    for group in groups:
        factors = shared_factors([trial.spec for trial in group], compare)
        if compare != TUNER and len({trial.tuner for trial in trials}) > 1:
            tuners = {trial.tuner for trial in group}
            factors |= {TUNER: tuners.pop()} if len(tuners) == 1 else {}
        campaign = campaign_below(path, group[0].folder)
        short = short_names(factors)
        words = [f"{short[name]} {level}" for name, level in factors.items()]
        label = ", ".join([*([campaign] if campaign else []), *words]) or "all trials"
        labels[label] = labels.get(label, 0) + 1
        if labels[label] > 1:  # the same factors in another campaign file
            label = f"{label} (variant {labels[label]})"
        planned = read_interim_analyses(group[0].folder.parent)
        plan = AnalysisPlan(planned.sizes) if planned else PLAIN
        interim = plan.at(_repeats(group))
        arms = _arms(group, names, interim, judge)
        comparisons = compare_arms(_values(arms), judge, interim)
        baselines = _baseline_comparisons(arms, judge, interim) if compare == TUNER else ()
        conditions.append(Condition(label, factors, arms, comparisons, plan, baselines))
    return conditions


def _repeats(trials: Sequence[Trial]) -> int:
    return max((trial.spec.repeat for trial in trials), default=0)


def _arms(
    trials: Sequence[Trial], names: Sequence[str], interim: InterimAnalysis, judge: Sequence[str]
) -> tuple[Arm, ...]:
    keys = dict.fromkeys([*(metric.key for metric in METRICS.report), *judge])
    by_arm = {name: tuple(trial for trial in trials if trial.arm == name) for name in names}
    by_arm = {name: of_arm for name, of_arm in by_arm.items() if of_arm}
    metrics = [[trial.metrics for trial in _valid(of_arm)] for of_arm in by_arm.values()]
    curves = size_curves(metrics, interim)
    arms = []
    for (name, of_arm), curve in zip(by_arm.items(), curves, strict=True):
        good = _valid(of_arm)
        estimates = {
            key: t_interval([trial.metrics.scalars[key] for trial in good], interim) for key in keys
        }
        sizes_bytes = [trial.metrics.size_bytes for trial in good]
        flows = {
            klass: min(
                (int(in_class(size_bytes, klass).sum()) for size_bytes in sizes_bytes), default=0
            )
            for klass in SIZE_CLASSES
        }
        arms.append(Arm(name, of_arm, good, estimates, flows, curve))
    return tuple(arms)


def _valid(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    return tuple(trial for trial in trials if trial.stamp.valid)


def _baseline_comparisons(
    arms: Sequence[Arm], judge: Sequence[str], interim: InterimAnalysis
) -> tuple[Comparison, ...]:
    """Compare tuners that have a placebo among the arms with it and with the best static setting.

    A placebo sets the same values as often, but at random.
    """
    baseline = arms[0].name
    tuners = {arm.name: arm.trials[0].spec.tuner for arm in arms}
    placebos = [
        (placebo, name)
        for placebo, spec in tuners.items()
        for name, other in tuners.items()
        if "of" in spec.params and spec.params["of"] == other.name
    ]
    learned = [name for _, name in placebos]
    best = [(BEST_STATIC, name) for name in learned if BEST_STATIC in tuners]
    pairs = [pair for pair in (*best, *placebos) if pair[0] != baseline]
    return compare_pairs(_values(arms), pairs, judge, interim)


def _values(arms: Sequence[Arm]) -> dict[str, dict[int, Mapping[str, float]]]:
    return {
        arm.name: {trial.spec.seed: trial.metrics.scalars for trial in arm.valid} for arm in arms
    }
