"""Benchmarks over SSH on virtual racks: how long things take, and whether results are right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from orchestration.agent.sonic.configdb import DEFAULTS, row_after_undo
from orchestration.backends.emulated.forwarding import smallest_scale, stored_or_measured_hops_per_s
from orchestration.bench.outcome import Figure, Outcome, at_most, bench_folder, zero
from orchestration.core.errors import TrialError
from orchestration.results.reader import read_trial
from orchestration.virtual_rack.control import RackHandle, up
from orchestration.virtual_rack.image import require_image

ROOT = Path(__file__).resolve().parents[2]
THRESHOLDS = ROOT / "examples" / "thresholds.yml"
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
# On a machine of average speed that runs nothing else, with two cores.
_PROVISION_TARGET_S = 40.0
_UP_TARGETS_S = {"containers": 10.0, "plain namespaces": 3.0}


@contextmanager
def temporary_rack(
    folder: Path,
    testbed: str,
    sonic: Sequence[str] = (),
    *,
    real_time: bool = False,
    on_host: bool = False,
) -> Iterator[RackHandle]:
    """Yield a new rack, still unprovisioned, and take it down at the end.

    `testbed` is the name of a testbed or the text of a testbed file. With `on_host` the rack runs
    in real time on this machine's own kernel, at the smallest scale that the machine can carry.
    """
    if "\n" in testbed:
        file = folder / "testbed.yml"
        file.write_text(testbed)
        testbed = str(file)
    testbed_spec = load_testbed(testbed)
    rack_folder = folder / testbed_spec.name
    if on_host:
        scale = smallest_scale(testbed_spec, stored_or_measured_hops_per_s())
        rack, _ = up(testbed_spec, folder=rack_folder, clock="real", scale=scale)
    else:
        rack, _ = up(testbed_spec, sonic=sonic, folder=rack_folder, real_time=real_time)
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


def closloop_output(rack: RackHandle, folder: Path, *arguments: str) -> str:
    """Run `closloop ARGUMENTS` in the rack; return its output. Raises TrialError if it fails."""
    code, text = closloop(rack, folder, *arguments)
    if code:
        raise TrialError(f"closloop {' '.join(arguments)} ended with exit code {code}", "", text)
    return text


def provision_rack(rack: RackHandle, folder: Path, *options: str) -> dict[str, Any]:
    """Provision a rack; return the results by device."""
    text = closloop_output(rack, folder, "provision", str(rack.inventory), "--json", *options)
    devices: dict[str, Any] = json.loads(text)["devices"]
    return devices


def device_dumps(rack: RackHandle) -> dict[str, Any]:
    """Return the state of every device as JSON, read without SSH."""
    return {device.name: rack.dump(device.name) for device in rack.layout.testbed.devices}


def changed_devices(rack: RackHandle, before: dict[str, Any]) -> list[str]:
    """Return the names of devices whose state differs from `before`."""
    return [device for device, state in device_dumps(rack).items() if state != before[device]]


def after_undo(state: dict[str, Any]) -> dict[str, Any]:
    """Return the states of devices that are right after an undo.

    Rows of CONFIG_DB whose removal has no effect, or does harm, keep their defaults.
    """
    result = {}
    for device, text in state.items():
        state = json.loads(text)
        if rows := state.get("CONFIG_DB"):
            rows |= {key: row_after_undo(key, rows.get(key)) for key in DEFAULTS}
        result[device] = json.dumps(state, indent=0, sort_keys=True)
    return result


def provisioning() -> Outcome:
    """Wall time to provision a virtual rack of thirty devices, twice, and to undo it."""
    seconds, changed = [], []
    testbed = load_testbed("graphcc")
    count = len(testbed.devices)
    with (
        bench_folder() as folder,
        temporary_rack(folder, testbed.name, testbed.switches[-1:]) as rack,
    ):
        before = device_dumps(rack)
        for options in ((), (), ("--undo",)):
            begin = time.monotonic()
            devices = provision_rack(rack, folder, *options)
            seconds.append(time.monotonic() - begin)
            changed.append(sum(bool(device["changed"]) for device in devices.values()))
        left = changed_devices(rack, after_undo(before))
    label = f"first time, {changed[0]} of {count} devices changed: wall time"
    return Outcome(
        f"Provisioning: a virtual rack of {count} devices over SSH, one SONiC-like",
        (
            at_most(label, seconds[0], _PROVISION_TARGET_S, 0, " s"),
            zero("second time: devices changed", changed[1]),
            zero("after undo: devices that differ", len(left)),
        ),
        ("the devices, their SSH servers and the controller share one CPU in a guest",),
        data={"seconds": seconds, "changed": changed, "left": left},
    )


def real_time_up() -> Outcome:
    """Wall time until thirty devices are up in real time: as containers, and as plain namespaces.

    Needs root. The time is that from the call until logging in works on all devices and all know
    their neighbours. The image of the containers is built before.
    """
    testbed = load_testbed("graphcc")
    count = len(testbed.devices)
    require_image()
    figures, data = [], {}
    for kind, target_s in _UP_TARGETS_S.items():
        with bench_folder() as folder:
            begin = time.monotonic()
            rack, _ = up(
                testbed, clock="real", containers=kind == "containers", folder=folder / kind
            )
            data[kind] = time.monotonic() - begin
            rack.down()
        figures.append(at_most(f"{count} devices up, {kind}", data[kind], target_s, 1, " s"))
    return Outcome(f"A rack of {count} devices in real time", tuple(figures), data=data)


_LOOP = """
campaign: loop
testbed: testbed.yml
backend: hardware
tuners: [{name: random, of: graphcc}]
traffic:
  - {kind: incast, fan_in: 1, size: 1KB, period: 100ms}
repeats: 1
duration: 10s
drain: 100ms
sample_period: 10ms
"""


def ssh_loop() -> Outcome:
    """Time to read and to change six switches over SSH in real time, every 10 ms."""
    with bench_folder() as folder, temporary_rack(folder, SIX_SWITCHES, real_time=True) as rack:
        provision_rack(rack, folder)
        (folder / "loop.yml").write_text(_LOOP)
        run = ("run", "loop.yml", "-i", str(rack.inventory), "--no-report", "--out", "runs")
        code, text = closloop(rack, folder, *run)
        trials = [read_trial(path.parent) for path in (folder / "runs").glob("*/*/trial.json")]
        if code > 1 or len(trials) != 1:  # a busy machine may make it invalid
            raise TrialError(f"closloop run ended with exit code {code}", "", text)
        (trial,) = trials
        queues, switches = len(trial.testbed.queues), len(trial.testbed.switches)
    reads, sets = (trial.facts[f"{name}_latency_us"] for name in ("read", "set"))
    behind = [reason for reason in trial.stamp.reasons if reason.code == "sampler-behind"]
    return Outcome(
        f"The loop over SSH: {switches} switches, {queues} queues, real time",
        (
            Figure(
                "periods of 10 ms missed",
                behind[0].text if behind else "none",
                "few enough for a valid trial",
                all(reason.severity == "warning" for reason in behind),
            ),
            Figure("all switches read: median", f"{reads['p50'] / 1e3:.1f} ms"),
            Figure("all switches read: 99th percentile", f"{reads['p99'] / 1e3:.1f} ms"),
            at_most("all changed, asked to read back: median", sets["p50"] / 1e3, 20, 1, " ms"),
            Figure("all changed: 99th percentile", f"{sets['p99'] / 1e3:.1f} ms"),
        ),
        (
            "switches, their SSH servers and the controller share one CPU in a guest without "
            "virtual time; a trial's facts have the same of any rack",
        ),
        {"read_latency_us": reads, "set_latency_us": sets},
    )


def same_answer(campaign: Path = THRESHOLDS, testbed: str = "graphcc") -> Outcome:
    """examples/thresholds.yml on a virtual rack over SSH, and emulated: do the results agree?"""
    sonic = load_testbed(testbed).switches[-1:]
    with bench_folder() as folder, temporary_rack(folder, testbed, sonic) as rack:
        return compare_backends(rack, folder, campaign)


def compare_backends(rack: RackHandle, folder: Path, campaign: Path) -> Outcome:
    """Provision a rack, run a campaign on it and emulated, and compare the results."""
    provision_rack(rack, folder)
    run = ("run", str(campaign), "--json")
    inventory = str(rack.inventory)
    closloop_output(rack, folder, *run, "--on", "hardware", "-i", inventory, "--out", "rack")
    argv = program(*run, "--on", "emulated", "--out", "emulated")
    completed = subprocess.run(argv, cwd=folder, capture_output=True, check=False)
    if completed.returncode:
        raise TrialError("the emulated run failed", "", completed.stderr.decode(errors="replace"))
    return _compare_runs(folder / "rack", folder / "emulated")


def _compare_runs(rack_runs: Path, emulated_runs: Path) -> Outcome:
    """Compare two run folders of one campaign: differences between tuners, and read-backs."""
    from orchestration.analysis.summary import summarise

    run_folders = [
        next(p for p in runs.iterdir() if p.is_dir()) for runs in (rack_runs, emulated_runs)
    ]
    on_rack, emulated = (
        {item.metric: item.difference for item in summarise(home).conditions[0].comparisons}
        for home in run_folders
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
    trials = [json.loads(path.read_text()) for path in run_folders[0].glob("*/trial.json")]
    back = {
        name: sum(trial["facts"]["read_back"].get(name, 0) for trial in trials)
        for name in ("equal", "requested", "wrong")
    }
    valid = sum(trial["stamp"]["valid"] for trial in trials)
    valid_of_all = f"{valid} of {len(trials)}"
    figures += [
        Figure("valid trials on the rack", valid_of_all, "all", valid == len(trials)),
        zero(
            f"thresholds read back: {back['equal']} as asked; {back['requested']} requested of the "
            "SONiC-like switch's ASIC; otherwise",
            back["wrong"],
        ),
    ]
    return Outcome(
        "One campaign over SSH on a virtual rack, and emulated", tuple(figures), (), data
    )
