"""The parts of Ansible's modules that need no device: what is saved, compared, and left out."""

import configparser
import importlib.util
import json
import pkgutil
import shutil
import stat
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

INTERN = sys.intern
ansible_utils = pytest.importorskip("ansible.module_utils")

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
SETTINGS = configparser.ConfigParser()
SETTINGS.read(PLAYBOOKS / "ansible.cfg")
FOLDERS = [
    str((PLAYBOOKS / folder).resolve())
    for folder in SETTINGS["defaults"]["module_utils"].split(":")
]
# other tests do this too
OWN_FOLDERS = [path for path in ansible_utils.__path__ if path not in FOLDERS]
OWN_UTILS = tuple(pkgutil.iter_modules(OWN_FOLDERS))
# as Ansible does with its setting `module_utils`
ansible_utils.__path__ = [*OWN_FOLDERS, *FOLDERS]

from ansible.module_utils.agent.main import OperationError  # noqa: E402
from ansible.module_utils.agent.safety.lease import Leases  # noqa: E402
from ansible.module_utils.agent.safety.records import new_record, store  # noqa: E402
from ansible.module_utils.agent.safety.shared_folder import locked, this_boot  # noqa: E402
from ansible.module_utils.closloop import queues, routes, sysctls  # noqa: E402
from ansible.module_utils.closloop import reconcile as steps  # noqa: E402
from ansible.module_utils.closloop.reconcile import (  # noqa: E402
    Device,
    Refused,
    Saved,
    reconcile,
)

# Ansible puts an object there that torch, in the same process here, cannot trace.
sys.intern = INTERN

sys.path.insert(0, str(Path(__file__).parents[2]))

from interrupted import Killed, Writes, points  # noqa: E402


def load_module(name):
    spec = importlib.util.spec_from_file_location(name, PLAYBOOKS / "library" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.intern = INTERN
    return module


class Shelf(Device):
    """A device that is a dict."""

    name = "shelf"

    def __init__(self, things):
        super().__init__()
        self.things = things
        self.breaks = ""

    def desired_values(self, desired):
        return desired

    def read(self, keys):
        return {key: self.things.get(key) for key in keys}

    def apply(self, changes):
        for change in changes:
            if change.key == self.breaks:
                raise OSError(28, "No space left on device")
            if change.after is None:
                del self.things[change.key]
            else:
                self.things[change.key] = change.after


@pytest.fixture
def bring(tmp_path):
    """Return a function that brings a shelf into a state, as the modules do."""

    def bring(shelf, desired=None, state="present", check_mode=False):
        saved = Saved("shelf", str(tmp_path / "closloop" / "provision"))
        return reconcile(shelf, desired or {}, saved, state, check_mode)

    return bring


def test_a_second_time_nothing_is_changed_and_undo_leaves_no_difference(bring, tmp_path):
    shelf = Shelf({"a": "1", "other": "x"})
    assert bring(shelf, {"a": "2", "b": "3"})["changed"] is True
    assert shelf.things == {"a": "2", "b": "3", "other": "x"}
    file = tmp_path / "closloop" / "provision" / "shelf.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    assert bring(shelf, {"a": "2", "b": "3"})["changed"] is False
    assert bring(shelf, {"a": "2", "b": "3"}, "verified")["differences"] == []

    assert bring(shelf, state="absent")["changed"] is True
    assert shelf.things == {"a": "1", "other": "x"}
    assert list(tmp_path.iterdir()) == []
    assert bring(shelf, state="absent")["changed"] is False


def test_the_first_state_found_is_the_one_to_go_back_to(bring):
    shelf = Shelf({"a": "1"})
    bring(shelf, {"a": "2"})
    shelf.things["a"] = "9"
    bring(shelf, {"a": "3", "b": "1"})
    bring(shelf, state="absent")
    assert shelf.things == {"a": "1"}


def test_what_is_no_longer_asked_for_goes_back(bring):
    shelf = Shelf({"a": "1"})
    bring(shelf, {"a": "2", "b": "2"})
    result = bring(shelf, {"b": "2"})
    assert result["differences"] == ["a: is 2, should be 1"]
    assert shelf.things == {"a": "1", "b": "2"}


def test_check_mode_and_verify_change_nothing(bring, tmp_path):
    shelf = Shelf({"a": "1"})
    result = bring(shelf, {"a": "2"}, check_mode=True)
    assert result["changed"] is True
    assert result["diff"] == {"before": "a: 1\n", "after": "a: 2\n"}
    assert bring(shelf, {"a": "2"}, "verified")["differences"] == ["a: is 1, should be 2"]
    assert shelf.things == {"a": "1"}
    assert list(tmp_path.iterdir()) == []


def test_what_was_half_done_can_be_undone(bring):
    shelf = Shelf({"a": "1", "b": "1"})
    shelf.breaks = "b"
    with pytest.raises(OSError):
        bring(shelf, {"a": "2", "b": "2"})
    assert shelf.things == {"a": "2", "b": "1"}
    shelf.breaks = ""
    bring(shelf, state="absent")
    assert shelf.things == {"a": "1", "b": "1"}


class Restarting(Shelf):
    """A shelf on which everything is taken down before anything is put up."""

    def __init__(self, things, writes):
        super().__init__(things)
        self.writes = writes

    def suspended(self, changes):
        gone = [change.key for change in changes if change.after is None]
        return {key: value for key, value in self.things.items() if key not in gone}

    def put_back(self, values):
        for key, value in values.items():
            self.writes.next()
            self.things[key] = value

    def apply(self, changes):
        after = {**self.things, **{change.key: change.after for change in changes}}
        for key in list(self.things):
            self.writes.next()
            del self.things[key]
        self.put_back({key: value for key, value in after.items() if value is not None})


@pytest.mark.slow
@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_kill_before_any_write_loses_nothing_once_undone(tmp_path, state):
    first = {"a": "1", "other": "x", "b": "2"}

    def killed(writes):
        nonlocal things
        things, saved = dict(first), Saved("shelf", str(tmp_path / "closloop" / "provision"))
        if state == "absent":
            reconcile(Restarting(things, Writes()), {"a": "2", "c": "3"}, saved, "present", False)
        with writes.to_files(), suppress(Killed):
            saved = Saved("shelf", saved.path.rpartition("/")[0])
            reconcile(Restarting(things, writes), {"a": "2", "c": "3"}, saved, state, False)
        undo()
        return writes

    def undo():
        saved = Saved("shelf", str(tmp_path / "closloop" / "provision"))
        reconcile(Restarting(things, Writes()), {}, saved, "absent", False)

    things, count = {}, 0
    for writes in points(killed):
        killed(writes)
        assert (things, list(tmp_path.iterdir())) == (first, []), writes.kill_before
        count += 1
    assert count > 10


def test_what_cannot_be_read_stays_saved_and_the_undo_is_no_success(bring, tmp_path):
    shelf = Shelf({"a": "1", "b": "1"})
    bring(shelf, {"a": "2", "b": "2"})
    reasons = {"a": "the driver is away"}
    shelf.unreadable = lambda key: reasons.get(key, "")
    shelf.is_same = lambda key, present, target: key in reasons or present == target
    file = tmp_path / "closloop" / "provision" / "shelf.json"
    step = {
        "step": "undo of a",
        "reason": "it cannot be read: the driver is away; its former value stays saved",
    }
    assert bring(shelf, state="absent", check_mode=True)["skipped_steps"] == [step]
    for _ in range(2):
        with pytest.raises(Refused, match=r"is not restored: a \(the driver is away\)") as refused:
            bring(shelf, state="absent")
        assert str(file) in refused.value.remedy
        assert shelf.things == {"a": "2", "b": "1"}
        assert json.loads(file.read_text()) == {"format": 1, "values": {"a": "1"}}
    # provisioning something else says so, and keeps it too
    assert step in bring(shelf, {"b": "3"})["skipped_steps"]
    reasons.clear()
    bring(shelf, state="absent")
    assert shelf.things == {"a": "1", "b": "1"}
    assert list(tmp_path.iterdir()) == []


def test_only_what_somebody_else_has_made_is_checked_before_it_gives_way(bring):
    shelf = Shelf({"a": "1", "b": "1"})
    checked = []
    shelf.check = lambda changes: checked.append([change.key for change in changes])
    bring(shelf, {"a": "2"})
    shelf.things["a"] = "7"
    bring(shelf, {"a": "2", "b": "2"})
    bring(shelf, state="absent")
    assert checked == [["a"], ["b"], []]


def test_a_setting_that_does_not_hold_is_an_error(bring):
    shelf = Shelf({"a": "1"})
    shelf.apply = lambda changes: None
    with pytest.raises(Refused, match="not every setting has its value: a: is 1, should be 2"):
        bring(shelf, {"a": "2"})


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1, "values": []}'])
def test_a_foreign_file_of_former_values_is_refused(bring, tmp_path, text):
    folder = tmp_path / "closloop" / "provision"
    folder.mkdir(parents=True)
    (folder / "shelf.json").write_text(text)
    with pytest.raises(ValueError):
        bring(Shelf({"a": "1"}), {"a": "2"})


class AnswerError(Exception):
    """What a module tells Ansible."""

    def __init__(self, **said):
        super().__init__(said)
        self.said = said


class Module:
    """The part of AnsibleModule that the steps use."""

    def __init__(self, state="present", check_mode=False, **more):
        self.params = {"state": state, "desired": {"a": "2"}, "holder": "ann@laptop provision"}
        self.params.update({"lease": "", "last": True, **more})
        self.check_mode = check_mode

    def fail_json(self, **said):
        raise AnswerError(failed=True, **said)

    def exit_json(self, **said):
        raise AnswerError(failed=False, **said)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The device's folder of leases."""
    monkeypatch.setattr(steps, "SHARED", tmp_path / "shared")
    monkeypatch.setattr(steps, "FOLDER", str(tmp_path / "closloop" / "provision"))
    monkeypatch.setattr(steps.Saved.__init__, "__defaults__", (steps.FOLDER,))
    return tmp_path / "shared"


def answer(shelf, **asked):
    with pytest.raises(AnswerError) as told:
        steps.run(Module(**asked), shelf)
    return told.value.said


def run_holds(shared, **more):
    request = {"holder": "bob@desk campaign c", "nonce": "b" * 32, "ttl_s": 60, **more}
    return Leases(shared, this_boot()), request


@pytest.mark.parametrize("state", ["present", "absent"])
def test_provisioning_beside_a_run_is_refused(shared, state):
    leases, request = run_holds(shared)
    shelf = Shelf({"a": "1"})
    leases.take(request)
    told = answer(shelf, state=state)
    assert told["failed"]
    assert "is held by bob@desk campaign c (account " in told["msg"]
    assert "closloop restore" in told["remedy"]
    assert shelf.things == {"a": "1"}
    # looking is allowed
    assert not answer(shelf, state=state, check_mode=True)["failed"]
    assert "not as provisioned" in answer(shelf, state="verified")["msg"]
    leases.drop(request)
    assert not answer(shelf, state=state)["failed"]


def test_a_run_beside_provisioning_is_refused(shared):
    leases, request = run_holds(shared)
    refused = []

    class Slow(Shelf):
        def apply(self, changes):
            try:
                leases.take(request)
            except OperationError as error:
                refused.append(error.what)
            super().apply(changes)

    shelf = Slow({"a": "1"})
    assert answer(shelf)["changed"]
    assert "is held by ann@laptop provision" in refused[0]
    # it lets go, whatever happens
    shelf.things, shelf.breaks = {"a": "1"}, "a"
    assert answer(shelf)["failed"]
    assert leases.take(request)["holder"] == "bob@desk campaign c"


def test_a_device_with_two_modules_is_held_from_the_first_to_the_last(shared):
    leases, request = run_holds(shared)

    def is_free():
        try:
            leases.take(request)
        except OperationError:
            return False
        return leases.drop(request)

    kept = answer(Shelf({"a": "1"}), last=False)["lease"]
    assert len(kept) == 32
    assert not is_free()
    assert answer(Shelf({"a": "2"}), lease=kept)["lease"] == ""
    assert is_free()
    # the controller's own lease; a first module that fails is the last one
    broken = Shelf({"a": "1"})
    broken.breaks = "a"
    for last in (False, True):
        assert answer(Shelf({"a": "1"}), last=False, lease="c" * 32)["lease"] == "c" * 32
        assert answer(broken, last=last, lease="c" * 32)["failed"]
        assert is_free()
    # looking takes none
    assert answer(Shelf({"a": "1"}), last=False, check_mode=True)["lease"] == ""
    assert is_free()


@pytest.mark.slow
def test_a_stopped_provisioning_gives_a_device_back_once_its_module_has_ended(shared):
    leases, request = run_holds(shared)
    at_work, go_on, released = threading.Event(), threading.Event(), threading.Event()

    class Slow(Shelf):
        def apply(self, changes):
            at_work.set()
            assert go_on.wait(20)
            super().apply(changes)

    def stopped():
        steps.release("c" * 32)
        released.set()

    steps.release("c" * 32)  # nothing is there yet
    first = threading.Thread(
        target=answer, args=[Slow({"a": "1"})], kwargs={"last": False, "lease": "c" * 32}
    )
    first.start()
    assert at_work.wait(20)
    release = threading.Thread(target=stopped)
    release.start()
    assert not released.wait(0.3)
    with pytest.raises(OperationError, match="is held by ann@laptop provision"):
        leases.take(request)
    go_on.set()
    first.join()
    release.join()
    assert leases.take(request)["holder"] == "bob@desk campaign c"
    steps.release("c" * 32)  # another's stays
    assert leases.show({})["lease"]["holder"] == "bob@desk campaign c"


def test_provisioning_what_a_run_has_left_unrestored_is_refused(shared):
    record = new_record("bob", "b" * 32, "", "noon", {"boot": this_boot(), "rows": None})
    with locked(shared):
        store(shared, record)
    told = answer(Shelf({"a": "1"}))
    assert told["msg"].endswith("took it at noon and did not restore it")
    assert "closloop restore" in told["remedy"]


def test_no_file_that_goes_to_devices_hides_one_of_ansible_s_own():
    own = {module.name for module in OWN_UTILS}
    for folder in FOLDERS:
        assert not own & {module.name for module in pkgutil.iter_modules([folder])}, folder


# sysctls


@pytest.fixture
def proc(tmp_path):
    values = {
        "net/ipv4/ip_forward": "0\n",
        "net/ipv4/conf/all/accept_redirects": "0\n",
        "net/ipv4/conf/eth0/forwarding": "1\n",
        "net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "net/ipv4/tcp_allowed_congestion_control": "reno cubic\n",
        "net/ipv4/tcp_congestion_control": "cubic\n",
    }
    for name, value in values.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return tmp_path


def test_what_the_kernel_changes_along_with_forwarding_goes_back_too(proc):
    settings = sysctls.Sysctls(f"{proc}/")
    former = settings.read("net/ipv4/ip_forward")
    settings.apply("net/ipv4/ip_forward", "1")
    (proc / "net/ipv4/conf/all/accept_redirects").write_text("1\n")
    assert settings.is_same(settings.read("net/ipv4/ip_forward"), "1")

    settings.apply("net/ipv4/ip_forward", former)
    assert settings.is_same(settings.read("net/ipv4/ip_forward"), former)
    assert (proc / "net/ipv4/ip_forward").read_text() == "0"
    assert (proc / "net/ipv4/conf/all/accept_redirects").read_text() == "0"
    assert (proc / "net/ipv4/conf/eth0/forwarding").read_text() == "1\n"


def test_congestion_controls_are_added_to_the_allowed_ones(proc):
    settings = sysctls.Sysctls(f"{proc}/")
    assert settings.is_same(settings.read(sysctls.ALLOWED), ["cubic"])
    assert not settings.is_same(settings.read(sysctls.ALLOWED), ["dctcp", "cubic"])
    settings.apply(sysctls.ALLOWED, ["dctcp", "cubic"])
    assert (proc / sysctls.ALLOWED).read_text() == "reno cubic dctcp"


def test_blanks_in_settings_do_not_count_and_missing_ones_are_not_there(proc):
    settings = sysctls.Sysctls(f"{proc}/")
    assert settings.is_same(settings.read("net/ipv4/tcp_rmem"), "4096 131072 6291456")
    assert settings.read("net/ipv4/none") is None
    assert not settings.exists("net/ipv4/none")


# queues

SHAPER = {"rate_bps": 100 * 10**9, "bucket_bytes": 1614, "framing_bytes": 24}
RED = {"kmin_bytes": 5000, "kmax_bytes": 200_000, "max_p": 2**30, "limit_bytes": 10**6}
TWO = {"shaper": SHAPER, "reds": [RED, RED], "weights": [30, 70], "frame_bytes": 1514}


def as_reported(wanted):
    """The disciplines as a kernel reports them, once they are made."""
    parts = [queues.decode(request) for request in queues.qdiscs.stack(7, wanted)]
    return [{**part._asdict(), "options": part.options.hex()} for part in parts]


@pytest.mark.parametrize("wanted", [TWO, {"reds": [RED]}, {"shaper": SHAPER, "fair": True}])
def test_queues_that_are_there_are_not_made_again(wanted):
    assert queues.same_queues(as_reported(wanted), wanted)
    assert not queues.same_queues([], wanted)
    assert not queues.same_queues(as_reported({"reds": [{**RED, "kmin_bytes": 5001}]}), wanted)


def test_any_other_setting_of_a_queue_is_seen():
    there = as_reported(TWO)
    for change in (
        {"shaper": {**SHAPER, "rate_bps": 40 * 10**9}},
        {"shaper": {**SHAPER, "bucket_bytes": 9014}},
        {"shaper": {**SHAPER, "framing_bytes": 0}},
        {"weights": [50, 50]},
        {"reds": [RED, {**RED, "max_p": 1}]},
        {"reds": [RED, {**RED, "limit_bytes": 1}]},
    ):
        assert not queues.same_queues(there, {**TWO, **change}), change


def test_a_red_whose_limit_reads_0_has_that_of_its_inner_queue():
    (there,) = as_reported({"reds": [RED]})
    options = bytearray.fromhex(there["options"])
    struct.pack_into("=I", options, 4, 0)
    after_a_change = {**there, "options": options.hex()}
    assert not queues.same_queues([after_a_change], {"reds": [RED]})
    assert queues.same_queues([{**after_a_change, "inner_limit": 10**6}], {"reds": [RED]})


def test_red_hangs_from_the_root_where_nothing_shapes():
    kinds = [(part["kind"], part["parent"]) for part in as_reported({"reds": [RED]})]
    assert kinds == [("red", 0xFFFFFFFF)]
    words = queues.describe_queues(TWO)
    assert words.startswith("tbf 2: rate 100000000000 bit/s > ets 8: > red 3: min 5000 max 200000")


def test_disciplines_that_could_not_be_made_again_are_refused():
    class NoFilters(queues.Queues):
        def _filters(self, index):
            return index == 2

    check = NoFilters(None).check
    check(1, "eth0", [])
    check(1, "eth0", as_reported({"reds": [RED]}))
    htb = {"kind": "htb", "handle": 0x10000, "parent": 0xFFFFFFFF, "options": ""}
    with pytest.raises(Refused, match="eth0 has a queueing discipline htb that somebody set up"):
        check(1, "eth0", [htb])
    with pytest.raises(Refused, match="eth0 has traffic filters"):
        check(2, "eth0", as_reported({"reds": [RED]}))


# routes and the network module


def test_a_route_is_the_same_by_its_next_hops_and_source():
    there = {
        "via": [["169.254.1.5", "eth6", 1], ["169.254.1.6", "eth7", 1]],
        "source": "",
        "protocol": 4,
        "scope": 0,
        "type": 1,
        "metrics": "",
        "message": "00",
    }
    wanted = {"via": there["via"]}
    assert routes.same_route(there, wanted)
    assert not routes.same_route(None, wanted)
    assert not routes.same_route(there, None)
    assert routes.same_route(None, None)
    assert not routes.same_route(there, {**wanted, "source": "10.0.0.1"})
    assert not routes.same_route({**there, "metrics": "ff"}, wanted)
    # a former route has to come back with all it had
    assert routes.same_route({**there, "message": "01"}, there)
    assert not routes.same_route({**there, "protocol": 3}, there)


def test_removals_come_first_and_interfaces_go_up_before_what_needs_them():
    network = load_module("closloop_network")
    done = []

    class Recorder(network.Network):
        def __init__(self):
            self.skipped = []

        def _apply(self, kind, rest, before, after):
            done.append(f"{kind} {'-' if after is None else '+'}")

    kinds = ("route", "address", "queues", "up", "mtu", "sysctl", "rule")
    changes = [network_change(f"{kind} x", None, {}) for kind in kinds]
    changes += [network_change(f"{kind} y", {}, None) for kind in ("address", "route", "rule")]
    Recorder().apply(changes)
    assert done == [
        "rule -", "route -", "address -",
        "sysctl +", "mtu +", "up +", "queues +", "address +", "route +", "rule +",
    ]  # fmt: skip


def test_a_route_that_would_cut_off_the_controller_is_refused():
    network = load_module("closloop_network")
    device = network.Network("10.1.2.3")
    device.check([network_change("route 254 10.0.0.0/16 0", None, {"via": []})])
    with pytest.raises(Refused, match=r"10\.1\.0\.0/16 would also lead to the controller"):
        device.check([network_change("route 254 10.1.0.0/16 0", None, {"via": []})])


def test_a_fabric_that_would_hide_a_network_of_the_device_is_refused(monkeypatch):
    network = load_module("closloop_network")
    device = network.Network("")
    there = ["198.18.0.0/16"]
    monkeypatch.setattr(
        network,
        "overlapping_routes",
        lambda _, prefix, ours: [to for to in there if to not in ours],
    )
    change = network_change("route 254 198.18.1.0/24 0", None, {"via": []})
    device.check([change])  # a state without a fabric
    device.desired_values(
        {"fabric": "198.18.0.0/15", "routes": [{"to": "198.18.1.0/24", "via": []}]}
    )
    with pytest.raises(
        Refused, match=r"route to 198\.18\.0\.0/16, and .* 198\.18\.0\.0/15"
    ) as caught:
        device.check([change])
    assert "closloop_fabric_prefix" in caught.value.remedy
    device.check([network_change("sysctl x", "0", "1")])
    there[:] = ["198.18.1.0/24"]
    device.check([change])


def network_change(key, before, after):
    from ansible.module_utils.closloop.reconcile import Change

    return Change(key, before, after, False)


# RoCE

DESIRED = {
    "interfaces": ["eth2"],
    "rdma_devices": ["mlx5_0"],
    "trust": "dscp",
    "priorities": {"26": 3},
    "type_of_service": 106,
    "dcqcn": {"rp_ai_rate": 7, "np_cnp_dscp": 48},
    "memlock": "unlimited",
    "governor": "performance",
}


@pytest.fixture
def machine(tmp_path):
    """Files of a host with NVIDIA's driver, two CPUs, and rdma_cm in configfs."""
    net = tmp_path / "sys/class/net/eth2"
    values = {
        net / "qos/trust": "pcp\n",
        net / "ecn/roce_rp/enable/3": "0\n",
        net / "ecn/roce_np/enable/3": "1\n",
        net / "ecn/roce_rp/rpg_ai_rate": "5\n",
        tmp_path / "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "0\n",
        tmp_path / "etc/security/limits.d/other.conf": "",
    }
    for number in (0, 1):
        values[tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor"] = "x\n"
    for path, value in values.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return tmp_path


class Dcb:
    """iproute2's dcb, as far as it is asked."""

    def __init__(self, writes=None):
        self.pfc = [False] * 8
        self.dscp = [[46, 5]]
        self.calls = []
        self.writes = writes or Writes()
        self.away = False

    def __call__(self, words):
        self.calls.append(" ".join(words))
        if self.away:
            return 1, "", "Attribute read: Operation not supported\n"
        if words[1] == "-j":
            shown = {"dscp_prio": self.dscp} if words[2] == "app" else {"prio_pfc": self.pfc}
            return 0, json.dumps(shown), ""
        self.writes.next()
        number, _, value = words[-1].partition(":")
        if words[1] == "pfc":
            self.pfc[int(number)] = value == "on"
        elif words[2] == "add":
            self.dscp.append([int(number), int(value)])
        else:
            self.dscp.remove([int(number), int(value)])
        return 0, "", ""


def tree(folder):
    return {path: path.read_text().strip() for path in folder.rglob("*") if path.is_file()}


def test_a_roce_host_is_set_and_put_back(machine, tmp_path_factory):
    dcb = Dcb()
    saved = str(tmp_path_factory.mktemp("state") / "closloop" / "provision")
    before = tree(machine), list(dcb.pfc), list(dcb.dscp)

    def bring(state="present"):
        host = load_module("closloop_roce").RoceHost(dcb, f"{machine}/")
        return reconcile(host, DESIRED, Saved("roce", saved), state, False)

    result = bring()
    assert result["changed"] is True
    assert [entry["step"] for entry in result["skipped_steps"]] == ["dcqcn eth2 np_cnp_dscp"]
    now = {str(path.relative_to(machine)): value for path, value in tree(machine).items()}
    assert now["sys/class/net/eth2/qos/trust"] == "dscp"
    assert now["sys/class/net/eth2/ecn/roce_rp/enable/3"] == "1"
    assert now["sys/class/net/eth2/ecn/roce_rp/rpg_ai_rate"] == "7"
    assert now["sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"] == "106"
    assert now["sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"] == "performance"
    limits = now["etc/security/limits.d/closloop.conf"]
    assert limits == "* soft memlock unlimited\n* hard memlock unlimited"
    assert dcb.pfc[3] is True
    assert [26, 3] in dcb.dscp

    assert bring()["changed"] is False
    assert bring("absent")["changed"] is True
    assert (tree(machine), dcb.pfc, dcb.dscp) == before


@pytest.mark.slow
@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_roce_host_whose_module_is_killed_before_any_write_is_put_back(
    machine, tmp_path_factory, monkeypatch, state
):
    module, dcb = load_module("closloop_roce"), Dcb()
    dcb.dscp.append([26, 5])  # so the map changes in two steps
    saved = str(tmp_path_factory.mktemp("state") / "closloop" / "provision")
    before = tree(machine), list(dcb.pfc), list(dcb.dscp)

    def bring(state, writes):
        def counted(path, mode="r", **more):
            if mode == "w" and not isinstance(path, int):
                writes.next()
            return open(path, mode, **more)

        dcb.writes = writes
        with monkeypatch.context() as patch, writes.to_files(), suppress(Killed):
            patch.setattr(module, "open", counted, raising=False)
            host = module.RoceHost(dcb, f"{machine}/")
            reconcile(host, DESIRED, Saved("roce", saved), state, False)
        return writes

    def killed(writes):
        if state == "absent":
            bring("present", Writes())
        bring(state, writes)
        bring("absent", Writes())

    count = 0
    for writes in points(killed):
        killed(writes)
        now = {path: text for path, text in tree(machine).items() if path.name[0] != "."}
        assert (now, dcb.pfc, sorted(dcb.dscp)) == (*before[:2], sorted(before[2])), count
        count += 1
    assert count > 12


def test_a_driver_that_keeps_to_one_priority_a_dscp_is_set_and_put_back(machine, tmp_path):
    class OnePriority(Dcb):
        """As mlx5e_dcbnl_ieee_setapp and _delapp have it."""

        def __call__(self, words):
            if words[2:4] == ["add", "dev"]:
                number = int(words[-1].partition(":")[0])
                self.dscp = [pair for pair in self.dscp if pair[0] != number]
            return super().__call__(words)

    dcb = OnePriority()
    dcb.dscp.append([26, 5])
    module, folder = load_module("closloop_roce"), str(tmp_path / "closloop" / "provision")
    for state in ("present", "absent"):
        host = module.RoceHost(dcb, f"{machine}/")
        reconcile(host, DESIRED, Saved("roce", folder), state, False)
        assert [26, 3 if state == "present" else 5] in dcb.dscp
        assert len(dcb.dscp) == 2


def test_a_roce_host_whose_settings_cannot_be_read_keeps_what_they_were(machine, tmp_path):
    module, dcb = load_module("closloop_roce"), Dcb()
    folder = str(tmp_path / "closloop" / "provision")
    trust = machine / "sys/class/net/eth2/qos/trust"

    def bring(state="absent"):
        host = module.RoceHost(dcb, f"{machine}/")
        return reconcile(host, DESIRED, Saved("roce", folder), state, False)["skipped_steps"]

    bring("present")
    dcb.away = True
    trust.rename(machine / "trust")
    with pytest.raises(Refused) as refused:
        bring()
    for key in ("trust eth2", "dscp eth2 26", "pfc eth2 3"):
        assert f"{key} (the NIC's driver " in refused.value.what
    # the rest is restored
    assert (machine / "sys/class/net/eth2/ecn/roce_rp/rpg_ai_rate").read_text() == "5"
    dcb.away = False
    (machine / "trust").rename(trust)
    bring()
    assert (trust.read_text(), dcb.pfc[3], dcb.dscp) == ("pcp", False, [[46, 5]])
    # an interface that is gone has taken its settings with it, which is told
    bring("present")
    dcb.away = True
    shutil.rmtree(machine / "sys/class/net/eth2")
    assert {"step": "undo of trust eth2", "reason": "its device no longer exists"} in bring()
    assert not (tmp_path / "closloop").exists()


def test_a_host_without_any_of_it_is_left_with_a_reason_for_each(tmp_path):
    def no_dcb(words):
        return 1, "", "Attribute read: Operation not supported\n"

    (tmp_path / "etc/security/limits.d").mkdir(parents=True)
    host = load_module("closloop_roce").RoceHost(no_dcb, f"{tmp_path}/")
    assert list(host.desired_values(DESIRED)) == ["memlock"]
    assert {entry["step"]: entry["reason"] for entry in host.skipped} == {
        "governor": "this system cannot set the CPUs' frequency",
        "trust eth2": "the NIC's driver does not offer it",
        "dscp eth2 26": "the NIC's driver has no DCB (Attribute read: Operation not supported)",
        "pfc eth2 3": "the NIC's driver has no DCB (Attribute read: Operation not supported)",
        "ecn eth2 rp 3": "the NIC's driver does not offer it",
        "ecn eth2 np 3": "the NIC's driver does not offer it",
        "dcqcn eth2 rp_ai_rate": "the NIC's driver does not offer it",
        "dcqcn eth2 np_cnp_dscp": "the NIC's driver does not offer it",
        "tos mlx5_0": "no rdma_cm in configfs (modprobe rdma_cm, mount -t configfs)",
    }


def test_debugfs_that_kernel_lockdown_closes_is_named(tmp_path):
    parameters = tmp_path / "sys/kernel/debug/mlx5/0000:3b:00.0/cc_params"
    parameters.mkdir(parents=True)
    (parameters / "rp_ai_rate").write_text("5\n")
    interface = tmp_path / "sys/class/net/eth2"
    interface.mkdir(parents=True)
    (interface / "device").symlink_to(tmp_path / "sys/devices/0000:3b:00.0")
    level = tmp_path / "sys/kernel/security/lockdown"
    level.parent.mkdir(parents=True)

    def reason(text):
        level.write_text(text)
        host = load_module("closloop_roce").RoceHost(lambda words: (1, "", ""), f"{tmp_path}/")
        host.desired_values(DESIRED)
        skipped = {entry["step"]: entry["reason"] for entry in host.skipped}
        return skipped.get("dcqcn eth2 rp_ai_rate")

    assert reason("[none] integrity confidentiality\n") is None
    assert reason("none [integrity] confidentiality\n") == (
        "kernel lockdown (integrity) closes debugfs, where DCQCN parameters are"
    )
