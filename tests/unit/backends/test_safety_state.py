"""What a snapshot holds against what is there now: differences, and the plan to put it back."""

import copy
import random
from typing import Any

import pytest

from orchestration.agent.linux import netlink, qdiscs
from orchestration.agent.linux.kernel import write_sysctls
from orchestration.agent.linux.qdiscs import Red
from orchestration.agent.main import OperationError
from orchestration.agent.safety.snapshot_form import check_form
from orchestration.agent.safety.state import differences, restore_plan, snapshot
from orchestration.backends.hardware.safety.restore_result import (
    describe_difference,
    is_foreign,
    restore_result,
)

RED = Red(1_000_000, 5_000, 200_000, 0, 0, 0, 42_949_672, 9, 15)
ROOT = 0xFFFFFFFF


def red(handle: int = 0x30000, parent: int = 0x20001, **changed: Any) -> dict[str, Any]:
    values = RED._replace(**changed)._asdict()
    return {"kind": "red", "handle": handle, "parent": parent, "options": "", "red": values}


def tbf(options: str = "aa") -> dict[str, Any]:
    return {"kind": "tbf", "handle": 0x20000, "parent": ROOT, "options": options}


def state(**changed: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "boot": "b",
        "interfaces": {"eth0": [tbf(), red()], "eth1": [tbf(), red()]},
        "sysctls": {"net/ipv4/tcp_ecn": "2", "net/ipv4/absent": None},
        "fingerprints": {"addresses": "1", "routes": "2", "rules": "3"},
        "rows": None,
        "saved": None,
        **changed,
    }


def test_the_same_state_needs_nothing() -> None:
    assert differences(state(), state()) == []
    plan = restore_plan(state(), state())
    assert not any(plan)


def test_changed_thresholds_are_put_back_at_once_and_the_limit_after_that() -> None:
    now = state(interfaces={"eth0": [tbf(), red(kmin_bytes=1)], "eth1": [tbf(), red()]})
    (change,) = restore_plan(now, state()).reds
    interface, handle, parent, wanted = change
    assert (interface, handle, parent) == ("eth0", 0x30000, 0x20001)
    # a limit of 0 leaves the queue alone, and reads 0 afterwards
    assert wanted == RED._replace(limit_bytes=0)
    assert restore_plan(now, state()).limits == [("eth0", 0x30000, 0x20001, RED)]


def test_a_limit_that_reads_0_since_a_change_is_put_back_last() -> None:
    changed = red(limit_bytes=0, kmax_bytes=300_000)
    now = state(interfaces={"eth0": [tbf(), changed], "eth1": [tbf(), red()]})
    plan = restore_plan(now, state())
    assert [item[0] for item in plan.reds] == ["eth0"]
    assert plan.limits == [("eth0", 0x30000, 0x20001, RED)]


def test_a_limit_is_left_alone_where_another_qdisc_is_in_the_queue() -> None:
    inner = {"kind": "fq", "handle": 0x90000, "parent": 0x30001, "options": ""}
    now = state(interfaces={"eth0": [tbf(), red(limit_bytes=0), inner], "eth1": [tbf(), red()]})
    assert restore_plan(now, state()).limits == []


def test_what_the_snapshot_does_not_name_is_not_touched() -> None:
    wanted = state(interfaces={"eth0": [tbf(), red()]}, sysctls={})
    now = state(
        interfaces={"eth0": [tbf(), red()], "eth1": [tbf(), red(kmin_bytes=1)]},
        sysctls={"net/ipv4/tcp_ecn": "1"},
    )
    assert not any(restore_plan(now, wanted))
    assert differences(wanted, now) == []


def test_a_missing_interface_or_queue_is_said_and_keeps_nothing_from_the_rest() -> None:
    now = state(
        interfaces={"eth0": None, "eth1": [tbf()]},
        sysctls={"net/ipv4/tcp_ecn": "1", "net/ipv4/absent": None},
    )
    plan = restore_plan(now, state())
    assert (plan.reds, plan.limits) == ([], [])
    assert plan.sysctls == {"net/ipv4/tcp_ecn": "2"}
    told = [(item.part, item.where) for item in differences(state(), now)]
    assert told == [
        ("interface", "eth0"),
        ("qdisc", "eth1 qdisc 3: parent 0x20001"),
        ("sysctl", "net/ipv4/tcp_ecn"),
    ]


def test_a_queue_of_another_kind_is_said_and_left_alone() -> None:
    other = {"kind": "fq_codel", "handle": 0x30000, "parent": 0x20001, "options": ""}
    now = state(interfaces={"eth0": [tbf(), other], "eth1": [tbf("bb"), red()]})
    assert not any(restore_plan(now, state()))
    assert [item.what for item in differences(state(), now)] == ["kind", "options"]


def test_addresses_and_routes_that_changed_are_somebody_elses() -> None:
    now = state(fingerprints={"addresses": "1", "routes": "x", "rules": "3"})
    assert not any(restore_plan(now, state()))
    (item,) = differences(state(), now)
    assert is_foreign(item._asdict())
    assert (
        describe_difference(item._asdict()) == "its routes were changed meanwhile, not by this run"
    )


PROFILE, QUEUE = "WRED_PROFILE|CLOSLOOP_Ethernet0_3", "QUEUE|Ethernet0|3"
ROWS = {
    PROFILE: {"green_min_threshold": "1000", "green_max_threshold": "2000"},
    QUEUE: {"wred_profile": "LOSSLESS"},
}


def test_a_changed_profile_is_written_whole() -> None:
    now = {**ROWS, PROFILE: {"green_min_threshold": "5000", "green_max_threshold": "9", "x": "1"}}
    plan = restore_plan(state(rows=now), state(rows=ROWS))
    assert plan.rows == {PROFILE: ROWS[PROFILE]}


def test_a_profile_that_is_gone_is_said_and_not_made_again() -> None:
    now = {**ROWS, PROFILE: None}
    assert not any(restore_plan(state(rows=now), state(rows=ROWS)))
    (item,) = differences(state(rows=ROWS), state(rows=now))
    assert (item.part, item.where) == ("lost row", PROFILE)
    assert not is_foreign(item._asdict())
    # nothing can be restored: it does not keep the device from the next run
    assert restore_result("s", {"differences": [item._asdict()]}, "x").settled


def test_a_queue_that_somebody_else_bound_to_another_profile_is_said_and_left_alone() -> None:
    now = {**ROWS, QUEUE: {"wred_profile": "OTHER"}}
    assert not any(restore_plan(state(rows=now), state(rows=ROWS)))
    (item,) = differences(state(rows=ROWS), state(rows=now))
    assert (item.part, item.what) == ("other row", "wred_profile")
    assert "is OTHER, not LOSSLESS as before the run" in describe_difference(item._asdict())


def test_a_row_that_somebody_else_added_is_said_and_stays() -> None:
    wanted = {**ROWS, "QUEUE|Ethernet4|3": None}
    now = {**ROWS, "QUEUE|Ethernet4|3": {"wred_profile": "OTHER"}}
    assert not any(restore_plan(state(rows=now), state(rows=wanted)))
    (item,) = differences(state(rows=wanted), state(rows=now))
    assert item.part == "new row"
    assert is_foreign(item._asdict())


def test_thresholds_that_somebody_saved_during_the_run_are_said() -> None:
    tuned = {PROFILE: {"green_min_threshold": "7"}, QUEUE: ROWS[QUEUE]}
    wanted = state(rows=ROWS, saved={PROFILE: None, QUEUE: None})
    (item,) = differences(wanted, state(rows=ROWS, saved=tuned))
    assert (item.part, item.where) == ("saved row", "/etc/sonic/config_db.json")
    assert is_foreign(item._asdict())
    assert "save it again now (config save)" in describe_difference(item._asdict())
    # what was saved before, or is as before, is no news
    assert differences(wanted, state(rows=ROWS, saved=ROWS)) == []
    assert differences({**wanted, "saved": tuned}, state(rows=ROWS, saved=tuned)) == []


FOREIGN = [
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/rp_filter",
    "net/core/bpf_jit_harden",
    "net/ipv4/../../kernel/core_pattern",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_setting_that_no_run_writes_is_not_written(name: str) -> None:
    """Whoever wrote the snapshot; those of closloop 0.2.0 have forwarding in them."""
    wanted, now = state(sysctls={name: "0"}), state(sysctls={name: "1"})
    assert not any(restore_plan(now, wanted))
    (item,) = differences(wanted, now)
    assert item.part == "other sysctl"
    assert restore_result("s", {"differences": [item._asdict()]}, "x").settled
    for refuses in (
        lambda: snapshot({"sysctls": [name]}),
        lambda: write_sysctls({"values": {name: "0"}}),
    ):
        with pytest.raises(OperationError, match="is not a setting that runs may write"):
            refuses()


@pytest.mark.parametrize(
    ("name", "value"),
    [("net/ipv4/tcp_ecn", "x" * 9), ("net/ipv4/tcp_congestion_control", "../evil")],
)
def test_a_setting_is_given_no_text_that_it_cannot_have_had(name: str, value: str) -> None:
    assert not any(restore_plan(state(sysctls={name: "1"}), state(sysctls={name: value})))


def test_red_at_a_handle_that_is_not_closloops_is_somebody_elses() -> None:
    theirs = {"eth0": [tbf(), red(handle=0x10000)]}
    now = state(interfaces={"eth0": [tbf(), red(handle=0x10000, kmin_bytes=1)]})
    assert not any(restore_plan(now, state(interfaces=theirs)))
    (item,) = differences(state(interfaces=theirs), now)
    assert (item.part, item.what) == ("qdisc", "kmin_bytes")


@pytest.mark.parametrize("key", ["WRED_PROFILE|AZURE_LOSSLESS", "PORT|Ethernet0"])
def test_a_row_that_is_not_closloops_own_is_not_written(key: str) -> None:
    wanted, now = ({key: {"ecn": "ecn_all"}}, {key: {"ecn": "ecn_none"}})
    assert not any(restore_plan(state(rows=now), state(rows=wanted)))


def test_of_a_profile_only_wred_fields_of_their_type_are_written() -> None:
    wanted = {PROFILE: {**ROWS[PROFILE], "ecn": "`reboot`", "own": "1"}}
    now = {PROFILE: {"green_min_threshold": "7", "ecn": "ecn_green", "own": "2"}}
    (row,) = restore_plan(state(rows=now), state(rows=wanted)).rows.values()
    # an operator's own field stays as it is now
    assert row == {**ROWS[PROFILE], "ecn": "ecn_green", "own": "2"}
    left = differences(state(rows=wanted), state(rows={PROFILE: row}))
    assert {item.part for item in left} == {"other row"}


DAMAGED = [
    {"interfaces": []},
    {"interfaces": {"eth0": [{"kind": "red"}]}},
    {"interfaces": {"eth0": [{**red(), "red": {**RED._asdict(), "max_p": "x"}}]}},
    {"interfaces": {"eth0": [red(wlog=300)]}},
    {"sysctls": {"net/ipv4/tcp_ecn": 5}},
    {"rows": {PROFILE: ["ecn"]}},
    {"rows": {"PORT|Ethernet0": None}},
    {"boot": None},
    {"saved": 5},
]


@pytest.mark.parametrize("changed", DAMAGED)
def test_a_snapshot_of_other_types_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(OperationError, match=r"damaged|not a row that runs may read"):
        check_form(state(**changed))


def test_a_snapshot_of_right_types_is_not_refused() -> None:
    check_form(state(rows={**ROWS, "QUEUE|Ethernet4|3": None}, interfaces={"eth9": None}))


@pytest.mark.parametrize("seed", range(30))
def test_carrying_out_the_plan_leaves_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    wanted = state(rows=copy.deepcopy(ROWS))
    now = copy.deepcopy(wanted)
    for qdiscs_ in now["interfaces"].values():
        for field in ("limit_bytes", "kmin_bytes", "kmax_bytes", "max_p", "flags", "wlog"):
            if rng.random() < 0.5:
                qdiscs_[1]["red"][field] = 0
    if rng.random() < 0.5:
        now["sysctls"]["net/ipv4/tcp_ecn"] = "0"
    for field in list(now["rows"][PROFILE]):
        if rng.random() < 0.5:
            now["rows"][PROFILE][field] = "7"
    if rng.random() < 0.5:
        now["rows"][PROFILE]["extra"] = "1"

    carry_out(restore_plan(now, wanted), now)

    assert differences(wanted, now) == []
    assert not any(restore_plan(now, wanted))


def carry_out(plan: Any, now: dict[str, Any]) -> None:
    """Do what the kernel and Redis would."""
    for interface, _, _, wanted in plan.reds:
        found = now["interfaces"][interface][1]["red"]
        found.update({**wanted._asdict(), "limit_bytes": 0})
    for interface, _, _, wanted in plan.limits:
        now["interfaces"][interface][1]["red"].update(wanted._asdict())
    now["sysctls"].update(plan.sysctls)
    now["rows"].update(plan.rows)


def test_a_red_request_is_the_change_that_the_backends_send() -> None:
    # the same parameters, encoded by the backends' encoder for live changes
    ours = qdiscs.red_request(7, 0x30000, 0x20001, RED._replace(limit_bytes=0))
    theirs = qdiscs.red_change(7, 0x30000, 0x20001, RED.kmin_bytes, RED.kmax_bytes, RED.max_p)
    assert parsed(ours)[:3] == parsed(theirs)[:3]
    assert parsed(ours)[3] == parsed(theirs)[3]._replace(known=15)


def parsed(request: bytes) -> tuple[bytes, bytes, bytes, Red]:
    found = netlink.attributes(request, 36)
    options = netlink.attributes(found[2])
    return request[16:36], found[1], options[2], qdiscs.red_parameters(found[2])


@pytest.mark.parametrize(
    "red",
    [
        RED,
        Red(1000, 500, 500, 9, 21, 10, 85_899_345, 1, 15),
        # a kernel before 5.7 has the flags in the parameters
        Red(1000, 500, 700, 9, 21, 10, 85_899_345, 1, 0),
    ],
)
def test_red_parameters_survive_encoding(red: Red) -> None:
    found = netlink.attributes(qdiscs.red_request(1, 2, 3, red), 36)
    assert qdiscs.red_parameters(found[2]) == red


def test_cut_netlink_attributes_end_quietly() -> None:
    whole = netlink.attribute(1, b"abc") + netlink.attribute(2, b"defgh")
    assert netlink.attributes(whole) == {1: b"abc", 2: b"defgh"}
    for length in range(len(whole)):
        assert netlink.attributes(whole[:length]).items() <= {1: b"abc", 2: b"defgh"}.items()


def test_an_outcome_is_read_strictly_and_shown_safely() -> None:
    outcome = restore_result(
        "leaf1",
        {
            "changed": ["RED\x1b[2J", 5],
            "differences": [{"part": "red", "where": "a\nb"}, "nonsense"],
        },
        "was restored",
    )
    assert outcome.changed == ("RED [2J", "5")
    assert not outcome.settled
    assert "\x1b" not in outcome.text
    assert outcome.text.splitlines()[0] == (
        "leaf1: was restored, but not completely; 2 settings put back"
    )
    assert restore_result("leaf1", {"changed": None, "differences": 3}, "x").settled
