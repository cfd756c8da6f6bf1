"""Adaptive routing by the Ansible module, on the virtual rack's SONiC-like switch.

The switch follows an open pull request of orchagent (virtual_rack/sonic_ars.py), and no kernel
switches flowlets: what is tested is which rows arrive, when, and what an undo leaves.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.rack import Access
from orchestration.backends.hardware.sonic.ars import check_in_effect, choices
from orchestration.device.agent.resp import ASIC_DB, CONFIG_DB, STATE_DB
from orchestration.model.errors import NotReadyError

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from ars_models import ARS
from sonic_module import switches, without_defaults
from sonic_rig import until

from ansible.module_utils.closloop import sonic_ars  # isort: skip
from ansible.module_utils.closloop.reconcile import Refused  # isort: skip

pytestmark = pytest.mark.redis

IDLE = "SAI_OBJECT_TYPE_ARS|SAI_ARS_ATTR_IDLE_TIME"


@pytest.fixture
def make(server):
    """Return a function that starts a switch with a YANG model, if any, that is asked for ARS."""
    (server.folder / "yang-models").mkdir()
    made = switches(server)
    start = next(made)

    def make(idle_us=200, model=ARS, **traits):
        if model:
            (server.folder / "yang-models" / "sonic-ars.yang").write_text(model)
        switch = start(**{"adaptive": True, "release": "202611", **traits})
        switch.also = {"adaptive_routing": {"idle_us": idle_us, "ports": uplinks(switch)}}
        return switch

    yield make
    next(made, None)


def uplinks(switch):
    return choices(whole(switch))["leaf1"]


def whole(switch, **changes):
    """Return the switch's rack with the other switches in it, too."""
    named = tuple(f"Ethernet{number}" for number in range(8))
    others = dict.fromkeys(switch.rack.testbed.switches, Access("", "", interfaces=named))
    access = replace(switch.rack.access["leaf1"], **changes)
    return replace(switch.rack, access={**others, "leaf1": access})


def adaptive(switch):
    return switch.call("sonic.adaptive", ports=uplinks(switch))


def rows(switch):
    keys = switch.redis.call(CONFIG_DB, "KEYS", "ARS_*")
    return {key: switch.row(key) for key in keys}


def test_rows_arrive_are_read_back_and_an_undo_brings_back_what_was_there(make):
    switch = make()
    stock = switch.rows()
    assert adaptive(switch) == {"idle_us": [], "enabled": [], "groups": 1, "bound": {}}
    result = switch.bring()
    # no route is installed anew by it
    (left,) = result["skipped_steps"]
    assert left["step"] == "adaptive routing"
    assert left["reason"].startswith("1 of 1 groups of next hops were made before it was on")
    ports = uplinks(switch)
    assert len(ports) == 2  # of leaf1, to the spines
    assert rows(switch) == {
        "ARS_OBJECT|CLOSLOOP": {"assign_mode": "per_flowlet_quality", "flowlet_idle_time": "200"},
        "ARS_PROFILE|CLOSLOOP": {"algorithm": "ewma", "ars_nhg_path_selector_mode": "interface"},
        **{f"ARS_INTERFACE|{port}": {"ars_obj_name": "CLOSLOOP"} for port in ports},
    }
    assert adaptive(switch) == {"idle_us": [200], "enabled": ports, "groups": 1, "bound": {}}
    assert switch.bring() == {**switch.bring(), "changed": False}

    switch.reload()
    assert adaptive(switch)["bound"] == {"200": 1}

    (kept,) = switch.bring("absent")["skipped_steps"]
    assert kept["reason"].startswith("1 groups of next hops go on choosing by flowlets")
    assert without_defaults(switch.rows(), stock) == stock
    assert switch._bridge.daemons.adaptive.hung == ""
    assert adaptive(switch)["enabled"] == []
    switch.reload()
    assert adaptive(switch) == {"idle_us": [], "enabled": [], "groups": 1, "bound": {}}


def test_another_time_is_set_in_the_object_that_is_there(make):
    switch = make()
    switch.bring()
    switch.reload()
    switch.also["adaptive_routing"]["idle_us"] = 500
    assert switch.bring()["skipped_steps"] == []
    assert adaptive(switch)["bound"] == {"500": 1}
    assert len(switch.redis.call(ASIC_DB, "KEYS", "*SAI_OBJECT_TYPE_ARS:*")) == 1


def test_without_the_setting_a_second_provisioning_takes_it_off(make):
    switch = make()
    switch.bring()
    switch.also = {}
    switch.bring()
    assert rows(switch) == {}
    assert switch._bridge.daemons.adaptive.hung == ""


def test_ports_join_and_leave(make):
    switch = make()
    ports = uplinks(switch)
    switch.also["adaptive_routing"]["ports"] = ports[:1]
    switch.bring()
    assert adaptive(switch)["enabled"] == ports[:1]
    switch.also["adaptive_routing"]["ports"] = ports[1:]
    switch.bring()
    assert adaptive(switch)["enabled"] == ports[1:]


@pytest.mark.parametrize(
    ("model", "traits", "idle_us", "what"),
    [
        ("", {"release": "202405"}, 200,
         "it runs SONiC 202405, whose schema has no ARS_PROFILE: flowlet switching needs adaptive"),
        (ARS.replace("ARS_OBJECT", "ARS_GROUP"), {}, 200,
         "it runs SONiC 202611, whose schema has no ARS_OBJECT"),
        (ARS.replace("flowlet_idle_time", "idle"), {}, 200,
         "it runs SONiC 202611, whose ARS_OBJECT has no flowlet_idle_time"),
        (ARS.replace("enum per_flowlet_quality", "enum flowlet-quality"), {}, 200,
         "it runs SONiC 202611, whose assign_mode of ARS_OBJECT has no per_flowlet_quality"),
        (ARS.replace('key "ars_obj_name"', 'key "profile_name ars_obj_name"'), {}, 200,
         "it runs SONiC 202611, whose ARS_OBJECT has rows by profile_name and ars_obj_name"),
        (ARS, {}, 2048,
         "its schema does not take closloop_flowlet_idle_time: flowlet_idle_time takes 2 to 2047"),
        (ARS, {}, 1, "its schema does not take closloop_flowlet_idle_time"),
        (ARS, {"adaptive": False}, 200,
         "it runs SONiC 202611, whose schema has adaptive routing and whose orchagent has not"),
        (ARS, {"adaptive_lacks": ("SAI_ARS_ATTR_IDLE_TIME",)}, 200,
         "its ASIC has no adaptive routing: SAI does not take SAI_ARS_ATTR_IDLE_TIME"),
        # orchagent would go round the profile for ever
        (ARS, {"adaptive_lacks": ("SAI_ARS_PROFILE_ATTR_ALGO",)}, 200,
         "its ASIC has no adaptive routing: SAI does not take SAI_ARS_PROFILE_ATTR_ALGO"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("check_mode", [False, True])
def test_what_a_switch_lacks_is_named_and_nothing_is_written(
    make, model, traits, idle_us, what, check_mode
):
    switch = make(idle_us, model, **traits)
    stock = switch.rows()
    with pytest.raises(Refused) as refused:
        switch.bring(check_mode=check_mode)
    assert refused.value.what.startswith(what)
    assert refused.value.remedy
    assert switch.rows() == stock


def test_somebodys_profile_is_refused_as_there_is_one_at_most(make):
    switch = make()
    switch.write("ARS_PROFILE|theirs", algorithm="ewma")
    with pytest.raises(Refused, match="it has the adaptive routing profile theirs already"):
        switch.bring()


def test_a_time_that_is_fixed_at_birth_is_refused_before_it_is_written(make):
    switch = make()
    switch.bring()
    switch.redis.call(STATE_DB, "HSET", f"ARS_CAPABILITY_TABLE|{IDLE}", "set", "false")
    switch.also["adaptive_routing"]["idle_us"] = 500
    with pytest.raises(Refused, match="keeps the idle time of 200 us that it began with"):
        switch.bring()
    assert switch.row("ARS_OBJECT|CLOSLOOP")["flowlet_idle_time"] == "200"


def test_rows_that_the_asic_does_not_get_are_taken_back(make, monkeypatch):
    monkeypatch.setattr(sonic_ars, "_TIMEOUT_S", 0.5)
    switch = make()
    # an orchagent that says that it can, and does not
    monkeypatch.setattr(switch._bridge.daemons.adaptive, "_port", lambda name, row: None)
    with pytest.raises(Refused, match=r"the ASIC did not get the idle time of 200 us on Ethernet"):
        switch.bring()
    assert rows(switch) == {}


def test_the_stand_in_hangs_where_orchagent_does(make):
    """So that a removal in the wrong order would be seen above."""
    switch = make()
    switch.bring()
    switch.redis.call(CONFIG_DB, "DEL", "ARS_PROFILE|CLOSLOOP")
    until(lambda: switch._bridge.daemons.adaptive.hung)
    assert "was removed while" in switch._bridge.daemons.adaptive.hung


class Fleet:
    """A fleet of one, whose agent is the switch's."""

    def __init__(self, switch):
        self.switch, self.asked = switch, []

    def ask(self, op, requests):
        self.asked.append(op)
        return {device: self.switch.call(op, **said) for device, said in requests.items()}


def test_a_trial_needs_what_the_inventory_says_in_the_asic(make):
    switch = make()
    fleet = Fleet(switch)
    assert check_in_effect(whole(switch, platform="linux"), fleet) == {}
    assert fleet.asked == []
    off = whole(switch)
    assert check_in_effect(off, fleet) == {}
    rack = whole(switch, flowlet_idle_ns=200_000)
    with pytest.raises(NotReadyError, match="leaf1: its ASIC has no flowlets with an idle time of"):
        check_in_effect(rack, fleet)
    switch.bring()
    with pytest.raises(NotReadyError, match="leaf1: 1 of 1 groups of next hops choose by the flow"):
        check_in_effect(rack, fleet)
    switch.reload()
    assert check_in_effect(rack, fleet)["leaf1"]["bound"] == {"200": 1}
    switch.also["adaptive_routing"]["idle_us"] = 300
    switch.bring()
    with pytest.raises(NotReadyError, match="no flowlets with an idle time of 200 us"):
        check_in_effect(rack, fleet)
    # and after an undo, routes that were not installed again are no ECMP
    switch.bring("absent")
    with pytest.raises(NotReadyError, match="leaf1: 1 of 1 groups of next hops choose by flowlets"):
        check_in_effect(off, fleet)
    switch.reload()
    assert check_in_effect(off, fleet) == {}
