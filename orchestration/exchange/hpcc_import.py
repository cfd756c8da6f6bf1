"""`closloop import hpcc`: make a trial out of the HPCC ns-3 simulator's input and output files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from inventory.routing import PathTable
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN
from orchestration.core.parts import Device, LinkSpec
from orchestration.core.provenance import HPCC_FORMAT
from orchestration.core.records import DONE, MISSING, UNFINISHED, ChangeRecords, Event
from orchestration.core.topology import TCP_IP_HEADER_BYTES, Testbed
from orchestration.core.trial import FaultSpec
from orchestration.core.units import format_duration, format_rate, parse_duration_ns
from orchestration.exchange.hpcc_config import (
    BASE_NS,
    DCTCP,
    HEADER_BYTES,
    HpccControl,
    closest_control,
    control_differences,
    differences_text,
    window_bytes,
    window_note,
)
from orchestration.exchange.hpcc_inputs import (
    HpccConfig,
    HpccFlows,
    HpccTopology,
    read_config,
    read_flows,
    read_topology,
    run_settings,
)
from orchestration.exchange.hpcc_results import (
    PFC_KINDS,
    HpccFct,
    HpccPauses,
    match_flows,
    queue_facts,
    read_fct,
    read_pfc,
)
from orchestration.exchange.imported import Imported, ImportedFlows
from orchestration.exchange.mapping import tiers
from orchestration.exchange.source import parse_quantity
from orchestration.results.reader import read_json
from orchestration.results.stamp import Reason

# Format 1 had no times: the simulator's 2 s were time 0.
NAMES_FORMAT = 2


@dataclass(frozen=True)
class HpccFiles:
    """Options: the files of one run. Without `flow`, only completed flows are known."""

    topology: Annotated[Path, "The topology file."]
    flow: Annotated[Path | None, "The flow file: the flows to send."] = None
    fct: Annotated[Path | None, "The fct file: which flows were completed, and when."] = None
    queues: Annotated[Path | None, "--qlen", "The file of queue lengths."] = None
    pfc: Annotated[Path | None, "The file of PFC pauses."] = None
    config: Annotated[Path | None, "The config file: thresholds, buffer and packet size."] = None
    names: Annotated[Path | None, "The names.json of an export."] = None


def import_hpcc(
    files: HpccFiles,
    *,
    base: Annotated[
        str, "The simulator's time that becomes time 0 (default: that of names.json, or 2s)."
    ] = "",
) -> Imported:
    """Import a run of the HPCC (Alibaba) ns-3 simulator, or of its forks by ConWeave and UNISON.

    The rows of the fct file are matched with the flow file; flows without such a row are
    unfinished. The simulator's queue lengths are histograms, and stay histograms.

    Example: closloop import hpcc --flow mix/flow.txt --topology mix/topology.txt --fct mix/fct.txt
    --config mix/config.txt -o runs/theirs
    """
    if files.flow is None and files.fct is None:
        raise InputError.single(
            "import hpcc", "neither a flow file nor an fct file is given", "add --flow or --fct"
        )
    topology = read_topology(files.topology)
    config = read_config(files.config) if files.config else HpccConfig()
    names = _read_names(files.names, topology) if files.names else Names.of(topology)
    given_ns = parse_quantity("--base", base, parse_duration_ns)
    base_ns = names.base_ns if given_ns is None else given_ns
    testbed = _testbed(topology, config, names)
    fct = read_fct(files.fct, topology) if files.fct else None
    flows = read_flows(files.flow, topology) if files.flow else None
    findings: list[Reason] = []
    imported = _flows(flows, fct, topology, names, base_ns, findings)
    imported = dataclasses.replace(imported, in_order=files.names is not None and flows is not None)
    control = closest_control(config.mode, config.values, testbed.nic_rates_bps[0])
    findings += _control_findings(config, control, testbed)
    queues = queue_facts(
        files.queues, topology, testbed, base_ns, imported.start_ns, names.duration_ns, findings
    )
    pauses = read_pfc(files.pfc, topology) if files.pfc else None
    roles = dataclasses.asdict(files)
    # the name of run.py's set if the config has its values, else that of the mode
    control_name = config.congestion_control
    if control is not None and not control_differences(control, config.values):
        control_name = control.name
    keys = control.values if control is not None else ()
    own = {key: config.values[key] for key in keys if key in config.values}
    return Imported(
        format=HPCC_FORMAT,
        testbed=testbed,
        flows=imported,
        inputs={role: roles[role] for role in ("flow", "topology", "config") if roles[role]},
        results={role: roles[role] for role in ("fct", "queues", "pfc") if roles[role]},
        missing=_missing(files, topology, config, testbed),
        findings=findings,
        complete=flows is not None,
        measured=fct is not None,
        stop_ns=max(0, config.stop_ns - base_ns),
        duration_ns=names.duration_ns,
        congestion_control=control_name,
        label=control_name or "hpcc",
        faults=_faults(config, testbed, base_ns, files),
        actions=_thresholds(config, testbed),
        events=_events(pauses, testbed, base_ns),
        facts={**queues, **({"hpcc_parameters": own} if own else {})},
        settings=run_settings(config, topology, testbed),
        parent=names.trial,
        seed=names.seed,
        repeat=names.repeat,
    )


@dataclass(frozen=True)
class Names:
    """The names of the testbed, of its nodes (with their tiers), and of the classes of flows.

    `classes` maps (priority group, destination port) to a class's name. `trial`, `seed` and
    `repeat` are those of the exported trial. `duration_ns` is how long its flows arrive, 0 if
    unknown, and `base_ns` is the simulator's time that is the trial's time 0.
    """

    testbed: str
    nodes: tuple[tuple[str, int], ...]
    classes: Mapping[tuple[int, int], str]
    trial: str = ""
    seed: int = 0
    repeat: int = 0
    base_ns: int = BASE_NS
    duration_ns: int = 0

    @classmethod
    def of(cls, topology: HpccTopology) -> Names:
        """Return names made of the nodes' ids, and tiers by their distance to the hosts."""
        ends = [(link.a, link.b) for link in topology.links]
        tier = tiers(topology.nodes, topology.hosts, ends)
        nodes = tuple(
            (f"{'switch' if node in topology.switches else 'host'}{node}", tier[node])
            for node in range(topology.nodes)
        )
        stem = "".join(c if c.isalnum() else "-" for c in topology.path.stem.lower())
        return cls(stem.strip("-") or "topology", nodes, {})


def _read_names(path: Path, topology: HpccTopology) -> Names:
    """Read the names.json that `closloop export hpcc` wrote beside its files."""
    remedy = "give the names.json that was exported with this topology file, or leave --names out"
    data = read_json(path, remedy)
    try:
        names = Names(
            testbed=str(data["testbed"]),
            nodes=tuple((str(node["name"]), int(node["tier"])) for node in data["nodes"]),
            classes={
                (int(item["group"]), int(item["port"])): str(item["name"])
                for item in data["classes"]
            },
            trial=str(data["trial"]),
            seed=int(data["seed"]),
            repeat=int(data["repeat"]),
            base_ns=int(data.get("base_ns", BASE_NS)),
            duration_ns=int(data.get("duration_ns", 0)),
        )
        version = int(data.get("format", NAMES_FORMAT))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError.single(str(path), f"does not hold names: {error!r}", remedy) from error
    if version > NAMES_FORMAT:
        what = f"has format {version}, this version of closloop knows {NAMES_FORMAT}"
        raise InputError.single(str(path), what, "import it with the version that exported it")
    kinds = [
        (node in topology.switches) == (tier > 0) for node, (_, tier) in enumerate(names.nodes)
    ]
    distinct = len({name for name, _ in names.nodes}) == len(names.nodes)
    if len(names.nodes) != topology.nodes or not all(kinds) or not distinct:
        what = f"its {len(names.nodes)} names are not those of the {topology.nodes} nodes"
        raise InputError.single(str(path), f"{what} of {topology.path}", remedy)
    return names


def _testbed(topology: HpccTopology, config: HpccConfig, names: Names) -> Testbed:
    label = [name for name, _ in names.nodes]
    return Testbed.build(
        names.testbed,
        (
            Device(name, "switch" if node in topology.switches else "host", tier)
            for node, (name, tier) in enumerate(names.nodes)
        ),
        (
            LinkSpec(label[link.a], label[link.b], link.rate_bps, link.delay_ns)
            for link in topology.links
        ),
        mtu_bytes=config.payload_bytes + TCP_IP_HEADER_BYTES,
        buffer_bytes=config.buffer_bytes,
        framing_bytes=0,
        source=f"imported from {topology.path.name}",
    )


def _flows(
    flows: HpccFlows | None,
    fct: HpccFct | None,
    topology: HpccTopology,
    names: Names,
    base_ns: int,
    findings: list[Reason],
) -> ImportedFlows:
    """Return the flows, with what the fct file says of them; append doubts to `findings`."""
    host_number = np.full(topology.nodes, MISSING, dtype=np.int64)
    host_number[topology.hosts] = np.arange(len(topology.hosts))
    if fct is not None and not fct.ordered:
        text = f"the rows of {fct.path.name} are not in the order in which the flows ended"
        findings.append(Reason("order-of-ends", "warning", text))
    if flows is None:
        assert fct is not None
        text = "only completed flows are known, because there is no flow file"
        findings.append(Reason("flows-unknown", "warning", text))
        start, src, dst = fct.start_ns, fct.src, fct.dst
        size, group, port = fct.size_bytes, np.full(len(fct), 3, dtype=np.int64), fct.dport
        end, standalone = fct.start_ns + fct.fct_ns, fct.standalone_ns
    else:
        start, src, dst = flows.start_ns, flows.src, flows.dst
        size, group, port = flows.size_bytes, flows.group, flows.dport
        end, standalone = np.full((2, len(flows)), MISSING, dtype=np.int64)
        if fct is not None:
            flow, rounded = match_flows(fct, flows)
            end[flow] = start[flow] + fct.fct_ns
            standalone[flow] = fct.standalone_ns
            if rounded:
                text = (
                    f"{rounded} flows started a nanosecond earlier or later, because the simulator "
                    "rounds seconds"
                )
                findings.append(Reason("start-rounded", "warning", text))
    _check_starts(str(flows.path if flows else fct.path if fct else ""), int(start.min()), base_ns)
    done = end >= 0
    keys, klass = np.unique(group << 32 | port, return_inverse=True)
    marks = [(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]
    return ImportedFlows(
        start_ns=start - base_ns,
        src=host_number[src],
        dst=host_number[dst],
        size_bytes=size,
        klass=klass.reshape(-1),
        classes=tuple(names.classes.get(mark, "pg{}-port{}".format(*mark)) for mark in marks),
        end_ns=np.where(done, end - base_ns, MISSING),
        status=np.where(done, DONE, UNFINISHED),
        ideal=standalone if fct is not None else None,
    )


def _check_starts(path: str, first_ns: int, base_ns: int) -> None:
    """Raise InputError if the first flow starts before the time that becomes time 0."""
    if first_ns < base_ns:
        raise InputError.single(
            path,
            f"a flow starts at {format_duration(first_ns, 9)}, before the base time of "
            f"{format_duration(base_ns)}",
            f"give the time that becomes time 0: --base {first_ns // 10**9}s",
        )


def _missing(
    files: HpccFiles, topology: HpccTopology, config: HpccConfig, testbed: Testbed
) -> list[str]:
    missing = ["samples of ports", "TCP counters of hosts", "when each flow's first byte was sent"]
    if files.config is None:
        missing.append("config (thresholds, buffer and packet size are the simulator's defaults)")
    elif config.thresholds is None:
        off = config.values.get("ENABLE_QCN") == "0"
        why = "ENABLE_QCN 0: no switch marks" if off else "no KMIN_MAP, KMAX_MAP and PMAX_MAP"
        missing.append(f"thresholds ({why})")
    elif lost := {port.rate_bps for port in testbed.switch_ports} - set(config.thresholds):
        rates = ", ".join(str(rate) for rate in sorted(lost))
        missing.append(f"thresholds of ports of {rates} bit/s")
    if "link-loss" in run_settings(config, topology, testbed):
        missing.append("random loss on links, which a testbed cannot have")
    missing.append(f"its {HEADER_BYTES} B of headers a packet (the testbed's TCP has more)")
    return missing


def _faults(
    config: HpccConfig, testbed: Testbed, base_ns: int, files: HpccFiles
) -> tuple[FaultSpec, ...]:
    if config.link_down is None:
        return ()
    down_ns, a, b = config.link_down
    names = [device.name for device in testbed.devices]
    if max(a, b) >= len(names) or f"{names[a]}-{names[b]}" not in testbed.links_by_name:
        raise InputError.single(
            str(files.config),
            f"LINK_DOWN names a link of {a} and {b}, which {files.topology} does not have",
            "give the topology file of the same run",
        )
    return (FaultSpec(down_ns - base_ns, None, 0, (f"{names[a]}-{names[b]}",)),)


def _thresholds(config: HpccConfig, testbed: Testbed) -> ChangeRecords | None:
    """Return the thresholds of all ports, by their rates, as changes at time 0."""
    if not config.thresholds:
        return None
    rows = [n for n, queue in enumerate(testbed.queues) if queue.rate_bps in config.thresholds]
    values = [config.thresholds[testbed.queues[n].rate_bps] for n in rows]
    kmin, kmax, pmax = np.array(values, dtype=np.float64).reshape(-1, 3).T.copy()
    zero = np.zeros(len(rows), dtype=np.int64)
    settings = ECN.named(kmin.astype(np.int64), kmax.astype(np.int64), pmax)
    return ChangeRecords(zero, zero, zero, np.array(rows, dtype=np.int64), settings)


def _events(pauses: HpccPauses | None, testbed: Testbed, base_ns: int) -> tuple[Event, ...]:
    if pauses is None:
        return ()
    labels = [[port.label for port in testbed.ports_of[device.name]] for device in testbed.devices]
    order = np.argsort(pauses.t_ns, kind="stable")
    rows = zip(
        (pauses.t_ns[order] - base_ns).tolist(),
        pauses.node[order].tolist(),
        pauses.port[order].tolist(),
        pauses.kind[order].tolist(),
        strict=True,
    )
    return tuple(
        Event(t_ns, PFC_KINDS[kind], labels[node][port]) for t_ns, node, port, kind in rows
    )


def _control_findings(
    config: HpccConfig, control: HpccControl | None, testbed: Testbed
) -> Iterator[Reason]:
    """Yield warnings: parameters differ from run.py's, or a window leaves thresholds no effect."""
    if control is None:
        return
    if other := control_differences(control, config.values):
        rate = format_rate(testbed.nic_rates_bps[0])
        text = f"{control.name} at {rate} has other parameters: {differences_text(control, other)}"
        yield Reason("parameters", "warning", text)
    if control.mode == DCTCP and config.values.get("HAS_WIN", "1") != "0":
        window = window_bytes(testbed, PathTable(testbed), config.payload_bytes)
        yield Reason("window", "warning", window_note(control, window))
