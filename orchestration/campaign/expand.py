"""Expands a campaign file into trials: factors x tuners x repeats.

All cells of a repeat have the same seed and so the same traffic (common random numbers); they are
one block, in which they run in random order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.variant import split_name
from orchestration.campaign import schema
from orchestration.campaign.cells import Cell, read_cells
from orchestration.campaign.fields import (
    class_files,
    is_path,
    resolve_params,
    resolve_reference,
)
from orchestration.campaign.host_checks import controls_of
from orchestration.campaign.repeats import Adaptive, max_repeats
from orchestration.campaign.streams import entropy, evaluation_stream, stream_seed
from orchestration.core.capabilities import capabilities, mode_of
from orchestration.core.condition import ARM, TUNER, campaign_tuner_name
from orchestration.core.congestion import roce_controls
from orchestration.core.files import sha256_of
from orchestration.core.pattern import PatternSpec
from orchestration.core.repeats import StoppingRule
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import (
    ACTIONS,
    CHECKPOINT,
    REAL,
    FabricSpec,
    FaultSpec,
    HostSpec,
    Scalar,
    TrialSpec,
    TunerSpec,
    of_repeat,
)
from orchestration.results.question import TUNERS_COMPARED, Question, question_of
from tuners.learning.checkpoint import find as find_checkpoint
from tuners.registry import checkpoint_of, decider, recording_paths, with_checkpoint


@dataclass(frozen=True)
class Campaign:
    """A checked campaign.

    `source` is the file's text. `cells` are the possible values of a trial's `cell`, in the file's
    order. `trials` are in the order in which they run; with adaptive `repeats` they are all that
    may run. `testbeds` has the trials' testbeds, by the trials' field `testbed`; `tuner_locations`
    has the `file:line` of each tuner, by its label. `question` says what is compared.
    """

    name: str
    path: Path
    source: str
    cells: tuple[dict[str, Scalar], ...]
    trials: tuple[TrialSpec, ...]
    testbeds: Mapping[str, Testbed]
    tuner_locations: Mapping[str, str]
    repeats: StoppingRule | None = None
    question: Question = TUNERS_COMPARED

    @property
    def runs_one_at_a_time(self) -> bool:
        """Whether its trials run one at a time: on a rack, or on the machine's own kernel."""
        return any(mode_of(trial).real_time for trial in self.trials)

    def location_of_tuner(self, trial: TrialSpec) -> str:
        """Return the `file:line` of a trial's tuner; the campaign's name if the file has none."""
        return self.tuner_locations.get(campaign_tuner_name(trial), self.name)


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
    trials = expand(cells)
    labels = [_labels(cell, tuner) for cell in cells for tuner in cell.file.tuners]
    return Campaign(
        name=cells[0].file.campaign,
        path=Path(path),
        source=Path(path).read_text(encoding="utf-8"),
        # in a replay, a cell may have no trial in the first repeats
        cells=tuple(cell for cell in labels if any(trial.cell == cell for trial in trials)),
        trials=trials,
        testbeds={cell.testbed_name: cell.testbed for cell in cells},
        tuner_locations={key: line for cell in cells for key, line in cell.tuner_locations.items()},
        repeats=_stopping_rule(cells[0].file),
        question=question_of(vars(cells[0].file)),
    )


def expand(cells: Sequence[Cell]) -> tuple[TrialSpec, ...]:
    """Return the trials of `cells`, crossed with tuners and repeats, in the order of their run.

    A block has every cell once, in an order that is drawn from the campaign's seed, so that drift
    over time favours no tuner. In a replay, a block has only the cells that the parent has.
    """
    file = cells[0].file
    trials: list[TrialSpec] = []
    for repeat in range(1, max_repeats(file.repeats) + 1):
        block = [
            _trial(cell, tuner, repeat)
            for cell in cells
            for tuner in cell.file.tuners
            if _exists(cell, tuner, repeat)
        ]
        order = np.random.default_rng(entropy(file.seed, "order", repeat)).permutation(len(block))
        trials += [block[index] for index in order]
    return tuple(trials)


def first_trial(cell: Cell) -> TrialSpec:
    """Return the trial of a cell's first tuner in the first repeat.

    Raises InputError for files of the trial that cannot be read.
    """
    return _trial(cell, cell.file.tuners[0], 1)


def trial_seed(campaign_seed: int, repeat: int, purpose: str = "evaluation") -> int:
    """Return the seed of a repeat, which is the same for all its cells.

    `purpose` is the random stream that it comes from: see `orchestration.campaign.streams`.
    """
    return stream_seed(campaign_seed, purpose, repeat)


def _stopping_rule(file: schema.CampaignFile) -> StoppingRule | None:
    return file.repeats.rule() if isinstance(file.repeats, Adaptive) else None


def _exists(cell: Cell, tuner: schema.Tuner, repeat: int) -> bool:
    """Return whether a campaign has a tuner's trial in a repeat: a replay may lack some."""
    parent = cell.file.parent
    lists_trials = parent is not None and bool(parent.trials)
    return not lists_trials or _parent_trial(cell, tuner, repeat) is not None


def _parent_trial(cell: Cell, tuner: schema.Tuner, repeat: int) -> schema.ParentTrial | None:
    """Return the trial that a repeat of a cell's tuner replays, or None."""
    parent, arm = cell.file.parent, str(cell.labels.get(ARM, ""))
    wanted = (tuner.called, repeat, arm)
    listed = parent.trials if parent is not None else ()
    matches = (item for item in listed if (item.tuner, item.repeat, item.arm) == wanted)
    return next(matches, None)


def _parent_name(parent: schema.Parent | None, trial: schema.ParentTrial | None) -> str:
    """Return what a trial replays, as text: run, trial and digest; "" for no replay."""
    if parent is None:
        return ""
    if trial is not None:
        return f"{parent.run}/{trial.trial} sha256:{trial.sha256}"
    return f"{parent.run} sha256:{parent.sha256}" if parent.sha256 else parent.run


def _roce(cell: Cell) -> RoceSpec | None:
    """Return the hosts' RoCE NICs if some flows are RoCE; all of these have one control."""
    file, rates_bps = cell.file, cell.testbed.nic_rates_bps
    for control in controls_of(cell.testbed, file.host, file.traffic):
        if control in roce_controls():
            return file.host.roce.spec(control, cell.folder, rates_bps[0])
    return None


def _trial(cell: Cell, tuner: schema.Tuner, repeat: int) -> TrialSpec:
    """Return the trial of a cell's tuner in a repeat, with the digests of all files it reads."""
    file, folder = cell.file, cell.folder
    replayed = _parent_trial(cell, tuner, repeat)
    seed = trial_seed(file.seed, repeat, evaluation_stream(file.protocol))
    roce = _roce(cell)
    traffic = cell.patterns
    name = resolve_reference(folder, tuner.name)
    params = resolve_params(folder, tuner.params(repeat))
    params = with_checkpoint(name, params, file.host.congestion_control)
    actions = recording_paths(name, params)
    own_actions = {key: of_repeat(path, repeat) for key, path in actions.items()}
    tuner_spec = TunerSpec(name, {**params, **own_actions})
    return TrialSpec(
        campaign=file.campaign,
        testbed=cell.testbed_name,
        backend=schema.check_backend(file.backend),
        tuner=tuner_spec,
        traffic=traffic,
        seed=seed if replayed is None else replayed.seed,
        repeat=repeat,
        duration_ns=file.duration,
        drain_ns=file.drain,
        sample_period_ns=file.sample_period,
        action_period_ns=file.action_period or file.sample_period,
        decision_latency_ns=file.latency_ns,
        faults=tuple(_fault(fault) for fault in file.faults),
        host=HostSpec(
            file.host.congestion_control,
            file.host.min_rto,
            roce,
            file.host.loss_detection,
        ),
        cell=_labels(cell, tuner),
        files={
            **_traffic_digests(cell.testbed_name, traffic, repeat),
            **_checkpoint_digest(name, tuner_spec.params),
            **({roce.program: sha256_of(roce.program)} if roce and roce.program else {}),
            **{path: sha256_of(path) for path in _class_files(tuner_spec, traffic)},
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


def _fault(fault: schema.Fault) -> FaultSpec:
    return FaultSpec(
        down_ns=fault.down,
        up_ns=fault.up,
        convergence_ns=fault.convergence,
        links=fault.links,
        share=fault.share or 0.0,
    )


def _traffic_digests(testbed: str, traffic: Sequence[PatternSpec], repeat: int) -> dict[str, str]:
    """Return the digests of the files that a trial's testbed, workloads and traces are in."""
    workloads = [workload for spec in traffic for workload in spec.named("workload")]
    base, _ = split_name(testbed)
    traces = {path for spec in traffic for path in spec.named("file")}
    return {
        **{path: sha256_of(path) for path in (base, *workloads) if is_path(path)},
        **{path: sha256_of(of_repeat(path, repeat)) for path in sorted(traces)},
    }


def _class_files(tuner: TunerSpec, traffic: Sequence[PatternSpec]) -> list[str]:
    """Return the files of users' classes: of the tuner, of patterns, and of what sends flows."""
    drivers = [spec.driver.name for spec in traffic]
    kinds = [spec.kind for spec in traffic]
    return class_files((tuner.name, decider(tuner.name, tuner.params)[0], *drivers, *kinds))


def _fabric(file: schema.CampaignFile) -> FabricSpec:
    if file.fabric is not None:
        return FabricSpec(file.fabric.kind, file.fabric.marks)
    control = file.host.congestion_control
    return FabricSpec(capabilities(file.backend).default(control, file.clock).fabric)


def _checkpoint_digest(tuner: str, params: dict[str, Scalar]) -> dict[str, str]:
    """Return the digest of a learned tuner's network, which is part of a trial's identity."""
    name = checkpoint_of(tuner, params)
    if name is None:
        return {}
    key = name if is_path(name) else f"{CHECKPOINT}{name}"
    return {key: sha256_of(str(find_checkpoint(name)))}


def _labels(cell: Cell, tuner: schema.Tuner) -> dict[str, Scalar]:
    return {TUNER: tuner.called, **cell.labels}
