"""Measures speed: of the program, and of a packet-hop by transport, fabric and size."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestration.analysis.port_metrics import PACKET_HOP, packet_hops
from orchestration.backends.emulated.memory import trial_memory_bytes
from orchestration.bench.outcome import (
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
from orchestration.core.engines import KERNEL, PROCESS
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.roce import FORMER_HPCC, RoceSpec
from orchestration.core.trial import CLOSLOOP, LINUX, TCP, FabricSpec, HostSpec
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from traffic.patterns.single_flow import SingleFlowSpec

DCQCN = HostSpec("dcqcn", roce=RoceSpec(dcqcn=tuple(DCQCN_SETS[FORMER_HPCC].items())))
_THRESHOLDS = Path(__file__).resolve().parents[2] / "examples" / "thresholds.yml"


def start_up() -> Outcome:
    """Wall time of `closloop --help`, and of examples/thresholds.yml on the fluid backend."""
    closloop = [str(Path(sys.executable).with_name("closloop"))]
    help_s = statistics.median(_seconds([*closloop, "--help"]) for _ in range(7))
    figures = [at_most("closloop --help, median of 7", help_s, 0.3, 2, " s")]
    notes: tuple[str, ...] = ()
    if _THRESHOLDS.exists():
        command = [*closloop, "run", str(_THRESHOLDS), "--on", "fluid", "--out"]
        with bench_folder() as folder:
            fluid_s = statistics.median(_seconds([*command, f"{folder}/{n}"]) for n in range(3))
        label = "examples/thresholds.yml on the fluid backend, report included, median of 3"
        figures.append(at_most(label, fluid_s, 2, 2, " s"))
    else:
        notes = (f"there is no {_THRESHOLDS}: it is measured in a checkout only",)
    return Outcome("The program", tuple(figures), notes)


def _seconds(command: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin


@dataclass(frozen=True)
class _Case:
    """A kind of trial: WebSearch at 60 % load on a testbed, with SECN1.

    `min_million` is the target, in millions of packet-hops per second. `baseline` names another
    case, and `max_cost_ratio` is how many times as long as there a packet-hop may take here.
    """

    host: HostSpec = TCP
    fabric: FabricSpec = CLOSLOOP
    testbed: str = "graphcc"
    duration_ns: int = 20 * MILLISECOND
    period_ns: int = 100_000
    flow_table: bool = False
    load_balancing: LoadBalancingSpec = ECMP
    backend: Literal["emulated", "simulated"] = "emulated"
    engine: str = KERNEL
    min_million: float | None = None
    baseline: str = ""
    max_cost_ratio: float | None = None

    def run(self) -> Run:
        """Run one trial."""
        return run_trial(
            self.testbed,
            websearch(self.duration_ns),
            SECN1,
            duration_ns=self.duration_ns,
            sample_period_ns=self.period_ns,
            host=self.host,
            fabric=self.fabric,
            flow_table=self.flow_table,
            load_balancing=self.load_balancing,
            backend=self.backend,
            engine=self.engine,
        )


_LINUX, _TCP, _ROCE = "DCTCP, Linux' fabric", "DCTCP", "DCQCN"
_COARSE = "DCQCN, sampled every 5 ms"
_RARE_NS = 5 * MILLISECOND
_CASES: Mapping[str, _Case] = {
    _LINUX: _Case(fabric=LINUX),
    f"{_LINUX}, flow table": _Case(
        fabric=LINUX, flow_table=True, baseline=_LINUX, max_cost_ratio=1.10
    ),
    _TCP: _Case(min_million=1.6),
    "DCTCP, flowlets of 200 us, random": _Case(
        load_balancing=LoadBalancingSpec("flowlets"), baseline=_TCP, max_cost_ratio=1.10
    ),
    "DCTCP, flowlets of 20 us, CONGA": _Case(
        load_balancing=LoadBalancingSpec("flowlets", 20_000, 20_000, "conga"), baseline=_TCP
    ),
    "DCTCP, spraying, random": _Case(load_balancing=LoadBalancingSpec("spray"), baseline=_TCP),
    "DCTCP, spraying, DRILL": _Case(
        load_balancing=LoadBalancingSpec("spray", route_by="drill"), baseline=_TCP
    ),
    _ROCE: _Case(DCQCN, min_million=3.5),
    "DCQCN, in the process": _Case(DCQCN, engine=PROCESS, baseline=_ROCE, max_cost_ratio=1.0),
    "DCQCN, flow table": _Case(DCQCN, flow_table=True, baseline=_ROCE, max_cost_ratio=1.05),
    "RL-CC's tree": _Case(
        HostSpec("rlcc", roce=RoceSpec(control="rlcc")), baseline=_ROCE, max_cost_ratio=1.25
    ),
    _COARSE: _Case(DCQCN, period_ns=_RARE_NS, min_million=5.0),
    "DCQCN, sampled every 5 ms, pet (288 hosts), 2 ms": _Case(
        DCQCN,
        testbed="pet",
        duration_ns=2 * MILLISECOND,
        period_ns=_RARE_NS,
        baseline=_COARSE,
        max_cost_ratio=1.67,
    ),
    "DCQCN, ns-3": _Case(DCQCN, backend="simulated", engine="", min_million=1.0),
}


def data_path_speed() -> Outcome:
    """Packet-hops per second by transport, fabric, load balancing, flow tables and backend."""
    runs: dict[str, list[Run]] = {name: [] for name in _CASES}
    for _ in range(3):
        for name, case in _CASES.items():
            runs[name].append(case.run())
    hops = {
        name: packet_hops(repeats[0].testbed, repeats[0].record.ports)
        for name, repeats in runs.items()
    }
    stages = {name: _stage_s(found, "run") for name, found in runs.items()}
    rates = {name: hops[name] / stages[name] for name in runs}
    table = runs[f"{_LINUX}, flow table"][0].record.facts["flow_table"]
    figures: list[Figure] = []
    for name, case in _CASES.items():
        target_million, wall_s = (
            case.min_million,
            statistics.median(run.wall_s for run in runs[name]),
        )
        figures.append(
            Figure(
                name,
                f"{rates[name]:,.0f} ({hops[name]:,} hops; a trial {wall_s:.1f} s)",
                f"{target_million} M" if target_million else "",
                rates[name] >= target_million * 1e6 if target_million else None,
            )
        )
        if case.baseline:
            label, cost = f"{name}: cost, of {case.baseline}", rates[case.baseline] / rates[name]
            bound = case.max_cost_ratio
            figures.append(
                at_most(label, cost, bound, 2) if bound else Figure(label, f"{cost:.2f}")
            )
    return Outcome(
        "Packet-hops a wall second: graphcc, WebSearch at 60 %, 20 ms of arrivals, one core",
        tuple(figures),
        notes=(
            f"a packet-hop: {PACKET_HOP}; of the traffic alone, sampled every 100 us unless said; "
            "a trial's wall time is with boot and building; emulated trials are in the "
            "virtual-time kernel unless said",
            "medians of three, in turn; TCP and RoCE send different packets for the same flows",
            f"Linux' flow tables: {table['bytes_per_switch'] // 1024} KiB a switch, at most "
            f"{table['most_entries_used']} entries in use, {table['packets_not_counted']} packets "
            "that found no place",
            "others on such a machine, in a sitting of their own, the same traffic: HPCC's "
            "simulator (ns-3.17, DCQCN) 932,000; htsim (DCTCP, no samples of ports) 3,800,000",
        ),
        data={"packet_hops_per_s": rates},
    )


def _stage_s(runs: list[Run], stage: str) -> float:
    return statistics.median(float(run.record.facts["stages_s"][stage]) for run in runs)


# A fat tree's pods -> how long flows arrive, so that there are one to ten million packet-hops each.
_DURATION_NS = {4: 20 * MILLISECOND, 8: 4 * MILLISECOND, 12: 2 * MILLISECOND, 16: 2 * MILLISECOND}
_REPEATS = 3
_FAST_RATES_GBPS = (400, 800)
_FILE = """
kind: fat-tree
name: fat-tree-{k}
mtu: 1500B
{buffer}
k: {k}
host_link: {{rate: {gbps}Gbps, delay: 1us}}
aggregation_link: {{rate: {gbps}Gbps, delay: 1us}}
core_link: {{rate: {gbps}Gbps, delay: 1us}}
"""


def fabric_size() -> Outcome:
    """Fat trees in the kernel: 16 to 1,024 hosts at 25 Gbit/s, DCQCN; a lone flow at 400, 800."""
    figures: list[Figure] = []
    cost_ns: dict[int, float] = {}
    with bench_folder() as folder:
        for k, duration_ns in _DURATION_NS.items():
            testbed = fat_tree(folder, k, 25)
            runs = [_in_kernel(testbed, duration_ns) for _ in range(_REPEATS)]
            hops = packet_hops(runs[0].testbed, runs[0].record.ports)
            cost_ns[k] = _stage_s(runs, "run") / hops * 1e9
            figures += _of_size(k, runs, hops, cost_ns[k])
        maximum = max(cost_ns.values()) / cost_ns[min(cost_ns)]
        figures.append(at_most("the dearest hop, of one at k = 4", maximum, 1.0, 2, " times"))
        figures += [_lone_flow(folder, gbps) for gbps in _FAST_RATES_GBPS]
    names = ", ".join(f'"{k**3 // 4:,} hosts"' for k in cost_ns)
    return Outcome(
        "Large fabrics in the virtual-time kernel: fat trees at 25 Gbit/s, WebSearch at 60 % under "
        "DCQCN, one core",
        tuple(figures),
        notes=(
            f"a packet-hop: {PACKET_HOP}; medians of {_REPEATS}; ports are read each 500 us",
            "more hosts mean more packets and ports, of which the caches then hold few: a hop then "
            "waits for memory, not for the CPU",
        ),
        data={"cost_ns": cost_ns},
        picture="\n".join(
            (
                "xychart-beta",
                '    title "A packet-hop, by the size of a fat tree"',
                f"    x-axis [{names}]",
                f'    y-axis "ns of wall time" 0 --> {1.2 * max(cost_ns.values()):.0f}',
                f"    bar [{', '.join(f'{ns:.0f}' for ns in cost_ns.values())}]",
            )
        ),
    )


def kernel_hop_ns(k: int, duration_ns: int) -> float:
    """Return what a packet-hop takes in the kernel, in ns of wall time, in one trial.

    The trial is one of `fabric_size`. Raises what the backend raises.
    """
    with bench_folder() as folder:
        run = _in_kernel(fat_tree(folder, k, 25), duration_ns)
    return _stage_s([run], "run") / packet_hops(run.testbed, run.record.ports) * 1e9


def _in_kernel(testbed: str, duration_ns: int) -> Run:
    return run_trial(
        testbed,
        websearch(duration_ns),
        SECN1,
        duration_ns=duration_ns,
        drain_ns=0,
        sample_period_ns=MILLISECOND // 2,
        host=DCQCN,
        engine=KERNEL,
    )


def _of_size(k: int, runs: list[Run], hops: int, cost_ns: float) -> Iterator[Figure]:
    """Yield the figures of one size of fabric."""
    trial, testbed = runs[0].trial, runs[0].testbed
    taken_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    planned_bytes = trial_memory_bytes(trial, testbed, len(runs[0].schedule.start_ns))
    yield Figure(
        f"k = {k}: {len(testbed.hosts):,} hosts, {len(testbed.switches)} switches, "
        f"{trial.duration_ns / 1e6:.0f} ms",
        f"{cost_ns:.0f} ns a packet-hop ({hops:,}; {1e3 / cost_ns:.1f} M a s)",
    )
    yield Figure(
        f"k = {k}: built in, of a whole trial",
        f"{_stage_s(runs, 'build'):.1f} s of {statistics.median(run.wall_s for run in runs):.1f} s",
    )
    yield at_most(
        f"k = {k}: memory of the largest guest so far, against what is planned",
        taken_bytes / 1e6,
        planned_bytes / 1e6,
        0,
        " MB",
    )


def fat_tree(folder: Path, k: int, gbps: int, buffer: str = "buffer: 9MB") -> str:
    """Return the path of a new testbed file: a fat tree whose ports or switches have a `buffer`."""
    path = folder / f"fat-tree-{k}-{gbps}.yml"
    path.write_text(_FILE.format(k=k, gbps=gbps, buffer=buffer))
    return str(path)


def _lone_flow(folder: Path, gbps: int) -> Figure:
    """Return the goodput of a lone flow between two pods, as a share of the line rate."""
    size_bytes = 100_000_000
    flow = (SingleFlowSpec("h1", "h16", size_bytes, 0),)
    testbed = fat_tree(folder, 4, gbps)
    run = run_trial(testbed, flow, SECN1, duration_ns=10 * MILLISECOND, host=DCQCN, engine=KERNEL)
    fct_ns = int(run.record.flows.end_ns[0] - run.schedule.start_ns[0])
    goodput_gbps = size_bytes * 8 / fct_ns
    return Figure(
        f"a lone flow of 100 MB at {gbps} Gbit/s, from its start to its last byte",
        f"{goodput_gbps:.0f} Gbit/s, {goodput_gbps / gbps:.1%} of line rate",
        "90 %",
        goodput_gbps / gbps >= 0.9,
    )
