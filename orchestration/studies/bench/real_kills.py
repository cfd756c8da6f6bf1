"""SIGKILLs of a rack in real time, while it is built, runs and is removed: what do they leave?"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from orchestration.device.agent.deadman_process import Process
from orchestration.model.errors import NotReadyError, TrialError
from orchestration.studies.bench import machine
from orchestration.studies.bench.outcome import Figure, Outcome, bench_folder, zero
from orchestration.studies.bench.rack import program
from orchestration.virtual_rack import interfaces
from orchestration.virtual_rack.control import find_rack, is_up
from orchestration.virtual_rack.folder import RackFolder, racks_folder
from orchestration.virtual_rack.leftovers import leftovers

KILLS = 50
FOUR_DEVICES = """
name: four
kind: leaf-spine
leaves: 1
spines: 1
hosts_per_leaf: 2
host_link: {rate: 20Mbps, delay: 1us}
uplink: {rate: 10Mbps, delay: 1us}
mtu: 1500B
buffer: 1MB
"""
CAMPAIGN = """
campaign: killed
testbed: {testbed}
backend: hardware
host: {{congestion_control: reno}}
tuners: [{{name: static, kmin_bytes: 10000, kmax_bytes: 30000, pmax: 0.2}}]
traffic:
  - {{kind: incast, fan_in: 1, size: 128KB, period: 300ms, start: 100ms}}
repeats: 1
duration: 1s
drain: 1s
sample_period: 20ms
"""
# In place of two network cards that a cable connects.
CARDS = ("clkill0", "clkill1")
PORTS = ("h1:eth0", "leaf1:eth0")
# Whom to kill; without one of a kind, `any` of the rack's processes.
VICTIMS = ("command", "supervisor", "guardian", "first process", "device", "agent", "any")
# During what: also while a program runs on a host, and while a campaign does.
PARTS = ("up", "up", "up", "down", "exec", "run")
# The most kills of a rack that is up and survives them.
_AGAIN = 4
_SETTLED_S = 30.0
# A rack that has not survived a kill has gone down by then.
_DIES_S = 0.5


def real_rack_kills(kills: int = KILLS, seed: int = 1) -> Outcome:
    """SIGKILLs while a rack in real time is built, runs and is removed: what is left?"""
    began = time.monotonic()
    with bench_folder() as folder:
        rows = disturb(folder, kills, seed)
    count = {part: sum(row["during"] == part for row in rows) for part in dict.fromkeys(PARTS)}
    return Outcome(
        f"{kills} SIGKILLs while a rack in real time was built, ran and was removed",
        (
            Figure(
                "while it was built, removed, ran a program, ran a campaign",
                ", ".join(map(str, count.values())),
            ),
            Figure("after which closloop clean had work", str(sum(row["cleaned"] for row in rows))),
            zero(
                "that left the machine different",
                sum(bool(row.get("differs")) for row in rows),
            ),
            Figure("wall time", f"{time.monotonic() - began:.0f} s"),
        ),
        (
            "compared are interfaces with offloads and settings, addresses, routes, rules, qdiscs, "
            "mounts, control groups, and BPF objects that no descriptor holds; namespaces and "
            "processes of the rack must be gone",
            f"the rack has two interfaces of the machine, {' and '.join(CARDS)}, a veth pair in "
            "place of two cards",
        ),
        {"rows": rows},
    )


def disturb(
    folder: Path,
    kills: int,
    seed: int,
    parts: Sequence[str] = PARTS,
    devices: Sequence[str] = ("--plain",),
) -> list[dict[str, Any]]:
    """Kill processes of racks at moments drawn from a seed; return what each kill left.

    `parts` says during what, in turn; a rack that has survived a kill gets the next.
    `devices` are the options of `rack up` that say what devices are.
    """
    dice = random.Random(seed)
    rows: list[dict[str, Any]] = []
    with _state_in(folder), _cards(), (folder / "log").open("ab") as log:
        racks = _Racks(folder, log, devices)
        lasts_s = {part: racks.undisturbed_s(part) for part in dict.fromkeys(parts)}
        racks.end()
        if wrong := racks.left():
            raise TrialError("a rack left something without a kill", "", "\n".join(wrong))
        turns = itertools.cycle(parts)
        while len(rows) < kills:
            during = next(turns)
            racks.forget()
            for _ in range(1 if during in ("up", "down") else _AGAIN):
                rows.append(racks.kill(during, lasts_s[during], dice))
                time.sleep(_DIES_S)
                if len(rows) == kills or not racks.is_up:
                    break
            racks.end()
            rows[-1]["cleaned"] = any(not row.alive for row in leftovers())
            if rows[-1]["cleaned"]:
                racks.closloop("clean")
            rows[-1]["differs"] = racks.left()
    return rows


@contextmanager
def _state_in(folder: Path) -> Iterator[None]:
    """Let this user's racks be in a folder of the benchmark."""
    former = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        yield
    finally:
        del os.environ["XDG_STATE_HOME"]
        if former is not None:
            os.environ["XDG_STATE_HOME"] = former


@contextmanager
def _cards() -> Iterator[None]:
    """Make the interfaces that stand for network cards, with a state of their own."""
    command = interfaces.command
    command(["ip", "link", "add", CARDS[0], "type", "veth", "peer", "name", CARDS[1]])
    try:
        words = ("mtu", "1400", "txqueuelen", "77", "alias", "a card", "up")
        command(["ip", "link", "set", "dev", CARDS[0], *words])
        command(["ip", "link", "set", "dev", CARDS[1], "up"])
        Path(f"/proc/sys/net/ipv4/conf/{CARDS[0]}/rp_filter").write_text("2")
        time.sleep(2)  # until the kernel has tried their addresses
        yield
    finally:
        with suppress(RuntimeError):
            command(["ip", "link", "del", CARDS[0]])


class _Racks:
    """The racks, one after the other in the same folder, and what has been seen of them."""

    def __init__(self, folder: Path, log: IO[bytes], devices: Sequence[str]) -> None:
        self._log, self._folder, self._devices = log, folder, devices
        self._file, self._campaign = folder / "four.yml", folder / "killed.yml"
        self._file.write_text(FOUR_DEVICES)
        self._campaign.write_text(CAMPAIGN.format(testbed=self._file))
        self._place = RackFolder(racks_folder() / "four")
        self._runs = 0
        self._provisioned = False
        self.forget()

    def forget(self) -> None:
        """Look at the machine before the next rack, whose processes are not the last one's."""
        self._before = machine.snapshot(CARDS)
        self._seen: set[Process] = set()
        self._namespaces: set[str] = set()

    @property
    def is_up(self) -> bool:
        """Whether the rack answers."""
        return is_up(self._place)

    def closloop(self, *arguments: str) -> None:
        """Run `closloop ARGUMENTS`. Raises TrialError if it fails."""
        if code := self._start(*arguments).wait():
            said = Path(self._log.name).read_text(errors="replace")[-1500:]
            words = " ".join(arguments)
            raise TrialError(f"closloop {words} ended with exit code {code}", "", said)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `closloop ARGUMENTS`, with its output in the log."""
        return subprocess.Popen(
            program(*arguments), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def undisturbed_s(self, during: str) -> float:
        """Return how long something takes that nobody disturbs."""
        began = time.monotonic()
        self._begin(during).wait()
        lasts_s = time.monotonic() - began
        self._look(0)
        if during == "up" and not self.is_up:
            said = Path(self._log.name).read_text(errors="replace")[-1500:]
            raise TrialError("the rack does not come up", "", said)
        return lasts_s

    def _begin(self, during: str) -> subprocess.Popen[bytes]:
        up = ["rack", "up", str(self._file), "--clock", "real", *self._devices]
        for port, card in zip(PORTS, CARDS, strict=True):
            up += ["--interface", f"{port}={card}"]
        if during == "up":
            self._provisioned = False
            return self._start(*up)
        if not self.is_up:
            self.closloop(*up)
            self._provisioned = False
        if during == "down":
            return self._start("rack", "down")
        if during == "exec":
            return self._start("rack", "exec", "--", "ssh", "h1", "sleep", "0.5")
        if not self._provisioned:
            self.closloop("provision", str(self._place.inventory))
            self._provisioned = True
        self._runs += 1
        words = ("--inventory", str(self._place.inventory), "--no-report")
        out = self._folder / "runs" / str(self._runs)
        return self._start("run", str(self._campaign), *words, "--out", str(out))

    def kill(self, during: str, lasts_s: float, dice: random.Random) -> dict[str, Any]:
        """Kill one process at a random moment, and wait for the end of what it disturbs."""
        command = self._begin(during)
        after_s = dice.uniform(0, lasts_s)
        time.sleep(after_s)
        roles = self._look(command.pid)
        role = dice.choice([name for name in VICTIMS if roles.get(name)])
        victim = dice.choice(sorted(roles[role]))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self._look(command.pid)
        command.wait()
        return {"during": during, "victim": role, "after_s": round(after_s, 3), "cleaned": False}

    def _look(self, command: int) -> dict[str, set[int]]:
        """Return the rack's processes by what they are, and remember them."""
        roles: dict[str, set[int]] = {"command": {command} - {0}, "any": set()}
        for name in ("supervisor", "guardian"):
            roles[name] = machine.running(f"virtual_rack.{name}", str(self._place.path))
        whole = {
            process
            for pid in (*roles["command"], *roles["supervisor"], *roles["guardian"])
            for process in machine.family(pid)
            if process.lives
        }
        self._seen |= whole
        self._namespaces |= machine.namespaces(whole)
        roles["any"] = {process.pid for process in whole}
        for supervisor in roles["supervisor"]:
            # unshare, and in its namespaces the first process, and the devices' in those of theirs
            for unshare in machine.children(supervisor) - roles["guardian"]:
                roles["first process"] = machine.children(unshare)
                roles["device"] = {
                    child for first in roles["first process"] for child in machine.children(first)
                }
        roles["agent"] = roles["any"] & machine.running("closloop-agent")
        return roles

    def end(self) -> None:
        """Take the rack down if it is there, or will be."""
        deadline = time.monotonic() + _SETTLED_S
        while self._place.is_held():
            if self.is_up:
                with suppress(NotReadyError):
                    find_rack(self._place.path).down()
            if time.monotonic() > deadline:
                raise TrialError("the rack's supervisor does not end")
            time.sleep(0.02)

    def left(self) -> list[str]:
        """Return what differs once the machine has settled.

        Without a process in it, only a mount keeps a namespace; its number is then another one's.
        """
        deadline = time.monotonic() + _SETTLED_S
        while True:
            found = [f"+ {process}" for process in self._seen if process.lives]
            found += [f"+ {name}" for name in self._namespaces & machine.mounted_namespaces()]
            found += [f"+ {self._place.path}"] * self._place.path.exists()
            try:
                found += machine.differences(self._before, machine.snapshot(CARDS))
            except (RuntimeError, ValueError, OSError) as error:  # an interface is away
                found.append(str(error))
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)
