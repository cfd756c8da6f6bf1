"""`closloop import omnetpp`: make a trial out of OMNeT++ result files, with a mapping file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import numpy as np
import typer

from inventory.strictyaml import Document, suggest
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError, Problem
from orchestration.core.records import DONE, MISSING, UNFINISHED, Floats, Ints, Samples
from orchestration.core.signals import names
from orchestration.core.topology import Testbed
from orchestration.exchange.csv_flows import ALL
from orchestration.exchange.imported import Imported, ImportedFlows
from orchestration.exchange.mapping import (
    SIZE_UNITS,
    TIME_UNITS,
    Hosts,
    OmnetppFlows,
    OmnetppMapping,
    OmnetppQueues,
    read_mapping,
)
from orchestration.exchange.omnetpp_file import Result, Run, read_results
from orchestration.exchange.verbs import NewTrial

_INDEX = re.compile(r"\[\d+\]")


class Listed(NamedTuple):
    """Results with the same name in modules that differ in their indices only.

    `module` has `[*]` in place of the indices, `modules` and `values` are counts.
    """

    kind: str
    module: str
    name: str
    modules: int
    values: int


def import_results(
    files: Annotated[list[Path], "The .sca and .vec files of one run."],
    *,
    mapping: Annotated[Path | None, "The mapping file: which results are flows and queues."] = None,
    listing: Annotated[
        bool, "--list", "Show which results the files have, for writing a mapping file."
    ] = False,
    out: Annotated[Path | None, "--out", "-o", "The run folder that the trial is added to."] = None,
    trial: NewTrial,
) -> None:
    """Import a run of OMNeT++ (result files of versions 2 and 3).

    Examples: closloop import omnetpp results/General-0.vec --list

    closloop import omnetpp results/General-0.sca results/General-0.vec --mapping mapping.yml
    -o runs/omnetpp
    """
    if listing:
        with waiting("reading"):
            runs = list_results(files)
        _print_results(runs, as_json=trial.as_json)
        return
    if mapping is None or out is None:
        given = {"--mapping": mapping, "--out": out}
        remedy = "add it, or use --list to see the results in the files"
        raise InputError(
            [Problem(flag, "is needed", remedy) for flag, value in given.items() if value is None]
        )
    with waiting("reading"):
        imported = import_omnetpp(files, mapping)
    trial.write(imported, out)


def _print_results(runs: dict[str, list[Listed]], *, as_json: bool) -> None:
    if as_json:
        print_json({run: [item._asdict() for item in items] for run, items in runs.items()})
        return
    for run, items in runs.items():
        typer.echo(f"run {run}")
        for item in items:
            modules = f" in {item.modules} modules" if item.modules > 1 else ""
            typer.echo(f"  {item.kind:9} {item.module} {item.name}: {item.values} values{modules}")


def list_results(paths: Sequence[Path]) -> dict[str, list[Listed]]:
    """Return the results in the files by run, for writing a mapping file. Raises InputError."""
    listed = {}
    for name, run in _joined(paths).items():
        values: dict[tuple[str, str, str], list[int]] = {}
        for item in run.results:
            key = (item.kind, _INDEX.sub("[*]", item.module), item.name)
            # a scalar or statistic counts as one value
            count = len(item.value) if item.kind == "vector" else 1
            values.setdefault(key, []).append(count)
        listed[name] = [Listed(*key, len(own), sum(own)) for key, own in sorted(values.items())]
    return listed


def _joined(paths: Sequence[Path]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for path in paths:
        for name, run in read_results(path).items():
            joined = runs.setdefault(name, Run(name))
            joined.settings.update(run.settings)
            joined.results += run.results
    return runs


def import_omnetpp(paths: Sequence[Path], mapping_path: Path) -> Imported:
    """Read the result files of one run. Raises InputError, with file and line, for problems.

    If flows are vectors, only completed flows are known. If they are scalars, a flow without an end
    is unfinished.
    """
    mapping, document = read_mapping(mapping_path, OmnetppMapping)
    run = _chosen(_joined(paths), mapping, document)
    rows = list(_rows(run, mapping.flows, document))
    if not rows:
        what = f"no module of run {run.name} has the results that `flows` names"
        remedy = "`closloop import omnetpp FILE --list` shows the results in a file"
        raise InputError([document.problem(("flows",), what, remedy)])
    hosts = Hosts(mapping, mapping_path, [end for row in rows for end in (row.src, row.dst)])

    def where(row: int) -> str:
        return f"{paths[0]}, module {rows[row].module}"

    src = hosts.numbers([row.src for row in rows], where)
    dst = hosts.numbers([row.dst for row in rows], where)
    flows = _flows(rows, src, dst, mapping, where)
    ends_known = mapping.flows.fct is not None or mapping.flows.end is not None
    ports = None
    if mapping.queues is not None:
        last_ns = int(max(flows.start_ns.max() + 1, flows.end_ns.max()))
        ports = queue_samples(run, mapping.queues, hosts.testbed, mapping.base, last_ns, document)
    missing = ["TCP counters of hosts", "when each flow's first byte was sent", "thresholds"]
    missing += ["retransmits", *hosts.notes]
    if ports is None:
        missing.append("samples of ports")
    if mapping.flows.kind == "vectors":
        missing.append("flows that were not completed")
    return Imported(
        format="OMNeT++",
        testbed=hosts.testbed,
        flows=flows,
        inputs={"mapping": mapping_path},
        results={f"results {number}": path for number, path in enumerate(paths, start=1)},
        missing=missing,
        complete=mapping.flows.kind == "scalars",
        measured=ends_known,
        ports=ports,
        label="omnetpp",
        sample_period_ns=mapping.queues.sample_period if mapping.queues else 100_000,
        facts={
            "clock": "virtual",
            "run": run.name,
            "settings": run.settings,
            **({"hosts_named": hosts.renamed} if hosts.renamed else {}),
        },
    )


def _chosen(runs: dict[str, Run], mapping: OmnetppMapping, document: Document) -> Run:
    if mapping.run is not None:
        if mapping.run not in runs:
            remedy = f"{suggest(mapping.run, runs)}there are {', '.join(runs)}"
            what = f"no run {mapping.run!r} in the files"
            raise InputError([document.problem(("run",), what, remedy)])
        return runs[mapping.run]
    if len(runs) > 1:
        what = f"the files have {len(runs)} runs and `run` names none"
        remedy = f"add `run:` with one of {', '.join(runs)}"
        raise InputError([document.problem((), what, remedy)])
    return next(iter(runs.values()))


class _Row(NamedTuple):
    """One flow of the results; times and size are in the units of the mapping file."""

    module: str
    src: str
    dst: str
    start: float
    size: float
    fct: float
    end: float
    klass: str


def _rows(run: Run, flows: OmnetppFlows, document: Document) -> Iterator[_Row]:
    """Yield the flows, module by module. Raises InputError for results that do not fit together."""

    def fail(module: str, what: str) -> NoReturn:
        remedy = "correct the mapping; record start, bytes, ends and fct of each flow together"
        raise InputError([document.problem(("flows",), f"module {module}: {what}", remedy)])

    example = r"Net\.host\[(?P<src>\d+)\]\.app\[\d+\]"
    pattern = _pattern(flows.module, document, "flows", example)
    modules: dict[str, tuple[re.Match[str], dict[str, Floats]]] = {}
    for item in run.results:
        match = pattern.fullmatch(item.module)
        if match is not None and item.kind == flows.kind.removesuffix("s"):
            modules.setdefault(item.module, (match, {}))[1][item.name] = item.value
    names = ("start", "bytes", "fct", "end", "src", "dst", "klass")
    result_of = {name: result for name in names if (result := getattr(flows, name)) is not None}
    optional = {"fct", "end"} if flows.kind == "scalars" else set()
    for module, (match, values) in modules.items():
        columns = {name: values[result] for name, result in result_of.items() if result in values}
        if not columns:
            continue
        absent = [n for n in result_of if n not in columns and n not in optional]
        if absent:
            fail(module, f"has no {result_of[absent[0]]!r} beside its other results")
        lengths = {len(value) for value in columns.values()}
        if len(lengths) > 1:
            counts = ", ".join(f"{result_of[name]} {len(value)}" for name, value in columns.items())
            fail(module, f"its results have different numbers of values: {counts}")
        groups = {name: text for name, text in match.groupdict().items() if text}
        for row in range(lengths.pop()):
            value = {name: float(column[row]) for name, column in columns.items()}
            ends: dict[str, str] = dict(groups)
            ends.update({n: _number_text(value[n]) for n in ("src", "dst") if n in value})
            for name in ("src", "dst"):
                if name not in ends:
                    fail(module, f"neither a result nor a group names the {name}")
            yield _Row(
                module=module,
                src=ends["src"],
                dst=ends["dst"],
                start=value["start"],
                size=value["bytes"],
                fct=value.get("fct", np.nan),
                end=value.get("end", np.nan),
                klass=_number_text(value["klass"]) if "klass" in value else ALL,
            )


def _number_text(value: float) -> str:
    """Return a number as text, without a decimal point if it is whole."""
    return str(int(value)) if value == int(value) else repr(value)


def _flows(
    rows: list[_Row], src: Ints, dst: Ints, mapping: OmnetppMapping, where: Callable[[int], str]
) -> ImportedFlows:
    time, size = TIME_UNITS[mapping.flows.time_unit], SIZE_UNITS[mapping.flows.size_unit]
    start = _rounded([row.start for row in rows], time) - mapping.base
    bytes_ = _rounded([row.size for row in rows], size)
    fct = _rounded([row.fct for row in rows], time)
    end = _rounded([row.end for row in rows], time)
    end = np.where(end != MISSING, end - mapping.base, MISSING)
    end = np.where(fct != MISSING, start + fct, end)
    done = end != MISSING
    for bad, what in (
        (start < 0, "a flow starts before the base time"),
        (bytes_ < 1, "a flow has less than one byte"),
        (done & (end <= start), "a flow ends before it starts"),
        (src == dst, "a flow goes from a host to itself"),
    ):
        if bad.any():
            remedy = "check the units and names of the mapping file"
            raise InputError.single(where(int(np.argmax(bad))), what, remedy)
    names = list(dict.fromkeys(row.klass for row in rows))
    return ImportedFlows(
        start_ns=start,
        src=src,
        dst=dst,
        size_bytes=bytes_,
        klass=np.array([names.index(row.klass) for row in rows], dtype=np.int64),
        classes=tuple(names),
        end_ns=end,
        status=np.where(done, DONE, UNFINISHED),
    )


def _rounded(values: list[float], factor: int) -> Ints:
    array = np.array(values) * factor
    return np.where(np.isfinite(array), np.rint(np.nan_to_num(array)), MISSING).astype(np.int64)


def queue_samples(
    run: Run,
    queues: OmnetppQueues,
    testbed: Testbed,
    base_ns: int,
    last_ns: int,
    document: Document,
) -> Samples:
    """Return samples of the queues, one every period, with the last value recorded until then.

    Times are relative to `base_ns`, and end at `last_ns`. Raises InputError, with the line of the
    mapping file, for a queue that is not in the testbed.
    """
    example = r"Net\.(?P<device>\w+)\.(?P<port>eth\[\d+\])\.queue"
    pattern = _pattern(queues.module, document, "queues", example)
    if not {"device", "port"} <= set(pattern.groupindex):
        what = "lacks the groups `device` and `port`"
        remedy = f"write it like '{example}'"
        raise InputError([document.problem(("queues", "module"), what, remedy)])
    labels = {queue.label: number for number, queue in enumerate(testbed.queues)}
    t_ns = np.arange(1, last_ns // queues.sample_period + 1, dtype=np.int64) * queues.sample_period
    shape = (len(t_ns), len(testbed.queues))
    signal_of = {
        queues.length: "qlen_bytes",
        queues.marked: "marked_packets",
        queues.dropped: "dropped_packets",
    }
    samples = {name: np.full(shape, MISSING, dtype=np.int64) for name in signal_of.values()}
    vectors = 0
    for vector in run.results:
        match = pattern.fullmatch(vector.module)
        if match is None or vector.kind != "vector" or vector.name not in signal_of:
            continue
        own = f"{match['device']}:{match['port']}"
        label = queues.ports.get(own, own)
        if label not in labels:
            what = f"the queue {own} of module {vector.module} is not a port of {testbed.name}"
            remedy = (
                f"{suggest(label, labels)}name it under `ports:` like {own}: {next(iter(labels))}"
            )
            raise InputError([document.problem(("queues",), what, remedy)])
        name = signal_of[vector.name]
        factor = SIZE_UNITS[queues.size_unit] if name == "qlen_bytes" else 1
        samples[name][:, labels[label]] = _held(vector, t_ns + base_ns, factor)
        vectors += 1
    if not vectors:
        what = "no vector fits what `queues` says"
        remedy = "`closloop import omnetpp FILE --list` shows the results in a file"
        raise InputError([document.problem(("queues",), what, remedy)])
    unknown = np.full(shape, MISSING, dtype=np.int64)
    return Samples(t_ns, {name: samples.get(name, unknown) for name in names("queue")})


def _held(vector: Result, t_ns: Ints, factor: int) -> Ints:
    """Return the vector's last value at or before each time; `MISSING` before its first one."""
    index = np.searchsorted(vector.t_ns, t_ns, side="right") - 1
    if not len(vector.value):
        return np.full(len(t_ns), MISSING, dtype=np.int64)
    scaled = np.rint(vector.value * factor).astype(np.int64)
    return np.where(index >= 0, scaled[np.maximum(index, 0)], MISSING)


def _pattern(text: str, document: Document, part: str, example: str) -> re.Pattern[str]:
    """Return the compiled pattern of a part's modules. Raises InputError if it is invalid."""
    try:
        return re.compile(text)
    except re.error as error:
        what, remedy = f"is not a regular expression: {error}", f"write it like '{example}'"
        raise InputError([document.problem((part, "module"), what, remedy)]) from error
