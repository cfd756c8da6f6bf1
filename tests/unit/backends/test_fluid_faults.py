"""The plan of a trial's faults in time."""

import pytest

from inventory.files import load_testbed
from orchestration.backends.common.faults import fault_plan, link_name
from orchestration.core.trial import FaultSpec, TrialSpec, TunerSpec

TESTBED = load_testbed("graphcc")


def plan(*faults, seed=1):
    trial = TrialSpec(
        "c", "graphcc", "fluid", TunerSpec("secn1"), (), seed, 1, 10, 10, faults=faults
    )
    return fault_plan(trial, TESTBED)


def names(step):
    return {link_name(TESTBED, TESTBED.links[index]) for index in step.down}


def test_routes_follow_each_change_after_convergence():
    steps = plan(FaultSpec(100, 200, 30, links=("leaf1-spine2",)))
    assert [(step.t_ns, step.kind, names(step)) for step in steps] == [
        (100, "links", {"leaf1-spine2"}),
        (130, "routes", {"leaf1-spine2"}),
        (200, "links", set()),
        (230, "routes", set()),
    ]
    assert [step.detail for step in steps[::2]] == ["down: leaf1-spine2", "up: leaf1-spine2"]


def test_a_link_is_down_while_any_fault_holds_it():
    long = FaultSpec(100, 400, 0, links=("leaf1-spine1",))
    short = FaultSpec(200, 300, 0, links=("spine1-leaf1", "leaf2-spine1"))
    down = [(step.t_ns, names(step)) for step in plan(long, short) if step.kind == "links"]
    assert down == [
        (100, {"leaf1-spine1"}),
        (200, {"leaf1-spine1", "leaf2-spine1"}),
        (300, {"leaf1-spine1"}),
        (400, set()),
    ]


def test_a_share_is_drawn_from_the_links_between_switches_by_the_seed():
    fault = FaultSpec(100, None, 0, share=0.25)
    chosen = {seed: plan(fault, seed=seed)[0].down for seed in range(20)}
    assert {len(links) for links in chosen.values()} == {2}
    assert all("h" not in name for step in plan(fault) for name in names(step))
    assert len(set(chosen.values())) > 5
    assert chosen[3] == plan(fault, seed=3)[0].down


def test_an_unknown_link_is_an_error():
    with pytest.raises(ValueError, match="leaf9-spine1"):
        plan(FaultSpec(100, None, 0, links=("leaf9-spine1",)))
