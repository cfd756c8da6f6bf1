"""Lines of line protocol are what influxdb-client itself would write, and no two points are one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from influxdb_client import Point, WritePrecision

from collectors.sinks.lines import (
    ACTIONS,
    EVENT,
    MEASUREMENTS,
    PORT,
    encode,
    run_tag,
    series,
    text_field,
    unique_times,
)

PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda text: not text.endswith("\\") and "\\" not in text
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(["campaign", "class", "device"]), PLAIN, min_size=1),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=50),
    st.integers(-(2**62), 2**62),
    st.integers(0, 2**62),
)
def test_a_line_is_what_the_client_library_writes(tags, detail, t_ns, time_ns):
    columns = {
        "t_ns": np.array([t_ns]),
        "detail": np.array([detail], dtype=object),
    }
    begin = series(EVENT.name, dict(sorted(tags.items())))
    [line] = encode(EVENT, [begin], np.zeros(1, int), columns, np.array([time_ns]))
    point = Point(EVENT.name).time(time_ns, WritePrecision.NS)
    for name, value in tags.items():
        point.tag(name, value)
    for name, value in (("t_ns", t_ns), ("detail", detail)):
        point.field(name, value)
    theirs = point.to_line_protocol()
    # The library sorts fields by name; ours stand in the order of the table.
    fields = f"t_ns={t_ns}i,detail={text_field(detail)}"
    swapped = f"detail={text_field(detail)},t_ns={t_ns}i"
    assert line == f"{begin} {fields} {time_ns}"
    assert theirs == f"{begin} {swapped} {time_ns}"


def test_missing_fields_are_left_out_of_a_point():
    columns = {
        "t_ns": np.array([1, 2, 3]),
        "qlen_bytes": np.array([-1, 5, -1]),
        "tx_bytes": np.array([7, 8, -1]),
        "tx_packets": np.full(3, -1),
    }
    lines = encode(PORT, ["p", "q"], np.array([0, 1, 0]), columns, np.array([10, 20, 30]))
    assert lines == [
        "p t_ns=1i,tx_bytes=7i 10",
        "q t_ns=2i,qlen_bytes=5i,tx_bytes=8i 20",
        "p t_ns=3i 30",
    ]


def test_a_time_before_the_start_is_no_missing_time():
    columns = {"t_ns": np.array([-1]), "pmax": np.array([0.1])}
    assert encode(ACTIONS["ecn"], ["a"], np.zeros(1, int), columns, np.array([9])) == [
        "a t_ns=-1i,pmax=0.1 9"
    ]


def test_what_is_no_number_is_left_out():
    columns = {"t_ns": np.array([1]), "pmax": np.array([np.nan])}
    assert encode(ACTIONS["ecn"], ["a"], np.zeros(1, int), columns, np.array([9])) == [
        "a t_ns=1i 9"
    ]


@pytest.mark.parametrize("text", ["x" * 70_000, "é" * 70_000, '"\\' * 40_000])
def test_a_long_text_fits_into_a_string_field(text):
    shown = text_field(text)
    inside = shown[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    assert len(inside.encode()) <= 64_000
    assert text.startswith(inside)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=60))
def test_no_two_points_of_a_series_have_one_time(rows):
    t_ns = np.array([t for t, _ in rows], dtype=np.int64)
    codes = np.array([code for _, code in rows], dtype=np.int64)
    times = unique_times(t_ns, codes)
    last: dict[int, int] = {}
    for (t, code), time in zip(rows, times.tolist(), strict=True):
        assert time == max(t, last.get(code, -1) + 1)
        last[code] = time


def test_tags_are_bounded_and_disjoint_from_fields():
    for measurement in MEASUREMENTS.values():
        assert not set(measurement.tags) & set(measurement.fields)
        assert not {"flow_id", "src", "dst", "t_ns", "detail"} & set(measurement.tags)


def test_the_run_tag_has_the_time_to_the_nanosecond():
    assert run_tag(1_795_287_252_000_000_042) == "20261121T185412.000000042Z"
    assert run_tag(1_795_287_252_000_000_042) < run_tag(1_795_287_252_100_000_000)
