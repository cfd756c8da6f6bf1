"""A first screen as HTML, in a terminal and as a table: complete, and within the width."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from orchestration.render.html import page_html
from orchestration.render.markdown import markdown_table
from orchestration.render.page import Fold, Page, Paragraph, Section
from orchestration.render.scorecard import (
    Headline,
    Scorecard,
    ScoreCell,
    ScoreRow,
    Trust,
    TrustItem,
)
from orchestration.render.scorecard_table import plain_table, text_bar
from orchestration.render.terminal import lines, show

ARMS = ("swift", "hpcc", "timely")
HEADLINE = Headline(
    "which-control · graphcc, 24 hosts at 25 Gbit/s · WebSearch 60 %, incasts of 16 · 10 repeats",
    "hpcc wins: small flows' p99 slowdown is 31 % lower than dcqcn's [27, 35].",
)
TRUST = Trust(
    (
        TrustItem("40 of 40", "trials valid"),
        TrustItem("46 of 62 %", "of the offered load delivered", "warning"),
        TrustItem("stationary", "in 2 of 4 arms"),
    )
)


def cell(change, low, high, verdict, *, best=False):
    if verdict == "unclear":
        return ScoreCell(f"within {max(-low, high)} %", "", change, low, high, verdict)
    return ScoreCell(f"{change:+d} %", f"[{low}, {high}]", change, low, high, verdict, best)


BETTER, BEST = cell(-18, -24, -12, "better"), cell(-31, -35, -27, "better", best=True)
WORSE, UNCLEAR = cell(31, 8, 58, "worse"), cell(4, -3, 11, "unclear")
MISSING = ScoreCell("not measured")


def card(labels=("small flows, p99 slowdown", "goodput"), cells=(BETTER, BEST, UNCLEAR)):
    better = ("lower", "higher")
    rows = [
        ScoreRow(label, "of ideal", better[at % 2], at == 0, "1.61 ×", cells)
        for at, label in enumerate(labels)
    ]
    return Scorecard("dcqcn", ARMS[: len(cells)], tuple(rows))


class _Elements(HTMLParser):
    """All elements of a page: tag, attributes, and the text inside."""

    def __init__(self, html):
        super().__init__()
        self.all, self._open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.all.append([tag, dict(attrs), ""])
        if tag not in ("br", "meta"):
            self._open.append(self.all[-1])

    def handle_endtag(self, tag):
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def of(self, tag, css=None):
        return [
            (attributes, text)
            for name, attributes, text in self.all
            if name == tag and (css is None or css in attributes.get("class", "").split())
        ]


def page(*blocks, rest=()):
    return _Elements(page_html(Page(title="a", opening=blocks, blocks=rest)))


def test_a_page_with_a_headline_has_one_main_heading_and_little_before_the_card():
    html = page_html(Page(title="a", opening=[HEADLINE, card(), TRUST]))
    found = _Elements(html)
    assert [text.replace("\xa0", " ") for _, text in found.of("h1")] == [HEADLINE.sentence]
    before = re.sub("<[^>]*>", " ", html.partition("<body>")[2].partition('<div class="sc')[0])
    words = len(f"{HEADLINE.kicker} {HEADLINE.sentence}".split())
    assert words <= len(before.split()) <= words + 5


def test_each_cell_belongs_to_a_row_and_an_arm_and_its_bar_is_in_words():
    found = page(card(cells=(BEST, WORSE, UNCLEAR)))
    scopes = [attributes["scope"] for attributes, _ in found.of("th")]
    assert scopes == ["col"] * 4 + ["row"] * 2
    named = [attributes["data-arm"] for attributes, _ in found.of("td") if "data-arm" in attributes]
    assert named == ["dcqcn, baseline", *ARMS] * 2
    labels = [attributes["aria-label"] for attributes, _ in found.of("svg", "bar")]
    assert labels[:3] == [
        "better, between -35% and -27%",
        "worse, between +8% and +58%",
        "no clear difference, between -3% and +11%",
    ]
    assert [attributes["aria-label"] for attributes, _ in found.of("span", "star")] == ["best"] * 2
    assert len(found.of("span", "judged")) == 1
    (better, _), (lower, _) = found.of("td", "better")
    assert better == lower == {"class": "better best", "role": "cell", "data-arm": "swift"}


def test_what_is_not_measured_has_no_bar():
    found = page(card(cells=(MISSING, ScoreCell("-3 %", "", -3.0, None, float("nan"), "better"))))
    assert [text.strip() for _, text in found.of("td", "missing")] == ["not measured"] * 2
    assert len(found.of("svg", "bar")) == 2
    assert not found.of("line", "interval")
    assert len(found.of("path")) == 2


PERCENT = st.floats(-100, 5_000)


@given(st.lists(st.tuples(PERCENT, PERCENT, PERCENT), min_size=1, max_size=6))
def test_a_rows_bars_share_one_scale_within_their_width(ends):
    cells = []
    for low, change, high in map(sorted, ends):
        cells.append(ScoreCell("x", "", change, low, high, "worse"))
    arms = tuple(f"a{at}" for at in range(len(cells)))
    row = ScoreRow("m", "", "lower", False, "1", tuple(cells))
    found = page(Scorecard("base", arms, (row,)))
    marks = [float(attributes["x"][:-1]) for attributes, _ in found.of("svg", "mark")]
    starts = [float(attributes["x1"][:-1]) for attributes, _ in found.of("line", "interval")]
    stops = [float(attributes["x2"][:-1]) for attributes, _ in found.of("line", "interval")]
    places = sorted(zip((cell.change for cell in cells), marks, strict=True))
    assert [mark for _, mark in places] == sorted(marks)
    assert all(0 <= a <= m <= b <= 100 for a, m, b in zip(starts, marks, stops, strict=True))
    assert all(abs(m - 50) < 0.06 or (m > 50) == (change > 0) for change, m in places)


def test_one_arm_far_away_does_not_hide_the_others():
    near, far = cell(5, 2, 8, "worse"), cell(2300, 1800, 2800, "worse")
    row = ScoreRow("m", "", "lower", False, "1", (near, far))
    assert row.span == 3 * 8
    assert text_bar(far, row.span, 11) == "·····│····▶"
    assert text_bar(near, row.span, 11) == "·····│◆━···"
    assert ScoreRow("m", "", "lower", False, "1", (far,)).span == 2800


def test_bars_of_text():
    assert text_bar(BEST, 35, 11) == "━●···│·····"
    assert text_bar(WORSE, 58, 15) == "·······│━━━◆━━━"
    assert text_bar(UNCLEAR, 35, 11) == "·····┿○━···"
    assert text_bar(MISSING, 35, 11) == ""


@given(st.floats(-99, 900), st.floats(0, 50), st.floats(0, 50), st.floats(1, 900))
def test_a_bar_of_text_crosses_the_middle_if_its_interval_does(change, below, above, span):
    low, high = change - below, change + above
    bar = text_bar(ScoreCell("", "", change, low, high, "unclear"), span, 11)
    assert len(bar) == 11
    assert (bar[5] == "│") == (low > 0 or high < 0)


def test_the_first_screen_fits_a_terminal():
    labels = [
        *("small flows, p99 slowdown", "goodput a host", "incast completion time"),
        *("mean queue", "time paused", "large flows, mean slowdown"),
    ]
    shown = lines([HEADLINE, card(labels), TRUST], 80)
    assert len(shown.splitlines()) <= 30
    for name in (*ARMS, "dcqcn", "baseline", "judged by", "warning: 46 of 62 %", "━"):
        assert name in shown
    assert shown.count("[-35, -27]") == shown.count(" ★\n") + shown.count(" ★  ") == len(labels)


CELLS = st.sampled_from([BETTER, BEST, WORSE, UNCLEAR, MISSING])


@st.composite
def cards(draw):
    count, size = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    words = st.sampled_from(["mean", "slowdown", "p99", "flows", "completion", "0.3,", "load"])
    rows = tuple(
        ScoreRow(
            f"{at} {' '.join(draw(st.lists(words, max_size=5)))}".strip(),
            draw(st.sampled_from(["", "×", "of link time"])),
            draw(st.sampled_from(["lower", "higher"])),
            draw(st.booleans()),
            f"{at}.5",
            tuple(draw(st.tuples(*[CELLS] * count))),
        )
        for at in range(size)
    )
    return Scorecard("dcqcn", tuple(f"arm-{at}" for at in range(count)), rows)


@settings(max_examples=200)
@given(cards(), st.integers(44, 160))
def test_a_terminal_shows_all_of_a_card_within_its_width(made, width):
    shown = lines([made], width)
    assert max(map(cell_len, shown.splitlines())) <= width
    text = re.sub(r"\s+", "", shown)
    cells = [cell for row in made.rows for cell in row.cells]
    assert text.count("★") == sum(cell.best for cell in cells) + any(cell.best for cell in cells)
    for cell in {cell.interval_text for cell in cells if cell.interval_text}:
        count = sum(other.interval_text == cell for other in cells)
        assert text.count(cell.replace(" ", "")) == count
    for name in (*made.arms, *(row.baseline_value for row in made.rows), made.baseline):
        assert name in text


def test_a_pipe_gets_the_layout_of_80_columns(capsys):
    show(card())
    assert capsys.readouterr().out == lines([card()], 80)


def test_a_table_of_plain_text_has_all_of_a_card():
    text = markdown_table(plain_table(card(cells=(BEST, WORSE, UNCLEAR))))
    head, _, first, second, *_ = text.split("\n")
    assert head == "| | dcqcn (baseline) | swift | hpcc | timely |"
    assert first == (
        "| small flows, p99 slowdown\N{NO-BREAK SPACE}↓, judged by | 1.61 × of ideal "
        "| -31 % [-35, -27] ★ | +31 % [8, 58] | within 11 % |"
    )
    assert second.startswith("| goodput\N{NO-BREAK SPACE}↑ |")


def test_what_is_better_is_written_once_where_all_rows_agree():
    rows = tuple(ScoreRow(f"load 0.{at}", "×", "lower", False, "3", (BETTER,)) for at in range(3))
    made = Scorecard("dcqcn", ("hpcc",), rows, title="p99 slowdown by load")
    html, text = page_html(Page("a", blocks=[made])), lines([made], 80)
    assert html.count("lower is better") == text.count("lower is better") == 1
    assert html.count("p99 slowdown by load</h3>") == text.count("p99 slowdown by load") == 1


def test_folds_are_as_they_are_asked_for_and_left_out_of_a_short_terminal(capsys):
    folds = [Fold("Why", [Paragraph("short queues")], is_open=True), Fold("More", [card()])]
    found = page(HEADLINE, rest=[Section(folds)])
    assert ["open" in attributes for attributes, _ in found.of("details")] == [True, False]
    assert [text for _, text in found.of("summary")] == ["Why", "More"]
    assert any("beforeprint" in text for _, text in found.of("script"))
    assert not page(HEADLINE).of("script")
    show(HEADLINE, *folds, full=False)
    assert "Why" not in capsys.readouterr().out
    show(HEADLINE, *folds)
    out = capsys.readouterr().out
    assert out.index("Why") < out.index("short queues") < out.index("More") < out.index("swift")


def test_markup_in_names_is_escaped():
    name = '<b>&"x"\''
    made = Scorecard(name, (name,), (ScoreRow(name, name, "lower", True, name, (MISSING,)),), name)
    found = page(Headline(name, name), made, Trust((TrustItem(name, name, "bad"),)))
    assert [text for _, text in found.of("h1")] == [name]
    assert found.of("b", "bad") == []
    assert [attributes["data-arm"] for attributes, _ in found.of("td", "missing")] == [name]
    assert [text for _, text in found.of("li", "bad")] == [f"!{name} {name}"]


def test_a_row_without_a_cell_for_each_arm_is_refused():
    row = ScoreRow("mean queue", "KB", "lower", False, "41.7", (BETTER,))
    with pytest.raises(ValueError, match="mean queue: 1 cells for 2 arms"):
        Scorecard("dcqcn", ("hpcc", "swift"), (row,))
