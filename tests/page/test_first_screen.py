"""A report's first screen in a browser: on a desk, on a phone, in the dark and on paper."""

import pytest

from orchestration.render.figure_style import base_figure, line
from orchestration.render.html import page_html
from orchestration.render.page import CaptionedFigure, FigureGrid, Fold, Page, Paragraph, Section
from orchestration.render.scorecard import (
    Headline,
    Scorecard,
    ScoreCell,
    ScoreRow,
    Trust,
    TrustItem,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]
DESK, PHONE, PAPER = 1280, 390, 690
HEADLINE = Headline("which-control · graphcc, 24 hosts", "hpcc wins: 31 % lower [27, 35].")
TRUST = Trust((TrustItem("4 of 4", "valid"), TrustItem("46 of 62 %", "delivered", "warning")))
CELLS = (
    ScoreCell("-31 %", "[-35, -27]", -31, -35, -27, "better", best=True),
    ScoreCell("+131 %", "[128, 158]", 131, 128, 158, "worse"),
    ScoreCell("within 11 %", "", 4, -3, 11, "unclear"),
    ScoreCell("not measured"),
)
METRICS = ("small flows, p99 slowdown", "goodput a host", "time paused")

# What of the card leaves it, and cells whose text leaves them.
OUTSIDE = """(() => {
  const card = document.querySelector(".scorecard").getBoundingClientRect();
  return [...document.querySelectorAll(".scorecard :is(td, th, b, small)")].filter((part) => {
    const box = part.getBoundingClientRect();
    const cell = part.closest("td, th").getBoundingClientRect();
    return box.width && (box.left < card.left - 1 || box.right > card.right + 1 ||
      box.right > cell.right + 1);
  }).map((part) => part.textContent);
})()"""
CLOSED = "document.querySelectorAll('details:not([open])').length"


def open_page(browser, folder, arms, width, *, media="", scheme="light"):
    rows = tuple(
        ScoreRow(
            label, "of ideal", "lower", at == 0, "1.61 ×", tuple(CELLS[n % 4] for n in range(arms))
        )
        for at, label in enumerate(METRICS)
    )
    card = Scorecard("dcqcn", tuple(f"control-{n}" for n in range(arms)), rows)
    figure = base_figure(300)
    figure.add_trace(line([0, 1], [0, 1], "#0072B2"))
    figures = FigureGrid([CaptionedFigure("Queue", "One repeat.", figure)])
    deep = Section([Paragraph("Stamps")], "deep")
    folds = [Fold("Why", [figures], is_open=True), Fold("More", [figures]), Fold("Trust", [deep])]
    path = folder / f"{arms}.html"
    path.write_text(page_html(Page(title="a", opening=[HEADLINE, card, TRUST], blocks=folds)))
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser("Emulation.setEmulatedMedia", media=media, features=features)
    browser.open(path, width)
    return browser


@pytest.fixture(autouse=True)
def no_media(browser):
    yield
    browser("Emulation.setEmulatedMedia", media="", features=[])


@pytest.mark.parametrize("width", [DESK, 700, PHONE])
@pytest.mark.parametrize("arms", [1, 3, 8, 12])
def test_a_card_stays_on_the_screen(browser, tmp_path, arms, width):
    page = open_page(browser, tmp_path, arms, width)
    assert page.misplaced == []
    scroll = "document.querySelector('.scorecard .scroll')"
    wider = page.run(f"{scroll}.scrollWidth - {scroll}.clientWidth")
    if width == PHONE or arms <= 3 or (arms == 8 and width == DESK):
        assert wider == 0
        assert page.run(OUTSIDE) == []
    else:
        base = "document.querySelector('tbody .base').getBoundingClientRect().left"
        before = page.run(base)
        page.run(f"{scroll}.scrollTo(9999, 0)")
        assert wider > 0
        assert page.run(base) == before


def test_on_a_phone_each_value_has_its_arms_name(browser, tmp_path):
    name = "getComputedStyle(cell, '::before').content"
    names = f"[...document.querySelectorAll('tbody td')].map((cell) => {name})"
    found = open_page(browser, tmp_path, 2, PHONE).run(names)
    assert found[:3] == ['"dcqcn, baseline"', '"control-0"', '"control-1"']
    assert set(open_page(browser, tmp_path, 2, DESK).run(names)) == {"none"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(browser, tmp_path, scheme):
    page = open_page(browser, tmp_path, 3, DESK, scheme=scheme)
    page.read()
    got = page.contrasts
    assert got["seen"] > 40
    assert got["found"] == []
    light = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")


@pytest.mark.parametrize("arms", [3, 5, 8, 12])
def test_nothing_is_cut_off_on_paper(browser, tmp_path, arms):
    page = open_page(browser, tmp_path, arms, PAPER, media="print", scheme="dark")
    assert page.run(OUTSIDE) == []
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_folds_are_open_while_they_are_printed(browser, tmp_path):
    page = open_page(browser, tmp_path, 3, DESK)
    page.run("addEventListener('beforeprint', () => { window.closed_folds = " + CLOSED + " })")
    page("Page.printToPDF")
    assert page.run("window.closed_folds") == 0
    assert page.run("[...document.querySelectorAll('.picture')].every((place) => place.data)")
    assert page.undrawn == ["Queue"] or page.undrawn == []
    assert page.run(CLOSED) == 2
    assert page.complaints == []


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("printed", [False, True])
def test_a_figure_in_a_fold_is_as_wide_as_its_place_once_opened(browser, tmp_path, width, printed):
    page = open_page(browser, tmp_path, 3, width)
    if printed:
        page("Page.printToPDF")
    page.read()
    widths = page.run(
        "[...document.querySelectorAll('.picture')].map((place) =>"
        " [place.clientWidth, place.querySelector('.main-svg').clientWidth])"
    )
    assert len(widths) == 2
    assert all(place == drawn > 200 for place, drawn in widths), widths


def test_a_link_into_a_fold_opens_it(browser, tmp_path):
    page = open_page(browser, tmp_path, 3, DESK)
    page.run("location.hash = 'deep'")
    assert page.run("document.getElementById('deep').closest('details').open")
