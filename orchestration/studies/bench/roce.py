"""Checks RoCE NICs and lossless switches: a flow's time, shares of a bottleneck, pauses."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from orchestration.model.records import DONE
from orchestration.model.roce import DCQCN_SETS, RoceSpec
from orchestration.model.trial import HostSpec, SingleFlowSpec
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    SECN1,
    Figure,
    Outcome,
    Run,
    bench_folder,
    run_trial,
    zero,
)
from traffic.schedule import ideal_times_ns

_BACKENDS: tuple[Literal["emulated", "simulated"], ...] = ("emulated", "simulated")
_ROCE = HostSpec("dcqcn", roce=RoceSpec())
_PAPER = HostSpec("dcqcn", roce=RoceSpec(dcqcn=tuple(sorted(DCQCN_SETS["paper"].items()))))
# Hosts that hear no CNP send at line rate, and wait for a second before they send again.
_DEAF = HostSpec(
    "dcqcn", roce=RoceSpec(dcqcn=(("min_time_between_cnps", 10**6),), timeout_ns=10**9)
)
# Six hosts a leaf, as graphcc has.
_FABRIC = """
kind: leaf-spine
name: lossless
mtu: 1500B
SWITCH
leaves: 4
spines: 2
hosts_per_leaf: 6
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 100Gbps, delay: 1us}
"""
_SWITCHES = {
    "no PFC, 16 MB a port": "buffer: 16MB",
    "12 MB shared, no PFC, alpha 1/8": "switch: {buffer: 12MB, alpha: 1/8}",
    "12 MB, PFC, alpha 1/8": "switch: {buffer: 12MB, alpha: 1/8, pfc: [3]}",
    "12 MB, PFC, alpha 1": "switch: {buffer: 12MB, alpha: 1, pfc: [3]}",
    "12 MB, PFC, alpha 8": "switch: {buffer: 12MB, alpha: 8, pfc: [3]}",
}
_EACH_BYTES = 500_000
# Five incasts of 20:1, and a flow between two hosts that have no part in them.
_INCASTS = tuple(
    SingleFlowSpec(f"h{n + 2}", "h1", _EACH_BYTES, k * 2 * MILLISECOND)
    for k in range(5)
    for n in range(20)
)
_VICTIM = SingleFlowSpec("h22", "h23", 20_000_000, 0)
_BESIDE = SingleFlowSpec("h24", "h6", 20_000_000, 0)
# Four switches in a ring: each flow goes two hops around, and waits for the next one's buffer.
_RING = """
kind: custom
name: ring
mtu: 1500B
switch: {buffer: 400KB, alpha: 1, pfc: [0], watchdog: {detect: 3ms, restore: 3ms, action: alert}}
hosts: [HOSTS]
switches: [{name: l1, tier: 1}, {name: s1, tier: 2}, {name: l2, tier: 1}, {name: s2, tier: 2}]
links:
"""
_AROUND = ("l1", "s1", "l2", "s2")


def roce_physics() -> Outcome:
    """A RoCE flow alone against its computed time, and DCQCN's shares of a bottleneck."""
    figures = []
    for backend in _BACKENDS:
        for name, src, dst in (("graphcc", "h1", "h24"), ("rlcc-7", "h1", "h2")):
            flow = (SingleFlowSpec(src, dst, 10_000_000, 0),)
            run = run_trial(name, flow, SECN1, duration_ns=MILLISECOND, host=_ROCE, backend=backend)
            ideal_ns = int(ideal_times_ns(run.testbed, run.schedule, run.trial)[0])
            off = int(run.record.flows.end_ns[0]) / ideal_ns - 1
            figures.append(
                Figure(
                    f"{backend}, {name}: 10 MB alone, against the computed {ideal_ns:,} ns",
                    f"{off:+.5%}",
                    "within 0.01 %",
                    abs(off) <= 1e-4,
                )
            )
    figures += [_shares(backend, senders) for backend in _BACKENDS for senders in (2, 16)]
    return Outcome("RoCE NICs: a lone flow, and DCQCN's fairness", tuple(figures))


def _shares(backend: Literal["emulated", "simulated"], senders: int) -> Figure:
    flows = tuple(SingleFlowSpec(f"h{n + 2}", "h1", 4_000_000, 0) for n in range(senders))
    run = run_trial("graphcc", flows, SECN1, duration_ns=MILLISECOND, host=_PAPER, backend=backend)
    rates = 1 / run.record.flows.end_ns
    jain = float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))
    what = f"{backend}: {senders}:1, 4 MB each, Jain's index of the flows' rates"
    return Figure(what, f"{jain:.4f}", "0.98", jain >= 0.98)


def lossless() -> Outcome:
    """20:1 incasts on lossy and lossless switches: drops, pauses, and a flow that is held up."""
    with bench_folder() as folder:
        alone = _on(folder, "buffer: 16MB", (_VICTIM, _BESIDE))
        figures = [Figure("the two other flows without incasts", _both(alone))]
        for what, switch in _SWITCHES.items():
            figures += _incasts(what, _on(folder, switch, (*_INCASTS, _VICTIM, _BESIDE)))
        figures.append(_deadlock(folder))
    notes = (
        "five incasts of 20 times 500 KB onto h1, one each 2 ms, under DCQCN with its paper's "
        "parameters; beside them 20 MB from h22 to h23 below another leaf, and 20 MB from h24 to "
        "h6 below the receiver's leaf: it shares cables with the incasts, not their receiver",
    )
    return Outcome("PFC: no drops, at whose cost", tuple(figures), notes)


def _on(folder: Path, switch: str, flows: tuple[SingleFlowSpec, ...]) -> Run:
    path = folder / "testbed.yml"
    path.write_text(_FABRIC.replace("SWITCH", switch), encoding="utf-8")
    return run_trial(str(path), flows, SECN1, duration_ns=10 * MILLISECOND, host=_PAPER)


def _incasts(what: str, run: Run) -> list[Figure]:
    ports, pauses = run.record.ports, run.record.samples.get("priority")
    dropped = int(ports.dropped_packets[-1].sum())
    last_ms = run.record.flows.end_ns[run.schedule.size_bytes == _EACH_BYTES].max() / 1e6
    told = f"incasts {last_ms:.1f} ms, others {_both(run)}"
    told += f", longest queue {ports.qlen_bytes.max() / 1e6:.1f} MB"
    if pauses is None:
        return [Figure(f"{what}: packets dropped", str(dropped)), Figure(f"{what}: ends of", told)]
    sent = int(pauses.pauses_sent[-1].sum())
    return [
        zero(f"{what}: packets dropped", dropped),
        Figure(f"{what}: ends of", f"{told}, {sent:,} pause frames"),
    ]


def _both(run: Run) -> str:
    below, beside = (_end_ms(run, flow) for flow in (_VICTIM, _BESIDE))
    return f"{below:.1f} ms below another leaf, {beside:.1f} ms beside the incasts"


def _end_ms(run: Run, flow: SingleFlowSpec) -> float:
    place = run.schedule.size_bytes == flow.size_bytes
    place &= run.schedule.dst == run.testbed.hosts.index(flow.dst)
    return float(run.record.flows.end_ns[place][0]) / 1e6


def _deadlock(folder: Path) -> Figure:
    hosts = [f"{name}h{n}" for name in _AROUND for n in (1, 2)]
    cables = [(host, host[:2]) for host in hosts]
    cables += list(zip(_AROUND, (*_AROUND[1:], _AROUND[0]), strict=True))
    links = "".join(f"  - {{a: {a}, b: {b}, rate: 25Gbps, delay: 1us}}\n" for a, b in cables)
    path = folder / "ring.yml"
    path.write_text(_RING.replace("HOSTS", ", ".join(hosts)) + links, encoding="utf-8")
    flows = tuple(
        SingleFlowSpec(f"{name}h{n}", f"{_AROUND[(place + 2) % 4]}h{n}", 200_000, 0)
        for place, name in enumerate(_AROUND)
        for n in (1, 2)
        for _ in range(8)
    )
    run = run_trial(
        str(path),
        flows,
        SECN1,
        duration_ns=MILLISECOND,
        drain_ns=20 * MILLISECOND,
        host=_DEAF,
    )
    found = [event.detail for event in run.record.events if event.kind == "pfc-deadlock"]
    return Figure(
        "a made deadlock: four switches in a ring, each waits for the next",
        found[0] if found else "not found",
        "found and named",
        bool(found) and bool((run.record.flows.status != DONE).any()),
    )
