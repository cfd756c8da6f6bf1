"""The guard and the recovery, on stand-in devices: all or none, restored in every case."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack, Safety
from orchestration.agent.safety.identity import identity_mismatch
from orchestration.backends.hardware.safety.guard import ControllerSlept, Guard, NotRestored
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.recovery import restore_open_runs, restore_runs
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.device.errors import DeviceError, DeviceGone

DEADMAN_S, LEASE_S = 30.0, 60.0
S = 1_000_000_000
TESTBED = load_testbed("graphcc")
DEVICES = tuple(device.name for device in TESTBED.devices)
FIRST, SECOND = DEVICES[:2]


class Device:
    """What an agent does to a device, without the device."""

    def __init__(self, name: str, lab: str = "A") -> None:
        self.name = name
        self.value = 1
        self.boot = "boot 1"
        # the lease: holder and nonce
        self.holder: str | None = None
        self.nonce = ""
        self.armed: dict[str, Any] | None = None
        # another account's process with the timer's name
        self.squatter: dict[str, Any] | None = None
        # what the device remembers of runs without a timer, by nonce
        self.records: dict[str, dict[str, Any]] = {}
        self.gone = False
        # a SONiC switch: a reboot does not reset what runs change
        self.keeps = False
        # an operation that fails, and what it says
        self.refuses: dict[str, str] = {}
        # differences that a restore leaves
        self.leaves: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.identity = {"machine_id": f"{name} of lab {lab}", "chassis": "", "macs": []}

    @property
    def fired(self) -> dict[str, Any] | None:
        return next(iter(self.records.values()), None)

    def die(self) -> None:
        """The timer's process is killed."""
        assert self.armed
        self.records[self.armed["nonce"]] = {
            "nonce": self.armed["nonce"],
            "holder": self.armed["holder"],
            "snapshot": self.armed["snapshot"],
            "boot": self.boot,
            "why": "",
            "fired_at": "",
            "error": "",
            "resolved": False,
        }
        self.armed = None

    def fire(self, why: str = "silent") -> dict[str, Any]:
        """What the dead-man's timer does."""
        assert self.armed
        nonce = self.armed["nonce"]
        self.die()
        self.settle(nonce, why)
        self.holder, self.nonce = None, ""
        return self.records[nonce]

    def settle(self, nonce: str, why: str) -> dict[str, Any]:
        record = self.records[nonce]
        record.update(self.restore(record["snapshot"]))
        record.update(why=why, fired_at="noon", resolved=True, error="")
        return record

    def restart(self) -> None:
        if self.armed:
            self.die()
        self.boot += "x"
        self.value = self.value if self.keeps else 1
        self.holder, self.nonce = None, ""

    def unresolved(self) -> list[dict[str, Any]]:
        return [
            record
            for record in self.records.values()
            if not record["resolved"] and (self.keeps or record["boot"] == self.boot)
        ]

    def restore(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        restarted = snapshot["boot"] != self.boot
        if restarted and not self.keeps:
            return {"changed": [], "differences": [], "restarted": True}
        changed = ["value"] if self.value != snapshot["value"] else []
        self.value = snapshot["value"]
        return {"changed": changed, "differences": list(self.leaves), "restarted": restarted}

    def do(self, op: str, words: dict[str, Any]) -> Any:
        self.log.append(op)
        if op in self.refuses:
            raise DeviceError(self.name, self.refuses[op])
        return getattr(self, op.replace(".", "_"))(words)

    def lease_take(self, words: dict[str, Any]) -> None:
        ended = {words["nonce"], *words.get("heir_of", ())}
        if self.holder is not None and self.nonce not in ended:
            raise DeviceError(self.name, f"is held by {self.holder} since noon")
        if not words.get("restoring"):
            for record in self.unresolved():
                if record["nonce"] not in ended:
                    raise DeviceError(self.name, f"{record['holder']} did not restore it")
        self.holder, self.nonce = words["holder"], words["nonce"]

    def lease_renew(self, words: dict[str, Any]) -> None:
        if self.nonce != words["nonce"]:
            raise DeviceError(self.name, "its lease is gone")

    def lease_drop(self, words: dict[str, Any]) -> None:
        if self.holder is not None and self.nonce != words["nonce"]:
            raise DeviceError(self.name, f"is held by {self.holder} since noon")
        self.holder, self.nonce = None, ""

    def state_snapshot(self, words: dict[str, Any]) -> dict[str, Any]:
        return {"value": self.value, "boot": self.boot, "identity": self.identity}

    def state_identity(self, words: dict[str, Any]) -> dict[str, Any]:
        return self.identity

    def state_restore(self, words: dict[str, Any]) -> dict[str, Any]:
        other = identity_mismatch(words["snapshot"].get("identity"), self.identity)
        if other:
            raise DeviceError(self.name, f"the snapshot is of another device: {other}")
        return self.restore(words["snapshot"])

    def deadman_arm(self, words: dict[str, Any]) -> None:
        if self.armed:
            raise DeviceError(self.name, f"is armed by {self.armed['holder']}")
        assert not self.unresolved()
        self.armed = words

    def deadman_feed(self, words: dict[str, Any]) -> None:
        if not self.armed:
            raise DeviceError(self.name, "has restored itself")

    def deadman_disarm(self, words: dict[str, Any]) -> bool:
        if self.armed and self.armed["nonce"] != words["nonce"]:
            raise DeviceError(self.name, f"is armed by {self.armed['holder']}")
        was, self.armed = self.armed, None
        self.records.pop(words["nonce"], None)
        return was is not None

    def deadman_fire(self, words: dict[str, Any]) -> dict[str, Any]:
        if self.squatter:
            raise DeviceError(self.name, "its timer is another account's", "end it")
        return self.fire(words["why"])

    def deadman_clear(self, words: dict[str, Any]) -> None:
        assert words["nonce"] not in [record["nonce"] for record in self.unresolved()]
        self.records.pop(words["nonce"], None)

    def deadman_settle(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        settled = []
        for record in self.unresolved():
            if words.get("nonce") in (None, record["nonce"]):
                data = json.dumps(record["snapshot"], sort_keys=True, separators=(",", ":"))
                proof = hashlib.sha256(data.encode()).hexdigest()
                if not record.get("trusted", True) and words.get("snapshot") != proof:
                    raise DeviceError(self.name, "it is another account's", "--forget")
                settled.append(self.settle(record["nonce"], words["why"]))
        return settled

    def deadman_forget(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        left = self.unresolved()
        for record in left:
            del self.records[record["nonce"]]
        return left

    def deadman_status(self, words: dict[str, Any]) -> dict[str, Any]:
        left = self.unresolved()
        records = [{**record, "unresolved": record in left} for record in self.records.values()]
        return {"boot": self.boot, "armed": self.squatter or self.armed, "records": records}


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

    def __init__(self, folder: Path, name: str = "A") -> None:
        self.devices = {device: Device(device, name) for device in DEVICES}
        self.agents = {name: Agent(device) for name, device in self.devices.items()}
        self.folder = folder
        self.now_ns = 5 * S
        access = {
            device.name: Access(device.name, "10.0.0.1", interfaces=("eth0",))
            for device in TESTBED.devices
        }
        safety = Safety(deadman_s=DEADMAN_S, lease_s=LEASE_S)
        self.rack = Rack("lab", TESTBED, access, safety=safety)

    # an inventory file: then the ledger is the one in the user's state folder
    inventory: Path | None = None

    @property
    def ledger(self) -> Ledger:
        if self.inventory is not None:
            return Ledger.of("rack", self.inventory)
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
    bobs = {"holder": "bob", "nonce": "b", "snapshot": {}}
    lab.devices[SECOND].armed = bobs
    with pytest.raises(DeviceError, match="is armed by bob"), lab.guard():
        pytest.fail("entered")
    assert lab.devices[SECOND].armed == bobs


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

    with pytest.raises(NotRestored, match=f"{FIRST}: was restored, but not completely"):
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


def test_a_device_that_restored_itself_and_is_anothers_by_now_is_left_to_them(lab: Lab) -> None:
    """Restoring it again would overwrite what the other run has set."""

    def trial() -> None:
        with lab.guard():
            lab.change()
            lab.devices[FIRST].fire()
            lab.devices[FIRST].lease_take({"holder": "bob", "nonce": "b"})
            lab.devices[FIRST].value = 3

    trial()
    assert lab.devices[FIRST].value == 3
    assert lab.devices[FIRST].holder == "bob"
    assert lab.devices[FIRST].records == {}
    assert lab.ledger.open_runs() == []


def test_a_timer_that_was_gone_at_the_end_makes_the_trial_invalid(lab: Lab) -> None:
    with lab.guard() as guard:
        lab.change()
        lab.devices[FIRST].fire()
    (finding,) = guard.findings()
    assert (finding["code"], finding["severity"]) == ("timer-gone", "invalid")
    assert finding["text"].startswith(f"{FIRST}: its dead-man's timer was gone")
    assert lab.free()


@pytest.mark.parametrize("op", ["deadman.disarm", "lease.drop"])
def test_a_device_that_cannot_be_let_go_of_is_named(lab: Lab, op: str) -> None:
    def trial() -> None:
        with lab.guard():
            lab.devices[FIRST].refuses[op] = "no"

    with pytest.raises(NotRestored, match=f"{FIRST}: was restored, but not released: no"):
        trial()


def test_holders_of_equal_name_do_not_share_a_rack(lab: Lab) -> None:
    with (
        lab.guard("ann"),
        pytest.raises(DeviceError, match="is held by ann"),
        Guard(lab.rack, lab.agents, Ledger(lab.folder / "other", "lab", "lab.yml"), "ann"),
    ):
        pytest.fail("entered")
    assert lab.free()


def test_what_another_ledgers_run_left_unrestored_refuses_the_next_run(lab: Lab) -> None:
    lab.crash()
    lab.devices[FIRST].die()
    for device in lab.devices.values():
        device.holder = None
    other = Ledger(lab.folder / "other", "lab", "lab.yml")
    with (
        pytest.raises(DeviceError, match=f"{FIRST}: dead run did not restore it"),
        Guard(lab.rack, lab.agents, other, "bob"),
    ):
        pytest.fail("entered")
    # restoring works from there too: the device has the snapshot
    lab.devices[SECOND].fire()
    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, other)}
    assert outcomes[FIRST].settled
    assert outcomes[FIRST].changed == ("value",)
    assert outcomes[FIRST].how == "was restored after dead run fell silent"
    assert lab.devices[FIRST].value == 1


def test_a_switch_that_restarted_is_compared_and_restored(lab: Lab) -> None:
    """CONFIG_DB survives warm and fast reboots, and cold ones if it was saved."""
    for device in lab.devices.values():
        device.keeps = True
    lab.crash()
    restarted(lab)
    with lab.guard("ann") as guard:
        assert all(outcome.changed == ("value",) for outcome in guard.settled_before)
        assert all(device.value == 1 for device in lab.devices.values())
    assert lab.free()
    assert all(device.records == {} for device in lab.devices.values())


def test_a_switch_that_restarts_during_the_trial_is_restored_at_its_end(lab: Lab) -> None:
    lab.devices[FIRST].keeps = True
    with lab.guard() as guard:
        lab.change()
        lab.devices[FIRST].restart()
    outcome = next(outcome for outcome in guard.outcomes if outcome.device == FIRST)
    assert outcome.changed == ("value",)
    assert outcome.how == "has restarted since"
    assert lab.free()
    assert lab.devices[FIRST].records == {}


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
        (still_armed, "was restored by its dead-man's timer, on request"),
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
    assert all(device.records == {} for device in lab.devices.values())
    assert lab.ledger.open_runs() == []


def test_where_it_is_not_known_what_was_done_since_only_restore_puts_it_back(lab: Lab) -> None:
    lab.crash()
    for device in lab.devices.values():
        # the timer was killed too, and the lease has ended
        device.die()
        device.holder = None

    with (
        pytest.raises(
            NotReadyError, match=r"dead run, begun at .*, has not restored it.*not known"
        ),
        lab.guard(),
    ):
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
    assert "cannot be reached; dead run has not restored it" in outcomes[FIRST].text
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
    lab.devices[FIRST].armed = {"holder": "bob", "nonce": "b", "snapshot": {}}
    lab.devices[SECOND].lease_take({"holder": "bob", "nonce": "b"})
    outcomes = {
        outcome.device: outcome.text for outcome in restore_open_runs(lab.agents, lab.ledger)
    }
    assert outcomes.pop(FIRST) == f"{FIRST}: is in use by bob, of another ledger: left alone"
    assert outcomes.pop(SECOND) == f"{SECOND}: is held by bob since noon: left alone"
    assert set(outcomes.values()) == {f"{name}: has nothing to restore" for name in outcomes}
    assert lab.devices[FIRST].armed
    assert lab.devices[SECOND].holder == "bob"
    assert all(lab.devices[name].holder is None for name in outcomes)


def test_a_timer_that_gave_up_is_followed_by_the_ledgers_snapshot(lab: Lab) -> None:
    lab.crash()
    fired(lab)
    broken = lab.devices[FIRST]
    assert broken.fired
    broken.fired.update(error="Redis is away", resolved=False)
    broken.value = 2

    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, lab.ledger)}

    assert outcomes[FIRST].changed == ("value",)
    assert lab.free()


class Labs:
    """Two racks of one user, each with an inventory `rack.yml` and devices of the same names."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = (Lab(folder, name) for name in ("A", "B"))
        for lab, name in ((self.a, "a"), (self.b, "b")):
            lab.inventory = folder / name / "rack.yml"
            lab.inventory.parent.mkdir()
            lab.inventory.touch()

    def crash(self) -> None:
        """A run in lab A dies with its timers, and its leases end."""
        self.a.crash()
        for device in self.a.devices.values():
            device.armed = device.holder = None
            device.restart()
            # SONiC: what was changed is still there
            device.value = 2


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labs:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Labs(tmp_path)


@pytest.mark.parametrize("by", ["the next run", "closloop restore"])
def test_a_rack_with_an_inventory_of_the_same_name_is_not_touched(labs: Labs, by: str) -> None:
    labs.crash()
    for device in labs.b.devices.values():
        device.keeps, device.value = True, 7
    if by == "the next run":
        with labs.b.guard():
            pass
    else:
        outcomes = restore_open_runs(labs.b.agents, labs.b.ledger)
        assert {outcome.how for outcome in outcomes} == {"has nothing to restore"}
    assert all(device.value == 7 for device in labs.b.devices.values())
    # lab A's entry is not lost
    for device in labs.a.devices.values():
        device.keeps = True
    outcomes = restore_open_runs(labs.a.agents, labs.a.ledger)
    assert all(outcome.settled and outcome.changed == ("value",) for outcome in outcomes)
    assert labs.a.free()
    assert labs.a.ledger.open_runs() == []


def test_a_rack_is_not_in_use_while_one_with_an_inventory_of_the_same_name_is(labs: Labs) -> None:
    with labs.a.guard():
        assert {o.how for o in restore_open_runs(labs.b.agents, labs.b.ledger)} == {
            "has nothing to restore"
        }
        with labs.b.guard():
            pass
        with pytest.raises(NotReadyError, match="in use by ann"):
            restore_open_runs(labs.a.agents, labs.a.ledger)


@pytest.mark.parametrize("how", ["moved", "copied", "a link", "another of the same rack"])
def test_a_dead_run_is_found_with_another_file_of_the_same_rack(labs: Labs, how: str) -> None:
    assert labs.a.inventory
    labs.crash()
    for device in labs.a.devices.values():
        device.keeps = True
    other = labs.a.inventory.with_name("elsewhere.yml")
    if how == "moved":
        labs.a.inventory.rename(other)
    elif how == "a link":
        other.symlink_to(labs.a.inventory)
    else:
        other.touch()
    labs.a.inventory = other

    outcomes = restore_open_runs(labs.a.agents, labs.a.ledger)

    assert {outcome.changed for outcome in outcomes} == {("value",)}
    assert labs.a.free()
    assert labs.a.ledger.open_runs() == []


def test_devices_that_were_renamed_since_are_recognised(labs: Labs) -> None:
    labs.crash()
    lab = labs.a
    for device in lab.devices.values():
        device.keeps = True
    # their names changed places
    names = dict(zip(DEVICES, reversed(DEVICES), strict=True))
    renamed = {names[name]: device for name, device in lab.devices.items()}
    for name, device in renamed.items():
        device.name = name
    # each device's own snapshot is what it gets
    agents = {name: Agent(device) for name, device in renamed.items()}
    outcomes = restore_open_runs(agents, lab.ledger)
    assert {outcome.changed for outcome in outcomes} == {("value",)}
    assert lab.ledger.open_runs() == []


def test_a_device_in_the_place_of_another_is_not_written_to_and_the_run_stays_open(
    labs: Labs,
) -> None:
    """The same file names lab B's devices now, or a switch was replaced."""
    labs.crash()
    for device in labs.b.devices.values():
        device.keeps, device.value = True, 7

    outcomes = restore_open_runs(labs.b.agents, labs.a.ledger)

    assert all("the snapshot is of another device" in outcome.how for outcome in outcomes)
    assert not any(outcome.settled for outcome in outcomes)
    assert all(device.value == 7 for device in labs.b.devices.values())
    (run,) = labs.a.ledger.open_runs()
    assert run.outstanding == sorted(DEVICES)

    # somebody says that they will not come back
    outcomes = restore_open_runs(labs.b.agents, labs.a.ledger, forget=DEVICES)
    assert all(outcome.settled and "given up" in outcome.how for outcome in outcomes)
    assert all(device.value == 7 for device in labs.b.devices.values())
    assert labs.a.ledger.open_runs() == []


def of_closloop_0_2_0(lab: Lab, inventory: Path) -> Path:
    """Turn lab A's ledger into one of closloop 0.2.0; return its folder."""
    folder = lab.ledger.folder
    old = folder.with_name("rack")
    folder.rename(old)
    lines = []
    for line in (old / "ledger.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["entry"] == "snapshot":
            del entry["identity"]
            content = json.loads((old / f"{entry['snapshot']}.json").read_text())
            del content["identity"]
            data = json.dumps(content, sort_keys=True, separators=(",", ":"))
            entry["snapshot"] = hashlib.sha256(data.encode()).hexdigest()
            (old / f"{entry['snapshot']}.json").write_text(data)
        if "inventory" in entry:
            entry["inventory"] = str(inventory)
        lines.append(json.dumps(entry))
    (old / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    return old


def test_a_ledger_of_0_2_0_is_the_inventorys_that_it_names_and_no_others(labs: Labs) -> None:
    assert labs.a.inventory
    labs.crash()
    for device in (*labs.a.devices.values(), *labs.b.devices.values()):
        device.keeps = True
    of_closloop_0_2_0(labs.a, labs.a.inventory)

    restore_open_runs(labs.b.agents, labs.b.ledger)
    assert len(labs.a.ledger.open_runs()) == 1

    outcomes = restore_open_runs(labs.a.agents, labs.a.ledger)
    assert {outcome.changed for outcome in outcomes} == {("value",)}
    assert labs.a.ledger.open_runs() == []


def test_a_device_that_left_the_inventory_is_named_and_can_be_given_up(labs: Labs) -> None:
    labs.crash()
    lab = labs.a
    for device in lab.devices.values():
        device.keeps = True
    assert lab.inventory
    lab.inventory = lab.inventory.rename(lab.inventory.with_name("smaller.yml"))
    del lab.agents[FIRST]

    outcomes = {o.device: o for o in restore_open_runs(lab.agents, lab.ledger)}
    assert not outcomes[FIRST].settled
    assert "not among the devices of this inventory" in outcomes[FIRST].how
    assert outcomes[SECOND].changed == ("value",)

    outcomes = {o.device: o for o in restore_open_runs(lab.agents, lab.ledger, forget=[FIRST])}
    assert outcomes[FIRST].settled
    assert lab.ledger.open_runs() == []


def test_that_a_device_was_restored_another_account_may_only_claim(lab: Lab) -> None:
    lab.crash()
    fired(lab)
    lying = lab.devices[FIRST]
    assert lying.fired
    lying.fired["trusted"], lying.value = False, 2

    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, lab.ledger)}

    assert (outcomes[FIRST].how, outcomes[FIRST].changed) == ("was restored", ("value",))
    assert outcomes[SECOND].how.startswith("has restored itself")
    assert lying.value == 1


@pytest.mark.parametrize("forged", [False, True])
def test_another_accounts_record_is_restored_by_where_the_ledger_proves_it(
    lab: Lab, forged: bool
) -> None:
    """The run logged in as another account than the restore does."""
    lab.crash()
    for device in lab.devices.values():
        device.die()
        device.holder = None
    record = next(iter(lab.devices[FIRST].records.values()))
    record["trusted"] = False
    if forged:
        record["snapshot"] = {**record["snapshot"], "value": 666}

    outcomes = restore_open_runs(lab.agents, lab.ledger)

    assert lab.devices[FIRST].value == 1
    told = [outcome.how for outcome in outcomes if outcome.device == FIRST]
    # what was forged is named, the run's state is restored from the ledger
    assert told == ["was restored", "it is another account's (--forget)"][: 1 + forged]


def test_another_accounts_process_in_the_timers_place_is_named_and_told_nothing(lab: Lab) -> None:
    lab.crash()
    (run,) = lab.ledger.open_runs()
    for device in lab.devices.values():
        device.armed = None
    squatter = {
        "holder": "x", "nonce": run.run, "account": "mallory", "pid": 7, "trusted": False,
    }  # fmt: skip
    lab.devices[FIRST].squatter = squatter
    lab.devices[SECOND].squatter = {**squatter, "nonce": "c"}

    outcomes = {outcome.device: outcome for outcome in restore_open_runs(lab.agents, lab.ledger)}

    assert "its timer is another account's (end it)" in outcomes[FIRST].how
    assert "is in use by x (account mallory, process 7; neither the acc" in outcomes[SECOND].how
    assert not outcomes[FIRST].settled
    assert not outcomes[SECOND].settled
    assert {FIRST, SECOND} <= {*lab.ledger.open_runs()[0].outstanding}


def test_a_device_to_give_up_that_nobody_knows_is_refused_before_anything_is_done(
    labs: Labs,
) -> None:
    assert labs.a.inventory
    with pytest.raises(InputError, match=rf"(?s)no device 'leaf99'.*{FIRST}"):
        restore_runs(labs.a.rack, labs.a.inventory, forget=["leaf99"])
