"""What it costs to read all ports of a fabric into the archive, and how that grows with ports."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from orchestration.analysis.stamp import stamp
from orchestration.artifacts.writer import write_trial
from orchestration.model.trial import SingleFlowSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, run_trial

_MS_NS = 1_000_000
# leaves, spines, hosts of a leaf: 64 and 1,000 switch ports
_FABRICS = {64: (4, 4, 8), 1_000: (20, 10, 30)}
_FILE = """
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
_LASTS_NS = 20 * _MS_NS
_FINE_NS, _COARSE_NS = 100_000, 2 * _MS_NS
_ROUNDS = 3
_MOST_RATIO = 2.0


def sampling_cost() -> Outcome:
    """Reading all ports into the archive: what a port's sample costs, of 64 and of 1,000 ports."""
    us = {ports: _us_per_sample(ports) for ports in _FABRICS}
    few, many = _FABRICS
    ratio = us[many] / us[few]
    return Outcome(
        "Sampling: an idle fabric, every port each 100 us, read and archived",
        (
            Figure(f"a port's sample, of {few} ports", f"{us[few]:.2f} us"),
            Figure(f"a port's sample, of {many:,} ports", f"{us[many]:.2f} us"),
            Figure("ratio", f"{ratio:.2f}", f"{_MOST_RATIO:g}", ratio <= _MOST_RATIO),
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
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        path = Path(folder) / "fabric.yml"
        path.write_text(_FILE.format(ports=ports, leaves=leaves, spines=spines, hosts=hosts))
        for number in range(_ROUNDS):
            fine, rows = _wall_s(path, _FINE_NS, Path(folder) / f"fine-{number}")
            coarse, few_rows = _wall_s(path, _COARSE_NS, Path(folder) / f"coarse-{number}")
            found.append((fine - coarse) / (rows - few_rows))
    return 1e6 * float(np.median(found))


def _wall_s(testbed: Path, period_ns: int, folder: Path) -> tuple[float, int]:
    """Run and archive a trial of two tiny flows; return its wall time and its rows of ports."""
    flows = (SingleFlowSpec("h1", "h2", 1, 0), SingleFlowSpec("h1", "h2", 1, _LASTS_NS))
    begin = time.monotonic()
    run = run_trial(
        str(testbed),
        flows,
        TunerSpec("secn1"),
        duration_ns=_LASTS_NS + _MS_NS,
        sample_period_ns=period_ns,
    )
    verdict = stamp(run.trial, run.testbed, run.schedule, run.record)
    write_trial(folder, run.trial, run.testbed, run.schedule, run.record, verdict, {})
    return time.monotonic() - begin, run.record.ports.qlen_bytes.size
