"""Adaptive routing of SONiC switches: which rows there are, and which trials a rack is for."""

import dataclasses
import sys
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.backends.hardware.sonic.ars import (
    balanced_interfaces,
    check_configured,
    check_knobs,
    choices,
)
from orchestration.device.agent import ars
from orchestration.device.agent.yang import tables_of
from orchestration.model.errors import NotReadyError
from orchestration.model.load_balancing import ECMP, LoadBalancingSpec
from orchestration.provision.desired import desired_state

sys.path.insert(0, str(Path(__file__).parents[1]))

from ars_models import ARS

TESTBED = load_testbed("graphcc")
QUALITY = LoadBalancingSpec("flowlets", 200_000, 200_000, "quality")


def rack_of(idle_ns=200_000, platform="sonic", testbed=TESTBED):
    def access(device):
        names = tuple(f"Ethernet{4 * n}" for n in range(len(testbed.ports_of[device.name])))
        if device.kind == "host":
            return Access(device.name, "10.0.0.1", interfaces=names)
        return Access(
            device.name, "10.0.0.1", platform=platform, interfaces=names, flowlet_idle_ns=idle_ns
        )

    return Rack("lab", testbed, {device.name: access(device) for device in testbed.devices})


def test_rows_follow_the_schema_of_the_design_too():
    """The design calls tables of ports ARS_INTERFACES, and has defaults (Local_ARS_HLD.md 1.4)."""
    design = tables_of(ARS.replace("container ARS_INTERFACE ", "container ARS_INTERFACES "))
    rows = ars.rows(design, 256, ["Ethernet0"])
    assert rows["ARS_INTERFACES|Ethernet0"] == {"ars_obj_name": "CLOSLOOP"}
    assert list(rows) == ["ARS_OBJECT|CLOSLOOP", "ARS_PROFILE|CLOSLOOP", "ARS_INTERFACES|Ethernet0"]
    assert "ARS_INTERFACE|Ethernet0" in ars.rows(tables_of(ARS), 256, ["Ethernet0"])


@pytest.mark.parametrize("idle_us", [2, 2047])
def test_the_ends_of_the_range_are_in_it(idle_us):
    row = ars.rows(tables_of(ARS), idle_us, [])["ARS_OBJECT|CLOSLOOP"]
    assert row["flowlet_idle_time"] == str(idle_us)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("ARS_PROFILE", "QOS_PROFILE", "schema has no ARS_PROFILE"),
        ("ARS_INTERFACE", "ARS_PORT", "schema has no ARS_INTERFACE"),
        ("ars_nhg_path_selector_mode", "mode", "ARS_PROFILE has no ars_nhg_path_selector_mode"),
        ("enum interface;", "", "ars_nhg_path_selector_mode of ARS_PROFILE has no interface"),
        ("enum ewma;", "enum other;", "algorithm of ARS_PROFILE has no ewma"),
        ("type uint16 { range 2..2047; }", "type string;", "flowlet_idle_time has no range"),
        ("type uint16 {", "units ns; type uint16 {", "flowlet_idle_time is in ns"),
    ],
)
def test_what_a_schema_lacks_is_named(old, new, what):
    with pytest.raises(ars.Missing, match=what):
        ars.rows(tables_of(ARS.replace(old, new)), 200, ["Ethernet0"])


def test_ports_are_those_of_a_choice_and_provisioning_is_asked_for_them():
    rack = rack_of()
    ways = choices(rack)
    leaf, spine = TESTBED.switches[0], TESTBED.switches[-1]
    ups = [port for port in TESTBED.ports_of[leaf] if TESTBED.peer_device(port).kind == "switch"]
    assert ways[leaf] == [rack.interface(port) for port in ups]
    assert ways[spine] == []  # one way down to each leaf
    state = desired_state(rack)
    wanted = {"idle_us": 200, "ports": ways[leaf]}
    assert state[leaf]["sonic"]["adaptive_routing"] == wanted
    assert "adaptive_routing" not in state[spine]["sonic"]
    off = rack_of(idle_ns=0)
    assert balanced_interfaces(off) == {}
    assert "adaptive_routing" not in desired_state(off)[leaf]["sonic"]


def test_a_rack_is_for_trials_that_ask_for_what_it_has():
    check_configured(rack_of(), [QUALITY])
    check_configured(rack_of(0), [ECMP])
    check_configured(rack_of(0, "linux"), [ECMP, LoadBalancingSpec("flowlets")])


@pytest.mark.parametrize(
    ("rack", "spec", "what"),
    [
        (rack_of(), ECMP, "leaf1 has closloop_flowlet_idle_time 200us, the campaign ecmp"),
        (rack_of(0), QUALITY, "leaf1 has no closloop_flowlet_idle_time, the campaign a timeout of"),
        (rack_of(300_000), QUALITY, "idle_time 300us, the campaign a timeout of 200us"),
        (rack_of(0, "linux"), QUALITY, "leaf1 is no SONiC switch: `route_by: quality`"),
        *(
            (rack_of(), dataclasses.replace(QUALITY, route_by=name), f"not flowlets by {name}")
            for name in ("random", "round-robin", "drill", "conga")
        ),
        (rack_of(0), LoadBalancingSpec("spray"), "leaf1 runs SONiC, .* not spray by random"),
    ],
)
def test_others_are_refused_by_the_switchs_name(rack, spec, what):
    with pytest.raises(NotReadyError, match=what) as refused:
        check_configured(rack, [spec])
    assert "closloop provision" in refused.value.remedy


@dataclasses.dataclass
class Turning:
    knobs: tuple = ("ecn", "flowlet_timeout")


def test_the_timeout_of_a_sonic_switch_is_no_knob():
    with pytest.raises(NotReadyError, match=r"mine turns the flowlet timeout of leaf1, leaf2"):
        check_knobs(rack_of(), {"secn1": Turning(("ecn",)), "mine": Turning()})
    check_knobs(rack_of(), {"secn1": Turning(("ecn",))})
    check_knobs(rack_of(0, "linux"), {"mine": Turning()})
