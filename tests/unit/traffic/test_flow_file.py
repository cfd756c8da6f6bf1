"""Recorded flows: the CSV is strict, and a replay of a schedule is that schedule."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestration.core.csv_columns import write_csv
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec, TunerSpec
from tests.testbeds import star
from traffic.patterns.all_to_all import AllToAllSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.replay import HEADER, ReplaySpec, host_numbers, read_flows
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 10**6
TESTBED = star(*[25] * 5)
COLUMNS = ("start_ns", "src", "dst", "size_bytes", "klass")


def trial(traffic, **changes) -> TrialSpec:
    values = {
        "campaign": "c",
        "testbed": "star",
        "backend": "fluid",
        "tuner": TunerSpec("secn1"),
        "traffic": tuple(traffic),
        "seed": 3,
        "repeat": 1,
        "duration_ns": 3 * MS,
        "drain_ns": MS,
    }
    return TrialSpec(**{**values, **changes})


def write(path, schedule) -> None:
    names = np.array(TESTBED.hosts, dtype=object)
    write_csv(
        path,
        {
            "start_ns": schedule.start_ns,
            "src": names[schedule.src],
            "dst": names[schedule.dst],
            "bytes": schedule.size_bytes,
            "class": np.array(schedule.classes, dtype=object)[schedule.klass],
        },
    )


PATTERNS = st.one_of(
    st.builds(PoissonSpec, st.just("WebSearch"), st.floats(0.2, 0.9), st.just(0), st.just(3 * MS)),
    st.builds(
        IncastSpec, st.integers(1, 4), st.integers(1, 99), st.just(MS), st.just(0), st.just(3 * MS)
    ),
    st.builds(AllToAllSpec, st.integers(1, 9), st.just(MS), st.just(0), st.just(3 * MS)),
    st.builds(
        SingleFlowSpec, st.just("h4"), st.just("h1"), st.integers(1, 9), st.sampled_from([0, MS])
    ),
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)
@given(st.lists(PATTERNS, min_size=1, max_size=5), st.integers(0, 99))
def test_a_replay_class_by_class_is_the_recorded_schedule(tmp_path_factory, patterns, seed):
    """Periodic patterns start together, so that only pattern, source and destination order them."""
    recorded = make_schedule(trial(patterns, seed=seed), TESTBED)
    path = tmp_path_factory.mktemp("flows") / "flows.csv"
    write(path, recorded)
    replays = [ReplaySpec(str(path), 0, 3 * MS, name) for name in recorded.classes]
    again = make_schedule(trial(replays, seed=seed + 1), TESTBED)
    assert again.classes == recorded.classes
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(again, name), getattr(recorded, name))


def test_each_repeat_has_its_own_file(tmp_path):
    for repeat in (1, 2):
        text = f"{HEADER}\n{repeat},h0,h1,{repeat}00,x\n"
        (tmp_path / f"flows-{repeat}.csv").write_text(text, encoding="utf-8")
    spec = ReplaySpec(str(tmp_path / "flows-{repeat}.csv"), 0, MS)
    for repeat in (1, 2):
        schedule = make_schedule(trial([spec], repeat=repeat), TESTBED)
        assert schedule.size_bytes.tolist() == [repeat * 100]
        assert schedule.classes == ("replay",)


def test_a_window_takes_the_flows_that_start_in_it(tmp_path):
    path = tmp_path / "f.csv"
    rows = "".join(f"{start},h0,h1,1,x\n" for start in (0, 10, 20, 30))
    path.write_text(f"{HEADER}\n{rows}", encoding="utf-8")
    spec = ReplaySpec(str(path), 10, 30)
    assert make_schedule(trial([spec]), TESTBED).start_ns.tolist() == [10, 20]
    assert make_schedule(trial([spec], duration_ns=20), TESTBED).start_ns.tolist() == [10]


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "f.csv"
    for size in (7, 88):
        path.write_text(f"{HEADER}\n0,h0,h1,{size},x\n", encoding="utf-8")
        assert read_flows(str(path)).size_bytes.tolist() == [size]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "the file is empty"),
        ("start,src,dst,bytes,class\n", 1, "its first line"),
        (f"{HEADER}\n5,h0,h1,1,x\n4,h0,h1,1,x\n", 3, "before the one above"),
        (f"{HEADER}\n5,h0,h1,1,x\n6,h0,h1\n", 3, "3 cells instead of 5"),
        (f"{HEADER}\n5,h0,h1,1,x\n\n6,h0,h1,1,x\n", 3, "the line is empty"),
        (f"{HEADER}\n5,h0,h1,1,x\n6,h0,h1,12", 3, "cut off"),
        (f"{HEADER}\n5,h0,h1,1e3,x\n", 2, "not a whole number"),
        (f"{HEADER}\n5,h0,h1,99999999999999999999,x\n", 2, "not a whole number"),
        (f"{HEADER}\n-5,h0,h1,1,x\n", 2, "before 0"),
        (f"{HEADER}\n5,h0,h1,0,x\n", 2, "no bytes"),
        (f"{HEADER}\n5,h0,h0,1,x\n", 2, "itself"),
        (f"{HEADER}\n5,h0,,1,x\n", 2, "not a name"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, line, said):
    path = tmp_path / "f.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_flows(str(path))
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:{line}"
    assert said in problem.what
    assert problem.remedy


def test_lines_are_counted_through_long_files(tmp_path):
    rows = [f"{n},h0,h1,1,x" for n in range(5_000)]
    rows[3_456] = "3456,h0,h1,many,x"
    path = tmp_path / "f.csv"
    path.write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_flows(str(path))
    assert caught.value.problems[0].where == f"{path}:3458"


def test_a_host_that_is_not_there_is_named_with_its_line(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text(f"{HEADER}\n5,h0,h1,1,x\n6,h1,h9,1,x\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no host 'h9'") as caught:
        host_numbers(read_flows(str(path)), TESTBED)
    assert caught.value.problems[0].where == f"{path}:3"


def test_the_spec_survives_json():
    spec = trial(
        [ReplaySpec("f-{repeat}.csv", 0, MS, "incast", queue_class="tcp")], parent="run/trial"
    )
    assert TrialSpec.from_json(spec.to_json()) == spec


def test_recordings_of_one_repeat_are_no_part_of_a_condition():
    files = {"flows-{repeat}.csv": "a", "actions x.csv": "b", "bed.yml": "c"}
    spec = dataclasses.replace(trial([]), files=files)
    assert spec.traffic_files == {"bed.yml": "c"}
