"""Write imported results as a trial of a run folder. Its stamp says where they are from.

The stamp also says what the files lack. Only checks that the files allow are made; the others are
not among its `checked`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from inventory.routing import ideal_times_ns
from inventory.testbed_json import testbed_to_json
from orchestration.analysis.stamp import check_ends, check_ideal, verdict
from orchestration.core.errors import InputError
from orchestration.core.files import sha256_of
from orchestration.core.knobs import ECN
from orchestration.core.provenance import CONGESTION_CONTROL, IMPORTED_CONTROL, UNKNOWN_CONTROL
from orchestration.core.records import (
    DONE,
    MISSING,
    ChangeRecords,
    Event,
    FlowRecords,
    Ints,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.signals import Scope, targets
from orchestration.core.topology import Testbed
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.results.stamp import Reason, Stamp
from orchestration.results.writer import write_trial

# The default of a campaign's `drain`.
_DRAIN_NS = 200_000_000


@dataclass(frozen=True)
class ImportedFlows:
    """Imported flows: arrays of shape (flows,) in any order, like `Schedule` and `FlowRecords`.

    `src` and `dst` are numbers of hosts, `klass` are numbers of `classes`. `end_ns` is `MISSING`
    for an unfinished flow. `ideal` is the ideal completion time in ns as the files have it,
    `MISSING` where it is unknown; it is None if the files have none. With `in_order`, flows that
    start at the same time keep the order of the files, because these come from a schedule.
    """

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints
    klass: Ints
    classes: tuple[str, ...]
    end_ns: Ints
    status: Ints
    retransmits: Ints | None = None
    ideal: Ints | None = None
    in_order: bool = False

    def sorted(self) -> ImportedFlows:
        """Return the flows in the order of a schedule: start, class, source, destination.

        Classes are numbered in order of appearance.
        """
        by_start = np.argsort(self.start_ns, kind="stable")
        seen, first = np.unique(self.klass[by_start], return_index=True)
        seen = seen[np.argsort(first)]
        code = np.zeros(len(self.classes), dtype=np.int64)
        code[seen] = np.arange(len(seen))
        klass = code[self.klass]
        order = by_start
        if not self.in_order:
            order = np.lexsort((self.dst, self.src, klass, self.start_ns))
        classes = tuple(self.classes[number] for number in seen)
        return replace(self, klass=klass, classes=classes).rows(order)

    def rows(self, order: Ints) -> ImportedFlows:
        """Return the flows of these rows, in this order."""
        columns: dict[str, Any] = {}
        for item in fields(self):
            column = getattr(self, item.name)
            if isinstance(column, np.ndarray):
                columns[item.name] = np.asarray(column, dtype=np.int64)[order]
        return replace(self, **columns)


def number_names(names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the number of each name, and the distinct names in order of appearance."""
    code = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.fromiter(map(code.__getitem__, names), np.int64, len(names)), tuple(code)


@dataclass(frozen=True)
class Imported:
    """Imported results, ready to be written.

    `inputs` are the files that define flows and fabric, `results` those with results, each by its
    role. `missing` describes what the files lack. `complete` says whether the files would show
    unfinished flows, `measured` whether any flow's end is known. `stop_ns` is when the run stopped
    and `duration_ns` how long flows arrive; both are 0 if unknown. `parent` is the id of the
    closloop trial whose flows were sent, "" if there is none. `label` is in the tuner's place in
    reports, unless the user gives another. `settings` describe what decides the results and has no
    field here; see orchestration/core/provenance.py.
    """

    format: str
    testbed: Testbed
    flows: ImportedFlows
    inputs: Mapping[str, Path]
    results: Mapping[str, Path]
    missing: Sequence[str] = ()
    findings: Sequence[Reason] = ()
    complete: bool = True
    measured: bool = True
    stop_ns: int = 0
    duration_ns: int = 0
    congestion_control: str = ""
    faults: tuple[FaultSpec, ...] = ()
    ports: Samples | None = None
    actions: ChangeRecords | None = None
    events: tuple[Event, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    sample_period_ns: int = 100_000
    parent: str = ""
    label: str = "imported"
    seed: int = 0
    repeat: int = 0


@dataclass(frozen=True)
class WrittenTrial:
    """A written trial: its folder, its stamp, and the numbers of flows and of completed flows."""

    folder: Path
    stamp: Stamp
    flows: int
    done: int


def write_imported(
    imported: Imported,
    out: Path,
    *,
    label: str,
    seed: int | None = None,
    repeat: int | None = None,
) -> WrittenTrial:
    """Write the results as a trial in the run folder `out`, with `label` as its tuner.

    A failure leaves nothing behind. Raises InputError if the trial exists already, and TrialError
    if it cannot be written.
    """
    flows, testbed = imported.flows.sorted(), imported.testbed
    columns = (flows.start_ns, flows.src, flows.dst, flows.size_bytes, flows.klass)
    schedule = Schedule(*columns, flows.classes)
    count = len(schedule)
    ideal = _ideal(testbed, schedule, flows.ideal)
    unknown = np.full(count, MISSING, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    settings = ECN.named(none, none, np.zeros(0))
    seed = imported.seed if seed is None else seed
    repeat = imported.repeat if repeat is None else repeat
    trial = _trial(imported, flows, out, label, seed, repeat)
    record = TrialRecord(
        flows=FlowRecords(
            sent_ns=unknown,
            end_ns=flows.end_ns,
            retransmits=unknown if flows.retransmits is None else flows.retransmits,
            status=flows.status,
        ),
        samples={
            "queue": imported.ports or _no_samples(testbed, "queue"),
            "host": _no_samples(testbed, "host"),
        },
        changes={ECN.name: imported.actions or ChangeRecords(none, none, none, none, settings)},
        events=imported.events,
        facts={},
    )
    stamp = _stamp(imported, flows, ideal)
    folder = out / trial.id
    if folder.exists():
        raise InputError.single(
            str(folder),
            "the same flows are there already under this label",
            "give another --label or --repeat, or another folder with -o, or remove that trial",
        )
    write_trial(folder, trial, testbed, schedule, record, stamp, _facts(imported), ideal)
    return WrittenTrial(folder, stamp, count, int(np.count_nonzero(flows.status == DONE)))


def _no_samples(testbed: Testbed, scope: Scope) -> Samples:
    return Samples.of(scope, np.zeros(0, np.int64), targets=len(targets(testbed, scope)))


def _ideal(testbed: Testbed, schedule: Schedule, known: Ints | None) -> Ints:
    """Return the ideal completion times in ns: those of the files, else computed ones."""
    if known is not None and bool((known >= 0).all()):
        return known
    try:
        own = ideal_times_ns(testbed, schedule)
    except OverflowError:
        what = "a flow takes centuries at its link's rate"
        raise InputError.single(testbed.name, what, "check the links' rates and sizes") from None
    except ValueError as error:
        raise InputError.single(testbed.name, str(error), "check its links") from error
    return own if known is None else np.where(known >= 0, known, own)


def _trial(
    imported: Imported, flows: ImportedFlows, out: Path, label: str, seed: int, repeat: int
) -> TrialSpec:
    duration_ns = max(imported.duration_ns, int(flows.start_ns[-1]) + 1)
    # without a stop time in the files, all runs of one schedule get the same one
    stop_ns = imported.stop_ns or duration_ns + _DRAIN_NS
    last_ns = max(int(flows.end_ns.max()), duration_ns, stop_ns)
    return TrialSpec(
        campaign=re.sub(r"[^a-z0-9-]+", "-", out.resolve().name.lower()).strip("-") or "imported",
        testbed=imported.testbed.name,
        backend="imported",
        tuner=TunerSpec(label),
        traffic=(),
        seed=seed,
        repeat=repeat,
        duration_ns=duration_ns,
        drain_ns=last_ns - duration_ns,
        sample_period_ns=imported.sample_period_ns,
        action_period_ns=imported.sample_period_ns,
        faults=imported.faults,
        # the real one is among the facts: here it would make runs of one schedule incomparable
        host=HostSpec(congestion_control=IMPORTED_CONTROL),
        files={"schedule": _digest_of(flows), "testbed": _digest_text(imported.testbed)},
        parent=imported.parent,
    )


def _digest_of(flows: ImportedFlows) -> str:
    """Return a SHA-256 of the planned flows; runs with the same one are comparable."""
    digest = hashlib.sha256("\n".join(flows.classes).encode())
    for column in (flows.start_ns, flows.src, flows.dst, flows.size_bytes, flows.klass):
        digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return digest.hexdigest()


def _digest_text(testbed: Testbed) -> str:
    """Return a SHA-256 of the fabric, without the text on its source."""
    data = {**testbed_to_json(testbed), "source": ""}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _facts(imported: Imported) -> dict[str, Any]:
    files = {**imported.inputs, **imported.results}
    return {
        "clock": "virtual",
        "imported": {
            "format": imported.format,
            "files": {
                role: {"name": path.name, "sha256": sha256_of(path)} for role, path in files.items()
            },
            "missing": list(imported.missing),
            "settings": dict(imported.settings),
        },
        CONGESTION_CONTROL: imported.congestion_control or UNKNOWN_CONTROL,
        **imported.facts,
    }


def _stamp(imported: Imported, flows: ImportedFlows, ideal: Ints) -> Stamp:
    names = ", ".join(path.name for path in (*imported.inputs.values(), *imported.results.values()))
    lacks = f"; missing: {'; '.join(imported.missing)}" if imported.missing else ""
    reasons = [
        Reason("imported", "warning", f"imported ({imported.format}) from {names}{lacks}"),
        *imported.findings,
    ]
    if not imported.measured:
        what = "no file has results of the flows, so that there is nothing to show"
        return verdict([*reasons, Reason("no-results", "invalid", what)], ())
    reasons += check_ends(flows.status)
    reasons += check_ideal(flows.start_ns, flows.end_ns, flows.status, ideal)
    return verdict(reasons, [*(["flows"] if imported.complete else []), "ideal times"])
