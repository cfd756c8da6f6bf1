"""Flow-size distributions: the built-in figures, and a user's own table."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.errors import InputError
from traffic.workloads import (
    Workload,
    known_workloads,
    load_workload,
    parse_table,
)

# name -> mean, median in bytes, as published with the tables
PUBLISHED = {
    "WebSearch": (1_711_250, 73_077),
    "DataMining": (12_658_199, 1_100),
    "FB_Hadoop": (120_421, 700),
    "AliStorage2019": (40_870, 6_340),
}


def test_the_built_in_workloads_are_the_published_ones():
    assert set(known_workloads()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_mean_and_median_are_the_published_ones(name):
    workload = load_workload(name)
    mean, median = PUBLISHED[name]
    assert workload.mean_bytes == pytest.approx(mean, abs=0.5)
    assert workload.quantile(0.5) == pytest.approx(median, abs=0.5)
    assert workload.source


@pytest.mark.parametrize("name", PUBLISHED)
def test_samples_follow_the_table(name):
    workload = load_workload(name)
    sizes = workload.sample(np.random.default_rng(1), 40_000)
    assert sizes.dtype == np.int64
    assert sizes.min() >= 1
    assert sizes.max() <= workload.points[-1][0]
    for point, probability in workload.points:
        error = 4 * np.sqrt(probability * (1 - probability) / len(sizes)) + 1e-3
        assert np.mean(sizes <= point) == pytest.approx(probability, abs=error)


def test_quantile_is_linear_in_probability_between_two_points():
    websearch = load_workload("WebSearch")
    assert websearch.quantile([0.0, 0.075, 0.15, 0.985, 1.0]).tolist() == pytest.approx(
        [0, 5_000, 10_000, 20_000_000, 30_000_000]
    )


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("websearch", "WebSearch"),
        ("WEB-SEARCH", "WebSearch"),
        ("data mining", "DataMining"),
        ("hadoop", "FB_Hadoop"),
        ("FBHadoop", "FB_Hadoop"),
        ("AliStorage", "AliStorage2019"),
    ],
)
def test_spelling_does_not_matter(spelt, name):
    assert load_workload(spelt).name == name


def test_an_unknown_name_lists_the_known_ones_and_guesses():
    with pytest.raises(InputError) as caught:
        load_workload("WebSerch")
    assert str(caught.value) == (
        "workload 'WebSerch': not known\n  -> did you mean 'WebSearch'? known are AliStorage2019, "
        "DataMining, FB_Hadoop, WebSearch, or the path of a CSV file of bytes,cdf"
    )
    with pytest.raises(InputError, match="-> known are"):
        load_workload("zzz")


def test_shares_of_flows_and_bytes():
    websearch = load_workload("WebSearch")
    flows, carried = websearch.share_up_to(10_000_000)
    assert flows == pytest.approx(0.97)
    assert 1 - carried == pytest.approx(0.03 * 20_000_000 / 1_711_250)
    assert websearch.share_up_to(30_000_000) == pytest.approx((1, 1))
    step = Workload("step", ((1_000, 0.25), (3_000, 0.25), (3_000, 1.0)))
    assert step.share_up_to(3_000, inclusive=False) == pytest.approx((0.25, 0.1))
    assert step.share_up_to(3_000) == pytest.approx((1, 1))


def test_a_first_probability_above_zero_is_a_share_of_that_very_size():
    workload = parse_table("mine", "bytes,cdf\n1000,0.5\n3000,1\n", "mine.csv")
    assert workload.mean_bytes == pytest.approx(0.5 * 1000 + 0.5 * 2000)
    sizes = workload.sample(np.random.default_rng(2), 10_000)
    assert np.mean(sizes == 1000) == pytest.approx(0.5, abs=0.03)


def test_one_size_only():
    workload = parse_table("mine", "bytes,cdf\n64000,1\n", "mine.csv")
    assert workload.mean_bytes == 64_000
    assert set(workload.sample(np.random.default_rng(3), 10)) == {64_000}


def test_a_users_table_is_read_from_its_path(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeff# measured in our\n# cluster\n\nBytes, CDF\n0,0\n 1e3 , 0.5\n2000.0,1\n")
    workload = load_workload(str(path))
    assert workload == Workload(
        "mine", ((0, 0.0), (1000, 0.5), (2000, 1.0)), "measured in our cluster"
    )


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        load_workload(str(tmp_path / "none.csv"))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_workload(str(binary))


def test_every_fault_of_a_table_is_reported_at_its_line():
    text = """# ours
bytes,cdf
-1,0
100,0.5,7
200,0.4
150,0.3
x,0.6
10.5,0.7
1000,90
2000,0.95
"""
    with pytest.raises(InputError) as caught:
        parse_table("mine", text, "mine.csv")
    found = [(problem.where, problem.what) for problem in caught.value.problems]
    assert found == [
        ("mine.csv:3", "flows of -1 bytes at probability 0"),
        ("mine.csv:4", "3 columns instead of 2"),
        ("mine.csv:6", "150 bytes come after 200"),
        ("mine.csv:6", "probability 0.3 is below the 0.4 before it"),
        ("mine.csv:7", "'x,0.6' is not two numbers"),
        ("mine.csv:8", "10.5 is not a whole number of bytes"),
        ("mine.csv:9", "probability 90 is not within 0 to 1"),
        ("mine.csv:10", "the last probability is 0.95, not 1"),
        ("mine.csv:10", "probability 0.95 is below the 90 before it"),
    ]
    assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "mine.csv:1", "no header"),
        ("0,0\n10,1\n", "mine.csv:1", "no header"),
        ("# only\nbytes,cdf\n", "mine.csv:2", "the table is empty"),
        ("bytes,cdf\n0,0.5\n9,1\n", "mine.csv:2", "flows of 0 bytes at probability 0.5"),
        ("bytes,cdf\n1,nan\n9,1\n", "mine.csv:2", "probability nan is not within 0 to 1"),
        ("bytes,cdf\n1,0\ninf,1\n", "mine.csv:3", "inf is not a whole number of bytes"),
        ("bytes,cdf\n1,0\n1e300,1\n", "mine.csv:3", "1e300 is not a whole number of bytes"),
    ],
)
def test_tables_that_are_refused(text, where, what):
    with pytest.raises(InputError) as caught:
        parse_table("mine", text, "mine.csv")
    assert [(p.where, p.what) for p in caught.value.problems] == [(where, what)]


@given(st.text(alphabet="bytescdf,#0123456789.e-+ \n", max_size=80))
def test_any_text_is_a_workload_or_an_input_error(text):
    try:
        workload = parse_table("any", "bytes,cdf\n" + text, "any.csv")
    except InputError:
        return
    assert workload.mean_bytes > 0
    assert workload.points[-1][1] == 1


@st.composite
def tables(draw):
    sizes = sorted(draw(st.lists(st.integers(1, 10**9), min_size=2, max_size=12)))
    inner = draw(st.lists(st.integers(0, 1000), min_size=len(sizes) - 1, max_size=len(sizes) - 1))
    return Workload(
        "any", tuple(zip(sizes, [p / 1000 for p in sorted(inner)] + [1.0], strict=True))
    )


@given(tables())
def test_mean_is_the_integral_of_the_quantile(workload):
    cuts = np.unique([0.0, *(p for _, p in workload.points)])
    # Linear between two cuts: the value halfway is the mean there.
    exact = float(np.sum(np.diff(cuts) * workload.quantile((cuts[:-1] + cuts[1:]) / 2)))
    assert workload.mean_bytes == pytest.approx(exact)
    smallest, largest = workload.points[0][0], workload.points[-1][0]
    assert smallest * (1 - 1e-12) <= workload.mean_bytes <= largest * (1 + 1e-12)


@given(tables(), st.integers(1, 10**9))
def test_shares_are_probabilities_and_small_flows_carry_less(workload, size):
    flows, carried = workload.share_up_to(size)
    assert 0 <= carried <= flows + 1e-12
    assert flows <= 1 + 1e-12
