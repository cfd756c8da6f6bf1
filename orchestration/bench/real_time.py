"""A rack in real time on this machine's kernel: is it right, and does it know when it is not?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from orchestration.bench.outcome import Figure, Outcome, bench_folder, spinning
from orchestration.bench.rack import (
    EIGHT_DEVICES,
    a_rack,
    closloop,
    provision_rack,
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
_IDLE, _AT_MOST = 20, 60
_BUSY = 5
# A machine counts as idle if no more of it went to programs that are not the rack's: what others do
# can make a trial invalid, but none valid.
_OTHERS = 0.25
# Virtual time's tolerance, doubled: 94 % of line rate.
_GOODPUT = 1 - 2 * (1 - 0.94)


def real_time() -> Outcome:
    """Trials on an idle machine and with all cores spinning, and a lone flow's rate. Root."""
    with (
        bench_folder() as folder,
        a_rack(folder, EIGHT_DEVICES, on_host=True) as rack,
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
    """Run trials until enough were on an idle machine, then some with all cores spinning."""
    every: list[TrialResult] = []
    while len(every) < _AT_MOST and sum(map(_was_idle, every)) < _IDLE:
        every += _run(rack, folder, "idle", _MIX, seed=1 + len(every), repeats=5, duration="3ms")
    with spinning(os.cpu_count() or 1):
        busy = _run(rack, folder, "busy", _MIX, seed=1, repeats=_BUSY, duration="3ms", tuners=1)
    idle = [trial for trial in every if _was_idle(trial)]
    wrong = [trial for trial in idle if not trial.stamp.valid]
    caught = [trial for trial in busy if not trial.stamp.valid]
    named = [trial for trial in busy if any("--scale" in r.text for r in trial.stamp.reasons)]
    figures = [
        Figure(
            "invalid trials on an idle machine (other programs below "
            f"{_OTHERS:.0%} of its CPU; {len(every)} were run)",
            f"{len(wrong)} of {len(idle)}",
            f"at most 1 in 20, of {_IDLE}",
            len(idle) >= _IDLE and len(wrong) * 20 <= len(idle),
        ),
        Figure(
            "invalid trials with all cores spinning",
            f"{len(caught)} of {len(busy)}",
            "all",
            len(caught) == len(busy) == _BUSY,
        ),
        Figure(
            "of these, with the scale that would have fitted",
            f"{len(named)} of {len(busy)}",
            "all",
            len(named) == len(busy),
        ),
    ]
    data = {
        name: [
            {
                "machine": trial.facts["machine"],
                "reasons": [r.text for r in trial.stamp.reasons if r.severity == "invalid"],
            }
            for trial in trials
        ]
        for name, trials in (("idle", every), ("busy", busy))
    }
    return figures, data


def _was_idle(trial: TrialResult) -> bool:
    return bool(trial.facts["machine"]["others_share"] <= _OTHERS)


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
    code, said = closloop(
        rack, folder, "run", str(file), "-i", str(rack.inventory), "--json", "--out", "runs"
    )
    found = [read_trial(path.parent) for path in (folder / "runs" / name).glob("*/trial.json")]
    if code not in (0, 1) or len(found) != tuners * repeats:
        raise TrialError(f"campaign {name} ended with exit code {code}", "", said)
    return found


def _lone_flow(rack: RackHandle, folder: Path) -> Figure:
    (trial,) = _run(rack, folder, "lone", _LONE, seed=1, repeats=1, duration="1ms", tuners=1)
    flows = trial.table("flows")
    took_ns = int(flows["fct_ns"][0])
    testbed = load_testbed(str(folder / "testbed.yml"))
    line_bps = testbed.host_rate_bps("h1")
    share = _LONE_BYTES * 8e9 / took_ns / line_bps
    return Figure(
        f"{_LONE_BYTES // 10**6} MB alone, goodput",
        f"{share * line_bps / 1e9:.2f} Gbit/s, {share:.2%} of line rate",
        f"{_GOODPUT:.0%}",
        share >= _GOODPUT,
    )
