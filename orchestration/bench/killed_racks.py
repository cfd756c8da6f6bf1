"""Racks in real time whose processes are killed: what they are made of, and what they leave."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from orchestration.agent.safety.deadman_process import Process
from orchestration.bench import machine
from orchestration.bench.rack import program
from orchestration.core.errors import Interrupted, NotReadyError, TrialError
from orchestration.virtual_rack.control import find_rack, is_up
from orchestration.virtual_rack.folder import RackFolder, racks_folder

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
# As short as a campaign is that connects, provokes marks, reads them and puts everything back.
CAMPAIGN = """
campaign: killed
testbed: {testbed}
backend: hardware
host: {{congestion_control: reno}}
tuners: [{{name: static, kmin_bytes: 10000, kmax_bytes: 30000, pmax: 0.2}}]
traffic:
  - {{kind: incast, fan_in: 1, size: 32KB, period: 100ms, start: 20ms}}
repeats: 1
duration: 200ms
drain: 300ms
sample_period: 20ms
"""
# In place of two network cards that a cable connects.
CARDS = ("clkill0", "clkill1")
PORTS = ("h1:eth0", "leaf1:eth0")
# Whom to kill; without one of a kind, `any` of the rack's processes.
VICTIMS = ("command", "supervisor", "guardian", "first process", "device", "agent", "any")
# A campaign first loads its program, during which it is any command: killed are later moments.
_FROM = {"run": 0.4}
# A campaign waits for minutes for a device that is gone: it may be rebooting. So the rack of a
# command that has not ended so long after it would have without a kill is taken down.
_WAITS_S = 5.0
# A command that has not ended by then hangs.
_ENDS_S = 120.0
_POLL_S = 0.02


class KilledRacks:
    """Racks of one kind, one after the other in the same folder, and what has been seen of them.

    `options` are those of `rack up` that say what devices are. `signals` are those that have asked
    this program to end: then all that waits raises Interrupted.
    """

    def __init__(
        self, folder: Path, log: IO[bytes], options: Sequence[str], signals: Sequence[int] = ()
    ) -> None:
        self._log, self._folder, self._options = log, folder, options
        self._signals = signals
        self._file, self._campaign = folder / "four.yml", folder / "killed.yml"
        self._file.write_text(FOUR_DEVICES)
        self._campaign.write_text(CAMPAIGN.format(testbed=self._file))
        self._place = RackFolder(racks_folder() / "four")
        self._command: subprocess.Popen[bytes] | None = None
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

    def pause(self, seconds: float) -> None:
        """Let time pass. Raises Interrupted as soon as this program is asked to end."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._go_on()
            time.sleep(min(left_s, _POLL_S))

    def closloop(self, *arguments: str) -> None:
        """Run `closloop ARGUMENTS`. Raises TrialError if it fails or hangs."""
        words = f"closloop {' '.join(arguments)}"
        if not self._await(self._start(*arguments)):
            raise TrialError(f"{words} hangs", "", self._said())
        assert self._command is not None
        if code := self._command.returncode:
            raise TrialError(f"{words} ended with exit code {code}", "", self._said())

    def undisturbed_s(self, parts: Sequence[str]) -> dict[str, float]:
        """Return how long each part takes that nobody disturbs, in an order that one rack takes."""
        lasts_s = {}
        for during in sorted(parts, key=("up", "exec", "run", "down").index):
            command = self._ready(during)
            began = time.monotonic()
            ended = self._await(self._start(*command))
            lasts_s[during] = time.monotonic() - began
            self._look(0)
            if not ended or (during == "up" and not self.is_up):
                raise TrialError(f"the rack does not take: closloop {' '.join(command)}", "", "")
        return lasts_s

    def kill(self, during: str, lasts_s: float, dice: random.Random) -> dict[str, Any]:
        """Kill one process at a random moment, and wait for the end of what it disturbs."""
        command = self._start(*self._ready(during))
        after_s = lasts_s * dice.uniform(_FROM.get(during, 0.0), 1.0)
        self.pause(after_s)
        roles = self._look(command.pid)
        role = dice.choice([name for name in VICTIMS if roles.get(name)])
        victim = dice.choice(sorted(roles[role]))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self._look(command.pid)
        waits = not self._await(command, lasts_s - after_s + _WAITS_S)
        if waits:
            self.end()
        hung = not self._await(command)
        if hung:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
        said = {"during": during, "victim": role, "after_s": round(after_s, 3)}
        return {**said, "waits": waits, "hung": hung}

    def end(self) -> None:
        """Take the rack down if it is there, or will be."""
        deadline = time.monotonic() + machine.SETTLES_S
        while self._place.is_locked():
            if self.is_up:
                with suppress(NotReadyError):
                    find_rack(self._place.path).down()
            if time.monotonic() > deadline:
                raise TrialError("the rack's supervisor does not end")
            time.sleep(_POLL_S)

    def abandon(self) -> None:
        """End what runs, and the rack: whatever has happened before."""
        if self._command is not None and self._command.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._command.pid, signal.SIGKILL)
            self._command.wait()
        self.end()

    def left(self) -> list[str]:
        """Return what differs once the machine has settled: see `machine.differences`."""
        return machine.lasting(self._differences)

    def _differences(self) -> list[str]:
        """Return what differs now.

        Without a process in it, only a mount keeps a namespace; its number is then another one's.
        """
        self._go_on()
        found = [f"+ processes: {process}" for process in self._seen if process.lives]
        kept = self._namespaces & machine.mounted_namespaces()
        found += [f"+ namespaces: {name}" for name in kept]
        with suppress(FileNotFoundError):  # it may go meanwhile
            names = ", ".join(sorted(path.name for path in self._place.path.iterdir()))
            found.append(f"+ folders: {self._place.path} with {names or 'nothing'}")
        try:
            found += machine.differences(self._before, machine.snapshot(CARDS))
        except (RuntimeError, ValueError, OSError) as error:  # an interface is away
            found.append(f"- interfaces: {error}")
        return found

    def _go_on(self) -> None:
        if self._signals:
            raise Interrupted("interrupted: the rack is taken down", "run it again")

    def _said(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-1500:]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `closloop ARGUMENTS`, with its output in the log, out of a terminal's reach."""
        self._command = subprocess.Popen(
            program(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self._command

    def _await(self, command: subprocess.Popen[bytes], max_s: float = _ENDS_S) -> bool:
        """Wait until a command has ended; return False if it has not so long."""
        deadline = time.monotonic() + max_s
        while command.poll() is None:
            if time.monotonic() > deadline:
                return False
            self.pause(_POLL_S)
        return True

    def _ready(self, during: str) -> tuple[str, ...]:
        """Make ready what a part takes; return its command."""
        up = ["rack", "up", str(self._file), "--clock", "real", "--scale", "1", *self._options]
        for port, card in zip(PORTS, CARDS, strict=True):
            up += ["--interface", f"{port}={card}"]
        if during == "up":
            self._provisioned = False
            return tuple(up)
        if not self.is_up:
            self.closloop(*up)
            self._provisioned = False
        if during == "down":
            return "rack", "down"
        if during == "exec":
            return "rack", "exec", "--", "ssh", "h1", "sleep", "0.5"
        inventory = str(self._place.inventory)
        if not self._provisioned:
            try:
                self.closloop("provision", inventory)
            except TrialError:  # a kill has harmed it more than one sees from here
                self.end()
                self.closloop(*up)
                self.closloop("provision", inventory)
            self._provisioned = True
        self._runs += 1
        out = str(self._folder / "runs" / str(self._runs))
        return "run", str(self._campaign), "--inventory", inventory, "--no-report", "--out", out

    def _look(self, command: int) -> Mapping[str, set[int]]:
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
