"""`closloop import` and `closloop export`: conversion from and to formats of other tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import Group, Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError
from orchestration.exchange.containerlab.verbs import export_containerlab, import_containerlab

if TYPE_CHECKING:
    from orchestration.exchange.imported import Imported
    from orchestration.exchange.omnetpp_import import Listed
    from orchestration.exchange.replay_file import ReplayFile
    from orchestration.exchange.source import Exported

importer = Group(
    "Take over others' results as run folders, flows out of captures and flow records, or a "
    "containerlab lab as a testbed."
)
exporter = Group(
    "Write a run's or campaign's flows in others' formats, or a testbed as a containerlab lab."
)
importer.command("containerlab")(import_containerlab)
exporter.command("containerlab")(export_containerlab)


@dataclass(frozen=True)
class _Trial:
    """The seed and repeat of an imported trial, and the output format."""

    seed: Annotated[int | None, "Runs of equal flows are paired by it."] = None
    repeat: Annotated[int | None, "The number of the repeat."] = None
    as_json: Json = False

    def write(self, imported: Imported, out: Path, label: str) -> None:
        """Write it into a campaign's folder, and print a summary."""
        from orchestration.exchange.imported import write_imported

        with waiting("writing"):
            written = write_imported(imported, out, label=label, seed=self.seed, repeat=self.repeat)
        if self.as_json:
            data = {
                "folder": str(written.folder),
                "label": label,
                "testbed": imported.testbed.name,
                "flows": written.flows,
                "done": written.done,
                "valid": written.stamp.valid,
                "missing": list(imported.missing),
                "reasons": [reason.text for reason in written.stamp.reasons],
            }
            print_json(data)
            return
        typer.echo(
            f"{written.folder}: {written.flows} flows, {written.done} done, on "
            f"{len(imported.testbed.hosts)} hosts and {len(imported.testbed.switches)} switches"
        )
        for item in imported.missing:
            typer.echo(f"  not taken over: {item}")
        for reason in written.stamp.reasons:
            if reason.code != "imported":
                typer.echo(f"  {reason.severity}: {reason.text}")
        typer.echo(f"next: closloop report {out}")


Label = Annotated[str, typer.Option(help="What reports call it, in the tuner's place.")]
Out = Annotated[Path, "--out", "-o", "The campaign's folder that the trial joins."]
Mapping = Annotated[Path, typer.Option(help="The mapping file: what is what, in which unit.")]


@importer.command("hpcc")
def import_hpcc(
    *,
    out: Out,
    topology: Annotated[Path, "The topology file."],
    flow: Annotated[Path | None, "The flow file: what was to be sent."] = None,
    fct: Annotated[Path | None, "The fct file: which flows ended, when."] = None,
    qlen: Annotated[Path | None, "The file of queue lengths."] = None,
    pfc: Annotated[Path | None, "The file of pauses."] = None,
    config: Annotated[Path | None, "The config file: thresholds, sizes."] = None,
    names: Annotated[Path | None, "names.json, as `closloop export hpcc` leaves it."] = None,
    base: Annotated[
        str, "The simulator's time that becomes 0 (default: names.json's, or 2s)."
    ] = "",
    label: Label = "",
    trial: _Trial,
) -> None:
    """Take over a run of the HPCC (Alibaba) ns-3 simulator, or of the forks of ConWeave and UNISON.

    Rows of fct are paired with the flow file's; flows without one are unfinished. Queue lengths are
    a histogram there, and are kept as one.

    Example: closloop import hpcc --flow mix/flow.txt --topology mix/topology.txt --fct mix/fct.txt
    --config mix/config.txt -o runs/theirs
    """
    from orchestration.exchange.hpcc_import import HpccFiles
    from orchestration.exchange.hpcc_import import import_hpcc as read

    files = HpccFiles(topology, flow, fct, qlen, pfc, config, names)
    base_ns = _duration("--base", base) if base else None
    with waiting("reading"):
        imported = read(files, base_ns)
    trial.write(imported, out, label or imported.congestion_control or "hpcc")


@importer.command("csv")
def import_csv(
    file: Annotated[Path, "A delimited text file with a header."],
    mapping: Mapping,
    *,
    out: Out,
    label: Label = "imported",
    trial: _Trial,
) -> None:
    """Take over a CSV of flows of your own; a small YAML file says which column is what.

    Example: closloop import csv results.csv --mapping mapping.yml -o runs/mine
    """
    from orchestration.exchange.csv_flows import import_csv as read

    with waiting("reading"):
        imported = read(file, mapping)
    trial.write(imported, out, label)


@importer.command("omnetpp")
def import_omnetpp(
    files: Annotated[list[Path], "The .sca and .vec files of one run."],
    *,
    mapping: Annotated[Path | None, "The mapping file: which results are flows and queues."] = None,
    listing: Annotated[
        bool, "--list", "Show what the files have, for writing a mapping file."
    ] = False,
    out: Annotated[Path | None, "--out", "-o", "The campaign's folder."] = None,
    label: Label = "omnetpp",
    trial: _Trial,
) -> None:
    """Take over a run of OMNeT++ (result files of versions 2 and 3).

    Examples: closloop import omnetpp results/General-0.vec --list

    closloop import omnetpp results/General-0.sca results/General-0.vec --mapping mapping.yml
    -o runs/omnetpp
    """
    from orchestration.core.errors import InputError, Problem
    from orchestration.exchange.omnetpp_import import import_omnetpp as read
    from orchestration.exchange.omnetpp_import import list_results

    if listing:
        with waiting("reading"):
            found = list_results(files)
        _say_results(found, as_json=trial.as_json)
        return
    if mapping is None or out is None:
        given = {"--mapping": mapping, "--out": out}
        raise InputError(
            [
                Problem(flag, "is needed", "add it, or use --list to see what there is")
                for flag, value in given.items()
                if value is None
            ]
        )
    with waiting("reading"):
        imported = read(files, mapping)
    trial.write(imported, out, label)


def _say_results(found: dict[str, list[Listed]], *, as_json: bool) -> None:
    if as_json:
        print_json({run: [item._asdict() for item in items] for run, items in found.items()})
        return
    for run, items in found.items():
        typer.echo(f"run {run}")
        for item in items:
            modules = f" in {item.modules} modules" if item.modules > 1 else ""
            typer.echo(f"  {item.kind:9} {item.module} {item.name}: {item.values} values{modules}")


@importer.command("flows")
def import_flows(
    file: Annotated[Path, "A capture, nfdump's CSV, sflowtool's lines, or a CSV."],
    *,
    testbed: Annotated[str, "The testbed whose hosts the addresses become."],
    out: Annotated[Path, "--out", "-o", "The CSV file to make."],
    kind: Annotated[str, "--from", "capture, nfdump, sflowtool or csv (default: by content)."] = "",
    hosts: Annotated[Path | None, "YAML: `10.0.0.1: h1` for each address."] = None,
    idle: Annotated[str, "A longer silence ends a flow (capture 100ms, records 15s)."] = "",
    mapping: Annotated[Path | None, "The mapping file of a CSV of your own."] = None,
    without: Annotated[
        list[str], "Leave out packets that are not read yet: roce or tunnels; again for both."
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Make flows to replay out of what a network carried: a capture or exporters' flow records.

    Without --hosts, each new address is the testbed's next host. Flows with an end that is no host
    are dropped, and counted. RoCE and tunnels are refused, unless --without leaves them out; all
    else that is no flow is counted.

    Examples: closloop import flows rack.pcap --testbed graphcc --hosts hosts.yml -o flows.csv

    closloop import flows records.csv --from nfdump --testbed graphcc -o flows.csv
    """
    from inventory.files import load_testbed
    from orchestration.exchange.replay_file import (
        kind_of,
        read_hosts,
        read_records,
        write_replay,
    )

    fabric = load_testbed(testbed)
    chosen = kind or ("csv" if mapping else kind_of(file))
    with waiting("reading"):
        found, named = read_records(
            file, chosen, _duration("--idle", idle) if idle else None, mapping, without
        )
        given = read_hosts(hosts, fabric) if hosts else named or None
        written = write_replay(out, found, fabric, given)
    if as_json:
        print_json({**asdict(written), "path": str(out)})
    else:
        _say_replay(written)


def _say_replay(written: ReplayFile) -> None:
    from orchestration.core.units import format_duration, format_size

    typer.echo(
        f"{written.path}: {written.flows} flows of {format_size(written.size_bytes)} within "
        f"{format_duration(written.duration_ns)}, from {written.source}"
    )
    if written.assigned:
        pairs = [f"{address} = {host}" for address, host in written.hosts.items()]
        more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
        typer.echo(f"  hosts in order of appearance: {', '.join(pairs[:8])}{more}")
    if written.dropped_flows:
        worst = [f"{address} ({count})" for address, count in list(written.dropped.items())[:5]]
        typer.echo(
            f"  dropped: {written.dropped_flows} flows with an end that is no host of the "
            f"testbed: {', '.join(worst)}"
        )
    for note in written.notes:
        typer.echo(f"  note: {note}")
    typer.echo(f"next, in a campaign file: traffic: [{{kind: replay, file: {written.path}}}]")


def _duration(flag: str, text: str) -> int:
    from orchestration.core.units import UnitError, parse_duration_ns

    try:
        return parse_duration_ns(text)
    except UnitError as error:
        raise InputError([error.problem.relocated(flag)]) from error


Run = Annotated[
    Path, typer.Argument(help="runs/<campaign>, runs/<campaign>/<trial>, or a campaign file.")
]
NewFolder = Annotated[Path, "--out", "-o", "The folder to make."]


@exporter.command("hpcc")
def export_hpcc(
    run: Run,
    out: NewFolder,
    control: Annotated[
        str,
        "--cc",
        "dcqcn, dcqcn-paper (its paper's timers), hpcc, timely, dctcp, hpcc-pint; dcqcn, "
        "dcqcn-paper and timely with -vwin for a window (default: its own)",
    ] = "",
    prefix: Annotated[
        str, "The folder's path as the simulator sees it (default: where it is)."
    ] = "",
    thresholds: Annotated[
        bool, typer.Option(help="Take the run's thresholds; else HPCC's own.")
    ] = True,
    settings: Annotated[
        list[str], "--set", "A parameter of the config: RATE_AI=50Mb/s; again for more."
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write flow, topology, trace and config files, to run the very same flows in HPCC's simulator.

    Parameters are those of the simulator's own run.py at the NICs' rate, unless --set says other
    ones. A campaign has a folder for each of its trials. What the formats cannot hold is refused.
    Bring the results home with `closloop import hpcc --names DIR/names.json`: flows keep their
    numbers.

    Example: closloop export hpcc runs/quickstart/secn1-r1-0123456789 -o ~/hpcc/mix/closloop
    """
    from orchestration.exchange.hpcc_export import export_hpcc as write

    parameters = dict(_parameter(text) for text in settings)
    with waiting("exporting"):
        written = [
            write(
                item,
                place,
                control=control,
                prefix=seen,
                thresholds=thresholds,
                parameters=parameters,
            )
            for item, place, seen in _places(run, out, prefix)
        ]
    if as_json:
        data = [
            {
                "folder": str(one.folder),
                "config": one.config,
                "flows": one.flows,
                "notes": one.notes,
            }
            for one in written
        ]
        print_json(data)
        return
    for one in written:
        typer.echo(f"{one.folder}: {one.flows} flows")
    for note in dict.fromkeys(note for one in written for note in one.notes):
        typer.echo(f"  note: {note}")
    for one in written:
        typer.echo(f"there: ./waf --run 'scratch/third {one.config}'")


def _parameter(text: str) -> tuple[str, str]:

    key, equals, value = text.partition("=")
    if not equals or not value:
        raise InputError.single(
            "--set", f"{text!r} is no KEY=VALUE", "write it like RATE_AI=50Mb/s"
        )
    return key, value


def _places(run: Path, out: Path, prefix: str = "") -> list[tuple[Exported, Path, str]]:
    """Return what to export, the folder of each, and that folder's path in the simulator."""
    from orchestration.exchange.source import read_source

    items = read_source(run)
    if len(items) == 1:
        return [(items[0], out, prefix)]
    return [(item, out / item.name, prefix and f"{prefix}/{item.name}") for item in items]


@exporter.command("csv")
def export_csv(run: Run, out: NewFolder, as_json: Json = False) -> None:
    """Write schedule.csv (for a replay), flows.csv with what became of the flows, and testbed.json.

    mapping.yml says how `closloop import csv` reads flows.csv again. A campaign has a folder for
    each of its trials.

    Example: closloop export csv runs/quickstart -o exported
    """
    from orchestration.exchange.csv_flows import export_csv as write

    with waiting("exporting"):
        written = [write(item, place) for item, place, _ in _places(run, out)]
    if as_json:
        print_json([{"folder": str(one.folder), "flows": one.flows} for one in written])
        return
    for one in written:
        typer.echo(f"{one.folder}: {one.flows} flows")
