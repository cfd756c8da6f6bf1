"""Measures speed: the program, a trial, building, sampling, flow tables."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from orchestration.analysis.packet_hops import PACKET_HOP, packet_hops
from orchestration.analysis.stamp import stamp
from orchestration.artifacts.writer import write_trial
from orchestration.model.load_balancing import LoadBalancingSpec
from orchestration.model.roce import DCQCN_SETS, FORMER_HPCC, RoceSpec
from orchestration.model.trial import CLOSLOOP, LINUX, TCP, FabricSpec, HostSpec, SingleFlowSpec
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    SECN1,
    Figure,
    Outcome,
    Run,
    at_most,
    bench_folder,
    run_trial,
    websearch,
)

DCQCN = HostSpec("dcqcn", roce=RoceSpec(dcqcn=tuple(DCQCN_SETS[FORMER_HPCC].items())))
_NS3 = "DCQCN, ns-3"
_COARSE, _PET = "DCQCN, sampled every 5 ms", "DCQCN, sampled every 5 ms, pet (288 hosts), 2 ms"
_THRESHOLDS = Path(__file__).resolve().parents[3] / "examples" / "thresholds.yml"


def start_up() -> Outcome:
    """`closloop --help`, and the campaign examples/thresholds.yml on the fluid backend."""
    closloop = [str(Path(sys.executable).with_name("closloop"))]
    help_s = statistics.median(_seconds([*closloop, "--help"]) for _ in range(7))
    figures = [at_most("closloop --help, median of 7", help_s, 0.3, 2, " s")]
    notes: tuple[str, ...] = ()
    if _THRESHOLDS.exists():
        command = [*closloop, "run", str(_THRESHOLDS), "--on", "fluid", "--out"]
        with bench_folder() as folder:
            fluid_s = statistics.median(_seconds([*command, f"{folder}/{n}"]) for n in range(3))
        what = "examples/thresholds.yml on the fluid backend, report included, median of 3"
        figures.append(at_most(what, fluid_s, 2, 2, " s"))
    else:
        notes = (f"no {_THRESHOLDS}: it is measured in a checkout only",)
    return Outcome("The program", tuple(figures), notes)


def _seconds(command: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin


def fabric_speed() -> Outcome:
    """graphcc, WebSearch at 60 %, 20 ms of arrivals, every port every 100 us."""
    lasts_ns = 20 * MILLISECOND
    run = run_trial("graphcc", websearch(lasts_ns), SECN1, duration_ns=lasts_ns)
    facts, samples = run.record.facts, run.record.ports.t_ns
    hops = packet_hops(run.testbed, run.record.ports)
    calls = facts["system_calls_per_reading"]
    ideal = np.arange(1, len(samples) + 1) * run.trial.sample_period_ns
    late_ns = int((samples - ideal).max())
    start_late_ns = int((run.record.flows.sent_ns - run.schedule.start_ns).max())
    return Outcome(
        "Speed: graphcc, WebSearch at 60 %, 20 ms of arrivals, all ports every 100 us",
        (
            at_most("wall time, boot included", run.wall_s, 12, 1, " s"),
            Figure("packet-hops", f"{hops:,}"),
            Figure("packet-hops per wall second", f"{hops / run.wall_s:,.0f}"),
            Figure("virtual time", f"{samples[-1] / 1e6:.1f} ms"),
            Figure("system calls to read all queues once", f"{calls}", "a handful", calls <= 5),
            Figure("worst sample, after its time", f"{late_ns} ns", "50 us", late_ns <= 50_000),
            Figure(
                "worst flow start, after its time",
                f"{start_late_ns} ns",
                "2 us",
                start_late_ns <= 2_000,
            ),
        ),
        notes=(
            f"a packet-hop: {PACKET_HOP}",
            f"wall seconds by stage: {facts['stages_s']}",
        ),
        data={"wall_s": run.wall_s, "packet_hops": hops},
    )


def data_path_speed() -> Outcome:
    """Packet-hops a second: TCP on both fabrics, and RoCE under DCQCN, for the same flows."""
    every_ns, long_ns, short_ns = 100_000, 20 * MILLISECOND, 2 * MILLISECOND
    # with the rate that is wanted, in millions
    sides = {
        "DCTCP, Linux' fabric": ("graphcc", long_ns, TCP, LINUX, every_ns, None),
        "DCTCP, fabric: closloop": ("graphcc", long_ns, TCP, CLOSLOOP, every_ns, 1.6),
        "DCQCN, fabric: closloop": ("graphcc", long_ns, DCQCN, CLOSLOOP, every_ns, 3.5),
        _COARSE: ("graphcc", long_ns, DCQCN, CLOSLOOP, 5 * MILLISECOND, 5.0),
        _PET: ("pet", short_ns, DCQCN, CLOSLOOP, 5 * MILLISECOND, None),
        _NS3: ("graphcc", long_ns, DCQCN, CLOSLOOP, every_ns, 1.0),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    hops = {}
    for _ in range(3):
        for name, (testbed, lasts_ns, host, fabric, period_ns, _) in sides.items():
            run = run_trial(
                testbed,
                websearch(lasts_ns),
                SECN1,
                duration_ns=lasts_ns,
                sample_period_ns=period_ns,
                host=host,
                fabric=fabric,
                backend="simulated" if name == _NS3 else "emulated",
            )
            hops[name] = packet_hops(run.testbed, run.record.ports)
            speeds[name].append(hops[name] / run.record.facts["stages_s"]["run"])
    median = {name: statistics.median(values) for name, values in speeds.items()}
    first, pet = next(iter(sides)), median[_PET] / median[_COARSE]
    return Outcome(
        "Packet-hops a wall second: graphcc, WebSearch at 60 %, 20 ms of arrivals, one core",
        (
            *(
                Figure(
                    name,
                    f"{value:,.0f} ({value / median[first]:.2f} times the first; "
                    f"{hops[name]:,} hops)",
                    f"{wanted} M" if (wanted := sides[name][-1]) else "",
                    value >= wanted * 1e6 if wanted else None,
                )
                for name, value in median.items()
            ),
            Figure("pet's rate, of graphcc's", f"{pet:.2f}", "0.60", pet >= 0.6),
        ),
        notes=(
            f"a packet-hop: {PACKET_HOP}; of the traffic alone, sampled every 100 us unless said",
            "medians of three, in turn; TCP and RoCE send different packets for the same flows",
            "others on such a machine, in a sitting of their own, the same traffic: HPCC's "
            "simulator (ns-3.17, DCQCN) 932,000; htsim (DCTCP, no samples of ports) 3,800,000",
        ),
        data={"packet_hops_per_s": median},
    )


def build_speed() -> Outcome:
    """Build the largest testbed, pet (288 hosts)."""
    flow = SingleFlowSpec("h1", "h288", 1_000_000, 0)
    run = run_trial("pet", (flow,), SECN1, duration_ns=MILLISECOND)
    stages = run.record.facts["stages_s"]
    return Outcome(
        "Building: pet, 288 hosts, 12 leaves, 6 spines",
        (
            at_most("fabric built in", stages["build"], 15, 2, " s"),
            Figure("one flow, boot and building included", f"{run.wall_s:.1f} s"),
        ),
        notes=(f"wall seconds by stage: {stages}",),
    )


_FAT_TREE_FILE = """
kind: fat-tree
name: drlet-k8-1g
mtu: 1452B
buffer: 366500B
k: 8
host_link: {rate: 1Gbps, delay: 1us}
aggregation_link: {rate: 1Gbps, delay: 1us}
core_link: {rate: 1Gbps, delay: 1us}
"""


def large_fat_tree() -> Outcome:
    """A fat tree of 128 hosts and 80 switches at 1 Gbit/s, flowlets: building, 100 ms at 60 %."""
    lasts_ns = 100 * MILLISECOND
    with bench_folder() as folder:
        path = folder / "drlet-k8-1g.yml"
        path.write_text(_FAT_TREE_FILE)
        run = run_trial(
            str(path),
            websearch(lasts_ns),
            SECN1,
            duration_ns=lasts_ns,
            drain_ns=0,
            sample_period_ns=MILLISECOND,
            load_balancing=LoadBalancingSpec("flowlets"),
        )
    stages = run.record.facts["stages_s"]
    hops = packet_hops(run.testbed, run.record.ports)
    return Outcome(
        "A large fat tree: DRLet's of 128 hosts and 80 switches at 1 Gbit/s, flowlets of 200 us, "
        "WebSearch at 60 %, 100 ms",
        (
            at_most("fabric built in", stages["build"], 5, 2, " s"),
            at_most("100 ms run in", stages["run"], 120, 1, " s"),
            Figure(PACKET_HOP, f"{hops:,}"),
        ),
        notes=(f"wall seconds by stage: {stages}; all ports are read each millisecond",),
    )


# switch ports -> (leaves, spines, hosts per leaf)
_FABRICS = {64: (4, 4, 8), 1_000: (20, 10, 30)}
_FABRIC_FILE = """
kind: leaf-spine
name: ports-{ports}
mtu: 1500B
buffer: 1MB
leaves: {leaves}
spines: {spines}
hosts_per_leaf: {hosts}
host_link: {{rate: 25Gbps, delay: 1us}}
uplink: {{rate: 100Gbps, delay: 1us}}
"""
_LASTS_NS = 20 * MILLISECOND
_FINE_NS, _COARSE_NS = 100_000, 2 * MILLISECOND
_ROUNDS = 3


def sampling_cost() -> Outcome:
    """Reading all ports into the archive: what a port's sample costs, of 64 and of 1,000 ports."""
    us = {ports: _us_per_sample(ports) for ports in _FABRICS}
    few, many = _FABRICS
    return Outcome(
        "Sampling: an idle fabric, every port each 100 us, read and archived",
        (
            Figure(f"a port's sample, of {few} ports", f"{us[few]:.2f} us"),
            Figure(f"a port's sample, of {many:,} ports", f"{us[many]:.2f} us"),
            at_most("ratio", us[many] / us[few], 2, 2),
        ),
        notes=(
            "wall time of a trial with 200 readings less that of one with 10, by rows of the "
            f"table ports; medians of {_ROUNDS}; reading in the guest and writing Parquet included",
        ),
        data={str(ports): value for ports, value in us.items()},
    )


def _us_per_sample(ports: int) -> float:
    leaves, spines, hosts = _FABRICS[ports]
    found = []
    with bench_folder() as folder:
        path = folder / "fabric.yml"
        path.write_text(_FABRIC_FILE.format(ports=ports, leaves=leaves, spines=spines, hosts=hosts))
        for number in range(_ROUNDS):
            fine, rows = _archived(path, _FINE_NS, folder / f"fine-{number}")
            coarse, few_rows = _archived(path, _COARSE_NS, folder / f"coarse-{number}")
            found.append((fine - coarse) / (rows - few_rows))
    return 1e6 * float(np.median(found))


def _archived(testbed: Path, period_ns: int, folder: Path) -> tuple[float, int]:
    """Run and archive a trial of two tiny flows; return its wall time and number of port rows."""
    flows = (SingleFlowSpec("h1", "h2", 1, 0), SingleFlowSpec("h1", "h2", 1, _LASTS_NS))
    lasts_ns = _LASTS_NS + MILLISECOND
    begin = time.monotonic()
    run = run_trial(str(testbed), flows, SECN1, duration_ns=lasts_ns, sample_period_ns=period_ns)
    verdict = stamp(run.trial, run.testbed, run.schedule, run.record)
    write_trial(folder, run.trial, run.testbed, run.schedule, run.record, verdict, {})
    return time.monotonic() - begin, run.record.ports.qlen_bytes.size


def flow_table_cost() -> Outcome:
    """graphcc, WebSearch at 60 %, 20 ms of arrivals, with and without flow tables in turn."""
    rounds = [[_with_cpu_time(flow_table=on) for on in (False, True)] for _ in range(5)]
    ours = [
        [_with_cpu_time(flow_table=on, host=DCQCN, fabric=CLOSLOOP)[1] for on in (False, True)]
        for _ in range(5)
    ]
    own_without_s, own_with_s = (min(times) for times in zip(*ours, strict=True))
    own_ratio = own_with_s / own_without_s
    walls = [[run.wall_s for run, _ in pair] for pair in rounds]
    without_s, with_s = (statistics.median(times) for times in zip(*walls, strict=True))
    cpus = [[cpu_s for _, cpu_s in pair] for pair in rounds]
    cpu_without_s, cpu_with_s = (statistics.median(times) for times in zip(*cpus, strict=True))
    table, ratio = rounds[0][1][0].record.facts["flow_table"], with_s / without_s
    lost = table["packets_not_counted"]
    return Outcome(
        "Flow tables: graphcc, WebSearch at 60 %, 20 ms of arrivals",
        (
            Figure("wall time without, median of 5", f"{without_s:.2f} s"),
            Figure("wall time with, taken in turn", f"{with_s:.2f} s"),
            Figure("ratio", f"{ratio:.3f}", "1.10", ratio <= 1.10),
            Figure("ratio of CPU times", f"{cpu_with_s / cpu_without_s:.3f}"),
            Figure(
                "the data path's own, DCQCN: ratio of CPU times, least of 5",
                f"{own_ratio:.3f}",
                "1.05",
                own_ratio <= 1.05,
            ),
            Figure("memory for a switch", f"{table['bytes_per_switch'] // 1024} KiB"),
            Figure("entries in use at most", f"{table['most_entries_used']}"),
            Figure("packets that found no place", f"{lost}", "none", lost == 0),
        ),
        notes=(
            "on a machine that does other things too, the CPU times say more than the wall times",
        ),
        data={"wall_s": walls, "ratio": ratio},
    )


def _with_cpu_time(
    *, flow_table: bool, host: HostSpec = TCP, fabric: FabricSpec = LINUX
) -> tuple[Run, float]:
    """Return a trial, and the CPU time of its guest."""
    lasts_ns = 20 * MILLISECOND
    before_s = _children_s()
    run = run_trial(
        "graphcc",
        websearch(lasts_ns),
        SECN1,
        duration_ns=lasts_ns,
        flow_table=flow_table,
        host=host,
        fabric=fabric,
    )
    return run, _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
