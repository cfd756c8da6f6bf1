"""Kills the controller, and reboots devices, at random moments of runs on a virtual rack."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestration.agent.sonic.resp import SOCKET
from orchestration.bench.outcome import Figure, Outcome, bench_folder, zero
from orchestration.bench.rack import (
    EIGHT_DEVICES,
    closloop,
    closloop_output,
    device_dumps,
    program,
    provision_rack,
    temporary_rack,
)
from orchestration.core.errors import TrialError
from orchestration.virtual_rack.control import RackHandle

KILLS, REBOOTS = 100, 20
SONIC = "spine2"
# Thresholds change at every sample, and the run is long enough to be killed in the middle. There is
# little traffic, because only the changes matter.
RESTLESS = """
campaign: restless
testbed: {testbed}
backend: hardware
tuners: [{{name: random, of: acc}}]
traffic:
  - {{kind: poisson, workload: WebSearch, load: 0.05}}
repeats: 1
duration: 60ms
drain: 100ms
sample_period: 500us
"""
# When a disturbance happens, as a share of the wall time of an undisturbed run, in which the
# controller connects, runs and restores the devices.
_EARLIEST, _LATEST = 0.1, 1.0
# The inventory's dead-man timer restores devices 30 s after the last sign of life.
_DEADMAN_S = 45.0
# The file of `config save`. It is not compared: an operator may save at any time.
_SAVED_CONFIG = "etc/sonic/config_db.json"

State = Mapping[str, dict[str, Any]]


def controller_killed(kills: int = KILLS, reboots: int = REBOOTS, seed: int = 1) -> Outcome:
    """The controller killed, and devices rebooted, during runs: is every device restored?"""
    with bench_folder() as folder, temporary_rack(folder, EIGHT_DEVICES, (SONIC,)) as rack:
        rows = disturb(rack, folder, kills, reboots, seed)
    killed = [row for row in rows if row["what"] == "kill"]
    rebooted = [row for row in rows if row["what"] != "kill"]
    changed = sum(bool(row["changed"]) for row in rows)
    return Outcome(
        f"{kills} SIGKILLs of the controller, and {reboots} reboots of devices, at random moments "
        "of runs on a virtual rack",
        (
            Figure("that found devices changed", f"{changed} of {len(rows)}"),
            zero(
                "after the dead-man's time: kills that left a device different",
                sum(bool(row["differs"]) for row in killed),
            ),
            zero(
                "after `closloop restore`: reboots that left a device different",
                sum(bool(row["differs"]) for row in rebooted),
            ),
            zero(
                "that changed a row of CONFIG_DB that somebody else wrote during the run",
                sum(row["theirs_changed"] for row in rows),
            ),
        ),
        (
            "compared are all qdiscs with their options, addresses, routes, sysctls, CONFIG_DB",
            "warm reboots of the SONiC-like switch, cold ones after `config save`, cold ones of "
            "Linux devices, which are provisioned again; before every other reboot the controller "
            "is killed, else it is stopped by SIGINT after it",
        ),
        {"rows": rows},
    )


def disturb(
    rack: RackHandle, folder: Path, kills: int, reboots: int, seed: int
) -> list[dict[str, Any]]:
    """Provision the rack and disturb runs on it; return a row on each disturbance.

    A row has `changed`, the devices that differed at that moment, and `differs`, those that still
    differ after the dead-man's time, or after the rack's owner has restored them.
    """
    provision_rack(rack, folder)
    testbed, campaign = folder / "eight.yml", folder / "restless.yml"
    testbed.write_text(EIGHT_DEVICES)
    campaign.write_text(RESTLESS.format(testbed=testbed))
    _write_as_operator(rack, 0)
    rack.inject(SONIC, "config save")
    before = _state(rack)
    dice = random.Random(seed)
    linux = [name for name in before if name != SONIC]
    events = _events(kills, reboots, linux, dice)
    lasts_s = _undisturbed_s(rack, folder, campaign)
    rows = []
    for number, event in enumerate(events, start=1):
        run = program("run", *_run_options(rack, campaign, folder / f"disturbed-{number}"))
        after_s = lasts_s * dice.uniform(_EARLIEST, _LATEST)
        rows.append(_disturb_run(rack, folder, run, event, after_s, number, before))
    # a restore also removes the last run's notices on the devices
    code, text = closloop(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    if code:
        raise TrialError(f"closloop restore ended with exit code {code}", "", text)
    return rows


@dataclass(frozen=True)
class _Event:
    """A disturbance: "kill", of the controller alone, or a reboot, of `console.EVENTS`."""

    kind: str
    device: str
    controller_killed: bool


def _events(kills: int, reboots: int, linux: Sequence[str], dice: random.Random) -> list[_Event]:
    """Return the disturbances in random order; `linux` are the devices that are not SONiC-like."""
    events = [_Event("kill", "", controller_killed=True)] * kills
    for number in range(reboots):
        device = (SONIC, SONIC, dice.choice(linux))[number % 3]
        kind = "reboot warm" if number % 3 == 0 else "reboot cold"
        events.append(_Event(kind, device, controller_killed=number % 2 == 0))
    dice.shuffle(events)
    return events


def _undisturbed_s(rack: RackHandle, folder: Path, campaign: Path) -> float:
    """Return the wall time of a run that is not disturbed."""
    begin = time.monotonic()
    code, text = closloop(rack, folder, "run", *_run_options(rack, campaign, folder / "whole"))
    # a busy machine may make trials invalid
    if code > 1:
        raise TrialError(f"closloop run ended with exit code {code}", "", text)
    return time.monotonic() - begin


def _disturb_run(
    rack: RackHandle,
    folder: Path,
    run: Sequence[str],
    event: _Event,
    after_s: float,
    number: int,
    before: State,
) -> dict[str, Any]:
    """Start a run and disturb it `after_s` seconds later; return the row on it."""
    with (folder / "log").open("ab") as log:
        process = rack.start(run, cwd=folder, stdout=log, stderr=log)
        time.sleep(after_s)
        operator_rows = _write_as_operator(rack, number)
        rows_now = {**before[SONIC]["CONFIG_DB"], **operator_rows}
        expected = {**before, SONIC: {**before[SONIC], "CONFIG_DB": rows_now}}
        if event.controller_killed:
            process.kill(signal.SIGKILL)
        if event.kind == "kill":
            process.wait()
            changed = _differing(rack, expected)
        else:
            changed = _differing(rack, expected)
            if (event.device, event.kind) == (SONIC, "reboot cold"):
                # an operator saves the configuration, with the run's thresholds in it
                rack.inject(event.device, "config save")
            rack.inject(event.device, event.kind)
            process.kill(signal.SIGINT)
            process.wait()
    rack.let_pass(_DEADMAN_S)
    if event.kind != "kill":
        _restore(rack, folder, event.device)
    now = _state(rack)
    return {
        "what": event.kind,
        "device": event.device,
        "controller": "killed" if event.controller_killed else "told to stop",
        "after_s": round(after_s, 2),
        "changed": changed,
        "differs": [name for name in now if now[name] != expected[name]],
        "theirs_changed": any(
            now[SONIC]["CONFIG_DB"].get(key) != row for key, row in operator_rows.items()
        ),
    }


def _run_options(rack: RackHandle, campaign: Path, out: Path) -> tuple[str, ...]:
    return (str(campaign), "--inventory", str(rack.inventory), "--out", str(out), "--no-report")


def _restore(rack: RackHandle, folder: Path, device: str) -> None:
    """Do what a rack's owner would do after a device was rebooted during a run."""
    closloop_output(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    if device == SONIC:
        rack.inject(device, "config save")
    else:
        provision_rack(rack, folder, "--limit", device)


def _write_as_operator(rack: RackHandle, number: int) -> dict[str, dict[str, str]]:
    """Write rows to tables of CONFIG_DB that runs use, as an operator would; return the rows."""
    rows = {
        "WRED_PROFILE|THEIRS": {"ecn": "ecn_none", "green_min_threshold": str(1000 + number)},
        "FLEX_COUNTER_TABLE|PORT_BUFFER_DROP": {"POLL_INTERVAL": str(60_000 + number)},
    }
    for key, row in rows.items():
        words = " ".join(f"{field} {value}" for field, value in row.items())
        command = f"redis-cli -s {SOCKET} -n 4 hset '{key}' {words} > /dev/null"
        if rack.run(["ssh", "-o", "BatchMode=yes", SONIC, command]):
            raise TrialError(f"{SONIC} cannot be reached", "see the rack's console.log")
    return rows


def _state(rack: RackHandle) -> dict[str, dict[str, Any]]:
    states = {device: json.loads(text) for device, text in device_dumps(rack).items()}
    states[SONIC]["files"].pop(_SAVED_CONFIG, None)
    return states


def _differing(rack: RackHandle, expected: State) -> list[str]:
    return [device for device, states in _state(rack).items() if states != expected[device]]
