"""Provisioning and undo of a SONiC switch, killed before any of their writes, lose nobody's rows.

The switch is in memory (sonic_memory.py), with 12 ports whose watchdog the operator has set up.
"""

import itertools
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.sonic.resp import RedisError
from orchestration.backends.hardware.sonic.config import desired_tables
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_model import switch_model

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from interrupted import Killed, Writes, points
from sonic_memory import MemorySwitch

from ansible.module_utils.closloop import sonic_watchdog  # isort: skip
from ansible.module_utils.closloop.reconcile import Refused  # isort: skip

TESTBED = """
name: lab
kind: leaf-spine
leaves: 1
spines: {spines}
hosts_per_leaf: {hosts}
host_link: {{rate: 25Gbps, delay: 1us}}
uplink: {{rate: 100Gbps, delay: 1us}}
mtu: 1500B
buffer: 16MB
"""
DROP = {"action": "drop", "detection_time": "400", "restoration_time": "600"}
# Those of provisioning itself: such a row only starts anew where other queues are watched.
SAME = {"action": "alert", "detection_time": "200", "restoration_time": "200"}
# Each of these at every fourth port.
WATCHDOGS = (
    DROP,
    SAME,
    {"action": "forward", "detection_time": "200", "pfc_stat_history": "enable"},
    None,
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Return a function that makes a switch with some ports, as its operator has set it up."""
    prepared, numbers = {}, itertools.count()
    folder = tmp_path_factory.mktemp("lab")

    def prepare(spines, hosts):
        file = folder / f"{spines}-{hosts}.yml"
        file.write_text(TESTBED.format(spines=spines, hosts=hosts))
        model = switch_model(Layout(load_testbed(str(file)), sonic=("leaf1",)), "leaf1")
        names = tuple(port.name for port in model.ports)
        access = Access("leaf1", "10.0.0.1", platform="sonic", interfaces=names)
        rack = Rack("lab", load_testbed(str(file)), {"leaf1": replace(access, queues=(3,))})
        rows = {}
        for place, name in enumerate(names):
            if watchdog := WATCHDOGS[place % len(WATCHDOGS)]:
                rows[f"PFC_WD|{name}"] = watchdog
            # SONiC's own list, and one that provisioning adds to: then the row starts anew
            rows[f"PORT_QOS_MAP|{name}"] = {
                "dscp_to_tc_map": "AZURE",
                "pfc_enable": "3,4",
                "pfcwd_sw_enable": ("3,4", "4")[(place + place // 4) % 2],
            }
        return model, {"tables": desired_tables(rack, "leaf1")}, rows

    def make(spines=4, hosts=8):
        if (spines, hosts) not in prepared:
            prepared[spines, hosts] = prepare(spines, hosts)
        return MemorySwitch(*prepared[spines, hosts][:2], folder / str(next(numbers)),
                            prepared[spines, hosts][2])  # fmt: skip

    return make


def bring(switch, state, writes):
    """Run the module in a process that may be killed before one of its writes."""
    with suppress(Killed):
        switch.bring(state, writes)


def provisioned(switch):
    switch.bring()
    return switch


@pytest.mark.slow
def test_a_kill_before_any_write_of_provisioning_loses_nothing_once_undone(lab):
    left = {}
    for writes in points(lambda writes: lab().bring("present", writes)):
        switch = lab()
        bring(switch, "present", writes)
        switch.bring("absent")
        left[writes.count] = switch.left()
    assert len(left) > 60
    assert not {point: lost for point, lost in left.items() if lost}


@pytest.mark.slow
def test_a_kill_before_any_write_of_an_undo_loses_nothing_once_undone_again(lab):
    left = {}
    for writes in points(lambda writes: provisioned(lab()).bring("absent", writes)):
        switch = provisioned(lab())
        bring(switch, "absent", writes)
        switch.bring("absent")
        left[writes.count] = switch.left()
    assert len(left) > 50
    assert not {point: lost for point, lost in left.items() if lost}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "first", "second"),
    [
        ("", "present", "absent"),
        ("", "present", "present"),
        ("present", "absent", "absent"),
        ("present", "absent", "present"),
    ],
)
def test_two_kills_in_a_row_lose_nothing_once_undone(lab, begin, first, second):
    def at_first():
        switch = lab(spines=1, hosts=3)
        return provisioned(switch) if begin else switch

    left, points_of_first = {}, list(points(lambda writes: at_first().bring(first, writes)))
    # each of the first with every 17th of the second, in turn
    for place, one in enumerate(points_of_first):
        for other in range(place % 17, len(points_of_first), 17):
            switch = at_first()
            bring(switch, first, Writes(one.kill_before))
            bring(switch, second, Writes(other))
            switch.bring("absent")
            left[one.kill_before, other] = switch.left()
    assert len(left) > 50
    assert not {point: lost for point, lost in left.items() if lost}


def test_what_a_killed_provisioning_has_removed_is_missing_until_the_next_which_says_so(lab):
    switch = lab(1, 3)

    class OnceRemoved(Writes):
        def next(self):
            if "PFC_WD|Ethernet0" not in switch.rows():
                raise Killed
            super().next()

    bring(switch, "present", OnceRemoved())
    now, kept = switch.rows(), record(switch)
    assert kept["format"] == 2  # a version that knows nothing of it leaves it alone
    assert kept["suspended"]["PFC_WD|Ethernet0"] == {"row": DROP}
    foretold = switch.bring("absent", check_mode=True)
    assert foretold["changed"] is True
    line = "PFC_WD|Ethernet0: is nothing, should be action=drop"
    assert any(found.startswith(line) for found in foretold["differences"])
    assert switch.bring("verified")["differences"]
    assert (switch.rows(), record(switch)) == (now, kept)
    skipped = switch.bring("absent")["skipped_steps"]
    assert not [entry for entry in skipped if "PFC_WD|Ethernet" in entry["step"]]
    assert switch.left() == []


def watchdogs(switch):
    """Return the rows of the ports' watchdogs."""
    return {key: row for key, row in switch.rows().items() if key.startswith("PFC_WD|Ethernet")}


def record(switch):
    return json.loads((switch.folder / "closloop" / "provision" / "sonic.json").read_text())


def test_a_row_that_the_operator_removes_stays_removed(lab):
    # after provisioning, and after one that was completed by another
    whole, again = provisioned(lab(1, 3)), lab(1, 3)
    bring(again, "present", Writes(whole_writes(lab) // 2))
    again.bring()
    for switch in (whole, again):
        gone = list(watchdogs(switch))
        assert len(gone) == 4
        switch.operator("DEL", gone[0])
        switch.operator("DEL", gone[1])
        switch.bring("absent")
        assert set(switch.left()) - set(switch.first_actions) == {*gone[:2]}


def whole_writes(lab):
    writes = Writes()
    lab(1, 3).bring("present", writes)
    return writes.count


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sonic_watchdog, "_TIMEOUT_S", 0.0)


def silent_from(monkeypatch, switch, step):
    """Let orchagent take no more rows from a step of the watchdog's restart on."""
    before = getattr(sonic_watchdog.Restart, step)

    def silent(self):
        switch.silent = True
        before(self)

    monkeypatch.setattr(sonic_watchdog.Restart, step, silent)


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_silent_orchagent_is_refused_with_the_rows_put_back(lab, impatient, monkeypatch, state):
    switch = lab(1, 3)
    if state == "absent":
        switch.bring()
    before = watchdogs(switch)
    with monkeypatch.context() as patch:
        silent_from(patch, switch, "stop")
        for _ in range(2):
            with pytest.raises(Refused, match="does not stop"):
                switch.bring(state)
            assert watchdogs(switch) == before
            assert record(switch)["format"] == 1
            switch.silent = False
    switch.bring("absent")
    assert switch.left() == []


@pytest.mark.parametrize("state", ["present", "absent"])
def test_an_orchagent_that_falls_silent_leaves_no_port_without_its_row(
    lab, impatient, monkeypatch, state
):
    switch = lab(1, 3)
    if state == "absent":
        switch.bring()
    with monkeypatch.context() as patch:
        silent_from(patch, switch, "start")
        with pytest.raises(Refused):
            switch.bring(state)
    assert set(watchdogs(switch)) >= {key for key in switch.first if key.startswith("PFC_WD|E")}
    assert record(switch)["format"] == 1
    switch.silent = False
    switch.bring("absent")
    assert switch.left() == []


def test_a_row_removed_after_a_refusal_stays_removed(lab, impatient, monkeypatch):
    switch = lab(1, 3)
    with monkeypatch.context() as patch:
        silent_from(patch, switch, "stop")
        with pytest.raises(Refused, match="does not stop"):
            switch.bring()
    switch.silent = False
    for key in watchdogs(switch):
        switch.operator("DEL", key)
    switch.bring("absent")
    assert watchdogs(switch) == {}


def test_redis_that_refuses_writes_while_rows_are_removed(lab):
    switch = lab(1, 3)

    class Full(Writes):
        def next(self):
            if "PFC_WD|Ethernet0" not in switch.rows():
                raise RedisError("OOM command not allowed when used memory > 'maxmemory'")
            super().next()

    with pytest.raises(RedisError):
        switch.bring("present", Full())
    assert "PFC_WD|Ethernet0" in record(switch)["suspended"]
    switch.bring("absent")
    assert switch.left() == []
