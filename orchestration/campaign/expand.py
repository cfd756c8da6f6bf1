"""Expands a campaign file: factors x tuners x repeats, paired by seed, in random blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np

from inventory.files import load_testbed
from inventory.strictyaml import Document, in_order, read
from orchestration.campaign import checks, limits, schema
from orchestration.campaign import found as found_settings
from orchestration.campaign.factors import Factors, Level, choose, read_factors
from orchestration.campaign.fields import (
    beside,
    is_path,
    params_beside,
    reference_beside,
)
from orchestration.campaign.former import with_former_sets
from orchestration.campaign.host_checks import controls_of
from orchestration.campaign.patterns import pattern_spec
from orchestration.campaign.repeats import Adaptive, most_repeats
from orchestration.campaign.streams import entropy, evaluation_stream, stream_seed
from orchestration.core import plugins
from orchestration.core.capabilities import capabilities, mode_of
from orchestration.core.condition import TUNER
from orchestration.core.congestion import roce_controls
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.files import sha256_of
from orchestration.core.problems import of_value
from orchestration.core.repeats import RepeatRule
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import (
    ACTIONS,
    CHECKPOINT,
    REAL,
    FabricSpec,
    FaultSpec,
    HostSpec,
    PoissonSpec,
    ReplaySpec,
    Scalar,
    TrialSpec,
    TunerSpec,
    of_repeat,
)
from tuners.learning.checkpoint import find as find_checkpoint
from tuners.registry import actions_of, checkpoint_of, decider, with_checkpoint


@dataclass(frozen=True)
class Campaign:
    """A checked campaign.

    `source` is the file's text. `cells` are the possible values of a trial's `cell`, in the file's
    order. `trials` are in the order in which they run; with adaptive `repeats` they are those that
    may run at most.
    """

    name: str
    path: Path
    source: str
    cells: tuple[dict[str, Scalar], ...]
    trials: tuple[TrialSpec, ...]
    repeats: RepeatRule | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether its trials run one at a time: on a rack, or on the machine's own kernel."""
        return any(mode_of(one).real_time for one in self.trials)


@dataclass(frozen=True)
class Cell:
    """One combination of the factors' levels: their labels, and the file with them in place.

    `too_large` says what is too large of its trials.
    """

    labels: dict[str, Scalar]
    file: schema.CampaignFile
    too_large: tuple[Problem, ...] = ()


def load_campaign(
    path: str | Path,
    *,
    backend: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
) -> Campaign:
    """Return the campaign of a file; `backend`, `clock` and `repeats` override the file's own.

    Raises InputError with every problem of the file, each with its line.
    """
    cells = read_cells(path, backend=backend, clock=clock, repeats=repeats)
    trials = expand(cells, os.path.dirname(path))
    labels = [_labels(cell, tuner) for cell in cells for tuner in cell.file.tuners]
    return Campaign(
        name=cells[0].file.campaign,
        path=Path(path),
        source=Path(path).read_text(encoding="utf-8"),
        # in a replay, a cell may have no trial in the first repeats
        cells=tuple(cell for cell in labels if any(trial.cell == cell for trial in trials)),
        trials=trials,
        repeats=_rule(cells[0].file),
    )


def read_cells(
    path: str | Path,
    *,
    backend: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
    tuners: Sequence[Mapping[str, Scalar]] | None = None,
) -> list[Cell]:
    """Return the combinations of a file's factors, checked; the rest overrides the file's own.

    With other `tuners` than the file's, factors that only those refer to fall away. Raises
    InputError as `load_campaign` does.
    """
    document = overridden(read(path), backend, clock, repeats)
    factors = read_factors(document)
    trials = limits.count_trials(document, factors, None if tuners is None else len(tuners))
    if too_many := limits.count_problem(document, factors, trials):
        raise InputError(in_order([*factors.problems, too_many]))
    cells, problems = check_cells(document, factors, factors.combinations(), tuners)
    problems += [problem for cell in cells for problem in cell.too_large]
    if problems:
        raise InputError(in_order(problems))
    files = with_former_sets([cell.file for cell in cells], path)
    return [replace(cell, file=file) for cell, file in zip(cells, files, strict=True)]


def check_cells(
    document: Document,
    factors: Factors,
    combinations: Iterable[Mapping[str, Level]],
    tuners: Sequence[Mapping[str, Scalar]] | None = None,
) -> tuple[list[Cell], list[Problem]]:
    """Return some combinations of a file's factors, and its problems but those of their sizes."""
    kept = set(factors.levels) if tuners is None else factors.used_outside("tuners")
    problems = list(factors.problems)
    cells: list[Cell] = []
    seen: set[tuple[Scalar, ...]] = set()
    load = cache(load_testbed)
    folder = os.path.dirname(document.name)
    for chosen in combinations:
        labels = {name: level.label for name, level in chosen.items() if name in kept}
        if tuple(labels.values()) in seen:
            continue
        seen.add(tuple(labels.values()))
        resolved = choose(document, factors.references, chosen)
        if tuners is not None:
            others = {"tuners": [dict(tuner) for tuner in tuners]}
            resolved = replace(resolved, data={**resolved.data, **others})
        resolved, found = found_settings.resolve(resolved, labels, load)
        problems += found
        file, found = resolved.check(schema.CampaignFile)
        found += _semantic_problems(resolved, load)
        problems += [problem for problem in found if not factors.explains(problem)]
        if file is not None:
            too_large: tuple[Problem, ...] = ()
            with suppress(InputError):  # no such testbed, which is among the problems
                testbed = load(beside(folder, file.testbed))
                too_large = tuple(limits.size_problems(resolved, file, testbed, folder))
            cells.append(Cell(labels, file, too_large))
    return cells, problems


def expand(cells: Sequence[Cell], folder: str = "") -> tuple[TrialSpec, ...]:
    """Return the trials of `cells`, crossed with tuners and repeats, in the order of their run.

    A block holds every cell once, in an order drawn from the campaign's seed, so that drift over
    time favours no tuner. In a replay, a block holds only the cells whose trials the parent has.
    The campaign's paths start at `folder`.
    """
    file = cells[0].file
    trials: list[TrialSpec] = []
    load = cache(load_testbed)
    for repeat in range(1, most_repeats(file.repeats) + 1):
        block = [
            _trial(cell, tuner, repeat, folder, load)
            for cell in cells
            for tuner in cell.file.tuners
            if _has(cell.file.parent, tuner, repeat)
        ]
        order = np.random.default_rng(entropy(file.seed, "order", repeat)).permutation(len(block))
        trials += [block[index] for index in order]
    return tuple(trials)


def first_trial(cell: Cell, folder: str = "") -> TrialSpec:
    """Return a trial of a cell: its first tuner's first repeat. Raises InputError."""
    return _trial(cell, cell.file.tuners[0], 1, folder, load_testbed)


def trial_seed(campaign_seed: int, repeat: int, purpose: str = "evaluation") -> int:
    """Return the seed of a repeat: the same for all its cells, so that they are paired.

    `purpose` is the stream that it comes from: see `orchestration.campaign.streams`.
    """
    return stream_seed(campaign_seed, purpose, repeat)


def _rule(file: schema.CampaignFile) -> RepeatRule | None:
    return file.repeats.rule() if isinstance(file.repeats, Adaptive) else None


def overridden(
    document: Document, backend: str | None, clock: str | None, repeats: int | None
) -> Document:
    """Return the document with the command line's settings in place of the file's."""
    problems = []
    if backend is not None:
        try:
            document.data["backend"] = schema.check_backend(backend)
        except ValueError as error:
            problems.append(of_value(error, "--on"))
    if clock is not None:
        document.data["clock"] = clock
        clocks: tuple[str, ...] = get_args(schema.CampaignFile.model_fields["clock"].annotation)
        if clock not in clocks:
            problems.append(Problem("--clock", f"no clock {clock!r}", f"use {' or '.join(clocks)}"))
    if repeats is not None:
        document.data["repeats"] = repeats
        if repeats < 1:
            problems.append(Problem("--repeats", f"{repeats} repeats", "use 1 or more"))
    raise_any(problems)
    return document


def _semantic_problems(document: Document, load: Callable[[str], Testbed]) -> list[Problem]:
    folder = os.path.dirname(document.name)
    testbed: Testbed | None = None
    problems: list[Problem] = []
    name = document.data.get("testbed")
    if isinstance(name, str):
        try:
            testbed = load(beside(folder, name))
        except InputError as error:
            problems += [document.at(("testbed",), fault) for fault in error.problems]
    found = checks.check(document.data, testbed, folder)
    return problems + [document.problem(*finding) for finding in found]


def _has(parent: schema.Parent | None, tuner: schema.Tuner, repeat: int) -> bool:
    whole = parent is None or not parent.trials
    return whole or _parent_trial(parent, tuner, repeat) is not None


def _parent_trial(
    parent: schema.Parent | None, tuner: schema.Tuner, repeat: int
) -> schema.ParentTrial | None:
    """Return the trial that a repeat of a tuner replays, or None."""
    listed = parent.trials if parent is not None else ()
    mine = (item for item in listed if (item.tuner, item.repeat) == (tuner.called, repeat))
    return next(mine, None)


def _parent_name(parent: schema.Parent | None, trial: schema.ParentTrial | None) -> str:
    if parent is None:
        return ""
    if trial is not None:
        return f"{parent.run}/{trial.trial} sha256:{trial.sha256}"
    return f"{parent.run} sha256:{parent.sha256}" if parent.sha256 else parent.run


def _roce(testbed: Testbed, file: schema.CampaignFile, folder: str) -> RoceSpec | None:
    """Return the hosts' RoCE NICs, if some flows are RoCE: they all have one control."""
    for control in controls_of(testbed, file.host, file.traffic):
        if control in roce_controls():
            return file.host.roce.spec(control, folder, testbed.nic_rates_bps[0])
    return None


def _trial(
    cell: Cell,
    tuner: schema.Tuner,
    repeat: int,
    folder: str,
    load: Callable[[str], Testbed],
) -> TrialSpec:
    file = cell.file
    replayed = _parent_trial(file.parent, tuner, repeat)
    seed = trial_seed(file.seed, repeat, evaluation_stream(file.protocol))
    testbed = beside(folder, file.testbed)
    roce = _roce(load(testbed), file, folder)
    traffic = tuple(pattern_spec(item, file.duration, folder) for item in file.traffic)
    name = reference_beside(folder, tuner.name)
    params = params_beside(folder, tuner.params(repeat))
    params = with_checkpoint(name, params, file.host.congestion_control)
    actions = actions_of(name, params)
    drivers = [spec.driver.name for spec in traffic]
    deciders = (name, decider(name, params)[0])
    classes = sorted({own for own in (*deciders, *drivers) if plugins.is_file(own)})
    own_actions = {key: of_repeat(path, repeat) for key, path in actions.items()}
    params |= own_actions
    workloads = [spec.workload for spec in traffic if isinstance(spec, PoissonSpec)]
    recordings = {spec.file for spec in traffic if isinstance(spec, ReplaySpec)}
    return TrialSpec(
        campaign=file.campaign,
        testbed=testbed,
        backend=schema.check_backend(file.backend),
        tuner=TunerSpec(name, params),
        traffic=traffic,
        seed=seed if replayed is None else replayed.seed,
        repeat=repeat,
        duration_ns=file.duration,
        drain_ns=file.drain,
        sample_period_ns=file.sample_period,
        action_period_ns=file.action_period or file.sample_period,
        decision_latency_ns=file.latency_ns,
        faults=tuple(
            FaultSpec(
                down_ns=fault.down,
                up_ns=fault.up,
                convergence_ns=fault.convergence,
                links=fault.links,
                share=fault.share or 0.0,
            )
            for fault in file.faults
        ),
        host=HostSpec(
            file.host.congestion_control,
            file.host.min_rto,
            roce,
            file.host.loss_detection,
        ),
        cell=_labels(cell, tuner),
        files={
            **{path: sha256_of(path) for path in (testbed, *workloads) if is_path(path)},
            **{name: sha256_of(of_repeat(name, repeat)) for name in sorted(recordings)},
            **_checkpoint_digest(name, params),
            **({roce.program: sha256_of(roce.program)} if roce and roce.program else {}),
            **{plugins.file_of(own): sha256_of(plugins.file_of(own)) for own in classes},
            **{f"{ACTIONS}{path}": sha256_of(own_actions[key]) for key, path in actions.items()},
        },
        parent=_parent_name(file.parent, replayed),
        fabric=_fabric(file),
        flow_sample_period_ns=file.flow_sample_period or 0,
        load_balancing=file.load_balancing.spec(),
        clock=REAL if file.clock == REAL else "",
        warm_up_ns=file.warm_up,
        allow_starvation=file.allow_starvation,
    )


def _fabric(file: schema.CampaignFile) -> FabricSpec:
    if file.fabric is not None:
        return FabricSpec(file.fabric.kind, file.fabric.marks)
    control = file.host.congestion_control
    return FabricSpec(capabilities(file.backend).default(control, file.clock).fabric)


def _checkpoint_digest(tuner: str, params: dict[str, Scalar]) -> dict[str, str]:
    """Return the digest of a learned tuner's network: with another network it is another trial."""
    name = checkpoint_of(tuner, params)
    if name is None:
        return {}
    called = name if is_path(name) else f"{CHECKPOINT}{name}"
    return {called: sha256_of(str(find_checkpoint(name)))}


def _labels(cell: Cell, tuner: schema.Tuner) -> dict[str, Scalar]:
    return {TUNER: tuner.called, **cell.labels}
