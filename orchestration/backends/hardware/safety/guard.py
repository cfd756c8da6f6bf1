"""Guards a trial: prepares the restore of the rack before any change, and restores it at the end.

Three things make sure that a device is restored. A *lease* keeps other runs away. A *snapshot* of
the device is in the ledger, for `closloop restore`. A *dead-man's timer* on the device restores it
if the controller (this machine) has been silent for too long. Devices know a run by its nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from inventory.rack import Rack
from orchestration.agent.safety.shared_folder import boottime_ns
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.recovery import (
    RESTORE_TIMEOUT_S,
    dead_runs,
    restored_itself,
    settle_dead_runs,
)
from orchestration.backends.hardware.safety.restore_result import (
    RestoreResult,
    describe_difference,
    is_foreign,
    restore_result,
)
from orchestration.core.errors import ClosloopError, NotReadyError, TrialError
from orchestration.core.problems import Code, Problem
from orchestration.device.client import AgentClient, gather, require_answers
from orchestration.device.errors import DeviceError, DeviceGone

_FEEDS_A_TIMEOUT = 4


class ControllerSlept(TrialError):  # noqa: N818 (names what is so)
    """The controller was silent for so long that the devices have restored themselves."""


class NotRestored(TrialError):  # noqa: N818
    """A trial has ended, but a device is not in its former state."""


class Guard:
    """Holds a rack for one trial, as a context manager.

    On entering, it takes leases on all devices, or on none; restores what dead runs of this ledger
    have left; stores a snapshot of each device in the ledger; and arms a dead-man's timer on each.
    On leaving, for whatever reason, it restores every device that can be reached, and names the
    others, which their timers restore. `tick` must be called more often than the dead-man's time.

    `sysctls` are the settings that the trial writes, by device; thresholds are always covered.
    `reopen` returns a new agent for a device whose agent is gone, or raises DeviceError. `outcomes`
    has the results of the restore after leaving; `settled_before` has those of earlier, dead runs.
    """

    def __init__(
        self,
        rack: Rack,
        agents: Mapping[str, AgentClient],
        ledger: Ledger,
        holder: str,
        *,
        sysctls: Mapping[str, Sequence[str]] | None = None,
        note: str = "",
        reopen: Callable[[str], AgentClient] | None = None,
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._rack = rack
        self._agents = dict(agents)
        self._ledger = ledger
        self._holder = holder
        self._sysctls = sysctls or {}
        self._note = note
        self._reopen = reopen
        self._now_ns = now_ns
        # distinguishes this run from every other, on the devices and in the ledger
        self._nonce = uuid4().hex
        self._run = ""
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._called_ns = self._fed_ns = 0
        self._feeds: dict[str, tuple[int, list[int]]] = {}
        self._problems: list[str] = []
        self._unguarded: list[str] = []
        self.outcomes: list[RestoreResult] = []
        self.settled_before: list[RestoreResult] = []

    def __enter__(self) -> Guard:
        safety = self._rack.safety
        if safety.lease_s <= safety.deadman_s:
            raise NotReadyError(
                f"a lease of {safety.lease_s:g} s would end before the dead-man's time of "
                f"{safety.deadman_s:g} s",
                "make closloop_safety.lease longer than closloop_safety.deadman in the inventory",
            )
        try:
            self._take()
            self.settled_before = settle_dead_runs(self._agents, self._ledger)
            self._prepare()
        except BaseException:
            self._withdraw()
            raise
        return self

    def _take(self) -> None:
        """Take a lease on all devices. It replaces the leases of this user's dead runs."""
        heir_of = [run.run for run in dead_runs(self._ledger)]
        lease = {**self._lease(), "heir_of": heir_of}
        self._ask_all("lease.take", dict.fromkeys(self._agents, lease))

    def _lease(self) -> dict[str, Any]:
        ttl_s = self._rack.safety.lease_s
        return {"holder": self._holder, "nonce": self._nonce, "ttl_s": ttl_s}

    def _prepare(self) -> None:
        self._run = self._ledger.open_run(self._holder, self._nonce)
        requests = {device: self._covered(device) for device in self._agents}
        self._snapshots = self._ask_all("state.snapshot", requests)
        for device, snapshot in self._snapshots.items():
            self._ledger.snapshot(self._run, device, snapshot)
        self._called_ns = self._fed_ns = self._now_ns()
        after_s = self._rack.safety.deadman_s
        timer = {"holder": self._holder, "nonce": self._nonce, "after_s": after_s}
        timers = {
            device: {**timer, "note": self._note, "snapshot": snapshot}
            for device, snapshot in self._snapshots.items()
        }
        self._ask_all("deadman.arm", timers)
        for device, request in requests.items():
            for what in _covered_settings(request):
                self._ledger.change(self._run, device, what, "as in the snapshot", "many values")

    def _withdraw(self) -> None:
        """Undo a preparation that failed before anything was changed."""
        for op in ("deadman.disarm", "lease.drop"):
            # a device refuses this if the timer or the lease is another run's
            self._gather(op, self._nonce_for(self._agents))
        if self._run:
            with suppress(ClosloopError):
                self._ledger.close_run(self._run)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.restore()
        unsettled = [outcome for outcome in self.outcomes if not outcome.settled]
        if not unsettled and not self._problems:
            return
        words = "\n".join([*(outcome.text for outcome in unsettled), *self._problems])
        settled = [outcome.device for outcome in self.outcomes if outcome.settled]
        if settled:
            words += f"\nrestored: {', '.join(settled)}"
        if error is None:
            raise NotRestored(words, "run `closloop restore` when the devices can be reached")
        if isinstance(error, ClosloopError):
            error.problems += (Problem("", words, code=Code.DEVICE_REFUSED),)
        else:
            error.add_note(words)

    def tick(self) -> None:
        """Tell the devices that the controller is alive, but only as often as needed.

        Raises ControllerSlept if this machine was asleep, or too busy, for longer than the
        dead-man's time; DeviceGone if a device was silent for so long; and DeviceError if a device
        refuses, because it has restored itself or another run holds it.
        """
        now_ns = self._now_ns()
        silent_s = (now_ns - self._called_ns) / 1e9
        deadman_s = self._rack.safety.deadman_s
        self._called_ns = now_ns
        if silent_s > deadman_s:
            raise ControllerSlept(
                f"this machine was asleep or held up for {silent_s:.0f} s; after {deadman_s:g} s "
                "the devices restored themselves",
                "keep it awake, or give closloop_safety.deadman in the inventory more time",
            )
        if (now_ns - self._fed_ns) / 1e9 < deadman_s / _FEEDS_A_TIMEOUT:
            return
        self._fed_ns = now_ns
        for device, agent in self._agents.items():
            if self._collect(device, agent, now_ns):
                fed = agent.post("deadman.feed", nonce=self._nonce)
                ttl_s = self._rack.safety.lease_s
                renewed = agent.post("lease.renew", nonce=self._nonce, ttl_s=ttl_s)
                self._feeds[device] = (now_ns, [fed, renewed])

    def _collect(self, device: str, agent: AgentClient, now_ns: int) -> bool:
        """Collect the answers to the last messages; return whether all have come."""
        posted_ns, numbers = self._feeds.get(device, (now_ns, []))
        agent.poll()
        while numbers:
            try:
                agent.result(numbers[0], 0.0)
            except DeviceGone:
                # the network may come back before the device's timer fires
                if (now_ns - posted_ns) / 1e9 > self._rack.safety.deadman_s:
                    raise
                return False
            del numbers[0]
        return True

    def restore(self) -> list[RestoreResult]:
        """Restore and release all devices, at the first call only; return the result of each."""
        if not self._run:
            return self.outcomes
        run, self._run = self._run, ""
        answers = self._restore_all(list(self._snapshots))
        for device, error in list(answers.items()):
            if isinstance(error, DeviceGone) and self._reopen is not None:
                with suppress(DeviceError):
                    self._agents[device] = self._reopen(device)
                    answers |= self._restore_all([device])
        self.outcomes = [self._outcome(device, answers[device]) for device in answers]
        settled = [outcome for outcome in self.outcomes if outcome.settled]
        self._release([each.device for each in settled if each is not answers[each.device]])
        try:
            for outcome in settled:
                device, differences, how = outcome.device, outcome.differences, outcome.how
                self._ledger.restored(run, device, differences, how)
            if settled == self.outcomes:
                self._ledger.close_run(run)
            else:
                self._ledger.release(run)
        except ClosloopError as error:
            self._problems.append(str(error))
        return self.outcomes

    def _restore_all(self, devices: Sequence[str]) -> dict[str, Any]:
        """Restore the devices that this run still holds; return each answer, or its DeviceError.

        A device that has restored itself may be held by another run by now: then its RestoreResult
        is returned instead.
        """
        lease = {**self._lease(), "restoring": True}
        leases = self._gather("lease.take", dict.fromkeys(devices, lease))
        held = [device for device in devices if not isinstance(leases[device], DeviceError)]
        requests = {device: {"snapshot": self._snapshots[device]} for device in held}
        answers = {**leases, **self._gather("state.restore", requests)}
        for device in set(devices) - set(held):
            if not isinstance(answers[device], DeviceGone):
                with suppress(DeviceError):
                    agent = self._agents[device]
                    answers[device] = restored_itself(agent, self._nonce) or answers[device]
        return answers

    def _release(self, devices: Sequence[str]) -> None:
        """End the timers and leases of devices that were fully restored; the others keep both."""
        disarmed = self._gather("deadman.disarm", self._nonce_for(devices))
        dropped = self._gather("lease.drop", self._nonce_for(devices))
        for device in devices:
            for answer in (disarmed[device], dropped[device]):
                if isinstance(answer, DeviceError):
                    text = f"{device}: was restored, but not released: {answer.what}"
                    self._problems.append(text)
            if disarmed[device] is False:
                self._unguarded.append(device)

    def _nonce_for(self, devices: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the arguments of a request about this run's timer or lease, by device."""
        return {device: {"nonce": self._nonce} for device in devices}

    def _outcome(self, device: str, answer: Any) -> RestoreResult:
        """Return the result of a device's restore from `_restore_all`'s answer for it."""
        promise = f"its dead-man's timer restores it within {self._rack.safety.deadman_s:g} s"
        if isinstance(answer, DeviceGone):
            return RestoreResult(device, False, f"cannot be reached ({answer.what}); {promise}")
        if isinstance(answer, RestoreResult):
            return answer
        if isinstance(answer, DeviceError):
            return RestoreResult(device, False, f"could not be restored ({answer.what}); {promise}")
        return restore_result(device, answer, "was restored")

    def findings(self) -> list[dict[str, str]]:
        """Return findings on the restore for the trial's stamp; call it after leaving."""
        rows = []
        for outcome in self.outcomes:
            for item in outcome.differences:
                severity = "warning" if is_foreign(item) else "invalid"
                text = f"{outcome.device}: {describe_difference(item)}"
                rows.append(("restored-with-differences", severity, text))
        for device in self._unguarded:
            text = (
                f"{device}: its dead-man's timer was gone at the end of the trial: it had fired, "
                "was killed, or the device has restarted"
            )
            rows.append(("timer-gone", "invalid", text))
        names = ("code", "severity", "text")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def facts(self) -> dict[str, Any]:
        """Return facts on the guard for the trial's record, JSON-ready."""
        safety = self._rack.safety
        restored = {outcome.device: len(outcome.changed) for outcome in self.outcomes}
        return {
            "holder": self._holder,
            "deadman_s": safety.deadman_s,
            "min_change_interval_ns": safety.min_change_interval_ns,
            "settings_put_back": restored,
            "settled_before": [outcome.text for outcome in self.settled_before],
        }

    def _covered(self, device: str) -> dict[str, Any]:
        """Return the arguments of a device's snapshot: the settings that it must contain."""
        access = self._rack.access[device]
        rows = access.system.rows
        return {
            "interfaces": list(access.interfaces) if rows is None else [],
            "sysctls": list(self._sysctls.get(device, ())),
            "rows": None if rows is None else rows(self._rack, device),
        }

    def _ask_all(self, op: str, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Ask devices in parallel. Raises the first DeviceError, after all have answered."""
        return require_answers(self._gather(op, requests))

    def _gather(self, op: str, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Ask devices in parallel; return each answer, or its DeviceError."""
        calls = {
            device: (self._agents[device], (op, arguments))
            for device, arguments in requests.items()
        }
        return gather(calls, RESTORE_TIMEOUT_S)


def _covered_settings(request: Mapping[str, Any]) -> list[str]:
    """Return the kinds of settings that a trial may change, from the arguments of a snapshot."""
    settings = []
    if request["interfaces"]:
        settings.append(f"thresholds of the RED queues of {', '.join(request['interfaces'])}")
    if request["rows"]:
        settings.append("thresholds of the WRED profiles")
    if request["sysctls"]:
        settings.append(f"sysctls {', '.join(request['sysctls'])}")
    return settings
