"""A campaign written for 25 Gbit/s on a rack in real time whose rates are scaled."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from inventory.ansible import load_rack
from orchestration.bench.rack import EIGHT_DEVICES, closloop
from orchestration.results.reader import read_trial
from tests.hardware.rack_lab import provisioned_rack

pytestmark = [pytest.mark.root, pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(600)]

SCALE = 2000
CAMPAIGN = """
campaign: {name}
testbed: eight.yml
backend: hardware
host: {{congestion_control: reno}}
tuners: [secn2]
traffic:
  - {{kind: incast, fan_in: 3, size: 64KB, period: 400us, start: 100us}}
repeats: {repeats}
duration: 800us
drain: 20ms
"""


@pytest.fixture(scope="module")
def scaled_rack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaled")
    with provisioned_rack(folder, EIGHT_DEVICES, clock="real", scale=SCALE) as rack:
        yield rack


def trials_of(rack, folder, name, repeats):
    (folder / f"{name}.yml").write_text(CAMPAIGN.format(name=name, repeats=repeats))
    arguments = (f"{name}.yml", "-i", str(rack.inventory), "--json")
    code, text = closloop(rack, folder, "run", *arguments)
    assert code in (0, 1), text
    return [read_trial(p.parent) for p in (folder / "runs" / name).glob("*/trial.json")]


def test_it_runs_slowly_and_its_results_are_in_its_own_time(scaled_rack):
    rack, folder = scaled_rack
    here = load_rack(rack.inventory)
    assert here.scale == SCALE
    assert {port.rate_bps for port in here.testbed.ports} == {12_500_000, 50_000_000}
    arguments = ("c.yml", "-i", str(rack.inventory), "--json")
    (folder / "c.yml").write_text(CAMPAIGN.format(name="c", repeats=1))
    code, text = closloop(rack, folder, "plan", *arguments)
    assert code == 0, text
    (trial,) = trials_of(rack, folder, "slow", 1)
    assert trial.spec.scale == trial.facts["scale"] == SCALE
    assert trial.spec.duration_ns == 800_000
    assert trial.testbed.host_rate_bps("h1") == 25_000_000_000
    flows, ports = trial.table("flows"), trial.table("ports")
    assert (flows["status"] == "done").all()
    # a last packet of two hosts at once may wait for a full queue, and none is faster than its link
    slowdown = flows["fct_ns"] / flows["ideal_ns"]
    assert slowdown.min() > 0.5, slowdown
    assert ports["t_ns"].max() < 21_000_000
    assert np.median(np.diff(np.unique(ports["t_ns"]))) == pytest.approx(100_000, rel=0.1)
    # thresholds are those of 25 Gbit/s, in bytes
    actions = trial.table("actions")
    assert {100_000, 400_000} <= {*actions["kmin_bytes"].tolist()}
    machine = trial.facts["machine"]
    assert machine["timer_lag_us"]["count"] > 100
    assert machine["shaper_lag_us"]["count"] > 100
    assert 0 < machine["busy_share"] <= 1


def test_with_all_cores_spinning_every_trial_is_invalid(scaled_rack):
    rack, folder = scaled_rack
    spin = [sys.executable, "-IS", "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count())]
    try:
        trials = trials_of(rack, folder, "busy", 2)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert [trial.stamp.valid for trial in trials] == [False, False]
    for trial in trials:
        (reason,) = (r for r in trial.stamp.reasons if r.code == "cpu-busy")
        assert "--scale" in reason.text, reason


def test_another_scale_is_another_rack(scaled_rack):
    rack, folder = scaled_rack
    layout = json.loads((rack.folder / "layout.json").read_text())
    assert layout["scale"] == SCALE
    text = rack.inventory.read_text()
    other = folder / "other.yml"
    other.write_text(text.replace(f"closloop_scale: {SCALE}", "closloop_scale: 1000"))
    (folder / "c.yml").write_text(CAMPAIGN.format(name="c", repeats=1))
    code, _ = closloop(rack, folder, "run", "c.yml", "-i", str(other), "--json")
    assert code == 3
