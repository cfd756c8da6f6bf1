"""Write the input files of the HPCC ns-3 simulator, to run exactly the same flows there.

Settings that its formats cannot express are refused; other differences are notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from orchestration.backends.common.faults import fault_plan
from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError
from orchestration.core.provenance import CONGESTION_CONTROL, IMPORTED_CONTROL, UNKNOWN_CONTROL
from orchestration.core.records import Schedule
from orchestration.core.topology import Testbed
from orchestration.exchange.hpcc_config import (
    BASE_NS,
    HpccControl,
    SimulatorTimes,
    config_text,
    control_of,
    simulator_times,
    threshold_maps,
    with_parameters,
)
from orchestration.exchange.hpcc_import import NAMES_FORMAT
from orchestration.exchange.hpcc_inputs import MAX_NODES
from orchestration.exchange.source import ExportedTrial, NewFolder, Run, export_targets, new_folder

# The simulator has 32 bits for sizes, source ports from 10000 to 65535, and 256 ports of a switch.
_MAX_BYTES = 2**32 - 1
_MAX_FLOWS_OF_PAIR = 65536 - 10000
_MAX_PORTS = 256
_GROUP = 3
# The destination ports of normal flows and of incast that its fct_analysis expects.
_NORMAL_PORT, _INCAST_PORT = 100, 200


@dataclass(frozen=True)
class HpccExport:
    """A folder with flow.txt, topology.txt, trace.txt, config.txt and names.json.

    `config` is the path of config.txt as the simulator sees it. `notes` are differences between the
    trial and what the simulator will run.
    """

    folder: Path
    config: str
    flows: int
    notes: tuple[str, ...]


def export_runs(
    run: Run,
    out: NewFolder,
    control: Annotated[
        str,
        "--cc",
        "The congestion control: dcqcn, dcqcn-paper (its paper's timers), hpcc, timely, dctcp or "
        "hpcc-pint; dcqcn, dcqcn-paper and timely with -vwin for a window (default: the trial's).",
    ] = "",
    prefix: Annotated[
        str, "The folder's path as the simulator sees it (default: its path here)."
    ] = "",
    thresholds: Annotated[
        bool, typer.Option(help="Use the run's thresholds, else HPCC's own.")
    ] = True,
    settings: Annotated[
        list[str], "--set", "A parameter of the config, like RATE_AI=50Mb/s; repeat it for more."
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write flow, topology, trace and config files, to run the same flows in HPCC's simulator.

    Parameters are those of the simulator's own run.py at the NICs' rate, unless --set changes them.
    A campaign gets a folder for each of its trials. What the formats cannot express is refused.
    Import the results with `closloop import hpcc --names DIR/names.json`: flows keep their numbers.

    Example: closloop export hpcc runs/quickstart/secn1-r1-0123456789 -o ~/hpcc/mix/closloop
    """
    parameters = dict(_parameter(text) for text in settings)
    export = partial(export_hpcc, control=control, thresholds=thresholds, parameters=parameters)
    with waiting("exporting"):
        targets = export_targets(run, out, prefix)
        exports = [export(item, folder, prefix=path) for item, folder, path in targets]
    if as_json:
        print_json([{**vars(written), "folder": str(written.folder)} for written in exports])
        return
    for written in exports:
        typer.echo(f"{written.folder}: {written.flows} flows")
    for note in dict.fromkeys(note for written in exports for note in written.notes):
        typer.echo(f"  note: {note}")
    for written in exports:
        typer.echo(f"in the simulator: ./waf --run 'scratch/third {written.config}'")


def _parameter(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not value:
        remedy = "write it like RATE_AI=50Mb/s"
        raise InputError.single("--set", f"{text!r} is not KEY=VALUE", remedy)
    return key, value


def export_hpcc(
    item: ExportedTrial,
    folder: Path,
    *,
    control: str = "",
    prefix: str = "",
    thresholds: bool = True,
    parameters: Mapping[str, str] = {},
) -> HpccExport:
    """Write one trial's input files into the new folder `folder`.

    `control` is the congestion control, by default the trial's; `parameters` replace values of
    run.py. `prefix` is the folder's path as the simulator sees it. Without `thresholds`, the config
    has HPCC's own. Raises InputError for settings that the formats cannot express, and if the
    folder exists.
    """
    notes: list[str] = []
    path = prefix or str(folder.resolve())
    if len(path.split()) != 1:
        what = "has a blank, at which the simulator's reader ends a path"
        raise InputError.single(path, what, "choose another folder with -o, or --prefix")
    _refuse_testbed(item.testbed)
    _refuse_schedule(item.schedule, item.testbed)
    clock = simulator_times(item.spec)
    down = _link_down(item, clock)
    chosen = _control(item, control, parameters)
    marks = threshold_maps(item, chosen, thresholds, notes)
    ports = _class_ports(item.schedule.classes)
    config = config_text(item, chosen, marks, clock, down, path, notes)
    with new_folder(folder) as partial:
        (partial / "topology.txt").write_text("".join(_topology(item.testbed)))
        with (partial / "flow.txt").open("w") as file:
            file.writelines(_flows(item, ports, clock))
        (partial / "trace.txt").write_text("0\n\n")
        (partial / "config.txt").write_text(config)
        names = json.dumps(_names(item, ports, clock), indent=1)
        (partial / "names.json").write_text(names + "\n", encoding="utf-8")
    return HpccExport(folder, f"{path}/config.txt", len(item.schedule), tuple(notes))


def _control(item: ExportedTrial, name: str, parameters: Mapping[str, str]) -> HpccControl:
    """Return the control called `name`, or the trial's own if it is "".

    An imported trial's own control keeps its parameters.
    """
    own = item.spec.host.congestion_control
    kept: Mapping[str, str] = {}
    if own == IMPORTED_CONTROL and item.result is not None:
        facts = item.result.facts
        own = str(facts.get(CONGESTION_CONTROL, UNKNOWN_CONTROL))
        kept = {} if name else facts.get("hpcc_parameters", {})
    return with_parameters(
        control_of(name or own, item.testbed.nic_rates_bps[0]), {**kept, **parameters}
    )


def _refuse_testbed(testbed: Testbed) -> None:
    where = f"testbed {testbed.name}"
    if testbed.classes:
        what = "has traffic classes with weights; the simulator serves its queues in turn"
        raise InputError.single(where, what, "export a trial on a testbed without classes")
    if len(testbed.devices) > MAX_NODES:
        what = f"has {len(testbed.devices)} devices; the simulator's ids end at {MAX_NODES - 1}"
        raise InputError.single(where, what, "export a smaller testbed")
    for name in testbed.switches:
        if len(testbed.ports_of[name]) > _MAX_PORTS:
            what = f"{name} has more than the {_MAX_PORTS} ports of a switch in the simulator"
            raise InputError.single(where, what, "export a testbed of smaller switches")
    for name, links in testbed.links_by_name.items():
        if len(links) > 1:
            what = f"has {len(links)} links {name}; of parallel links the simulator uses only one"
            raise InputError.single(where, what, "export a testbed with one link between devices")


def _refuse_schedule(schedule: Schedule, testbed: Testbed) -> None:
    if not len(schedule):
        raise InputError.single("the schedule", "has no flows", "export a trial with flows")
    if int(schedule.size_bytes.max()) > _MAX_BYTES:
        flow = int(np.argmax(schedule.size_bytes))
        what = f"flow {flow} has {schedule.size_bytes[flow]} B; the simulator's sizes have 32 bits"
        raise InputError.single("the schedule", what, "export flows of less than 4 GiB")
    pairs = schedule.src * len(testbed.hosts) + schedule.dst
    distinct, counts = np.unique(pairs, return_counts=True)
    if int(counts.max()) > _MAX_FLOWS_OF_PAIR:
        src, dst = divmod(int(distinct[np.argmax(counts)]), len(testbed.hosts))
        what = (
            f"{counts.max()} flows go from {testbed.hosts[src]} to {testbed.hosts[dst]}; the "
            f"simulator has source ports for {_MAX_FLOWS_OF_PAIR}"
        )
        raise InputError.single("the schedule", what, "export a shorter trial")


def _link_down(item: ExportedTrial, clock: SimulatorTimes) -> tuple[int, int, int]:
    """Return the values of LINK_DOWN: a time in us and two node ids, all 0 for no failure."""
    steps = [step for step in fault_plan(item.spec, item.testbed) if step.kind == "links"]
    if not steps:
        return 0, 0, 0
    where = f"trial {item.name}"
    if len(steps) > 1 or len(steps[0].down) != 1:
        detail = "; ".join(step.detail for step in steps)
        what = f"has faults ({detail}); LINK_DOWN takes one link down, once"
        raise InputError.single(where, what, "export a trial without faults, or with one link down")
    t_ns = steps[0].t_ns
    if t_ns % 1000 or not t_ns:
        what = f"takes a link down at {t_ns} ns; LINK_DOWN has whole microseconds above 0"
        raise InputError.single(where, what, "take it down at a whole microsecond")
    link = item.testbed.links[next(iter(steps[0].down))]
    ids = _ids(item.testbed)
    a, b = (ids[item.testbed.ports[end].device] for end in (link.a, link.b))
    return (clock.base_ns - BASE_NS + t_ns) // 1000, a, b


def _ids(testbed: Testbed) -> dict[str, int]:
    return {device.name: number for number, device in enumerate(testbed.devices)}


def _class_ports(classes: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return each class's priority group and destination port.

    They are in the name of an imported class; other ports count up from 100, for incast from 200.
    """
    taken: set[tuple[int, int]] = set()
    result = []
    for name in classes:
        usual = _INCAST_PORT if name.startswith("incast") else _NORMAL_PORT
        group, port = _own_port(name) or (_GROUP, usual)
        while (group, port) in taken:
            port += 1
        taken.add((group, port))
        result.append((group, port))
    return result


def _own_port(name: str) -> tuple[int, int] | None:
    """Return group and port from the generated name of an imported class, such as `pg3-port100`."""
    match = re.fullmatch(r"pg(\d+)-port(\d+)", name, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def _topology(testbed: Testbed) -> Iterator[str]:
    ids = _ids(testbed)
    yield f"{len(ids)} {len(testbed.switches)} {len(testbed.links)}\n"
    yield " ".join(str(ids[name]) for name in testbed.switches) + "\n"
    for link in testbed.links:
        a, b = (ids[testbed.ports[end].device] for end in (link.a, link.b))
        yield f"{a} {b} {_rate(link.rate_bps)} {link.delay_ns}ns 0.000000\n"


def _rate(bps: int) -> str:
    for unit, factor in (("Gbps", 10**9), ("Mbps", 10**6), ("Kbps", 10**3)):
        if bps % factor == 0:
            return f"{bps // factor}{unit}"
    return f"{bps}bps"


def _flows(
    item: ExportedTrial, ports: list[tuple[int, int]], clock: SimulatorTimes
) -> Iterator[str]:
    schedule = item.schedule
    ids = _ids(item.testbed)
    host = [ids[name] for name in item.testbed.hosts]
    marks = [f"{group} {port}" for group, port in ports]
    yield f"{len(schedule)}\n"
    columns = (schedule.src, schedule.dst, schedule.klass, schedule.size_bytes)
    rows = zip(*(c.tolist() for c in (*columns, schedule.start_ns + clock.base_ns)), strict=True)
    for src, dst, klass, size, start in rows:
        # the simulator truncates a double: half a nanosecond more makes every start exact
        seconds = f"{start // 10**9}.{start % 10**9:09d}5"
        yield f"{host[src]} {host[dst]} {marks[klass]} {size} {seconds}\n"


def _names(
    item: ExportedTrial, ports: list[tuple[int, int]], clock: SimulatorTimes
) -> dict[str, object]:
    return {
        "format": NAMES_FORMAT,
        "trial": item.spec.id if item.result is not None else "",
        "seed": item.spec.seed,
        "repeat": item.spec.repeat,
        "base_ns": clock.base_ns,
        "duration_ns": item.spec.duration_ns,
        "testbed": item.testbed.name,
        "nodes": [{"name": device.name, "tier": device.tier} for device in item.testbed.devices],
        "classes": [
            {"name": name, "group": group, "port": port}
            for name, (group, port) in zip(item.schedule.classes, ports, strict=True)
        ],
    }
