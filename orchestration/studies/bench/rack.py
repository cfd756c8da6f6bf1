"""What runs over SSH cost and come to, on virtual racks."""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from inventory.files import load_testbed
from orchestration.model.errors import TrialError
from orchestration.studies.bench.outcome import Figure, Outcome
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
# Thresholds change at every sample, for long enough to be killed in the midst of it.
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
# Wall seconds from the controller's start: while it connects, runs and restores.
_KILLED_FROM_S, _KILLED_UPTO_S = 4.0, 28.0
_PROVISION_TARGET_S = 240.0


@contextmanager
def eight_devices(folder: Path, roce: Sequence[str] = ()) -> Iterator[RackHandle]:
    """Yield a rack of eight devices, one a SONiC-like switch, which is not provisioned yet."""
    testbed = folder / "eight.yml"
    testbed.write_text(EIGHT_DEVICES)
    with _rack(str(testbed), ("spine2",), folder, roce) as rack:
        yield rack


@contextmanager
def _rack(
    testbed: str,
    sonic: Sequence[str],
    folder: Path,
    roce: Sequence[str] = (),
    real_time: bool = False,
) -> Iterator[RackHandle]:
    found = load_testbed(testbed)
    home = folder / found.name
    rack, _ = up(found, sonic=sonic, roce=roce, folder=home, real_time=real_time)
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


def provisioning() -> Outcome:
    """Wall time to provision a virtual rack of eight devices, twice, and to undo it."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as name:
        folder = Path(name)
        with eight_devices(folder) as rack:
            names = [device.name for device in rack.layout.testbed.devices]
            found = {device: rack.dump(device) for device in names}
            seconds, changed = [], []
            for option in ((), (), ("--undo",)):
                begin = time.monotonic()
                code, text = closloop(
                    rack, folder, "provision", str(rack.inventory), "--json", *option
                )
                if code:
                    raise TrialError(f"provisioning ended with exit code {code}", "", text)
                seconds.append(time.monotonic() - begin)
                devices = json.loads(text)["devices"].values()
                changed.append(sum(bool(device["changed"]) for device in devices))
            left = [device for device in names if rack.dump(device) != found[device]]
    return Outcome(
        "Provisioning: a virtual rack of 8 devices over SSH, one SONiC-like",
        (
            Figure(
                f"first time, {changed[0]} of 8 devices changed: wall time",
                f"{seconds[0]:.0f} s",
                f"{_PROVISION_TARGET_S:.0f} s",
                seconds[0] <= _PROVISION_TARGET_S,
            ),
            Figure("second time: devices changed", str(changed[1]), "0", changed[1] == 0),
            Figure("after undo: devices that differ", str(len(left)), "0", not left),
        ),
        data={"seconds": seconds, "changed": changed, "left": left},
    )


def ssh_loop() -> Outcome:
    """Reading six switches every 10 ms, and changing thresholds, over SSH in real time."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as name:
        folder = Path(name)
        testbed = folder / "six.yml"
        testbed.write_text(SIX_SWITCHES)
        with _rack(str(testbed), (), folder, real_time=True) as rack:
            inventory = str(rack.inventory)
            code, text = closloop(rack, folder, "provision", inventory, "--json")
            if code:
                raise TrialError(f"provisioning ended with exit code {code}", "", text)
            probe = [sys.executable, "-m", "orchestration.studies.bench.rack_loop", inventory]
            with (folder / "found").open("w+b") as out:
                code = rack.run([*probe, str(_READINGS), str(_CHANGES)], cwd=ROOT, stdout=out)
                out.seek(0)
                found = json.loads(out.read() or "{}")
            if code:
                raise TrialError("the probe failed", "its error stands above")
    share = found["missed"] / found["readings"]
    reads, sets = (np.array(found[name]) / 1e3 for name in ("read_us", "set_us"))
    return Outcome(
        f"The loop over SSH: {found['switches']} switches, {found['queues']} queues, real time",
        (
            Figure(
                f"periods of 10 ms missed, of {found['readings']}",
                f"{share:.1%}",
                "5%",
                share < 0.05,
            ),
            Figure("all switches read: median", f"{np.median(reads):.1f} ms"),
            Figure("all switches read: 99th percentile", f"{np.quantile(reads, 0.99):.1f} ms"),
            Figure(
                "one change, asked to read back: median",
                f"{np.median(sets):.1f} ms",
                "20 ms",
                bool(np.median(sets) < 20),
            ),
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
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as name:
        folder = Path(name)
        with eight_devices(folder) as rack:
            rows = kill_runs(rack, folder, kills, seed)
    changed = sum(bool(row["changed"]) for row in rows)
    wrong = [row for row in rows if row["differs"]]
    return Outcome(
        f"The controller killed: {kills} SIGKILLs at random moments of runs on a virtual rack",
        (
            Figure("kills that found devices changed", f"{changed} of {kills}"),
            Figure(
                "after the dead-man's time: kills that left a device different",
                str(len(wrong)),
                "0",
                not wrong,
            ),
        ),
        ("compared are all qdiscs with their options, addresses, routes, sysctls, CONFIG_DB",),
        {"kills": rows},
    )


def kill_runs(rack: RackHandle, folder: Path, kills: int, seed: int) -> list[dict[str, Any]]:
    """Provision the rack, then kill runs on it; return for each what was changed and what is."""
    code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
    if code:
        raise TrialError(f"provisioning ended with exit code {code}", "", text)
    campaign = folder / "restless.yml"
    campaign.write_text(RESTLESS.format(testbed=folder / "eight.yml"))
    names = [device.name for device in rack.layout.testbed.devices]
    before = {device: rack.dump(device) for device in names}
    moments = random.Random(seed)
    rows = []
    for number in range(kills):
        out = folder / f"killed-{number}"
        arguments = ("run", str(campaign), "--inventory", str(rack.inventory), "--out", str(out))
        after_s = moments.uniform(_KILLED_FROM_S, _KILLED_UPTO_S)
        with (folder / "log").open("ab") as log:
            _kill_after(rack, program(*arguments), folder, after_s, log)
        changed = [device for device in names if rack.dump(device) != before[device]]
        # the dead-man's time of the inventory is 30 s, after the last word
        rack.let_pass(45.0)
        differs = [device for device in names if rack.dump(device) != before[device]]
        rows.append({"after_s": round(after_s, 2), "changed": changed, "differs": differs})
    return rows


def _kill_after(
    rack: RackHandle, argv: list[str], folder: Path, after_s: float, log: IO[bytes]
) -> None:
    process = rack.start(argv, cwd=folder, stdout=log, stderr=log)
    time.sleep(after_s)
    process.kill(signal.SIGKILL)
    process.wait()


def same_answer(campaign: Path = QUICKSTART, testbed: str = "graphcc") -> Outcome:
    """The quickstart emulated directly and over SSH on a virtual rack: the same answer?"""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as name:
        folder = Path(name)
        sonic = load_testbed(testbed).switches[-1:]
        with _rack(testbed, sonic, folder) as rack:
            return compare_backends(rack, folder, campaign)


def compare_backends(rack: RackHandle, folder: Path, campaign: Path) -> Outcome:
    """Run a campaign on a rack, provisioned here, and emulated; compare what they say."""
    inventory = str(rack.inventory)
    steps = (
        ("provision", inventory, "--json"),
        ("run", str(campaign), "--on", "hardware", "-i", inventory, "--out", "rack", "--json"),
        ("run", str(campaign), "--on", "emulated", "--out", "emulated", "--json"),
    )
    for step in steps[:2]:
        code, text = closloop(rack, folder, *step)
        if code:
            raise TrialError(f"closloop {' '.join(step)} ended with exit code {code}", "", text)
    _run_here(folder, steps[2])
    return judge(folder / "rack", folder / "emulated")


def _run_here(folder: Path, arguments: Sequence[str]) -> None:
    import subprocess

    done = subprocess.run(program(*arguments), cwd=folder, capture_output=True, check=False)
    if done.returncode:
        raise TrialError("the emulated run failed", "", done.stderr.decode(errors="replace"))


def judge(rack_runs: Path, emulated_runs: Path) -> Outcome:
    """Compare two run folders of one campaign: differences between its tuners, and read-backs."""
    from orchestration.analysis.summary import summarise

    said = []
    trials: list[dict[str, Any]] = []
    for runs in (rack_runs, emulated_runs):
        (home,) = (path for path in runs.iterdir() if path.is_dir())
        said.append(
            {item.metric: item.difference for item in summarise(home).conditions[0].comparisons}
        )
        if runs is rack_runs:
            trials = [json.loads(path.read_text()) for path in home.glob("*/trial.json")]
    figures, data = [], {}
    for metric, rack in said[0].items():
        emulated = said[1][metric]
        overlap = rack.low <= emulated.high and emulated.low <= rack.high
        figures.append(
            Figure(
                f"{metric}, secn2 against secn1: on the rack {rack.relative:+.1%} "
                f"({rack.relative_low:+.1%} to {rack.relative_high:+.1%}), emulated",
                f"{emulated.relative:+.1%} ({emulated.relative_low:+.1%} to "
                f"{emulated.relative_high:+.1%})",
                "intervals overlap",
                overlap,
            )
        )
        data[metric] = [[d.mean, d.low, d.high] for d in (rack, emulated)]
    back = dict.fromkeys(("equal", "rounded", "wrong"), 0)
    for trial in trials:
        for name, count in trial["facts"]["read_back"].items():
            back[name] += count
    valid = sum(trial["stamp"]["valid"] for trial in trials)
    figures += [
        Figure(
            "valid trials on the rack", f"{valid} of {len(trials)}", "all", valid == len(trials)
        ),
        Figure(
            f"thresholds read back: {back['equal']} as asked, {back['rounded']} rounded by the "
            "SONiC-like switch's ASIC, otherwise",
            str(back["wrong"]),
            "0",
            back["wrong"] == 0,
        ),
    ]
    return Outcome(
        "One campaign over SSH on a virtual rack, and emulated", tuple(figures), (), data
    )
