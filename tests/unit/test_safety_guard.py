"""The guard and the recovery, on stand-in devices: all or none, restored in every case."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack, Safety
from orchestration.backends.hardware.safety.guard import ControllerSlept, Guard, NotRestored
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.recovery import restore_open_runs
from orchestration.device.errors import DeviceError, DeviceGone
from orchestration.model.errors import NotReadyError, TrialError

DEADMAN_S, LEASE_S = 30.0, 60.0
S = 1_000_000_000
TESTBED = load_testbed("graphcc")
DEVICES = tuple(device.name for device in TESTBED.devices)
FIRST, SECOND = DEVICES[:2]


class Device:
    """What an agent does to a device, without the device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 1
        self.boot = "boot 1"
        self.holder: str | None = None
        self.armed: dict[str, Any] | None = None
        self.fired: dict[str, Any] | None = None
        self.gone = False
        # an operation that fails, and what it says
        self.refuses: dict[str, str] = {}
        # differences that a restore leaves
        self.leaves: list[dict[str, Any]] = []
        self.log: list[str] = []

    def fire(self, why: str = "silent") -> dict[str, Any]:
        """What the dead-man's timer does."""
        assert self.armed
        outcome = self.restore(self.armed["snapshot"])
        self.fired = {
            "holder": self.armed["holder"],
            "why": why,
            "fired_at": "noon",
            "error": "",
            **outcome,
        }
        self.holder = self.armed = None
        return self.fired

    def restart(self) -> None:
        self.boot += "x"
        self.value = 1
        self.holder = self.armed = self.fired = None

    def restore(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        if snapshot["boot"] != self.boot:
            return {"changed": [], "differences": [], "restarted": True}
        changed = ["value"] if self.value != snapshot["value"] else []
        self.value = snapshot["value"]
        return {"changed": changed, "differences": list(self.leaves), "restarted": False}

    def do(self, op: str, words: dict[str, Any]) -> Any:
        self.log.append(op)
        if op in self.refuses:
            raise DeviceError(self.name, self.refuses[op])
        holder = words.get("holder")
        if op == "lease.take":
            if self.holder not in (None, holder):
                raise DeviceError(self.name, f"is held by {self.holder} since noon")
            self.holder = holder
        elif op == "lease.renew" and self.holder != holder:
            raise DeviceError(self.name, "its lease is gone")
        elif op == "lease.drop":
            if self.holder not in (None, holder):
                raise DeviceError(self.name, f"is held by {self.holder} since noon")
            self.holder = None
        elif op == "state.snapshot":
            return {"value": self.value, "boot": self.boot}
        elif op == "state.restore":
            return self.restore(words["snapshot"])
        elif op == "deadman.arm":
            if self.armed:
                raise DeviceError(self.name, f"is armed by {self.armed['holder']}")
            self.armed = words
        elif op == "deadman.feed" and not self.armed:
            raise DeviceError(self.name, "has restored itself")
        elif op == "deadman.disarm":
            if self.armed and self.armed["holder"] != holder:
                raise DeviceError(self.name, f"is armed by {self.armed['holder']}")
            self.armed = None
        elif op == "deadman.fire":
            return self.fire(words["why"])
        elif op == "deadman.clear":
            self.fired = None
        elif op == "deadman.status":
            return {"armed": self.armed, "fired": self.fired}
        return None


class Agent:
    """One connection to a device."""

    def __init__(self, device: Device) -> None:
        self.device = device.name
        self._device = device
        self._answers: dict[int, Any] = {}
        self.silent = False

    def post(self, op: str, **words: Any) -> int:
        if self._device.gone:
            raise DeviceGone(self.device, "the connection is lost")
        number = len(self._answers) + 1
        try:
            self._answers[number] = self._device.do(op, words)
        except DeviceError as error:
            self._answers[number] = error
        return number

    def result(self, number: int, timeout_s: float = 30.0) -> Any:
        if self._device.gone or self.silent:
            raise DeviceGone(self.device, "its agent does not answer")
        answer = self._answers[number]
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def poll(self) -> None:
        pass


class Lab:
    """A rack of stand-in devices and its ledger, under a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.devices = {name: Device(name) for name in DEVICES}
        self.agents = {name: Agent(device) for name, device in self.devices.items()}
        self.folder = folder
        self.now_ns = 5 * S
        access = {
            device.name: Access(device.name, "10.0.0.1", interfaces=("eth0",))
            for device in TESTBED.devices
        }
        safety = Safety(deadman_s=DEADMAN_S, lease_s=LEASE_S)
        self.rack = Rack("lab", TESTBED, access, safety=safety)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder, "lab", "lab.yml")

    def guard(self, holder: str = "ann", **options: Any) -> Guard:
        sysctls = {FIRST: ["net/ipv4/tcp_ecn"]}
        return Guard(
            self.rack, self.agents, self.ledger, holder,
            sysctls=sysctls, now_ns=lambda: self.now_ns, **options,
        )  # fmt: skip

    def change(self) -> None:
        for device in self.devices.values():
            device.value = 2

    def crash(self) -> None:
        """A run that changes everything and whose controller then dies."""
        guard = self.guard("dead run")
        guard.__enter__()
        self.change()
        # the process is gone, and its lock with it
        guard._ledger.release(guard._run)

    def free(self) -> bool:
        return all(
            device.value == 1 and device.holder is None and device.armed is None
            for device in self.devices.values()
        )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_everything_is_in_place_before_anything_can_change(lab: Lab) -> None:
    with lab.guard():
        (run,) = lab.ledger.open_runs()
        assert set(run.snapshots) == run.changed == set(DEVICES)
        assert run.alive
        for device in lab.devices.values():
            assert device.log[:3] == ["lease.take", "state.snapshot", "deadman.arm"]
            assert device.armed
            assert device.armed["after_s"] == DEADMAN_S


@pytest.mark.parametrize(
    "ending", [None, ValueError("x"), TrialError("x"), KeyboardInterrupt(), SystemExit(1)]
)
def test_every_device_is_restored_however_it_ends(lab: Lab, ending: BaseException | None) -> None:
    def trial() -> None:
        with lab.guard() as guard:
            lab.change()
            if ending is not None:
                raise ending
        assert guard.facts()["settings_put_back"] == dict.fromkeys(DEVICES, 1)

    if ending is None:
        trial()
    else:
        with pytest.raises(type(ending)):
            trial()
    assert lab.free()
    assert lab.ledger.open_runs() == []


def test_leases_are_taken_on_all_devices_or_none(lab: Lab) -> None:
    lab.devices[SECOND].holder = "bob"
    with pytest.raises(DeviceError, match=f"{SECOND}: is held by bob"), lab.guard():
        pytest.fail("entered")
    assert [name for name, device in lab.devices.items() if device.holder] == [SECOND]
    assert lab.ledger.open_runs() == []


@pytest.mark.parametrize("op", ["lease.take", "state.snapshot", "deadman.arm"])
def test_a_preparation_that_fails_is_undone_on_all_devices(lab: Lab, op: str) -> None:
    lab.devices[SECOND].refuses[op] = "no"
    with pytest.raises(DeviceError, match=f"{SECOND}: no"), lab.guard():
        pytest.fail("entered")
    assert lab.free()
    assert lab.ledger.open_runs() == []


def test_a_timer_that_somebody_else_armed_is_left_to_them(lab: Lab) -> None:
    lab.devices[SECOND].armed = {"holder": "bob", "snapshot": {}}
    with pytest.raises(DeviceError, match="is armed by bob"), lab.guard():
        pytest.fail("entered")
    assert lab.devices[SECOND].armed == {"holder": "bob", "snapshot": {}}


def test_a_device_that_is_gone_is_named_and_the_others_are_restored(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard():
            lab.change()
            lab.devices[FIRST].gone = True

    with pytest.raises(NotRestored) as caught:
        trial()
    said = str(caught.value)
    assert f"{FIRST}: cannot be reached (its agent does not answer)" in said or (
        f"{FIRST}: cannot be reached (the connection is lost)" in said
    )
    assert "its dead-man's timer restores it within 30 s" in said
    assert f"restored: {', '.join(name for name in DEVICES if name != FIRST)}" in said
    (run,) = lab.ledger.open_runs()
    assert run.outstanding == [FIRST]
    assert not run.alive


def test_an_error_under_way_is_kept_and_says_what_was_not_restored(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard():
            lab.devices[FIRST].gone = True
            raise TrialError("the tuner failed")

    with pytest.raises(TrialError, match=rf"(?s)the tuner failed\n{FIRST}: cannot be reached"):
        trial()


def test_a_device_whose_agent_died_is_restored_by_a_new_one(lab: Lab) -> None:
    asked = []

    def reopen(device: str) -> Agent:
        asked.append(device)
        lab.devices[device].gone = False
        return Agent(lab.devices[device])

    with lab.guard(reopen=reopen):
        lab.change()
        lab.devices[FIRST].gone = True
    assert asked == [FIRST]
    assert lab.free()


def test_a_device_that_is_not_entirely_restored_keeps_its_timer(lab: Lab) -> None:
    lab.devices[FIRST].leaves = [
        {"part": "interface", "where": "eth0", "what": "x", "wanted": "there", "found": "missing"}
    ]

    def trial() -> None:
        with lab.guard():
            lab.change()

    with pytest.raises(NotRestored, match=f"{FIRST}: was restored, but not entirely"):
        trial()
    assert lab.devices[FIRST].armed
    assert lab.devices[FIRST].holder == "ann"
    assert not lab.devices[SECOND].armed


def test_what_somebody_else_changed_is_a_warning_in_the_stamp(lab: Lab) -> None:
    lab.devices[FIRST].leaves = [
        {"part": "fingerprint", "where": "routes", "what": "x", "wanted": "a", "found": "b"}
    ]
    with lab.guard() as guard:
        lab.change()
    assert guard.findings() == [
        {
            "code": "restored-with-differences",
            "severity": "warning",
            "text": f"{FIRST}: its routes were changed meanwhile, not by this run",
        }
    ]
    assert lab.free()


def counted(lab: Lab) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for op in lab.devices[FIRST].log:
        counts[op] += 1
    return counts


def test_devices_are_fed_four_times_in_the_dead_mans_time_however_often_it_ticks(lab: Lab) -> None:
    with lab.guard() as guard:
        for _ in range(6000):
            lab.now_ns += S // 100
            guard.tick()
        # 60 s at a quarter of 30 s
        assert counted(lab)["deadman.feed"] == counted(lab)["lease.renew"] == 8


def test_a_controller_that_slept_longer_than_the_dead_mans_time_says_so(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard() as guard:
            lab.now_ns += 47 * S
            for device in lab.devices.values():
                device.fire()
            guard.tick()

    with pytest.raises(ControllerSlept, match="asleep or held up for 47 s; after 30 s the devices"):
        trial()
    assert lab.free()


def test_a_nap_within_the_dead_mans_time_goes_unnoticed(lab: Lab) -> None:
    with lab.guard() as guard:
        lab.now_ns += 29 * S
        guard.tick()


def test_a_device_that_restored_itself_ends_the_trial(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard() as guard:
            lab.devices[FIRST].fire()
            for _ in range(3):
                lab.now_ns += 10 * S
                guard.tick()

    with pytest.raises(DeviceError, match=f"{FIRST}: has restored itself"):
        trial()
    assert lab.free()


def test_a_network_that_is_away_for_less_than_the_dead_mans_time_is_waited_for(lab: Lab) -> None:
    with lab.guard() as guard:
        lab.now_ns += 8 * S
        guard.tick()
        lab.agents[FIRST].silent = True
        for _ in range(2):
            lab.now_ns += 9 * S
            guard.tick()
        lab.agents[FIRST].silent = False
        lab.now_ns += 9 * S
        guard.tick()
        assert counted(lab)["deadman.feed"] == 2


def test_a_network_that_stays_away_ends_the_trial(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard() as guard:
            for number in range(6):
                lab.now_ns += 9 * S
                guard.tick()
                lab.agents[FIRST].silent = number < 5

    with pytest.raises(DeviceGone):
        trial()


def test_a_lease_that_ends_before_the_timer_is_refused(lab: Lab) -> None:
    safety = Safety(deadman_s=60.0, lease_s=60.0)
    lab.rack = Rack("lab", lab.rack.testbed, lab.rack.access, safety=safety)
    with pytest.raises(NotReadyError, match="would end before the dead-man's time"), lab.guard():
        pytest.fail("entered")


def test_a_full_disk_at_the_end_does_not_keep_devices_from_being_restored(lab: Lab) -> None:
    def trial() -> None:
        with lab.guard():
            lab.change()
            path = lab.folder / "ledger.jsonl"
            path.unlink()
            path.symlink_to("/dev/full")

    with pytest.raises(NotRestored, match="No space left on device"):
        trial()
    assert lab.free()


def fired(lab: Lab) -> None:
    for device in lab.devices.values():
        device.fire()


def restarted(lab: Lab) -> None:
    for device in lab.devices.values():
        device.restart()


def still_armed(lab: Lab) -> None:
    pass


@pytest.mark.parametrize(
    ("meanwhile", "how"),
    [
        (fired, "has restored itself at noon"),
        (restarted, "has restarted since"),
        (still_armed, "was restored by its dead-man's timer, told to"),
    ],
)
@pytest.mark.parametrize("by", ["the next run", "closloop restore"])
def test_a_dead_run_is_settled(
    lab: Lab, by: str, meanwhile: Callable[[Lab], None], how: str
) -> None:
    lab.crash()
    meanwhile(lab)
    if by == "the next run":
        with lab.guard("ann") as guard:
            outcomes = guard.settled_before
    else:
        outcomes = restore_open_runs(lab.agents, lab.ledger)
    assert sorted(outcome.device for outcome in outcomes) == sorted(DEVICES)
    assert all(how in outcome.text for outcome in outcomes)
    assert lab.free()
    assert all(device.fired is None for device in lab.devices.values())
    assert lab.ledger.open_runs() == []


def test_where_it_is_not_known_what_was_done_since_only_restore_puts_it_back(lab: Lab) -> None:
    lab.crash()
    for device in lab.devices.values():
        # the timer was killed too, and the lease has ended
        device.armed = device.holder = None

    with pytest.raises(NotReadyError, match=r"dead run left it unrestored.*not known"), lab.guard():
        pytest.fail("entered")
    assert lab.devices[FIRST].value == 2

    outcomes = restore_open_runs(lab.agents, lab.ledger)
    assert all(outcome.settled and outcome.changed == ("value",) for outcome in outcomes)
    assert lab.free()


def test_a_run_that_died_before_it_changed_anything_is_settled_by_that(lab: Lab) -> None:
    ledger = lab.ledger
    run = ledger.open_run("dead run")
    ledger.snapshot(run, FIRST, {"value": 1, "boot": "boot 1"})
    ledger.release(run)
    lab.devices[FIRST].value = 3

    with lab.guard():
        pass
    assert lab.devices[FIRST].value == 3
    assert lab.ledger.open_runs() == []


def test_restore_leaves_a_device_that_cannot_be_reached_open(lab: Lab) -> None:
    lab.crash()
    del lab.agents[FIRST]
    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, lab.ledger)}
    assert not outcomes[FIRST].settled
    assert "cannot be reached; dead run did not restore it" in outcomes[FIRST].text
    assert outcomes[SECOND].settled
    (run,) = lab.ledger.open_runs()
    assert run.outstanding == [FIRST]


def test_restore_does_not_touch_a_run_that_goes_on(lab: Lab) -> None:
    with lab.guard():
        lab.change()
        with pytest.raises(NotReadyError, match=r"in use by ann since .*nothing was restored"):
            restore_open_runs(lab.agents, lab.ledger)
        assert lab.devices[FIRST].value == 2


def test_restore_leaves_alone_what_other_ledgers_name(lab: Lab) -> None:
    lab.devices[FIRST].armed = {"holder": "bob", "snapshot": {}}
    outcomes = {
        outcome.device: outcome.text for outcome in restore_open_runs(lab.agents, lab.ledger)
    }
    assert outcomes[FIRST] == f"{FIRST}: is in use by bob, of another ledger: left alone"
    assert outcomes[SECOND] == f"{SECOND}: has nothing to restore"
    assert lab.devices[FIRST].armed


def test_a_timer_that_gave_up_is_followed_by_the_ledgers_snapshot(lab: Lab) -> None:
    lab.crash()
    fired(lab)
    broken = lab.devices[FIRST]
    assert broken.fired
    broken.fired["error"] = "Redis is away"
    broken.value = 2

    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, lab.ledger)}

    assert outcomes[FIRST].changed == ("value",)
    assert lab.free()
