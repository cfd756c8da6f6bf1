"""Signals and knobs: what their declarations say, what follows from them, and bounds."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.files import load_testbed
from orchestration.core.knobs import ECN, KNOBS, Bounds, Column, ImpossibleSetting, Knob
from orchestration.core.parts import SwitchSpec
from orchestration.core.ports import Offer
from orchestration.core.records import Change
from orchestration.core.signals import (
    BY_KEY,
    DERIVED,
    FLOW_SCOPE,
    FLOW_TABLE,
    SIGNALS,
    TABLE_OF,
    TARGET_COLUMNS,
    Signal,
    recorded,
    sampled_scopes,
    target_names,
    targets,
    wants_flow_table,
)
from orchestration.results.tables import TABLES
from tuners.base import BaseTuner

TESTBED = load_testbed("rlcc-7")

# declarations


def test_no_two_signals_have_one_key_and_no_two_knobs_one_name_or_table():
    assert len(BY_KEY) == len(SIGNALS)
    assert all(BY_KEY[signal.key] is signal for signal in SIGNALS)
    assert all(name == knob.name for name, knob in KNOBS.items())
    scopes = [*sampled_scopes(), FLOW_SCOPE]
    made = [TABLE_OF[scope] for scope in scopes] + [k.table for k in KNOBS.values()]
    assert len(made) == len(set(made)), "each table has one maker"
    assert set(made) | {"schedule", "flows", "events"} == set(TABLES)


def test_keys_name_the_scope_unless_it_is_a_queue():
    assert BY_KEY["tx_bytes"].scope == "queue"
    assert BY_KEY["host.tx_bytes"].scope == "host"
    assert Signal("timeouts", "switch", "1", "").key == "switch.timeouts"


def test_every_declaration_has_a_unit_and_says_what_it_means():
    for one in (*SIGNALS, *(column for knob in KNOBS.values() for column in knob.columns)):
        assert one.unit, one.name
        assert one.help, one.name


def test_a_recorded_signal_is_a_whole_number():
    with pytest.raises(ValueError, match="'share' is recorded, so its dtype"):
        Signal("share", "queue", "1", "", dtype="float64")
    assert not Signal("share", "queue", "1", "", dtype="float64", recorded=False).recorded


def test_what_needs_a_flow_table_is_not_recorded():
    assert FLOW_TABLE == ("incast_degree", "mice_flows", "elephant_flows")
    assert wants_flow_table(["qlen_bytes", "mice_flows"])
    assert not wants_flow_table(BaseTuner.observes)
    assert set(FLOW_TABLE).isdisjoint(one.key for one in recorded("queue"))
    assert set(DERIVED) <= set(BY_KEY)


# The schema of 0.1, typed out: files of that version must stay readable, and new ones like them.
TABLES_OF_0_1 = {
    "ports": {
        "t_ns": pa.int64(),
        "device": pa.dictionary(pa.int32(), pa.string()),
        "port": pa.dictionary(pa.int32(), pa.string()),
        "queue": pa.int16(),
        "qlen_bytes": pa.int64(),
        "tx_bytes": pa.int64(),
        "tx_packets": pa.int64(),
        "marked_packets": pa.int64(),
        "dropped_packets": pa.int64(),
    },
    "hosts": {
        "t_ns": pa.int64(),
        "host": pa.dictionary(pa.int32(), pa.string()),
        "retransmits": pa.int64(),
        "timeouts": pa.int64(),
        "out_of_order": pa.int64(),
        "tx_bytes": pa.int64(),
    },
    "actions": {
        "t_ns": pa.int64(),
        "decided_ns": pa.int64(),
        "applied_ns": pa.int64(),
        "device": pa.dictionary(pa.int32(), pa.string()),
        "port": pa.dictionary(pa.int32(), pa.string()),
        "queue": pa.int16(),
        "kmin_bytes": pa.int64(),
        "kmax_bytes": pa.int64(),
        "pmax": pa.float64(),
    },
}


@pytest.mark.parametrize("name", TABLES_OF_0_1)
def test_tables_that_follow_from_declarations_are_those_of_0_1(name):
    found, known = dict(TABLES[name].columns), TABLES_OF_0_1[name]
    # columns that came later are behind those of 0.1
    assert list(found)[: len(known)] == list(known)
    assert (len(found) > len(known)) == (TABLES[name].version > 1)
    assert {column: found[column] for column in known} == known


def test_targets_are_in_the_order_of_the_testbed():
    assert targets(TESTBED, "switch") == TESTBED.switches
    assert targets(TESTBED, "host") == TESTBED.hosts
    assert targets(TESTBED, "queue") == tuple(queue.label for queue in TESTBED.queues)
    assert targets(TESTBED, "flow") == ()
    assert targets(TESTBED, "priority") == ()
    lossless = dataclasses.replace(TESTBED, switch=SwitchSpec(10**7, (1.0,), (0,)))
    assert targets(lossless, "priority") == targets(TESTBED, "queue")
    for scope in sampled_scopes():
        names = target_names(lossless, scope)
        assert len(names) == len(targets(lossless, scope)) == len(set(names))
        assert {len(name) for name in names} == {len(TARGET_COLUMNS[scope])}


def test_an_offer_names_all_that_a_tuner_lacks():
    tuner = BaseTuner()
    tuner.observes = ("qlen_bytes", "incast_degree")
    tuner.knobs = ("ecn", "gap")
    tuner.programs = ("policy",)
    assert Offer(["qlen_bytes"], ["ecn"]).lacks(tuner) == [
        ("signal", "incast_degree"),
        ("knob", "gap"),
        ("program", "policy"),
    ]
    assert Offer(["qlen_bytes", "incast_degree"], ["ecn", "gap"], ["policy"]).lacks(tuner) == []


# bounds of ECN thresholds


def change(queue=0, kmin=5_000, kmax=200_000, pmax=0.1):
    return ECN.change(*(np.array([value]) for value in (queue, kmin, kmax, pmax)))


ONE = Bounds(ECN, 1)


@pytest.mark.parametrize("good", [change(), change(kmin=0, kmax=0), change(pmax=1.0)])
def test_valid_thresholds_pass(good):
    ONE.check(good)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (change(queue=1), "not in 0..0"),
        (change(queue=-1), "not in 0..0"),
        (change(kmin=float("nan")), "got nan and 200000.*B"),
        (change(kmin=300_000), "got 300000 and 200000 B"),
        (change(kmin=-1), "got -1 and 200000 B"),
        (change(pmax=1.1), "pmax 1.1"),
        (change(pmax=float("nan")), "pmax nan"),
    ],
)
def test_others_are_refused_with_their_values(bad, says):
    with pytest.raises(ValueError, match=says):
        ONE.check(bad)


def test_arrays_of_different_lengths_are_refused():
    good = change()
    for wrong in (
        dataclasses.replace(good, values={**good.values, "pmax": np.zeros(2)}),
        dataclasses.replace(good, targets=np.zeros((1, 1), dtype=np.int64)),
    ):
        for judge in (ONE.check, ONE.clamp):
            with pytest.raises(ImpossibleSetting, match="one length"):
                judge(wrong)


def test_columns_that_are_missing_or_unknown_are_refused():
    good = change()
    less = {name: array for name, array in good.values.items() if name != "pmax"}
    for values in (less, {**good.values, "colour": good.pmax}):
        for judge in (ONE.check, ONE.clamp):
            with pytest.raises(ImpossibleSetting, match="has kmin_bytes, kmax_bytes, pmax"):
                judge(dataclasses.replace(good, values=values))


BUFFERS = np.array([100_000, 300_000])
TWO = Bounds(ECN, 2, BUFFERS)


@pytest.mark.parametrize(
    ("wide", "kmin", "kmax", "pmax"),
    [
        (change(queue=1, kmin=-1), 0, 200_000, 0.1),
        (change(queue=1, kmax=300_001), 5_000, 300_000, 0.1),
        (change(queue=0, kmin=150_000), 100_000, 100_000, 0.1),
        (change(queue=1, kmin=250_000), 200_000, 200_000, 0.1),
        (change(queue=1, pmax=1.5), 5_000, 200_000, 1.0),
        (change(queue=1, pmax=-0.5), 5_000, 200_000, 0.0),
    ],
)
def test_thresholds_are_brought_into_their_queues_bounds(wide, kmin, kmax, pmax):
    clamped, count = TWO.clamp(wide)
    assert count == 1
    TWO.check(clamped)
    assert (clamped.kmin_bytes[0], clamped.kmax_bytes[0], clamped.pmax[0]) == (kmin, kmax, pmax)


def test_thresholds_within_bounds_are_the_same_object():
    good = change(queue=1)
    clamped, count = TWO.clamp(good)
    assert clamped is good
    assert count == 0


def test_what_is_no_number_is_not_clamped_but_refused():
    for bad in (change(queue=1, pmax=float("nan")), change(queue=1, kmin=float("nan"))):
        clamped, count = TWO.clamp(bad)
        assert count == 0
        with pytest.raises(ImpossibleSetting) as caught:
            TWO.check(clamped)
        assert caught.value.target == 1
        assert "nan" in caught.value.what


def test_a_queue_has_the_bounds_of_its_buffer():
    bounds = ECN.bounds(TESTBED)
    assert bounds.count == len(TESTBED.queues)
    assert bounds.maximum.tolist() == [queue.buffer_bytes for queue in TESTBED.queues]


# any change of any knob

GAP = Knob(
    "gap",
    "switch",
    (
        Column(
            "timeout_ns", "ns", "gap after which a flow may move", minimum=1_000, maximum=1_000_000
        ),
        Column("share", "1", "share of flows that may", "float64", maximum=1),
    ),
    "flowlets of a switch",
)
STAIR = Knob(
    "stair",
    "host",
    tuple(Column(f"step{n}", "B", "", minimum=10) for n in range(3)),
    "three steps, none lower than the one before",
    capacity=lambda testbed: np.arange(100, 100 + len(testbed.hosts)),
    ascending=("step0", "step1", "step2"),
)


@st.composite
def changes(draw, knob):
    """Draw any change at targets that exist, each once."""
    bounds = knob.bounds(TESTBED)
    some = draw(st.lists(st.integers(0, bounds.count - 1), unique=True, max_size=5))

    def values(column):
        if column.dtype == "int64":
            number = (
                st.integers(-50, 2_000_000) | st.integers(-(2**62), 2**62) | st.integers(0, 150)
            )
        else:
            number = st.floats(-2, 2) | st.floats(allow_nan=False)
        return np.array(
            draw(st.lists(number, min_size=len(some), max_size=len(some))), column.dtype
        )

    return knob.change(some, *(values(column) for column in knob.columns))


def within(knob, row, target):
    """Say in plain Python whether one target's setting is within bounds."""
    maximum = None if knob.capacity is None else knob.capacity(TESTBED)[target]
    for column, value in zip(knob.columns, row, strict=True):
        top = column.maximum if column.maximum is not None else maximum
        if not column.minimum <= value or (top is not None and not value <= top):
            return False
    steps = [
        value for one, value in zip(knob.columns, row, strict=True) if one.name in knob.ascending
    ]
    return steps == sorted(steps)


def rows_of(knob, one):
    return list(zip(*(one[name].tolist() for name in knob.column_names), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("knob", [ECN, GAP, STAIR], ids=lambda knob: knob.name)
@given(data=st.data())
def test_what_is_clamped_is_within_bounds_and_only_what_was_not_is_changed(knob, data):
    asked = data.draw(changes(knob))
    bounds = knob.bounds(TESTBED)
    clamped, count = bounds.clamp(asked)
    bounds.check(clamped)
    before, after = rows_of(knob, asked), rows_of(knob, clamped)
    wrong = [
        not within(knob, row, target)
        for row, target in zip(before, asked.targets.tolist(), strict=True)
    ]
    assert count == sum(wrong)
    for row, now, bad, target in zip(before, after, wrong, asked.targets.tolist(), strict=True):
        assert within(knob, now, target)
        assert (now != row) == bad
    np.testing.assert_array_equal(clamped.targets, asked.targets)
    assert bounds.clamp(clamped) == (clamped, 0)


@pytest.mark.parametrize("knob", [ECN, GAP, STAIR], ids=lambda knob: knob.name)
@given(data=st.data())
def test_check_refuses_what_is_out_of_bounds_and_names_its_target(knob, data):
    asked = data.draw(changes(knob))
    # capacities bring settings into bounds, and are no error of their own in an ascending column
    bounds = dataclasses.replace(knob.bounds(TESTBED), maximum=None)
    free = dataclasses.replace(knob, capacity=None)
    wrong = [
        target
        for row, target in zip(rows_of(knob, asked), asked.targets.tolist(), strict=True)
        if not within(free, row, target)
    ]
    if not wrong:
        bounds.check(asked)
        return
    with pytest.raises(ImpossibleSetting) as caught:
        bounds.check(asked)
    assert caught.value.target in wrong
    assert str(caught.value) == f"{knob.scope} {caught.value.target}: {caught.value.what}"


@pytest.mark.slow
@pytest.mark.parametrize("knob", [ECN, GAP, STAIR], ids=lambda knob: knob.name)
@given(data=st.data())
def test_targets_that_do_not_exist_or_come_twice_are_refused(knob, data):
    good, _ = knob.bounds(TESTBED).clamp(data.draw(changes(knob)))
    count = knob.bounds(TESTBED).count
    outside = data.draw(st.integers(-5, -1) | st.integers(count, count + 5))
    extra = outside if not len(good.targets) or data.draw(st.booleans()) else good.targets[0]
    where = data.draw(st.integers(0, len(good.targets)))
    bad = Change(
        knob.name,
        np.insert(good.targets, where, extra),
        {name: np.insert(array, where, 10) for name, array in good.values.items()},
    )
    for judge in (knob.bounds(TESTBED).check, knob.bounds(TESTBED).clamp):
        with pytest.raises(
            ImpossibleSetting, match=f"is not in 0..{count - 1}|set twice"
        ) as caught:
            judge(bad)
        assert knob.scope in str(caught.value)


def test_a_knob_of_another_scope_says_whose_setting_is_wrong():
    bounds = GAP.bounds(TESTBED)
    assert bounds.count == len(TESTBED.switches)
    with pytest.raises(ImpossibleSetting, match=r"^switch 0: timeout 7 is not in 1000..1000000$"):
        bounds.check(GAP.change([0], 7, 0.5))
    with pytest.raises(ImpossibleSetting, match=r"^switch 0: share nan is not in 0..1$"):
        bounds.check(GAP.change([0], 5_000, np.nan))
    assert GAP.table == "actions_gap"
    assert GAP.columns[0].short == "timeout"
    assert ECN.table == "actions"


def test_a_single_number_is_meant_for_all_targets():
    one = GAP.change([0, 2], 5_000, [0.5, 0.25])
    assert one.timeout_ns.tolist() == [5_000, 5_000]
    assert one.share.tolist() == [0.5, 0.25]
    assert one.at(np.array([False, True])).targets.tolist() == [2]
    assert GAP.of((one,)) is one
    assert ECN.of((one,)) is None
    with pytest.raises(AttributeError, match="kmin_bytes"):
        one.kmin_bytes  # noqa: B018
