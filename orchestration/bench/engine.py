"""Measures the packet engine by the size of a fat tree: time a hop, memory, and time to build.

A hop is a packet that leaves a NIC or a switch's port. Another program can be measured beside the
engine, in turn and on the same core, so that both meet the same load of the machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from inventory.files import load_testbed
from inventory.routing import nic_policy
from orchestration.backends.emulated.process_fabric import (
    fabric_arrays,
    flow_array,
    nic_settings,
)
from orchestration.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
    websearch,
    zero,
)
from orchestration.bench.speed import DCQCN, fat_tree, kernel_hop_ns
from orchestration.core.errors import NotReadyError
from orchestration.datapath.library import EngineLibrary, load_engine
from orchestration.datapath.packet_engine import FabricArrays, PacketEngine
from orchestration.datapath.ports import QueueFile
from orchestration.kernel import kernel_to_build
from traffic.schedule import make_schedule

_ROUNDS = 5
_GBPS = 25
# A fat tree's pods -> how long flows arrive, so that there are two to twenty million hops.
_DURATION_NS = {4: 20 * MILLISECOND, 8: 4 * MILLISECOND, 16: 2 * MILLISECOND, 32: MILLISECOND}
_READ_EACH_NS = MILLISECOND // 2
_XOFF_BYTES = 100_000
_SWITCH = (
    f"switch: {{buffer: 9MB, pfc: [3], xoff: {_XOFF_BYTES}B, xon_offset: {_XOFF_BYTES // 2}B}}"
)
_KMIN_BYTES, _KMAX_BYTES, _PMAX = 5_000, 200_000, 0.01  # SECN1's
_MAX_RATIO, _MAX_BYTES, _MAX_BUILD_S = 1.4, 200_000_000, 2.0
_KERNEL_PODS = (4, 8, 16)
_PROGRAM_TIMEOUT_S = 600
_HOP_NS = re.compile(r"\bns/hop ([0-9.]+)")


@dataclass(frozen=True)
class _Case:
    """A fat tree of `pods` and its flows, as the engine takes them; `thresholds` are of ECN."""

    pods: int
    hosts: int
    duration_ns: int
    fabric: FabricArrays
    nics: Mapping[str, Any]
    flows: np.ndarray
    thresholds: Sequence[np.ndarray]


@dataclass(frozen=True)
class _Measured:
    """A run of a case: user and system time, the engine's own peak of memory, and what it did."""

    hops: int
    hop_ns: float
    build_s: float
    peak_bytes: int
    dropped: int
    pauses: int
    digest: int


def engine_speed(beside: Path | None = None) -> Outcome:
    """Time a hop, memory and building of the packet engine, 16 to 8,192 hosts under DCQCN and PFC.

    With `beside`, the program of that path runs in turn with the engine, and so do, to 1,024 hosts,
    trials in the virtual-time kernel if there is one. The program takes the words `k PODS m
    MILLISECONDS x XOFF_BYTES` and prints `ns/hop NUMBER`. Raises NotReadyError if it does not.
    """
    library = load_engine()
    with bench_folder() as folder, _one_core() as core:
        cases = [_case(folder, k, ns, library) for k, ns in _DURATION_NS.items()]
        others: dict[str, Callable[[_Case], float | None]] = {}
        if beside is not None:
            others[beside.name] = lambda case: _program_hop_ns(beside, case)
            if not kernel_to_build():
                others["the kernel"] = _in_kernel
        runs: dict[int, list[_Measured]] = {case.pods: [] for case in cases}
        times: dict[str, dict[int, list[float]]] = {name: {} for name in others}
        for _ in range(_ROUNDS):
            for case in cases:
                runs[case.pods].append(_in_child(_measure, case))
                for name, measure in others.items():
                    if (hop_ns := measure(case)) is not None:
                        times[name].setdefault(case.pods, []).append(hop_ns)
    figures = [figure for case in cases for figure in _of_case(case, runs[case.pods], times)]
    return Outcome(
        "The packet engine: fat trees at 25 Gbit/s, WebSearch at 60 %, DCQCN, PFC at 100 KB",
        tuple(figures),
        notes=tuple(_notes(beside, core, "the kernel" in others)),
        data={
            "hop_ns": {case.pods: [run.hop_ns for run in runs[case.pods]] for case in cases},
            "beside_hop_ns": times,
        },
    )


@contextmanager
def _one_core() -> Iterator[int]:
    """Let this process and its children run on one core only, whose number is yielded."""
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


def _case(folder: Path, pods: int, duration_ns: int, library: EngineLibrary) -> _Case:
    name = fat_tree(folder, pods, _GBPS, _SWITCH)
    testbed = load_testbed(name)
    trial = bench_trial(
        websearch(duration_ns), duration_ns, testbed=name, backend="emulated", host=DCQCN
    )
    schedule, policy = make_schedule(trial, testbed), nic_policy(testbed, DCQCN)
    assert DCQCN.roce is not None
    assert policy is not None
    flows, _ = flow_array(testbed, schedule, [0], library, ecn_capable=True)
    queues = np.arange(len(testbed.queues))
    ecn = _KMIN_BYTES, _KMAX_BYTES, int(QueueFile.in_kernel(np.array(_PMAX)))
    return _Case(
        pods,
        len(testbed.hosts),
        duration_ns,
        fabric_arrays(testbed, trial.seed, library),
        nic_settings(DCQCN.roce, policy),
        flows,
        (queues, *(np.full_like(queues, value) for value in ecn)),
    )


def _in_child(measure: Callable[[_Case], _Measured], case: _Case) -> _Measured:
    """Return what `measure` returns of a case in a process of its own, which starts with little."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(measure, case).result()


def _measure(case: _Case) -> _Measured:
    before_bytes = _resident_bytes_from_here()
    begin_s = _cpu_s()
    engine = PacketEngine(case.fabric)
    engine.post(engine.policy("dcqcn"), case.nics, case.flows)
    built_s = _cpu_s()
    engine.set_thresholds(*case.thresholds)
    run_begin_s = _cpu_s()
    for until_ns in range(_READ_EACH_NS, case.duration_ns + 1, _READ_EACH_NS):
        engine.run(until_ns)
        queues = engine.queues()
    run_s, counts = _cpu_s() - run_begin_s, engine.counts()
    return _Measured(
        hops=counts["hops"],
        hop_ns=run_s / counts["hops"] * 1e9,
        build_s=built_s - begin_s,
        peak_bytes=_status_bytes("VmHWM") - before_bytes,
        dropped=int(queues["dropped_packets"].sum()),
        pauses=counts["pauses"],
        digest=engine.digest(),
    )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _resident_bytes_from_here() -> int:
    """Return this process's resident memory; its peak, VmHWM, is counted from here on.

    Memory that was freed is given back first: the engine would otherwise take it unnoticed.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak: proc_pid_clear_refs(5)
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    words = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert words is not None
    return int(words[1]) * 1024


def _program_hop_ns(program: Path, case: _Case) -> float:
    """Return the ns a hop that the program prints. Raises NotReadyError if it prints none."""
    words = ["k", case.pods, "m", f"{case.duration_ns / MILLISECOND:g}", "x", _XOFF_BYTES]
    argv = [str(program.absolute()), *map(str, words)]
    remedy = "name an executable that takes the words `k PODS m MILLISECONDS x XOFF_BYTES`"
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        output = f"{error.stdout}{error.stderr}".strip()
        raise NotReadyError(f"--beside: {' '.join(argv)} failed: {output}", remedy) from error
    except (OSError, subprocess.TimeoutExpired, UnicodeError) as error:
        raise NotReadyError(f"--beside: {program} does not run: {error}", remedy) from error
    found = _HOP_NS.search(done.stdout)
    if found is None:
        raise NotReadyError(f"--beside: {' '.join(argv)} prints no `ns/hop NUMBER`", remedy)
    return float(found[1])


def _in_kernel(case: _Case) -> float | None:
    """Return the ns a hop of a trial in the kernel, without PFC; None if it is too large there."""
    if case.pods not in _KERNEL_PODS:
        return None
    return kernel_hop_ns(case.pods, case.duration_ns)


def _of_case(
    case: _Case, runs: Sequence[_Measured], times: Mapping[str, Mapping[int, Sequence[float]]]
) -> Iterator[Figure]:
    """Yield the figures of one size of fabric."""
    label = f"k = {case.pods}, {case.hosts:,} hosts"
    ours = [run.hop_ns for run in runs]
    yield Figure(
        f"{label}, {case.duration_ns / MILLISECOND:.0f} ms",
        f"{statistics.median(ours):.0f} ns a hop ({min(ours):.0f} to {max(ours):.0f}; "
        f"{runs[0].hops:,} hops, {runs[0].pauses:,} pauses)",
    )
    for number, (name, by_pods) in enumerate(times.items()):
        if case.pods not in by_pods:
            continue
        others = by_pods[case.pods]
        ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        what = f"{label}: of {name}'s, which takes {statistics.median(others):.0f} ns"
        if number == 0:
            yield at_most(what, ratio, _MAX_RATIO, 2, " times")
        else:
            yield Figure(what, f"{ratio:.2f} times")
    peak_mb = max(run.peak_bytes for run in runs) / 1e6
    build_s = statistics.median(run.build_s for run in runs)
    peak, build = f"{label}: peak memory of the engine itself", f"{label}: built from arrays in"
    if case.pods == max(_DURATION_NS):
        yield at_most(peak, peak_mb, _MAX_BYTES / 1e6, 0, " MB")
        yield at_most(build, build_s, _MAX_BUILD_S, 2, " s")
    else:
        yield Figure(peak, f"{peak_mb:.0f} MB")
        yield Figure(build, f"{build_s:.2f} s")
    yield zero(f"{label}: packets dropped", max(run.dropped for run in runs))
    yield zero(f"{label}: other results, of {len(runs)}", len({run.digest for run in runs}) - 1)


def _notes(beside: Path | None, core: int, with_kernel: bool) -> Iterator[str]:
    yield (
        "a hop: a packet that leaves a NIC or a switch's port. User and system time of runs and of "
        f"reading all ports each 500 us, on core {core}; medians of {_ROUNDS} rounds"
    )
    if beside is not None:
        yield f"ratios: medians of those by round; {beside.name} ran in turn, on the same core"
    if with_kernel:
        yield (
            "the kernel's: trials of `bench run fabric-size`, which have no PFC, on the same core, "
            "in wall time: other programs on that core make it longer"
        )
