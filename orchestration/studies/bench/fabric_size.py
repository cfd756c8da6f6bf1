"""Measures large fabrics: a packet-hop by size, memory, links of 400 and 800G, a long trial."""

from __future__ import annotations

import resource
import statistics
from pathlib import Path

from orchestration.analysis.packet_hops import PACKET_HOP, packet_hops
from orchestration.backends.emulated.backend import trial_memory_bytes
from orchestration.model.trial import SingleFlowSpec
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
from orchestration.studies.bench.speed import DCQCN

# Of a fat tree's pods: how long flows arrive, for one to ten million hops each.
_LASTS_NS = {4: 20 * MILLISECOND, 8: 4 * MILLISECOND, 12: 2 * MILLISECOND, 16: 2 * MILLISECOND}
_TIMES = 3
_FAST_GBPS = (400, 800)
_FILE = """
kind: fat-tree
name: fat-tree-{k}
mtu: 1500B
buffer: 9MB
k: {k}
host_link: {{rate: {gbps}Gbps, delay: 1us}}
aggregation_link: {{rate: {gbps}Gbps, delay: 1us}}
core_link: {{rate: {gbps}Gbps, delay: 1us}}
"""


def fabric_size() -> Outcome:
    """Fat trees of 16 to 1,024 hosts at 25 Gbit/s under DCQCN; a lone flow at 400 and 800."""
    figures: list[Figure] = []
    cost_ns: dict[int, float] = {}
    names: list[str] = []
    with bench_folder() as folder:
        for k, lasts_ns in _LASTS_NS.items():
            runs = [_run(folder, k, lasts_ns) for _ in range(_TIMES)]
            taken_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            hops = packet_hops(runs[0].testbed, runs[0].record.ports)
            stages = [run.record.facts["stages_s"] for run in runs]
            cost_ns[k] = statistics.median(one["run"] for one in stages) / hops * 1e9
            planned_bytes = trial_memory_bytes(
                runs[0].trial, runs[0].testbed, len(runs[0].schedule.start_ns)
            )
            hosts, switches = len(runs[0].testbed.hosts), len(runs[0].testbed.switches)
            names.append(f'"{hosts:,} hosts"')
            figures += [
                Figure(
                    f"k = {k}: {hosts:,} hosts, {switches} switches, {lasts_ns / 1e6:.0f} ms",
                    f"{cost_ns[k]:.0f} ns a packet-hop ({hops:,}; {1e3 / cost_ns[k]:.1f} M a s)",
                ),
                Figure(
                    f"k = {k}: built in, of a whole trial",
                    f"{statistics.median(one['build'] for one in stages):.1f} s of "
                    f"{statistics.median(run.wall_s for run in runs):.1f} s",
                ),
                at_most(
                    f"k = {k}: memory of the largest guest so far, against what is planned",
                    taken_bytes / 1e6,
                    planned_bytes / 1e6,
                    0,
                    " MB",
                ),
            ]
        most = max(cost_ns.values()) / cost_ns[min(cost_ns)]
        figures.append(at_most("the dearest hop, of one at k = 4", most, 1.0, 2, " times"))
        figures += [_lone_flow(folder, gbps) for gbps in _FAST_GBPS]
    return Outcome(
        "Large fabrics: fat trees at 25 Gbit/s, WebSearch at 60 % under DCQCN, one core",
        tuple(figures),
        notes=(
            f"a packet-hop: {PACKET_HOP}; medians of {_TIMES}; ports are read each 500 us",
            "with the hosts grow the packets and ports that take turns, until the caches hold few "
            "of them: a hop waits for memory, not for the CPU",
        ),
        data={"cost_ns": cost_ns},
        picture="\n".join(
            (
                "xychart-beta",
                '    title "A packet-hop, by the size of a fat tree"',
                f"    x-axis [{', '.join(names)}]",
                f'    y-axis "ns of wall time" 0 --> {1.2 * max(cost_ns.values()):.0f}',
                f"    bar [{', '.join(f'{ns:.0f}' for ns in cost_ns.values())}]",
            )
        ),
    )


def long_trial() -> Outcome:
    """pet (288 hosts), WebSearch at 60 % for 100 ms under DCQCN, on one core."""
    lasts_ns = 100 * MILLISECOND
    run = run_trial(
        "pet",
        websearch(lasts_ns),
        SECN1,
        duration_ns=lasts_ns,
        drain_ns=0,
        sample_period_ns=MILLISECOND,
        host=DCQCN,
    )
    return Outcome(
        "A long trial: pet (288 hosts), WebSearch at 60 % for 100 ms under DCQCN, one core",
        (
            at_most("wall time, boot included", run.wall_s, 300, 0, " s"),
            Figure(PACKET_HOP, f"{packet_hops(run.testbed, run.record.ports):,}"),
        ),
        notes=(f"wall seconds by stage: {run.record.facts['stages_s']}; ports read each 1 ms",),
    )


def _fat_tree(folder: Path, k: int, gbps: int) -> str:
    path = folder / f"fat-tree-{k}-{gbps}.yml"
    path.write_text(_FILE.format(k=k, gbps=gbps))
    return str(path)


def _run(folder: Path, k: int, lasts_ns: int) -> Run:
    return run_trial(
        _fat_tree(folder, k, 25),
        websearch(lasts_ns),
        SECN1,
        duration_ns=lasts_ns,
        drain_ns=0,
        sample_period_ns=MILLISECOND // 2,
        host=DCQCN,
    )


def _lone_flow(folder: Path, gbps: int) -> Figure:
    """A flow across pods alone: its goodput, as a share of the line rate."""
    path = _fat_tree(folder, 4, gbps)
    size_bytes = 100_000_000
    flow = SingleFlowSpec("h1", "h16", size_bytes, 0)
    run = run_trial(path, (flow,), SECN1, duration_ns=10 * MILLISECOND, host=DCQCN)
    took_ns = int(run.record.flows.end_ns[0] - run.schedule.start_ns[0])
    goodput_gbps = size_bytes * 8 / took_ns
    return Figure(
        f"a lone flow of 100 MB at {gbps} Gbit/s, from its start to its last byte",
        f"{goodput_gbps:.0f} Gbit/s, {goodput_gbps / gbps:.1%} of line rate",
        "90 %",
        goodput_gbps / gbps >= 0.9,
    )
