"""Write the input files of the HPCC ns-3 simulator, to run exactly the same flows there.

Settings that its formats cannot express are refused; differences are noted (`HpccExport.notes`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.routing import PathTable
from inventory.topology import Testbed
from orchestration.backends.faults import fault_plan
from orchestration.exchange.hpcc_import import NAMES_FORMAT
from orchestration.exchange.hpcc_inputs import (
    BASE_NS,
    CONGESTION_CONTROL,
    HEADER_BYTES,
    MAX_NODES,
    Thresholds,
)
from orchestration.exchange.imported import IMPORTED
from orchestration.exchange.source import Exported, new_folder
from orchestration.model.errors import InputError
from orchestration.model.records import Schedule
from orchestration.model.units import format_rate

# Its sizes have 32 bits, its source ports count from 10000 to 65535, its switches have 256 ports.
_MAX_BYTES = 2**32 - 1
_MAX_FLOWS_OF_PAIR = 65536 - 10000
_MAX_PORTS = 256
_GROUP = 3
# The destination ports that its fct_analysis expects of normal flows and of incast.
_NORMAL_PORT, _INCAST_PORT = 100, 200
# Its shipped setting, proportional to the rate, for ports whose thresholds are not known.
_KMIN_BYTES_PER_GBPS, _KMAX_BYTES_PER_GBPS, _PMAX = 4_000, 16_000, 0.2


@dataclass(frozen=True)
class HpccExport:
    """The folder with flow.txt, topology.txt, trace.txt, config.txt and names.json, and notes."""

    folder: Path
    flows: int
    notes: tuple[str, ...]


def export_hpcc(
    item: Exported, folder: Path, *, control: str = "", prefix: str = "", thresholds: bool = True
) -> HpccExport:
    """Write one trial's input files into the new folder `folder`.

    `control` is the congestion control to use, by default the trial's. `prefix` is the folder's
    path as the simulator will see it. Without `thresholds`, the config has HPCC's own. Raises
    InputError for settings that the formats cannot express, and if the folder exists.
    """
    notes: list[str] = []
    _refuse_testbed(item.testbed)
    _refuse_schedule(item.schedule, item.testbed)
    down = _link_down(item)
    mode = mode_of(control or _control(item))
    marks = thresholds_of(item, thresholds, notes)
    ports = _class_ports(item.schedule.classes)
    config = config_text(item, mode, marks, down, prefix or str(folder.resolve()), notes)
    with new_folder(folder) as partial:
        (partial / "topology.txt").write_text("".join(_topology(item.testbed)))
        with (partial / "flow.txt").open("w") as file:
            file.writelines(_flows(item, ports))
        (partial / "trace.txt").write_text("0\n\n")
        (partial / "config.txt").write_text(config)
        names = json.dumps(_names(item, ports), indent=1)
        (partial / "names.json").write_text(names + "\n", encoding="utf-8")
    return HpccExport(folder, len(item.schedule), tuple(notes))


def _control(item: Exported) -> str:
    own = item.spec.host.congestion_control
    if own == IMPORTED and item.result is not None:
        return str(item.result.facts.get("congestion_control", "unknown"))
    return own


def _refuse_testbed(testbed: Testbed) -> None:
    where = f"testbed {testbed.name}"
    if testbed.classes:
        what = "has traffic classes with weights; the simulator serves its queues in turn"
        raise InputError.single(where, what, "export a trial on a testbed without classes")
    if len(testbed.devices) > MAX_NODES:
        what = f"has {len(testbed.devices)} devices; ids there end at {MAX_NODES - 1}"
        raise InputError.single(where, what, "export a smaller testbed")
    for name in testbed.switches:
        if len(testbed.ports_of[name]) > _MAX_PORTS:
            what = f"{name} has more than the {_MAX_PORTS} ports of a switch there"
            raise InputError.single(where, what, "export a testbed of smaller switches")
    for name, links in testbed.links_by_name.items():
        if len(links) > 1:
            what = f"has {len(links)} links {name}; of parallel links the simulator uses one"
            raise InputError.single(where, what, "export a testbed with one link between devices")


def _refuse_schedule(schedule: Schedule, testbed: Testbed) -> None:
    if not len(schedule):
        raise InputError.single("the schedule", "has no flows", "export a trial with flows")
    if int(schedule.size_bytes.max()) > _MAX_BYTES:
        flow = int(np.argmax(schedule.size_bytes))
        what = f"flow {flow} has {schedule.size_bytes[flow]} B; sizes there have 32 bits"
        raise InputError.single("the schedule", what, "export flows of less than 4 GiB")
    pairs = schedule.src * len(testbed.hosts) + schedule.dst
    found, counts = np.unique(pairs, return_counts=True)
    if int(counts.max()) > _MAX_FLOWS_OF_PAIR:
        src, dst = divmod(int(found[np.argmax(counts)]), len(testbed.hosts))
        what = (
            f"{counts.max()} flows go from {testbed.hosts[src]} to {testbed.hosts[dst]}; source "
            f"ports there are enough for {_MAX_FLOWS_OF_PAIR}"
        )
        raise InputError.single("the schedule", what, "export a shorter trial")


def _link_down(item: Exported) -> tuple[int, int, int]:
    """Return the values of LINK_DOWN: a time in us and two node ids, all 0 for no failure."""
    steps = [step for step in fault_plan(item.spec, item.testbed) if step.kind == "links"]
    if not steps:
        return 0, 0, 0
    where = f"trial {item.name}"
    if len(steps) > 1 or len(steps[0].down) != 1:
        what = (
            f"has faults ({'; '.join(s.detail for s in steps)}); LINK_DOWN takes one link down once"
        )
        raise InputError.single(where, what, "export a trial without faults, or with one link down")
    t_ns = steps[0].t_ns
    if t_ns % 1000 or not t_ns:
        what = f"takes a link down at {t_ns} ns; LINK_DOWN has whole microseconds above 0"
        raise InputError.single(where, what, "take it down at a whole microsecond")
    link = item.testbed.links[next(iter(steps[0].down))]
    ids = _ids(item.testbed)
    a, b = (ids[item.testbed.ports[end].device] for end in (link.a, link.b))
    return t_ns // 1000, a, b


def _ids(testbed: Testbed) -> dict[str, int]:
    return {device.name: number for number, device in enumerate(testbed.devices)}


def _class_ports(classes: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return each class's priority group and port: from its name, or from 100 (incast 200) up."""
    taken: set[tuple[int, int]] = set()
    result = []
    for name in classes:
        group, port = _own_port(name) or (
            _GROUP,
            _INCAST_PORT if name.startswith("incast") else _NORMAL_PORT,
        )
        while (group, port) in taken:
            port += 1
        taken.add((group, port))
        result.append((group, port))
    return result


def _own_port(name: str) -> tuple[int, int] | None:
    """Return group and port from the generated name of an imported class, such as `pg3-port100`."""
    group, _, port = name.removeprefix("pg").partition("-port")
    whole = name.startswith("pg") and group.isdecimal() and port.isdecimal()
    return (int(group), int(port)) if whole else None


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


def _flows(item: Exported, ports: list[tuple[int, int]]) -> Iterator[str]:
    schedule = item.schedule
    ids = _ids(item.testbed)
    host = [ids[name] for name in item.testbed.hosts]
    marks = [f"{group} {port}" for group, port in ports]
    yield f"{len(schedule)}\n"
    columns = (
        column.tolist()
        for column in (
            schedule.src,
            schedule.dst,
            schedule.klass,
            schedule.size_bytes,
            schedule.start_ns + BASE_NS,
        )
    )
    for src, dst, klass, size, start in zip(*columns, strict=True):
        seconds = f"{start // 10**9}.{start % 10**9:09d}"
        yield f"{host[src]} {host[dst]} {marks[klass]} {size} {seconds}\n"


def _names(item: Exported, ports: list[tuple[int, int]]) -> dict[str, object]:
    return {
        "format": NAMES_FORMAT,
        "trial": item.spec.id if item.result is not None else "",
        "seed": item.spec.seed,
        "repeat": item.spec.repeat,
        "testbed": item.testbed.name,
        "nodes": [{"name": device.name, "tier": device.tier} for device in item.testbed.devices],
        "classes": [
            {"name": name, "group": group, "port": port}
            for name, (group, port) in zip(item.schedule.classes, ports, strict=True)
        ],
    }


def mode_of(control: str) -> tuple[int, str]:
    """Return CC_MODE and its name. Raises InputError for one that the simulator lacks."""
    for number, name in CONGESTION_CONTROL.items():
        if name == control:
            return number, name
    known = ", ".join(CONGESTION_CONTROL.values())
    raise InputError.single(
        "congestion control", f"the simulator has no {control!r}", f"say --cc with one of {known}"
    )


def thresholds_of(item: Exported, wanted: bool, notes: list[str]) -> Thresholds:
    """Return the maps of thresholds; HPCC's own if they are not `wanted` or not known.

    Raises InputError for thresholds that maps by rate, in whole KB, cannot express.
    """
    rates = sorted({port.rate_bps for port in item.testbed.switch_ports})
    known = item.thresholds if wanted else None
    if known is None:
        notes.append(
            "thresholds are HPCC's, 100KB and 400KB per 25Gbps with 20%"
            + ("" if not wanted else ": the run does not say its own")
        )
        return {
            rate: (
                max(1, rate * _KMIN_BYTES_PER_GBPS // 10**12) * 1000,
                max(1, rate * _KMAX_BYTES_PER_GBPS // 10**12) * 1000,
                _PMAX,
            )
            for rate in rates
        }
    if known.changed:
        notes.append("the tuner changes thresholds; the config has those of the start")
    of_port = np.array([queue.rate_bps for queue in item.testbed.queues])
    result: Thresholds = {}
    for rate in rates:
        mine = of_port == rate
        kmin, kmax = known.kmin_bytes[mine], known.kmax_bytes[mine]
        pmax = known.pmax[mine]
        where = f"trial {item.name}"
        remedy = "leave them out: --no-thresholds"
        if len(set(zip(kmin.tolist(), kmax.tolist(), pmax.tolist(), strict=True))) > 1:
            what = f"ports of {format_rate(rate)} have different thresholds; maps there go by rate"
            raise InputError.single(where, what, remedy)
        if kmin[0] % 1000 or kmax[0] % 1000:
            what = f"thresholds of {kmin[0]} B and {kmax[0]} B; maps there have whole KB"
            raise InputError.single(where, what, remedy)
        result[rate] = (int(kmin[0]), int(kmax[0]), float(pmax[0]))
    return result


def config_text(
    item: Exported,
    mode: tuple[int, str],
    marks: Thresholds,
    down: tuple[int, int, int],
    prefix: str,
    notes: list[str],
) -> str:
    """Return the text of config.txt, and append differences from the trial to `notes`.

    `mode` is CC_MODE and its name, `down` the three values of LINK_DOWN, `prefix` the folder.
    """
    testbed, spec = item.testbed, item.spec
    stop_ns = BASE_NS + spec.duration_ns + spec.drain_ns
    buffer_bytes = max(port.buffer_bytes for port in testbed.switch_ports)
    buffer_mib = max(1, math.ceil(buffer_bytes / 2**20))
    if buffer_mib * 2**20 != buffer_bytes:
        notes.append(f"a port's buffer of {buffer_bytes} B is rounded up to {buffer_mib} MiB")
    notes.append("the buffer there is a switch's, shared by its ports; here it is a port's")
    notes.append(
        f"a packet there has {HEADER_BYTES} B beside its payload, here "
        f"{testbed.wire_bytes(1) - 1} B"
    )
    windowed = mode[1] not in ("dcqcn", "timely")
    payload = testbed.mss_bytes
    # DCTCP's window grows by one packet per round trip.
    rtt_ns = _longest_rtt_ns(item)
    additive = max(1, (payload + HEADER_BYTES) * 8 * 10**9 // max(1, rtt_ns) // 10**6)

    def by_rate(place: int) -> str:
        values = (f"{rate} {_number(marks[rate][place])}" for rate in sorted(marks))
        return f"{len(marks)} {' '.join(values)}"

    lines = {
        "ENABLE_QCN": "1",
        "USE_DYNAMIC_PFC_THRESHOLD": "1",
        "PACKET_PAYLOAD_SIZE": payload,
        "TOPOLOGY_FILE": f"{prefix}/topology.txt",
        "FLOW_FILE": f"{prefix}/flow.txt",
        "TRACE_FILE": f"{prefix}/trace.txt",
        "TRACE_OUTPUT_FILE": f"{prefix}/mix.tr",
        "FCT_OUTPUT_FILE": f"{prefix}/fct.txt",
        "PFC_OUTPUT_FILE": f"{prefix}/pfc.txt",
        "SIMULATOR_STOP_TIME": f"{stop_ns // 10**9}.{stop_ns % 10**9:09d}",
        "CC_MODE": mode[0],
        "ALPHA_RESUME_INTERVAL": 1,
        "RATE_DECREASE_INTERVAL": 4,
        "CLAMP_TARGET_RATE": 0,
        "RP_TIMER": 300,
        "EWMA_GAIN": "0.0625" if mode[1] == "dctcp" else "0.00390625",
        "FAST_RECOVERY_TIMES": 1,
        "RATE_AI": "50Mb/s",
        "RATE_HAI": "100Mb/s",
        "MIN_RATE": "100Mb/s",
        "DCTCP_RATE_AI": f"{additive}Mb/s",
        "ERROR_RATE_PER_LINK": "0.0000",
        "L2_CHUNK_SIZE": 4000,
        "L2_ACK_INTERVAL": 1,
        "L2_BACK_TO_ZERO": 0,
        "HAS_WIN": int(windowed),
        "GLOBAL_T": 1,
        "VAR_WIN": int(windowed),
        "FAST_REACT": int(mode[1].startswith("hpcc")),
        "U_TARGET": "0.95",
        "MI_THRESH": 0,
        "INT_MULTI": 1,
        "MULTI_RATE": 0,
        "SAMPLE_FEEDBACK": 0,
        "PINT_LOG_BASE": "1.05",
        "PINT_PROB": "1.0",
        "RATE_BOUND": 1,
        "ACK_HIGH_PRIO": 0,
        "LINK_DOWN": " ".join(str(value) for value in down),
        "ENABLE_TRACE": 0,
        "KMAX_MAP": by_rate(1),
        "KMIN_MAP": by_rate(0),
        "PMAX_MAP": by_rate(2),
        "BUFFER_SIZE": buffer_mib,
        "QLEN_MON_FILE": f"{prefix}/qlen.txt",
        "QLEN_MON_START": BASE_NS,
        "QLEN_MON_END": stop_ns,
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _number(value: float) -> str:
    """Return a threshold in KB or a probability as text."""
    return str(value // 1000) if isinstance(value, int) else repr(value)


def _longest_rtt_ns(item: Exported) -> int:
    """Return the longest base RTT between the ends of a flow."""
    paths, hosts = PathTable(item.testbed), item.testbed.hosts
    pairs = np.unique(item.schedule.src * len(hosts) + item.schedule.dst).tolist()
    return max(
        paths.base_rtt_ns(hosts[pair // len(hosts)], hosts[pair % len(hosts)]) for pair in pairs
    )
