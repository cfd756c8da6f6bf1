"""The checks of a campaign before anything runs, made once for both `plan` and `run`.

A campaign that passes them is a `CheckedCampaign`; nothing else is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from inventory.strictyaml import read
from orchestration.analysis.arms import PlannedComparison, default_judges, known_judges
from orchestration.analysis.metrics import METRICS
from orchestration.campaign.deliverable_load import shortfall_messages
from orchestration.campaign.expand import Campaign
from orchestration.campaign.unresponsive import UnresponsiveConditions, unresponsive_conditions
from orchestration.campaign.unused import unused_in_campaign
from orchestration.core.capabilities import Mode, capabilities, mode_of
from orchestration.core.condition import TUNER
from orchestration.core.engines import ONE_ENGINE, EngineChoice
from orchestration.core.errors import InputError, Problem, raise_any, unknown
from orchestration.core.knobs import KNOBS
from orchestration.core.load_balancing import ECMP
from orchestration.core.repeats import StoppingRule
from orchestration.core.signals import BY_KEY, Need
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.run.backend_factory import check_policies, engine_for
from traffic.schedule import make_schedule
from tuners.registry import create

# What a signal needs and a trial lacks, as text, and the remedy.
_LACKING: Mapping[Need, tuple[str, str]] = {
    "roce": (
        "the hosts are under {control}, with no RoCE NICs that measure it",
        "add `host: {{congestion_control: dcqcn}}`",
    ),
    "load-balancing": (
        "the load balancing is {balancing}, which has none",
        "add `load_balancing: flowlets`",
    ),
    "shared-buffer": (
        "the switches of testbed {testbed} have no shared buffer",
        "add 'switch' to the testbed",
    ),
    "pfc": ("testbed {testbed} has no lossless class", "add 'pfc' to the testbed's switch"),
}


@dataclass(frozen=True, kw_only=True)
class CheckedCampaign(Campaign):
    """A campaign that its backend can run. The metrics of its stopping rule have canonical names.

    `unresponsive_conditions` are those in which ECN thresholds have no effect. `engine` is where
    its trials run, if its backend has several engines.
    """

    unresponsive_conditions: UnresponsiveConditions
    engine: EngineChoice = ONE_ENGINE

    @property
    def comparison(self) -> PlannedComparison:
        """What the campaign compares, and how that is judged."""
        return PlannedComparison.of(self.trials, self.question)

    def notices(self) -> list[str]:
        """Return warnings that a user should read before the campaign runs."""
        unused = unused_in_campaign(self.trials, self.testbeds, make_schedule)
        return [
            *self.unresponsive_conditions.sentences,
            *(one.sentence for one in unused),
            *shortfall_messages(self.trials, self.testbeds),
        ]


def checked(
    campaign: Campaign, *, with_policies: bool = False, engine: str = ""
) -> CheckedCampaign:
    """Return a campaign that can run.

    Raises InputError if its backend lacks what a tuner needs, if its repeats depend on a metric
    that does not exist, if its tuners differ in nothing that has an effect, and if it cannot run
    in the `engine` that was requested. `with_policies` also loads the user's congestion-control
    programs into a guest's kernel, one second each.
    """
    if not all(map(METRICS.canonical, campaign.question.judge)):
        known_judges(campaign.question.judge, read(campaign.path).where(("judge",)))
    rule = None if campaign.repeats is None else _with_known_metrics(campaign, campaign.repeats)
    check_fit(campaign.trials, campaign.testbeds, campaign.location_of_tuner)
    unresponsive = unresponsive_conditions(campaign.trials, campaign.testbeds)
    raise_any(unresponsive.problems(campaign.location_of_tuner))
    choice = engine_for(campaign.trials, campaign.testbeds, engine)
    if with_policies:
        check_policies(campaign.trials, choice.engine)
    return CheckedCampaign(
        **{**vars(campaign), "repeats": rule, "engine": choice},
        unresponsive_conditions=unresponsive,
    )


def _with_known_metrics(campaign: Campaign, rule: StoppingRule) -> StoppingRule:
    """Return the rule with its metrics' canonical names; without any, with those that decide.

    Raises InputError for unknown ones.
    """
    if not rule.of:
        return replace(rule, of=_deciding_metrics(campaign))
    unknown_at = [index for index, name in enumerate(rule.of) if not METRICS.canonical(name)]
    if unknown_at:
        document, known = read(campaign.path), METRICS.of_a_trial
        raise InputError(
            unknown(
                document.where(("repeats", "of", index)),
                f"no metric is called {rule.of[index]!r}",
                rule.of[index],
                known,
            )
            for index in unknown_at
        )
    names = tuple(dict.fromkeys(METRICS.canonical(name) for name in rule.of))
    return replace(rule, of=names)


def _deciding_metrics(campaign: Campaign) -> tuple[str, ...]:
    """Return the metrics whose intervals end a campaign's repeats, if its file names none.

    They are those that decide which arm is best. Campaigns that compare tuners without naming a
    judge always had the mean slowdown here, so that finished runs are continued as they began.
    """
    question, traffic = campaign.question, campaign.trials[0].traffic
    if question.judge:
        return known_judges(question.judge, "judge")
    if question.compare == TUNER and not all(pattern.lasts for pattern in traffic):
        return ("slowdown_mean",)
    return default_judges(traffic)


def check_fit(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    location_of_tuner: Callable[[TrialSpec], str] = lambda trial: trial.campaign,
) -> None:
    """Raise InputError if a tuner needs a signal, knob or program that a trial cannot offer.

    Either the backend lacks it, with the trial's fabric and clock; or the trial lacks what the
    signal or knob needs: RoCE NICs, a congestion control, switches that choose paths or share a
    buffer. `testbeds` are the trials' testbeds by name; `location_of_tuner` returns the `file:line`
    of a trial's tuner.
    """
    problems: dict[Problem, None] = {}
    seen: set[str] = set()
    for trial in trials:
        mode = mode_of(trial)
        control = trial.host if trial.host.roce is None else trial.host.roce.control
        of_tuner = trial.tuner.name, sorted(trial.tuner.params.items())
        key = repr((trial.testbed, of_tuner, control, trial.load_balancing.kind, mode))
        if key in seen:
            continue
        seen.add(key)
        for what, remedy in _lacks(trial, testbeds[trial.testbed], mode):
            message = f"tuner {trial.tuner.name!r} {what}"
            remedy = f"{remedy}, or run another tuner"
            problems[Problem(location_of_tuner(trial), message, remedy)] = None
    raise_any(problems)


def _lacks(trial: TrialSpec, testbed: Testbed, mode: Mode) -> Iterator[tuple[str, str]]:
    """Yield what a trial's tuner needs and does not get, each with the remedy."""
    tuner, backend = create(trial.tuner), capabilities(trial.backend)
    lacks = mode.lacks(tuner)
    for kind, name in lacks:
        has = partial(_offers, kind=kind, name=name)
        have = ", ".join(getattr(mode, f"{kind}s")) or "none"
        remedy = backend.alternative(mode, has) or f"its {kind}s are {have}: do without {name!r}"
        yield f"needs the {kind} {name!r}, which {backend.in_words(mode)} lacks", remedy
    control, balancing = trial.host.congestion_control, trial.load_balancing.kind
    if trial.host.roce is not None:
        control = trial.host.roce.control
    for knob in (KNOBS[name] for name in tuner.knobs if name in KNOBS and not lacks):
        if knob.control and knob.control != control:
            yield (
                f"sets the {knob.plural} of {knob.control}, and the hosts are under {control}",
                f"add `host: {{congestion_control: {knob.control}}}`",
            )
        if knob.load_balancing and knob.load_balancing != balancing:
            yield (
                f"sets the {knob.plural} of {knob.load_balancing}, and the load balancing is "
                f"{balancing}",
                f"add `load_balancing: {knob.load_balancing}`",
            )
    has_need: Mapping[Need, bool] = {
        "roce": trial.host.roce is not None,
        "load-balancing": trial.load_balancing != ECMP,
        "shared-buffer": testbed.switch is not None,
        "pfc": bool(testbed.lossless_queues),
    }
    reported: set[Need] = {""}
    for name in tuner.observes if not lacks else ():
        need = BY_KEY[name].needs
        if need not in reported and not has_need[need]:
            reported.add(need)
            words = {"control": control, "balancing": balancing, "testbed": testbed.name}
            why, remedy = (text.format(**words) for text in _LACKING[need])
            yield f"observes {name!r}, and {why}", remedy


def _offers(mode: Mode, *, kind: str, name: str) -> bool:
    return name in getattr(mode, f"{kind}s")
