"""The checks of a campaign before anything runs, made once for all that plans and runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from inventory.strictyaml import read
from orchestration.analysis.metrics import METRICS
from orchestration.campaign.deliverable_load import shortfall_messages
from orchestration.campaign.expand import Campaign
from orchestration.campaign.unresponsive import UnresponsiveConditions, unresponsive_conditions
from orchestration.core.capabilities import Mode, capabilities, mode_of
from orchestration.core.errors import InputError, Problem, raise_any, unknown
from orchestration.core.knobs import KNOBS
from orchestration.core.load_balancing import ECMP
from orchestration.core.repeats import StoppingRule
from orchestration.core.signals import BY_KEY, Need
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from tuners.registry import create

# What a signal needs and a trial has not, in words, and what to do about it.
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
    """A campaign that fits its backend. The metrics of its `repeats` are under their own names."""

    unresponsive_conditions: UnresponsiveConditions

    def notices(self) -> list[str]:
        """Return what a user should know before it runs."""
        return [
            *self.unresponsive_conditions.sentences,
            *shortfall_messages(self.trials, self.testbeds),
        ]


def checked(campaign: Campaign, *, with_policies: bool = False) -> CheckedCampaign:
    """Return a campaign that can run. Raises InputError for one whose backend lacks what it needs.

    Likewise for repeats that depend on a metric that does not exist, and for tuners that differ in
    nothing that reaches a flow. `with_policies` asks the guest's kernel about policies of one's
    own too, which takes a second each.
    """
    rule = None if campaign.repeats is None else _with_known_metrics(campaign, campaign.repeats)
    check_fit(campaign.trials, campaign.testbeds, campaign.location_of_tuner)
    found = unresponsive_conditions(campaign.trials, campaign.testbeds)
    raise_any(found.problems(campaign.location_of_tuner))
    nics = (trial.host.roce for trial in campaign.trials)
    if with_policies and any(nic is not None and nic.program for nic in nics):
        from orchestration.backends.emulated.bpf_programs import check_policies

        check_policies(campaign.trials)
    return CheckedCampaign(**{**vars(campaign), "repeats": rule}, unresponsive_conditions=found)


def _with_known_metrics(campaign: Campaign, rule: StoppingRule) -> StoppingRule:
    strange = [place for place, name in enumerate(rule.of) if not METRICS.canonical(name)]
    if strange:
        document, known = read(campaign.path), METRICS.of_a_trial
        raise InputError(
            unknown(
                document.where(("repeats", "of", place)),
                f"no metric is called {rule.of[place]!r}",
                rule.of[place],
                known,
            )
            for place in strange
        )
    names = tuple(dict.fromkeys(METRICS.canonical(name) for name in rule.of))
    return replace(rule, of=names)


def check_fit(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    location_of_tuner: Callable[[TrialSpec], str] = lambda trial: trial.campaign,
) -> None:
    """Raise InputError if a tuner needs a signal, knob or program that a trial cannot have.

    Its backend lacks it, with the trial's fabric and clock; or the trial lacks what it needs: RoCE
    NICs, a congestion control, switches that choose paths or share a buffer. `testbeds` are the
    trials' testbeds, by name; `location_of_tuner` names the place of a trial's tuner.
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
        for what, remedy in _problems(trial, testbeds[trial.testbed], mode):
            said = f"tuner {trial.tuner.name!r} {what}"
            problems[Problem(location_of_tuner(trial), said, f"{remedy}, or run another tuner")] = (
                None
            )
    raise_any(problems)


def _problems(trial: TrialSpec, testbed: Testbed, mode: Mode) -> Iterator[tuple[str, str]]:
    """Yield what a trial's tuner needs and lacks, and what to do about it."""
    tuner, backend = create(trial.tuner), capabilities(trial.backend)
    lacks = mode.lacks(tuner)
    for kind, name in lacks:
        has = partial(_offers, kind=kind, name=name)
        have = ", ".join(getattr(mode, f"{kind}s")) or "none"
        remedy = backend.alternative(mode, has) or f"its {kind}s are {have}: give up {name!r}"
        yield f"needs the {kind} {name!r}, which {backend.in_words(mode)} lacks", remedy
    control, balancing = trial.host.congestion_control, trial.load_balancing.kind
    if trial.host.roce is not None:
        control = trial.host.roce.control
    for knob in (KNOBS[name] for name in tuner.knobs if name in KNOBS and not lacks):
        if knob.control and knob.control != control:
            yield (
                f"turns the {knob.plural} of {knob.control}, and the hosts are under {control}",
                f"add `host: {{congestion_control: {knob.control}}}`",
            )
        if knob.load_balancing and knob.load_balancing != balancing:
            yield (
                f"turns the {knob.plural} of {knob.load_balancing}, and the load balancing is "
                f"{balancing}",
                f"add `load_balancing: {knob.load_balancing}`",
            )
    has_need: Mapping[Need, bool] = {
        "roce": trial.host.roce is not None,
        "load-balancing": trial.load_balancing != ECMP,
        "shared-buffer": testbed.switch is not None,
        "pfc": bool(testbed.lossless_queues),
    }
    told: set[Need] = {""}
    for name in tuner.observes if not lacks else ():
        need = BY_KEY[name].needs
        if need not in told and not has_need[need]:
            told.add(need)
            words = {"control": control, "balancing": balancing, "testbed": testbed.name}
            why, remedy = (text.format(**words) for text in _LACKING[need])
            yield f"observes {name!r}, and {why}", remedy


def _offers(mode: Mode, *, kind: str, name: str) -> bool:
    return name in getattr(mode, f"{kind}s")
