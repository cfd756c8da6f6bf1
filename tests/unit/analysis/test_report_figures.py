"""Colours, and what captions and pictures compute."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from plotly.offline import get_plotlyjs_version

from orchestration.analysis.arm_differences import compare_arms
from orchestration.analysis.report.differences import convergence, differences
from orchestration.analysis.report.fabric import fabric_heatmap
from orchestration.analysis.report.selection import shown_repeat
from orchestration.analysis.statistics import repeats_needed, t_interval
from orchestration.render.csv import csv_text
from orchestration.render.figure_style import _PALETTE, colours_of, contrast_to_white, readable
from orchestration.render.html import PLOTLY_FILE, asset
from orchestration.render.numbers import quantity

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as seen without a kind of cones.
VISION = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
# Ottosson (2020): linear RGB to Oklab, in which a distance of 0.02 can just be seen.
TO_CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
TO_OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip


def oklab(colour, vision):
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(np.array(vision) @ linear, 0, 1))


@pytest.mark.parametrize("vision", VISION)
def test_no_two_colours_look_alike_whatever_cones_a_reader_lacks(vision):
    seen = [oklab(colour, VISION[vision]) for colour in _PALETTE]
    apart = [np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2)]
    assert min(apart) > 0.08


def test_lines_stand_out_text_can_be_read_and_patterns_differ():
    assert len(set(_PALETTE.values())) == len(_PALETTE)
    for colour in _PALETTE:
        assert contrast_to_white(colour) >= 3
        assert contrast_to_white(readable(colour)) >= 4.5
    assert contrast_to_white("#000000") == pytest.approx(21)
    assert readable("#000000") == "#000000"
    assert len(set(colours_of([str(number) for number in range(6)]).values())) == 6


def test_plotly_js_in_the_page_is_the_one_that_plotly_py_writes_for():
    assert f"v{get_plotlyjs_version()}" in asset(PLOTLY_FILE)[:100]


def test_csv_has_digits_enough_and_nothing_for_what_is_no_number():
    text = csv_text({"a": [1, 10**12], "b": [0.1 + 0.2, math.nan], "c": ["x,y", 'say "so"']})
    assert text == 'a,b,c\n1,0.3,"x,y"\n1000000000000,,"say ""so"""\n'


def test_as_many_repeats_as_needed_give_that_interval():
    values = np.random.default_rng(1).normal(100, 10, 8)
    needed = repeats_needed(values, 2.0)
    spread = float(values.std(ddof=1))
    for count, enough in ((needed, True), (needed - 1, False)):
        # a sample of that many with the same deviation
        sample = np.tile([-1.0, 1.0], count)[:count]
        sample = (sample - sample.mean()) / sample.std(ddof=1) * spread
        got = t_interval(sample)
        assert (got.high - got.low <= 4.0 + 1e-9) == enough
    assert repeats_needed([1.0], 1.0) == 0
    assert repeats_needed(values, 1e-9) == 0


def test_convergence_ends_at_the_comparison_of_the_tables(summary):
    (condition,) = summary.conditions
    picture = convergence(condition, "fct_mean_ns_all", colours_of(summary.arms))
    (item,) = [item for item in condition.comparisons if item.metric == "fct_mean_ns_all"]
    assert picture.data["repeats"] == [1, 2, 3, 4]
    assert picture.data["percent"][-1] == pytest.approx(100 * item.difference.relative)
    assert picture.data["low"][-1] == pytest.approx(100 * item.difference.relative_low)
    assert picture.data["high"][-1] == pytest.approx(100 * item.difference.relative_high)


def test_a_tuner_that_differs_in_no_pair_is_called_identical(summary):
    (condition,) = summary.conditions
    base, other = condition.arms
    twin = dataclasses.replace(base, name=other.name)
    same = dataclasses.replace(condition, arms=(base, twin))
    picture = convergence(same, "fct_mean_ns_all", colours_of(summary.arms))
    assert (
        picture.title == "After 5 repeats the difference in mean FCT is 0: identical in every pair"
    )
    assert picture.caption.startswith("secn2: identical in every pair.")
    values = {trial.spec.seed: trial.metrics.scalars for trial in base.valid}
    for count in (1, 5):
        some = dict(list(values.items())[:count])
        found = compare_arms({"secn1": some, "secn2": some}, ())
        assert all(item.identical for item in found)
        picture = differences(found, colours_of(summary.arms))
        assert picture.caption.startswith("All are identical in every pair.")


@pytest.mark.parametrize("spans", [7, 30, 500])
def test_a_fabrics_grid_keeps_every_ports_peak_and_has_no_holes(summary, spans):
    shown = shown_repeat(summary.conditions[0])
    picture = fabric_heatmap(shown, spans, colours_of(summary.arms))
    worst_hidden = 0
    for tuner, result in shown.by_arm.items():
        upto = result.ports.t_ns <= result.spec.duration_ns
        peaks = dict(
            zip(
                (port.label for port in result.testbed.switch_ports),
                result.ports.qlen_bytes[upto].max(axis=0),
                strict=True,
            )
        )
        rows = [row for row, name in enumerate(picture.data["arm"]) if name == tuner]
        ports = [name for name in picture.data if name not in ("arm", "from_ns")]
        grid = np.array([[picture.data[port][row] for row in rows] for port in ports])
        assert not np.isnan(grid).any()
        assert [peaks[port] for port in ports] == grid.max(axis=1).tolist()
        hidden = [peak for port, peak in peaks.items() if port not in ports]
        assert f"{len(hidden)} more ports are not drawn" in picture.caption
        worst_hidden = max(worst_hidden, *hidden)
    assert f"ever held more than {quantity(worst_hidden, 'bytes')}." in picture.caption
