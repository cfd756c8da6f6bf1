"""Checks that trials with real TCP and RED repeat exactly, on a busy machine and on other CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from orchestration.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    Run,
    busy_cpus,
    environment,
    run_trial,
)
from orchestration.core.codec import flattened, record_tables
from orchestration.core.trial import CLOSLOOP, TCP, FabricSpec, FaultSpec, HostSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec

_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()
_NO_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
# Environment variables that make OpenBLAS, NumPy and the C library use the code for another CPU
# model. GLIBC_TUNABLES has no effect if the C library does not support it. A CPU that is newer than
# this machine's cannot be imitated.
OTHER_CPUS: Mapping[str, Mapping[str, str]] = {
    "2004, SSE3": {
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": f"{_NO_AVX512} AVX2 FMA3",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-AVX",
    },
    "2013, AVX2": {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": _NO_AVX512},
} | ({"2017, AVX-512": {"OPENBLAS_CORETYPE": "SkylakeX"}} if _AVX512 else {})


def repeated_trial() -> Outcome:
    """The same trial again, on a busy machine and as on other CPUs, for each of four tuners."""
    figures = []
    data: dict[str, dict[str, int]] = {}
    for name in ("secn2", "acc", "graphcc", "pet"):
        first = faulty_trial(name)
        with busy_cpus(2):
            repeated = {"beside a program a CPU": faulty_trial(name)}
        for cpu, variables in OTHER_CPUS.items():
            with environment(variables):
                repeated[f"on a CPU of {cpu}"] = faulty_trial(name)
        for condition, run in repeated.items():
            differ, values = differing_values(first, run)
            figures.append(
                Figure(
                    f"{name}, {condition}: numbers that differ, of {values:,} in the tables",
                    f"{differ:,}",
                    "none",
                    differ == 0,
                )
            )
            data.setdefault(name, {})[condition] = differ
        marks = int(first.record.ports.values["marked_packets"][-1].sum())
        figures.append(Figure(f"{name}: packets marked by chance and by threshold", f"{marks:,}"))
    notes = [
        f"a CPU of {cpu}: " + " ".join(f"{name}={value!r}" for name, value in variables.items())
        for cpu, variables in OTHER_CPUS.items()
    ]
    return Outcome("The same trial again, to the bit", tuple(figures), tuple(notes), data)


def faulty_trial(
    tuner: str, seed: int = 1, *, host: HostSpec = TCP, fabric: FabricSpec = CLOSLOOP
) -> Run:
    """Run 5 ms of WebSearch and incast on graphcc, with one cable cut for a millisecond."""
    return run_trial(
        "graphcc",
        (
            PoissonSpec("WebSearch", 0.6, 0, 5 * MILLISECOND),
            IncastSpec(16, 128_000, 2 * MILLISECOND, 0, 5 * MILLISECOND, "h3"),
        ),
        TunerSpec(tuner),
        duration_ns=5 * MILLISECOND,
        seed=seed,
        faults=(FaultSpec(2 * MILLISECOND, 3 * MILLISECOND, 100_000, ("leaf1-spine2",)),),
        host=host,
        fabric=fabric,
    )


def differing_values(first: Run, other: Run) -> tuple[int, int]:
    """Return how many values of the two trials' tables differ, and how many values there are."""
    differ = values = 0
    left, right = (flattened(record_tables(run.record)) for run in (first, other))
    for name in sorted({*left, *right}):
        a, b = (side.get(name, np.zeros(0)) for side in (left, right))
        values += a.size
        differ += max(a.size, b.size) if a.shape != b.shape else int((a != b).sum())
    return differ, values
