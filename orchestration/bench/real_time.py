"""Checks a rack in real time on this machine's kernel, and that invalid trials are recognised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from orchestration.bench.outcome import Figure, Outcome, bench_folder, busy_cpus
from orchestration.bench.rack import (
    EIGHT_DEVICES,
    closloop,
    provision_rack,
    temporary_rack,
)
from orchestration.core.errors import TrialError
from orchestration.results.reader import TrialResult, read_trial
from orchestration.virtual_rack.control import RackHandle

_CAMPAIGN = """
campaign: {name}
testbed: testbed.yml
backend: hardware
host: {{congestion_control: reno}}
tuners: [{tuners}]
traffic:
{traffic}
repeats: {repeats}
seed: {seed}
duration: {duration}
drain: 100ms
"""
_MIX = """\
  - {kind: poisson, workload: WebSearch, load: 0.4}
  - {kind: incast, fan_in: 3, size: 64KB, period: 1ms, start: 500us}"""
_LONE_BYTES = 10_000_000
_LONE = f"  - {{kind: flow, src: h1, dst: h3, size: {_LONE_BYTES}B}}"
_MIN_IDLE, _MAX_TRIALS = 20, 60
_BUSY_TRIALS = 5
# A machine counts as idle if other programs than the rack's used at most this share of its CPU.
# What other programs do can make a valid trial invalid, but not an invalid one valid.
_MAX_OTHERS_SHARE = 0.25
# The goodput in virtual time must be 94 % of line rate; here the tolerance is twice as large.
_MIN_GOODPUT = 1 - 2 * (1 - 0.94)


def real_time() -> Outcome:
    """Trials on an idle machine and with all cores busy, and a lone flow's goodput. Needs root."""
    with (
        bench_folder() as folder,
        temporary_rack(folder, EIGHT_DEVICES, on_host=True) as rack,
    ):
        provision_rack(rack, folder)
        lone = _lone_flow(rack, folder)
        stamps, data = _validity(rack, folder)
        scale, lacks = rack.layout.scale, rack.layout.lacks
    notes = [f"scale {scale}: times of trials are the clock's, divided by it"]
    if lacks:
        notes.append(f"the kernel lacks {', '.join(lacks)}")
    return Outcome(
        "Real time: four hosts, two leaves and two spines on this machine's kernel",
        (lone, *stamps),
        tuple(notes),
        data,
    )


def _validity(rack: RackHandle, folder: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Run trials until the machine was idle for enough of them, then some with all cores busy."""
    all_trials: list[TrialResult] = []
    while len(all_trials) < _MAX_TRIALS and sum(map(_was_idle, all_trials)) < _MIN_IDLE:
        all_trials += _run(
            rack, folder, "idle", _MIX, seed=1 + len(all_trials), repeats=5, duration="3ms"
        )
    with busy_cpus(os.cpu_count() or 1):
        busy = _run(
            rack, folder, "busy", _MIX, seed=1, repeats=_BUSY_TRIALS, duration="3ms", tuners=1
        )
    idle = [trial for trial in all_trials if _was_idle(trial)]
    invalid_idle = [trial for trial in idle if not trial.stamp.valid]
    invalid_busy = [trial for trial in busy if not trial.stamp.valid]
    naming_scale = [
        trial for trial in busy if any("--scale" in r.text for r in trial.stamp.reasons)
    ]
    figures = [
        Figure(
            "invalid trials on an idle machine (other programs below "
            f"{_MAX_OTHERS_SHARE:.0%} of its CPU; {len(all_trials)} were run)",
            f"{len(invalid_idle)} of {len(idle)}",
            f"at most 1 in 20, of {_MIN_IDLE}",
            len(idle) >= _MIN_IDLE and len(invalid_idle) * 20 <= len(idle),
        ),
        Figure(
            "invalid trials with all cores spinning",
            f"{len(invalid_busy)} of {len(busy)}",
            "all",
            len(invalid_busy) == len(busy) == _BUSY_TRIALS,
        ),
        Figure(
            "of these, with the scale that would have fitted",
            f"{len(naming_scale)} of {len(busy)}",
            "all",
            len(naming_scale) == len(busy),
        ),
    ]
    data = {
        name: [
            {
                "machine": trial.facts["machine"],
                "reasons": [r.text for r in trial.stamp.reasons if r.severity == "invalid"],
            }
            for trial in all_trials
        ]
        for name, all_trials in (("idle", all_trials), ("busy", busy))
    }
    return figures, data


def _was_idle(trial: TrialResult) -> bool:
    return bool(trial.facts["machine"]["others_share"] <= _MAX_OTHERS_SHARE)


def _run(
    rack: RackHandle,
    folder: Path,
    name: str,
    traffic: str,
    *,
    seed: int,
    repeats: int,
    duration: str,
    tuners: int = 2,
) -> list[TrialResult]:
    """Run a campaign on the rack; return its trials, valid or not."""
    name = f"{name}-{seed}"
    text = _CAMPAIGN.format(
        name=name,
        traffic=traffic,
        seed=seed,
        repeats=repeats,
        duration=duration,
        tuners=", ".join(("secn1", "secn2")[:tuners]),
    )
    file = folder / f"{name}.yml"
    file.write_text(text)
    code, output = closloop(
        rack, folder, "run", str(file), "-i", str(rack.inventory), "--json", "--out", "runs"
    )
    results = [read_trial(path.parent) for path in (folder / "runs" / name).glob("*/trial.json")]
    if code not in (0, 1) or len(results) != tuners * repeats:
        raise TrialError(f"campaign {name} ended with exit code {code}", "", output)
    return results


def _lone_flow(rack: RackHandle, folder: Path) -> Figure:
    (trial,) = _run(rack, folder, "lone", _LONE, seed=1, repeats=1, duration="1ms", tuners=1)
    flows = trial.table("flows")
    fct_ns = int(flows["fct_ns"][0])
    testbed = load_testbed(str(folder / "testbed.yml"))
    line_bps = testbed.host_rate_bps("h1")
    share = _LONE_BYTES * 8e9 / fct_ns / line_bps
    return Figure(
        f"{_LONE_BYTES // 10**6} MB alone, goodput",
        f"{share * line_bps / 1e9:.2f} Gbit/s, {share:.2%} of line rate",
        f"{_MIN_GOODPUT:.0%}",
        share >= _MIN_GOODPUT,
    )
