"""A text goes through every output and comes back the same, whatever is in it."""

import contextlib
import csv
import html
import io
import json
import os
import pty
import re
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from orchestration.cli.main import app
from orchestration.render.csv import csv_text
from orchestration.render.html import html_table
from orchestration.render.json import json_text
from orchestration.render.markdown import markdown_table
from orchestration.render.numbers import NOTHING, percent, percents, short_percent
from orchestration.render.page import Heading, Items, Page, Paragraph
from orchestration.render.table import Column, Row, Span, Table, code, joined, strong, table
from orchestration.render.terminal import lines, show

# Anything but control characters (newlines apart), surrogates, and other separators of lines.
ANY = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), include_characters="\n"),
    max_size=40,
)
AWKWARD = st.text(st.sampled_from("ab <>&|\"'`*_[]()!~\\#;\né漢"), max_size=30)
TEXTS = AWKWARD | ANY


def one(text: str) -> Table:
    return table((text, "next"), (), [[text, "x"]])


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self.cells.append("")
        elif tag == "br":
            self.cells[-1] += "\n"

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


@given(TEXTS)
def test_html(text):
    read = _Cells()
    read.feed(html_table(one(text)))
    assert read.cells[2].rstrip("\n") == text.rstrip("\n")


@given(TEXTS)
def test_markdown(text):
    made = MarkdownIt("commonmark").enable("table").render(markdown_table(one(text)))
    cells = re.findall(r"<td>(.*?)</td>", made, re.DOTALL)
    read = html.unescape(cells[0].replace("<br>", "\n"))
    assert [line.strip() for line in read.split("\n")] == [
        line.strip() for line in text.split("\n")
    ]


@given(TEXTS)
def test_csv(text):
    rows = list(csv.reader(io.StringIO(csv_text({"a": [text], "b": [1]}), newline="")))
    assert rows[1] == [text, "1"]


@given(TEXTS)
def test_json(text):
    assert json.loads(json_text(Table([Column("a")], [Row([strong(text)])]))) == [{"a": text}]


def squeezed(text: str) -> str:
    """Return the characters that are seen, in order."""
    text = unicodedata.normalize("NFC", text)
    return "".join(c for c in text if not c.isspace() and c != "─" and c not in "\u200b\ufeff")


@given(TEXTS, st.integers(20, 200))
@settings(max_examples=300)
def test_a_terminal_of_any_width_loses_no_character(text, width):
    shown = lines([one(text), text], width)
    for character in set(squeezed(text)):
        assert shown.count(character) >= 3 * text.count(character)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200, None])
def test_no_cell_is_cut(width):
    names = ["published-hpcc-thresholds-scaled", "a rather long text of several words", "x"]
    rows = [[*names, 1234567, None], [*names[::-1], 1.25, 2]]
    made = table(("tuner", "what it is", "which"), ("a figure", "share"), rows, "A title", "about")
    shown = lines([made], width)
    for cell in (*names, "1234567", "1.25", "–", "A title", "about"):
        assert squeezed(cell) in squeezed(shown) or width is not None
        assert all(word in shown or width == 20 for word in cell.split())
    assert width is None or max(map(len, shown.splitlines())) <= width


def test_in_a_pipe_each_row_is_one_line(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a CI's log, where rich assumes a terminal
    file = io.StringIO()
    show(table(("a" * 60, "b" * 60), (), [["c" * 100, "d e " * 40]]), "long " * 40, file=file)
    assert len(file.getvalue().splitlines()) == 4
    assert "…" not in file.getvalue()


def test_where_rows_are_texts_a_cell_stays_beside_its_name():
    made = table(("tuner", "marks", "load"), (), [["published-hpcc-scaled", "on arrivals", "0.3"]])
    assert lines([made], 32).splitlines()[:2] == [
        "tuner: published-hpcc-scaled",
        "marks: on arrivals  load: 0.3",
    ]


def test_a_terminal_shows_styles_and_no_control_characters_of_a_text():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as file:
        show(
            table(("name",), (), [[Span("bad\x1b[2J name", "bad")]]),
            "[bold]no markup[/bold]",
            file=file,
        )
    shown = ""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while part := os.read(leader, 4096):
            shown += part.decode()
    os.close(leader)
    assert "bad\\x1b[2J name" in shown
    assert "[bold]no markup[/bold]" in shown


def test_pages_are_shown_in_a_terminal_too():
    blocks = [Heading("Part"), Paragraph("said"), Items([("a ", strong("b"))]), one("t")]
    assert lines(blocks).split("\n")[:4] == ["Part", "said", "• a b", ""]
    assert Page("title").blocks == ()


def test_styles_of_parts_in_markdown():
    made = table(("a", "b"), (), [Row([joined((strong("x|y"), code("k*"))), "p99*"], note="why")])
    assert markdown_table(made).splitlines()[2] == r"| **x\|y**<br>`k*` | p99\*<br>why |"


def test_percents_are_never_in_powers_of_ten():
    assert [short_percent(value) for value in (270.4, -1.234, 0.0123, 0, 99.6)] == [
        "+270%",
        "-1.2%",
        "+0.012%",
        "+0%",
        "+100%",
    ]
    assert short_percent(float("nan")) == NOTHING
    assert [percent(value) for value in (-0.126, 0.00001, 2.7)] == ["-12.6%", "0.0%", "+270.0%"]
    assert percents(-0.387, -0.411, -0.364) == "-38.7% [-41.1, -36.4]"


def test_a_plan_in_a_pipe_has_every_level_whole(tmp_path):
    campaign = tmp_path / "wide.yml"
    campaign.write_text(
        "campaign: wide\ntestbed: graphcc\nbackend: fluid\n"
        "tuners:\n  - {name: secn1, label: published-dcqcn-thresholds}\n"
        "  - {name: secn2, label: published-hpcc-thresholds-scaled}\n"
        "factors:\n  workload: [WebSearch, FB_Hadoop]\n  offered_load: [0.3, 0.6]\n"
        "traffic:\n  - {kind: poisson, workload: $workload, load: $offered_load}\n"
        "repeats: 1\nduration: 3ms\n"
    )
    done = CliRunner().invoke(app, ["plan", str(campaign)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    shown = done.stdout.partition("order:")[0]
    assert "…" not in shown
    for name in ("published-dcqcn-thresholds", "published-hpcc-thresholds-scaled"):
        rows = [line for line in shown.splitlines() if line.startswith(name)]
        assert len(rows) == 4
        assert all("WebSearch" in row or "FB_Hadoop" in row for row in rows)
