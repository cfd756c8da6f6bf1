"""The controller killed, and devices rebooted, at random moments of runs on a virtual rack."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestration.agent.sonic.resp import SOCKET
from orchestration.bench.outcome import Figure, Outcome, bench_folder, zero
from orchestration.bench.rack import (
    EIGHT_DEVICES,
    a_rack,
    answer,
    closloop,
    dumps,
    program,
    provision_rack,
)
from orchestration.core.errors import TrialError
from orchestration.virtual_rack.control import RackHandle

KILLS, REBOOTS = 100, 20
SONIC = "spine2"
# Thresholds change at every sample, in a run long enough to be killed in the middle, with little
# traffic: what runs change is what matters.
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
# When it happens, as a share of an undisturbed run's wall time: it connects, runs and restores.
_FROM, _UPTO = 0.1, 1.0
# The inventory's dead-man timer restores devices 30 s after the last sign of life.
_DEADMAN_S = 45.0
# The file of `config save` is whoever's who saves.
_SAVED = "etc/sonic/config_db.json"

State = Mapping[str, dict[str, Any]]


def controller_killed(kills: int = KILLS, reboots: int = REBOOTS, seed: int = 1) -> Outcome:
    """SIGKILLs of the controller, and reboots, during runs: is every device put back?"""
    with bench_folder() as folder, a_rack(folder, EIGHT_DEVICES, (SONIC,)) as rack:
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
            "Linux devices, which are provisioned again; every other one with the controller "
            "killed before, else it is told to stop",
        ),
        {"rows": rows},
    )


def disturb(
    rack: RackHandle, folder: Path, kills: int, reboots: int, seed: int
) -> list[dict[str, Any]]:
    """Provision the rack, disturb runs on it; return what each disturbance left changed."""
    provision_rack(rack, folder)
    testbed, campaign = folder / "eight.yml", folder / "restless.yml"
    testbed.write_text(EIGHT_DEVICES)
    campaign.write_text(RESTLESS.format(testbed=testbed))
    _edit(rack, 0)
    rack.inject(SONIC, "config save")
    before = _state(rack)
    dice = random.Random(seed)
    linux = [name for name in before if name != SONIC]
    doings = [("kill", "", True)] * kills
    for number in range(reboots):
        where = (SONIC, SONIC, dice.choice(linux))[number % 3]
        kind = "reboot warm" if number % 3 == 0 else "reboot cold"
        doings.append((kind, where, number % 2 == 0))
    dice.shuffle(doings)
    begin = time.monotonic()
    code, text = closloop(rack, folder, "run", *_run_options(rack, campaign, folder / "whole"))
    # a busy machine may make trials invalid
    if code > 1:
        raise TrialError(f"closloop run ended with exit code {code}", "", text)
    lasts_s = time.monotonic() - begin
    rows = []
    for number, (what, where, killed) in enumerate(doings, start=1):
        run = program("run", *_run_options(rack, campaign, folder / f"disturbed-{number}"))
        after_s = lasts_s * dice.uniform(_FROM, _UPTO)
        with (folder / "log").open("ab") as log:
            process = rack.start(run, cwd=folder, stdout=log, stderr=log)
            time.sleep(after_s)
            theirs = _edit(rack, number)
            rows_now = {**before[SONIC]["CONFIG_DB"], **theirs}
            expected = {**before, SONIC: {**before[SONIC], "CONFIG_DB": rows_now}}
            if killed:
                process.kill(signal.SIGKILL)
            if what == "kill":
                process.wait()
                changed = _differing(rack, expected)
            else:
                changed = _differing(rack, expected)
                if (where, what) == (SONIC, "reboot cold"):
                    # somebody saves, with the run's thresholds
                    rack.inject(where, "config save")
                rack.inject(where, what)
                process.kill(signal.SIGINT)
                process.wait()
        rack.let_pass(_DEADMAN_S)
        if what != "kill":
            _put_right(rack, folder, where)
        now = _state(rack)
        rows.append(
            {
                "what": what,
                "device": where,
                "controller": "killed" if killed else "told to stop",
                "after_s": round(after_s, 2),
                "changed": changed,
                "differs": [name for name in now if now[name] != expected[name]],
                "theirs_changed": any(
                    now[SONIC]["CONFIG_DB"].get(key) != row for key, row in theirs.items()
                ),
            }
        )
    # the last run's notices go with the next one that looks
    code, text = closloop(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    if code:
        raise TrialError(f"closloop restore ended with exit code {code}", "", text)
    return rows


def _run_options(rack: RackHandle, campaign: Path, out: Path) -> tuple[str, ...]:
    return (str(campaign), "--inventory", str(rack.inventory), "--out", str(out), "--no-report")


def _put_right(rack: RackHandle, folder: Path, device: str) -> None:
    """Do what a rack's owner does after a reboot during a run."""
    answer(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    if device == SONIC:
        rack.inject(device, "config save")
    else:
        provision_rack(rack, folder, "--limit", device)


def _edit(rack: RackHandle, number: int) -> dict[str, dict[str, str]]:
    """Write rows of CONFIG_DB as somebody else, in the tables that runs use; return them."""
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
    found = {device: json.loads(text) for device, text in dumps(rack).items()}
    found[SONIC]["files"].pop(_SAVED, None)
    return found


def _differing(rack: RackHandle, expected: State) -> list[str]:
    return [device for device, found in _state(rack).items() if found != expected[device]]
