"""Turn a request for a replay into specs of campaigns, which have no name and no folder yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestration.campaign.expand import trial_seed
from orchestration.campaign.schema import check_backend
from orchestration.core.capabilities import capabilities
from orchestration.core.csv_columns import write_csv
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.files import sha256_of
from orchestration.core.load_balancing import ECMP
from orchestration.core.pattern import REPEAT, SOCKETS, PatternSpec, of_repeat
from orchestration.core.problems import of_value
from orchestration.core.topology import Testbed
from orchestration.core.trial import CLOSLOOP, LINUX, HostSpec, TrialSpec
from orchestration.replay.campaign_file import (
    ReplayCampaign,
    TunerEntry,
    parse_tuners,
    recorded_tuner,
    with_checkpoint,
)
from orchestration.replay.request import ReplayRequest
from orchestration.replay.substitutions import (
    can_balance_load,
    check_choices,
    check_substitutions,
    fabric_of,
    has_roce,
    hosts_with_control,
    programs_send,
    ran_by_closloop,
    transport,
)
from orchestration.replay.traces import (
    ArmsOfCondition,
    TrialGroup,
    class_order,
    find_parents,
    group_by_arms,
    group_parents,
    keeps_flow_numbers,
    schedule_of,
    shared_schedule,
    write_actions,
)
from orchestration.results.question import read_question
from orchestration.results.reader import TrialResult
from traffic.patterns.replay import COLUMNS, read_flows
from traffic.schedule import class_names
from tuners.registry import RECORDED

_TIMES = ("drain", "sample_period", "action_period", "decision_latency")
_FLOWS_FILE = "flows.csv"
_DEFAULT_BACKEND = "emulated"
_SAMPLE_PERIOD_NS = 100_000
# Of a single trial. The replay's campaign file lists each repeat, and may have 8 MiB.
_MAX_REPEATS = 10_000


def backend_of(request: ReplayRequest, recorded: str) -> str:
    """Return the backend of a replay. Raises InputError for one that cannot run trials."""
    if not request.backend:
        return recorded
    try:
        return check_backend(request.backend)
    except ValueError as error:
        raise InputError([of_value(error, "--on")]) from error


@dataclass(frozen=True)
class ReplaySpec:
    """The content of one campaign of a replay.

    `parent` names the replayed run, and `group_label` distinguishes this campaign from the others
    of the same request. `other_tuners` are the tuners besides the recorded actions. `testbed` is
    the recorded one, None for a file of flows; `trial` is a replayed trial, with the same
    exception. `write` writes flows and actions into a folder,
    given the testbed of the replay and the campaign's name, and returns the campaign.
    """

    parent: str
    group_label: str
    backend: str
    testbed: Testbed | None
    other_tuners: tuple[TunerEntry, ...]
    notes: tuple[str, ...]
    write: Callable[[Path, Testbed, str], ReplayCampaign]
    trial: TrialResult | None = None


def replay_specs(request: ReplayRequest) -> tuple[ReplaySpec, ...]:
    """Return a spec for each group of trials that one campaign can replay, or for a flow file.

    Raises InputError for trials that cannot be replayed.
    """
    other_tuners = parse_tuners(request.tuners)
    if request.run.is_file():
        return (_spec_of_flow_file(request, other_tuners),)
    groups = group_parents(find_parents(request.run, request.trials))
    specs: list[ReplaySpec] = []
    for condition in group_by_arms(groups):
        if condition.arms:
            specs.append(_spec_of_arms(request, condition, other_tuners))
        else:
            specs += [_replay_spec(request, group, other_tuners) for group in condition.groups]
    return tuple(specs)


def _spec_of_arms(
    request: ReplayRequest, condition: ArmsOfCondition, other_tuners: tuple[TunerEntry, ...]
) -> ReplaySpec:
    """Return the spec of one campaign for the arms of a condition."""
    specs = {
        arm: _replay_spec(request, group, other_tuners, f"-arm-{number}")
        for number, (arm, group) in enumerate(condition.arms.items(), start=1)
    }

    def write(folder: Path, testbed: Testbed, name: str) -> ReplayCampaign:
        arms = {arm: spec.write(folder, testbed, name) for arm, spec in specs.items()}
        listed = tuple(
            {**item, "arm": arm} for arm, written in arms.items() for item in written.parent_trials
        )
        return replace(next(iter(arms.values())), parent_trials=listed, arms=arms)

    return replace(
        next(iter(specs.values())),
        parent=condition.groups[0].first.spec.campaign,
        group_label=condition.factors,
        notes=tuple(dict.fromkeys(note for spec in specs.values() for note in spec.notes)),
        write=write,
    )


def _replay_spec(
    request: ReplayRequest,
    group: TrialGroup,
    other_tuners: tuple[TunerEntry, ...],
    mark: str = "",
) -> ReplaySpec:
    """Return the spec of the campaign of a group; `mark` is part of the names of its actions."""
    trial = group.first.trial
    backend = backend_of(request, trial.spec.backend)
    if not capabilities(backend).runs:
        what = "it was imported, and closloop cannot run the program that it is from"
        raise InputError.single(str(request.run), what, "choose a backend: --on emulated")
    group = _limit_repeats(group, request.repeats)
    single = len(group.repeats) == 1
    flows = _FLOWS_FILE if single else f"flows-{REPEAT}.csv"
    order = _class_order(group)
    declared = _declared_patterns(trial.spec, order)
    notes = check_substitutions(trial, declared, backend, request)
    sent = transport(trial, order, declared, request.congestion_control)
    patterns = _patterns(flows, declared, order, backend, sent.patterns)
    firsts = [group.of_repeat(repeat)[0].trial for repeat in group.repeats]
    if not all(keeps_flow_numbers(schedule_of(first), order, first.testbed) for first in firsts):
        notes.append("the replay renumbers the flows: they are not in the order of a schedule")
    with_fabric = has_roce(backend, sent.host)
    balancing = trial.spec.load_balancing

    def write(folder: Path, testbed: Testbed, name: str) -> ReplayCampaign:
        _write_flows(group, folder, flows)
        kept = tuple(with_checkpoint(entry, folder) for entry in other_tuners)
        recorded = list(
            _recorded_tuners(request, group, folder, testbed, [e.label for e in other_tuners], mark)
        )
        listed = list(_parent_trials(request, group, recorded, kept))
        return ReplayCampaign(
            name=name,
            backend=backend,
            tuners=(*(entry for _, entry in recorded), *kept),
            patterns=patterns,
            repeats=max(item["repeat"] for item in listed),
            duration_ns=trial.spec.duration_ns,
            parent_run=trial.spec.campaign,
            parent_trials=tuple(listed),
            times_ns=_times_ns(trial.spec, samples_flows=with_fabric),
            host=sent.host,
            fabric=fabric_of(trial) if with_fabric else LINUX,
            clock=trial.spec.clock if capabilities(backend).on(trial.spec.clock) else "",
            faults=trial.spec.faults,
            load_balancing=balancing if can_balance_load(backend, balancing) else ECMP,
            judge=read_question(trial.folder.resolve().parent).judge,
        )

    parent = trial.spec.campaign
    if len(group.recorded) == 1:
        parent += f"-{group.first.label}-r{group.first.repeat}"
    return ReplaySpec(
        parent=parent,
        group_label=group.factors,
        backend=backend,
        testbed=trial.testbed,
        other_tuners=other_tuners,
        notes=tuple(notes),
        write=write,
        trial=trial,
    )


def _write_flows(group: TrialGroup, folder: Path, file: str) -> None:
    """Write the flows of each repeat; `file` is their file's name, with a mark for the repeat."""
    for repeat in group.repeats:
        schedule = shared_schedule(group, repeat)
        columns = {column: schedule[column] for column in COLUMNS}
        write_csv(folder / of_repeat(file, repeat), columns)


def _times_ns(spec: TrialSpec, *, samples_flows: bool) -> dict[str, int]:
    """Return the settings of a campaign that are times, as the trial has them."""
    names = _TIMES if ran_by_closloop(spec) else ("sample_period",)
    times_ns = {name: getattr(spec, f"{name}_ns") for name in names}
    if samples_flows and spec.flow_sample_period_ns:
        times_ns["flow_sample_period"] = spec.flow_sample_period_ns
    if spec.warm_up_ns:
        times_ns["warm_up"] = spec.warm_up_ns
    return times_ns


def _limit_repeats(group: TrialGroup, repeats: int | None) -> TrialGroup:
    """Return the group with its first `repeats` repeats; a single repeat is replayed that often."""
    recorded = group.repeats
    if repeats is None:
        return group
    if repeats > len(recorded) > 1:
        what = f"{repeats} repeats are asked for, {len(recorded)} were recorded"
        remedy = f"use at most {len(recorded)}, or replay one of its trials as often as you like"
        raise InputError.single("--repeats", what, remedy)
    if repeats > _MAX_REPEATS:
        what = f"{repeats:,} repeats are more than {_MAX_REPEATS:,}"
        raise InputError.single("--repeats", what, "use fewer: the replay's file lists each")
    kept = recorded[:repeats]
    return TrialGroup(group.factors, tuple(r for r in group.recorded if r.repeat in kept))


def _class_order(group: TrialGroup) -> tuple[str, ...]:
    """Return the classes of all repeats in the order of their patterns."""
    used: dict[str, None] = {}
    for repeat in group.repeats:
        trial = group.of_repeat(repeat)[0].trial
        used |= dict.fromkeys(class_order(trial, schedule_of(trial)))
    declared = class_names(group.first.spec.traffic)
    return tuple(name for name in declared if name in used) or tuple(used)


def _declared_patterns(spec: TrialSpec, order: Sequence[str]) -> dict[str, PatternSpec]:
    """Return the patterns of the classes that have flows; imported flows have none."""
    declared = dict(zip(class_names(spec.traffic), spec.traffic, strict=True))
    return {name: declared[name] for name in order if name in declared}


def _patterns(
    file: str,
    declared: Mapping[str, PatternSpec],
    order: Sequence[str],
    backend: str,
    controls: Mapping[str, str],
) -> tuple[dict[str, Any], ...]:
    """Return the entries of `traffic`, one for each class, with the driver that sent it."""
    patterns = []
    for name in order:
        pattern, fields = declared.get(name), _replay_pattern(file, name)
        if pattern is not None and pattern.queue_class:
            fields["queue_class"] = pattern.queue_class
        if pattern is not None and pattern.driver != SOCKETS and programs_send(backend):
            fields["driver"] = {"name": pattern.driver.name, **dict(pattern.driver.options)}
        if control := controls.get(name):
            fields["congestion_control"] = control
        patterns.append(fields)
    return tuple(patterns)


def _replay_pattern(file: str, klass: str) -> dict[str, Any]:
    return {"kind": "replay", "file": file, "class": klass}


def _recorded_tuners(
    request: ReplayRequest,
    group: TrialGroup,
    folder: Path,
    testbed: Testbed,
    taken: Sequence[str],
    mark: str,
) -> Iterator[tuple[str, TunerEntry]]:
    """Write the actions of each recorded tuner; yield its label and its entry in the campaign."""
    if RECORDED not in request.tuners:
        return
    single = len(group.repeats) == 1
    for number, label in enumerate(dict.fromkeys(item.label for item in group.recorded), 1):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in label)[:40] or str(number)
        ending = f"{mark}-{number}-{stem}" + (".csv" if single else f"-{REPEAT}.csv")
        trials = {r.repeat: r.trial for r in group.recorded if r.label == label}
        scaled_to = testbed if request.scale_thresholds else None
        files = write_actions(folder, ending, trials, scaled_to)
        yield label, recorded_tuner(label, files, taken)


def _parent_trials(
    request: ReplayRequest,
    group: TrialGroup,
    recorded: Sequence[tuple[str, TunerEntry]],
    other_tuners: Sequence[TunerEntry],
) -> Iterator[dict[str, Any]]:
    """Yield the entries of `parent.trials`: which trial each tuner and repeat replays.

    Other tuners replay the first recorded trial of the repeat; all of them have the same flows.
    """
    called = dict(recorded)
    for repeat, source, seed in _repeats(request, group):
        recordings = group.of_repeat(source)
        pairs = [(called[r.label].label, r) for r in recordings if r.label in called]
        pairs += [(entry.label, recordings[0]) for entry in other_tuners]
        for label, recording in pairs:
            own = recording.spec.seed if seed is None else seed
            trial = {"trial": recording.id, "sha256": recording.sha256}
            yield {"tuner": label, "repeat": repeat, "seed": own, **trial}


def _repeats(request: ReplayRequest, group: TrialGroup) -> Iterator[tuple[int, int, int | None]]:
    """Yield each repeat, the recorded repeat that it replays, and its seed if that is new."""
    for repeat in group.repeats:
        yield repeat, repeat, None
    if request.repeats is None or len(group.repeats) > 1:
        return
    (recorded,) = group.repeats
    for more in range(1, request.repeats):
        repeat = recorded + more
        yield repeat, recorded, trial_seed(group.first.spec.seed, repeat, "replay")


def _spec_of_flow_file(request: ReplayRequest, other_tuners: tuple[TunerEntry, ...]) -> ReplaySpec:
    """Return the spec of a replay of a flow file. Raises InputError if the file is invalid.

    The trial lasts until the last flow starts, rounded up to whole sampling periods.
    """
    if request.run.suffix != ".csv":
        remedy = f"make one of a capture or of flow records: closloop import flows {request.run}"
        raise InputError.single(str(request.run), "is not a CSV of flows", remedy)
    problems = []
    if RECORDED in request.tuners:
        remedy = "name a tuner that decides: --tuner secn1"
        problems.append(Problem("--tuner", f"{request.run} has no recorded actions", remedy))
    unfit = {
        "--trials": request.trials,
        "--scale-thresholds": request.scale_thresholds,
        "--without": request.without,
    }
    for option, given in unfit.items():
        if given:
            problems.append(Problem(option, f"{request.run} is a file of flows", "leave it out"))
    raise_any(problems)
    check_choices(request)
    flows = read_flows(str(request.run))
    if not len(flows):
        raise InputError.single(str(request.run), "has no flows", "give a file with flows")
    backend = backend_of(request, _DEFAULT_BACKEND)
    duration_ns = (int(flows.start_ns[-1]) // _SAMPLE_PERIOD_NS + 1) * _SAMPLE_PERIOD_NS

    def write(folder: Path, testbed: Testbed, name: str) -> ReplayCampaign:
        shutil.copyfile(request.run, folder / _FLOWS_FILE)
        control = request.congestion_control
        host = hosts_with_control(control, testbed, HostSpec()) if control else None
        return ReplayCampaign(
            name=name,
            backend=backend,
            tuners=tuple(with_checkpoint(entry, folder) for entry in other_tuners),
            patterns=tuple(_replay_pattern(_FLOWS_FILE, klass) for klass in flows.klass.names),
            repeats=request.repeats or 1,
            duration_ns=duration_ns,
            parent_run=request.run.name,
            parent_sha256=sha256_of(request.run),
            host=host,
            fabric=CLOSLOOP if has_roce(backend, host) else LINUX,
        )

    return ReplaySpec(request.run.stem, "", backend, None, other_tuners, (), write)
