"""Benchmarks over SSH on virtual racks: their cost and their results."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from inventory.files import load_testbed
from orchestration.model.errors import TrialError
from orchestration.studies.bench.outcome import Figure, Outcome, at_most, bench_folder, zero
from orchestration.virtual_rack.control import RackHandle, up

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "quickstart.yml"
KILLS = 20
# Two spines, two leaves, four hosts.
EIGHT_DEVICES = """
name: eight
kind: leaf-spine
leaves: 2
spines: 2
hosts_per_leaf: 2
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 100Gbps, delay: 1us}
mtu: 1500B
buffer: 16MB
"""
SIX_SWITCHES = EIGHT_DEVICES.replace("name: eight", "name: six").replace("leaves: 2", "leaves: 4")
_READINGS, _CHANGES = 1000, 300
# Thresholds change at every sample, in a run long enough to be killed in the middle.
RESTLESS = """
campaign: restless
testbed: {testbed}
backend: hardware
tuners: [{{name: random, templates: acc}}]
traffic:
  - {{kind: poisson, workload: WebSearch, load: 0.3}}
repeats: 4
duration: 60ms
drain: 100ms
sample_period: 100us
"""
# When to kill, in wall seconds after the controller's start: it connects, runs and restores.
_KILLED_FROM_S, _KILLED_UPTO_S = 4.0, 28.0
_PROVISION_TARGET_S = 240.0


@contextmanager
def _rack(
    folder: Path, testbed: str, sonic: Sequence[str] = (), *, real_time: bool = False
) -> Iterator[RackHandle]:
    """Yield a rack that is not provisioned yet; `testbed` is a name or the text of a file."""
    if "\n" in testbed:
        file = folder / "testbed.yml"
        file.write_text(testbed)
        testbed = str(file)
    found = load_testbed(testbed)
    rack, _ = up(found, sonic=sonic, folder=folder / found.name, real_time=real_time)
    try:
        yield rack
    finally:
        rack.down()


def program(*arguments: str) -> list[str]:
    """Return the command line that runs `closloop ARGUMENTS` in a rack."""
    return [sys.executable, "-c", "from orchestration.cli.main import main; main()", *arguments]


def closloop(rack: RackHandle, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run `closloop ARGUMENTS` in the rack; return its exit code and standard output."""
    with (folder / "out").open("w+b") as out, (folder / "log").open("ab") as log:
        code = rack.run(program(*arguments), cwd=folder, stdout=out, stderr=log)
        out.seek(0)
        return code, out.read().decode(errors="replace")


def _answer(rack: RackHandle, folder: Path, *arguments: str) -> str:
    """Run `closloop ARGUMENTS` in the rack; return its output. Raises TrialError."""
    code, text = closloop(rack, folder, *arguments)
    if code:
        raise TrialError(f"closloop {' '.join(arguments)} ended with exit code {code}", "", text)
    return text


def _provision(rack: RackHandle, folder: Path, *options: str) -> dict[str, Any]:
    """Provision the rack; return the result by device."""
    text = _answer(rack, folder, "provision", str(rack.inventory), "--json", *options)
    devices: dict[str, Any] = json.loads(text)["devices"]
    return devices


def _dumps(rack: RackHandle) -> dict[str, Any]:
    """Return the state of every device, read without SSH."""
    return {device.name: rack.dump(device.name) for device in rack.layout.testbed.devices}


def _differing(rack: RackHandle, before: dict[str, Any]) -> list[str]:
    return [device for device, found in _dumps(rack).items() if found != before[device]]


def provisioning() -> Outcome:
    """Wall time to provision a virtual rack of eight devices, twice, and to undo it."""
    seconds, changed = [], []
    with bench_folder() as folder, _rack(folder, EIGHT_DEVICES, ("spine2",)) as rack:
        found = _dumps(rack)
        for options in ((), (), ("--undo",)):
            begin = time.monotonic()
            devices = _provision(rack, folder, *options)
            seconds.append(time.monotonic() - begin)
            changed.append(sum(bool(device["changed"]) for device in devices.values()))
        left = _differing(rack, found)
    what = f"first time, {changed[0]} of 8 devices changed: wall time"
    return Outcome(
        "Provisioning: a virtual rack of 8 devices over SSH, one SONiC-like",
        (
            at_most(what, seconds[0], _PROVISION_TARGET_S, 0, " s"),
            zero("second time: devices changed", changed[1]),
            zero("after undo: devices that differ", len(left)),
        ),
        data={"seconds": seconds, "changed": changed, "left": left},
    )


def ssh_loop() -> Outcome:
    """Reading six switches every 10 ms, and changing thresholds, over SSH in real time."""
    with bench_folder() as folder, _rack(folder, SIX_SWITCHES, real_time=True) as rack:
        _provision(rack, folder)
        probe = [sys.executable, "-m", "orchestration.studies.bench.rack_loop"]
        probe += [str(rack.inventory), str(_READINGS), str(_CHANGES)]
        with (folder / "found").open("w+b") as out:
            code = rack.run(probe, cwd=ROOT, stdout=out)
            out.seek(0)
            found = json.loads(out.read() or "{}")
        if code:
            raise TrialError("the probe failed", "its error stands above")
    share = found["missed"] / found["readings"]
    reads, sets = (np.array(found[name]) / 1e3 for name in ("read_us", "set_us"))
    missed = f"periods of 10 ms missed, of {found['readings']}"
    return Outcome(
        f"The loop over SSH: {found['switches']} switches, {found['queues']} queues, real time",
        (
            Figure(missed, f"{share:.1%}", "5%", share < 0.05),
            Figure("all switches read: median", f"{np.median(reads):.1f} ms"),
            Figure("all switches read: 99th percentile", f"{np.quantile(reads, 0.99):.1f} ms"),
            at_most("one change, asked to read back: median", float(np.median(sets)), 20, 1, " ms"),
            Figure("one change: 99th percentile", f"{np.quantile(sets, 0.99):.1f} ms"),
        ),
        (
            "switches, their SSH servers and the controller share one CPU in a guest without "
            "virtual time",
        ),
        found,
    )


def controller_killed(kills: int = KILLS, seed: int = 1) -> Outcome:
    """SIGKILLs of the controller at random moments of a run: is every device put back?"""
    with bench_folder() as folder, _rack(folder, EIGHT_DEVICES, ("spine2",)) as rack:
        rows = kill_runs(rack, folder, kills, seed)
    changed = sum(bool(row["changed"]) for row in rows)
    wrong = sum(bool(row["differs"]) for row in rows)
    return Outcome(
        f"The controller killed: {kills} SIGKILLs at random moments of runs on a virtual rack",
        (
            Figure("kills that found devices changed", f"{changed} of {kills}"),
            zero("after the dead-man's time: kills that left a device different", wrong),
        ),
        ("compared are all qdiscs with their options, addresses, routes, sysctls, CONFIG_DB",),
        {"kills": rows},
    )


def kill_runs(rack: RackHandle, folder: Path, kills: int, seed: int) -> list[dict[str, Any]]:
    """Provision the rack, then kill runs on it; return which devices each kill left changed."""
    _provision(rack, folder)
    testbed, campaign = folder / "eight.yml", folder / "restless.yml"
    testbed.write_text(EIGHT_DEVICES)
    campaign.write_text(RESTLESS.format(testbed=testbed))
    before = _dumps(rack)
    moments = random.Random(seed)
    rows = []
    for number in range(kills):
        out = str(folder / f"killed-{number}")
        run = program("run", str(campaign), "--inventory", str(rack.inventory), "--out", out)
        after_s = moments.uniform(_KILLED_FROM_S, _KILLED_UPTO_S)
        with (folder / "log").open("ab") as log:
            process = rack.start(run, cwd=folder, stdout=log, stderr=log)
            time.sleep(after_s)
            process.kill(signal.SIGKILL)
            process.wait()
        changed = _differing(rack, before)
        # the inventory's dead-man timer restores devices 30 s after the last sign of life
        rack.let_pass(45.0)
        differs = _differing(rack, before)
        rows.append({"after_s": round(after_s, 2), "changed": changed, "differs": differs})
    return rows


def same_answer(campaign: Path = QUICKSTART, testbed: str = "graphcc") -> Outcome:
    """The quickstart emulated directly and over SSH on a virtual rack: the same answer?"""
    sonic = load_testbed(testbed).switches[-1:]
    with bench_folder() as folder, _rack(folder, testbed, sonic) as rack:
        return compare_backends(rack, folder, campaign)


def compare_backends(rack: RackHandle, folder: Path, campaign: Path) -> Outcome:
    """Run a campaign on a rack, provisioned here, and emulated; compare the results."""
    _provision(rack, folder)
    run = ("run", str(campaign), "--json")
    inventory = str(rack.inventory)
    _answer(rack, folder, *run, "--on", "hardware", "-i", inventory, "--out", "rack")
    here = program(*run, "--on", "emulated", "--out", "emulated")
    done = subprocess.run(here, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        raise TrialError("the emulated run failed", "", done.stderr.decode(errors="replace"))
    return _judge(folder / "rack", folder / "emulated")


def _judge(rack_runs: Path, emulated_runs: Path) -> Outcome:
    """Compare two run folders of one campaign: differences between tuners, and read-backs."""
    from orchestration.analysis.summary import summarise

    homes = [next(p for p in runs.iterdir() if p.is_dir()) for runs in (rack_runs, emulated_runs)]
    on_rack, emulated = (
        {item.metric: item.difference for item in summarise(home).conditions[0].comparisons}
        for home in homes
    )
    figures, data = [], {}
    for metric, a in on_rack.items():
        b = emulated[metric]
        figures.append(
            Figure(
                f"{metric}, secn2 against secn1: on the rack {a.relative:+.1%} "
                f"({a.relative_low:+.1%} to {a.relative_high:+.1%}), emulated",
                f"{b.relative:+.1%} ({b.relative_low:+.1%} to {b.relative_high:+.1%})",
                "intervals overlap",
                a.low <= b.high and b.low <= a.high,
            )
        )
        data[metric] = [[d.mean, d.low, d.high] for d in (a, b)]
    trials = [json.loads(path.read_text()) for path in homes[0].glob("*/trial.json")]
    back = {
        name: sum(trial["facts"]["read_back"].get(name, 0) for trial in trials)
        for name in ("equal", "requested", "wrong")
    }
    valid = sum(trial["stamp"]["valid"] for trial in trials)
    said = f"{valid} of {len(trials)}"
    figures += [
        Figure("valid trials on the rack", said, "all", valid == len(trials)),
        zero(
            f"thresholds read back: {back['equal']} as asked; {back['requested']} requested of the "
            "SONiC-like switch's ASIC; otherwise",
            back["wrong"],
        ),
    ]
    return Outcome(
        "One campaign over SSH on a virtual rack, and emulated", tuple(figures), (), data
    )
