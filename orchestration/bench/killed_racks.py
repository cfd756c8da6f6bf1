"""Racks in real time whose processes are killed: which processes they have, and what they leave."""

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
from orchestration.bench import machine_state
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
# A campaign that is as short as possible, but connects, causes marks, reads them and restores all.
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
# Interfaces that stand for two network cards which are connected by a cable.
CARDS = ("clkill0", "clkill1")
PORTS = ("h1:eth0", "leaf1:eth0")
# What is killed, by role; `any` is any of the rack's processes.
VICTIMS = ("command", "supervisor", "reaper", "first process", "device", "agent", "any")
# From which share of a command's duration on it is killed. A campaign's first part is the start of
# the program, as with any command, so it is killed later.
_EARLIEST = {"run": 0.4}
# A campaign waits for minutes for a device that does not answer, as it may be rebooting. So if a
# command has not ended this long after it would have ended without a kill, its rack is taken down.
_TAKEN_DOWN_AFTER_S = 5.0
# A command that has not ended after this time hangs.
_HANGS_AFTER_S = 120.0
_POLL_S = 0.02


class KilledRacks:
    """Racks of one kind, one after the other in the same folder, and the processes that they had.

    `options` are the options of `rack up` for this kind of devices. `signals` is a list that gets
    the signals that end this program: once there is one, all methods that wait raise Interrupted.
    """

    def __init__(
        self, folder: Path, log: IO[bytes], options: Sequence[str], signals: Sequence[int] = ()
    ) -> None:
        self._log, self._folder, self._options = log, folder, options
        self._signals = signals
        self._file, self._campaign = folder / "four.yml", folder / "killed.yml"
        self._file.write_text(FOUR_DEVICES)
        self._campaign.write_text(CAMPAIGN.format(testbed=self._file))
        self._rack_folder = RackFolder(racks_folder() / "four")
        self._command: subprocess.Popen[bytes] | None = None
        self._runs = 0
        self._provisioned = False
        self.start_next()

    def start_next(self) -> None:
        """Read the machine's state before the next rack, and forget the last rack's processes."""
        self._before = machine_state.snapshot(CARDS)
        self._seen: set[Process] = set()
        self._namespaces: set[str] = set()

    @property
    def is_up(self) -> bool:
        """Whether the rack is up."""
        return is_up(self._rack_folder)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Interrupted as soon as this program gets a signal to end."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._raise_if_interrupted()
            time.sleep(min(left_s, _POLL_S))

    def closloop(self, *arguments: str) -> None:
        """Run `closloop ARGUMENTS`. Raises TrialError if it fails or hangs."""
        words = f"closloop {' '.join(arguments)}"
        if not self._wait_for(self._start(*arguments)):
            raise TrialError(f"{words} hangs", "", self._log_tail())
        assert self._command is not None
        if code := self._command.returncode:
            raise TrialError(f"{words} ended with exit code {code}", "", self._log_tail())

    def durations_s(self, parts: Sequence[str]) -> dict[str, float]:
        """Return how long each part of a rack's life takes when nothing is killed.

        `parts` are of "up", "exec", "run" and "down". Raises TrialError if one fails.
        """
        lasts_s = {}
        for during in sorted(parts, key=("up", "exec", "run", "down").index):
            command = self._prepare(during)
            began = time.monotonic()
            ended = self._wait_for(self._start(*command))
            lasts_s[during] = time.monotonic() - began
            self._observe(0)
            if not ended or (during == "up" and not self.is_up):
                raise TrialError(f"this fails on the rack: closloop {' '.join(command)}", "", "")
        return lasts_s

    def kill(self, during: str, lasts_s: float, dice: random.Random) -> dict[str, Any]:
        """Kill one process at a random moment of a part, and wait until the part's command ends.

        `lasts_s` is how long the part takes without a kill. Returns a row of the benchmark's data:
        what was killed and when, whether the command waited until the rack was taken down
        (`waits`), and whether it hung.
        """
        command = self._start(*self._prepare(during))
        after_s = lasts_s * dice.uniform(_EARLIEST.get(during, 0.0), 1.0)
        self.pause(after_s)
        roles = self._observe(command.pid)
        role = dice.choice([name for name in VICTIMS if roles.get(name)])
        victim = dice.choice(sorted(roles[role]))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self._observe(command.pid)
        waits = not self._wait_for(command, lasts_s - after_s + _TAKEN_DOWN_AFTER_S)
        if waits:
            self.end()
        hung = not self._wait_for(command)
        if hung:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
        row = {"during": during, "victim": role, "after_s": round(after_s, 3)}
        return {**row, "waits": waits, "hung": hung}

    def end(self) -> None:
        """Take the rack down if it is up or is being started, and wait until it has ended."""
        deadline = time.monotonic() + machine_state.SETTLES_S
        while self._rack_folder.is_locked():
            if self.is_up:
                with suppress(NotReadyError):
                    find_rack(self._rack_folder.path).down()
            if time.monotonic() > deadline:
                raise TrialError("the rack's supervisor does not end")
            time.sleep(_POLL_S)

    def abandon(self) -> None:
        """End the running command and the rack, whatever has happened before."""
        if self._command is not None and self._command.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._command.pid, signal.SIGKILL)
            self._command.wait()
        self.end()

    def differences(self) -> list[str]:
        """Return what differs from before once the machine has settled, a line each."""
        return machine_state.lasting_differences(self._differences)

    def _differences(self) -> list[str]:
        """Return what differs now, a line each.

        A namespace without processes counts only if a mount keeps it alive, because the kernel uses
        the numbers of ended namespaces again.
        """
        self._raise_if_interrupted()
        found = [f"+ processes: {process}" for process in self._seen if process.lives]
        mounted = self._namespaces & machine_state.mounted_namespaces()
        found += [f"+ namespaces: {name}" for name in mounted]
        with suppress(FileNotFoundError):  # the folder may be removed meanwhile
            names = ", ".join(sorted(path.name for path in self._rack_folder.path.iterdir()))
            found.append(f"+ folders: {self._rack_folder.path} with {names or 'nothing'}")
        try:
            found += machine_state.differences(self._before, machine_state.snapshot(CARDS))
        except (RuntimeError, ValueError, OSError) as error:  # an interface is missing
            found.append(f"- interfaces: {error}")
        return found

    def _raise_if_interrupted(self) -> None:
        if self._signals:
            raise Interrupted("interrupted: the rack is taken down", "run it again")

    def _log_tail(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-1500:]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `closloop ARGUMENTS` in a session of its own, with its output in the log."""
        self._command = subprocess.Popen(
            program(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self._command

    def _wait_for(self, command: subprocess.Popen[bytes], max_s: float = _HANGS_AFTER_S) -> bool:
        """Wait until a command has ended; return False if it has not after `max_s` seconds."""
        deadline = time.monotonic() + max_s
        while command.poll() is None:
            if time.monotonic() > deadline:
                return False
            self.pause(_POLL_S)
        return True

    def _prepare(self, during: str) -> tuple[str, ...]:
        """Prepare the rack for a part of its life; return the arguments of the part's command."""
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
        inventory = str(self._rack_folder.inventory)
        if not self._provisioned:
            try:
                self.closloop("provision", inventory)
            except TrialError:  # an earlier kill has harmed the rack: start another one
                self.end()
                self.closloop(*up)
                self.closloop("provision", inventory)
            self._provisioned = True
        self._runs += 1
        out = str(self._folder / "runs" / str(self._runs))
        return "run", str(self._campaign), "--inventory", inventory, "--no-report", "--out", out

    def _observe(self, command: int) -> Mapping[str, set[int]]:
        """Return the ids of the rack's processes by role, and remember the processes."""
        roles: dict[str, set[int]] = {"command": {command} - {0}, "any": set()}
        for name in ("supervisor", "reaper"):
            roles[name] = machine_state.find_processes(
                f"virtual_rack.{name}", str(self._rack_folder.path)
            )
        processes = {
            process
            for pid in (*roles["command"], *roles["supervisor"], *roles["reaper"])
            for process in machine_state.process_tree(pid)
            if process.lives
        }
        self._seen |= processes
        self._namespaces |= machine_state.namespaces(processes)
        roles["any"] = {process.pid for process in processes}
        for supervisor in roles["supervisor"]:
            # the supervisor's child is unshare, whose child is the first process of the rack, whose
            # children are the devices' processes
            for unshare in machine_state.children(supervisor) - roles["reaper"]:
                roles["first process"] = machine_state.children(unshare)
                roles["device"] = {
                    child
                    for first in roles["first process"]
                    for child in machine_state.children(first)
                }
        roles["agent"] = roles["any"] & machine_state.find_processes("closloop-agent")
        return roles
