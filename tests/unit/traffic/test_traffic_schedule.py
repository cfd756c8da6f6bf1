"""The schedule: sorted, seeded, the same for every tuner and backend, pattern by pattern."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.core.errors import InputError
from orchestration.core.trial import TunerSpec
from tests.testbeds import star
from tests.trials import trial_spec
from traffic.patterns.all_to_all import AllToAllSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.message_mix import MessageMixSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 10**6
GOLDEN_FLOWS = 83
GOLDEN_DIGEST = "52bb2223a8b7ac2b"
COLUMNS = ("start_ns", "src", "dst", "size_bytes", "klass")

TESTBED = star(*[25] * 6)
POISSON = PoissonSpec("WebSearch", 0.5, 0, 4 * MS)
INCAST = IncastSpec(3, 64_000, MS, 0, 4 * MS)
TRIAL = trial_spec(
    testbed="star",
    traffic=(
        POISSON,
        INCAST,
        AllToAllSpec(2_000, 3 * MS, MS, 4 * MS),
        MessageMixSpec((1_000, 1_000_000), 0.2, 2 * MS, 4 * MS),
        SingleFlowSpec("h0", "h5", 1_000_000, 5),
    ),
    seed=7,
    repeat=0,
    duration_ns=4 * MS,
    drain_ns=MS,
)


def schedule(**changes):
    return make_schedule(dataclasses.replace(TRIAL, **changes), TESTBED)


def same(a, b):
    return a.classes == b.classes and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS
    )


def of_class(flows, klass):
    return [getattr(flows, name)[flows.klass == klass].tolist() for name in COLUMNS[:-1]]


def test_golden_schedule():
    """Notices an accidental change of the random streams, which would unpair old results."""
    flows = schedule()
    digest = hashlib.sha256(repr(flows.classes).encode())
    for name in COLUMNS:
        digest.update(getattr(flows, name).astype("<i8").tobytes())
    assert len(flows) == GOLDEN_FLOWS
    assert digest.hexdigest()[:16] == GOLDEN_DIGEST


def test_sorted_by_start_then_class_source_and_destination():
    flows = schedule()
    names = ("start_ns", "klass", "src", "dst")
    keys = list(zip(*(getattr(flows, name).tolist() for name in names), strict=True))
    assert keys == sorted(keys)
    assert set(flows.klass.tolist()) == set(range(5))
    assert all(getattr(flows, name).dtype == np.int64 for name in COLUMNS)


def test_classes_are_named_after_the_patterns():
    assert schedule().classes == (
        "poisson:WebSearch",
        "incast",
        "all-to-all",
        "message-mix",
        "flow",
    )


def test_class_names_are_unique():
    again = dataclasses.replace(POISSON, workload="websearch")
    classes = schedule(traffic=(POISSON, INCAST, again, INCAST, again)).classes
    assert classes == (
        "poisson:WebSearch",
        "incast",
        "poisson:WebSearch#2",
        "incast#2",
        "poisson:WebSearch#3",
    )


def test_the_same_seed_gives_the_same_schedule_to_every_tuner_and_backend():
    other = schedule(
        campaign="d",
        backend="emulated",
        tuner=TunerSpec("static", {"kmin_bytes": 1, "kmax_bytes": 2}),
        repeat=3,
        drain_ns=9 * MS,
        sample_period_ns=50_000,
        cell={"tuner": "static"},
    )
    assert same(schedule(), other)


def test_another_seed_gives_another_schedule():
    first, second = schedule(traffic=(POISSON,)), schedule(traffic=(POISSON,), seed=8)
    n = min(len(first), len(second))
    for name in ("start_ns", "size_bytes"):
        assert np.mean(getattr(first, name)[:n] == getattr(second, name)[:n]) < 0.1


def test_patterns_of_a_kind_are_independent():
    flows = schedule(traffic=(POISSON, POISSON))
    first, second = of_class(flows, 0), of_class(flows, 1)
    assert not set(first[0]) & set(second[0])
    assert not set(first[3]) & set(second[3])


def test_editing_one_pattern_leaves_the_others_as_they_are():
    before = schedule()
    wider = dataclasses.replace(INCAST, fan_in=5, period_ns=MS // 10)
    after = schedule(traffic=(POISSON, wider, *TRIAL.traffic[2:4]))
    assert len(of_class(after, 1)[0]) == 40 * 5
    for klass in (0, 2, 3):
        assert of_class(before, klass) == of_class(after, klass)


def test_no_flow_starts_after_the_trials_duration():
    flows = schedule(duration_ns=2 * MS)
    longer = schedule()
    assert flows.start_ns.max() < 2 * MS
    assert of_class(flows, 0)[0] == [t for t in of_class(longer, 0)[0] if t < 2 * MS]


def test_a_single_flow_after_the_end_is_refused():
    with pytest.raises(ValueError, match="from h0 to h5 starts at 5 ns"):
        schedule(duration_ns=5)


def test_patterns_change_at_the_times_given():
    flows = schedule(
        traffic=(
            PoissonSpec("AliStorage2019", 0.2, 0, 2 * MS),
            PoissonSpec("FB_Hadoop", 0.8, 2 * MS, 4 * MS),
        )
    )
    assert np.array_equal(flows.klass, (flows.start_ns >= 2 * MS).astype(np.int64))


@pytest.mark.parametrize("traffic", [(), (dataclasses.replace(POISSON, load=0.0),)])
def test_an_empty_schedule_is_well_typed(traffic):
    flows = schedule(traffic=traffic)
    assert len(flows) == 0
    assert len(flows.classes) == len(traffic)
    for name in COLUMNS:
        assert getattr(flows, name).dtype == np.int64
        assert getattr(flows, name).shape == (0,)


def test_an_unknown_workload_and_an_incast_too_wide_are_refused():
    with pytest.raises(InputError, match="did you mean 'WebSearch'"):
        schedule(traffic=(dataclasses.replace(POISSON, workload="WebSerch"),))
    with pytest.raises(ValueError, match="fan-in 6"):
        schedule(traffic=(dataclasses.replace(INCAST, fan_in=6),))


patterns = st.one_of(
    st.builds(
        PoissonSpec,
        workload=st.sampled_from(["WebSearch", "AliStorage2019"]),
        load=st.floats(0, 1),
        start_ns=st.integers(0, 10**5),
        stop_ns=st.integers(0, 10**5),
    ),
    st.builds(
        IncastSpec,
        fan_in=st.integers(1, 5),
        size_bytes=st.integers(1, 10**6),
        period_ns=st.integers(10**4, 10**5),
        start_ns=st.integers(0, 10**5),
        stop_ns=st.integers(0, 10**5),
        receiver=st.sampled_from(["", "h4"]),
    ),
)


@given(
    traffic=st.lists(patterns, max_size=4).map(tuple),
    seed=st.integers(0, 2**31),
    duration_ns=st.integers(1, 10**5),
)
@settings(max_examples=60)
def test_any_schedule_is_sorted_repeatable_and_within_its_windows(traffic, seed, duration_ns):
    flows = schedule(traffic=traffic, seed=seed, duration_ns=duration_ns)
    assert same(flows, schedule(traffic=traffic, seed=seed, duration_ns=duration_ns))
    assert len(set(flows.classes)) == len(traffic)
    assert np.all(np.diff(flows.start_ns) >= 0)
    assert not np.any(flows.src == flows.dst)
    for klass, spec in enumerate(traffic):
        starts = flows.start_ns[flows.klass == klass]
        assert np.all((starts >= spec.start_ns) & (starts < min(spec.stop_ns, duration_ns)))
