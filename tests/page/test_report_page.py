"""The report's page in a browser: drawn, quiet, within the screen, readable, reached by keys."""

import base64
import csv
import io
import json
import subprocess
import sys
import time
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
import pytest

from orchestration.analysis.metrics import METRICS
from orchestration.analysis.summary import summarise
from orchestration.render.numbers import with_error

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PHONES, DESK = (360, 390), 1440


@pytest.fixture(params=[*PHONES, DESK], scope="module")
def page(request, browser, folder):
    """The page on a phone and on a desk, read from top to bottom."""
    browser.open(folder / "report.html", request.param)
    browser.read()
    return browser


@pytest.fixture(scope="module")
def found(folder):
    return summarise(folder)


def columns(browser, name):
    """Return a picture's CSV file, as its link has it: column -> texts."""
    address = browser.run(f"document.querySelector('a[download=\"{name}\"]').href")
    head, _, text = address.partition(",")
    assert head == "data:text/csv;charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(unquote(text))))
    return {key: [row[key] for row in rows] for key in rows[0]}


def test_it_is_quiet_asks_for_nothing_and_draws_every_picture(page, folder):
    assert page.complaints == []
    assert page.requests == [(folder / "report.html").as_uri()]
    assert page.run("document.querySelectorAll('.picture').length") > 30
    assert page.undrawn == []


def test_nothing_is_cut_off_wider_than_the_screen_or_on_top_of_another(page):
    assert page.misplaced == []


def test_all_text_has_contrast(page):
    got = page.contrasts
    assert got["seen"] > 1_000
    assert got["found"] == []


def test_every_picture_says_what_it_shows_and_has_its_data(page):
    bare = """[...document.querySelectorAll("figure")].filter((figure) => {
      const link = figure.querySelector("figcaption a[download]");
      const said = figure.querySelector("figcaption").textContent;
      return !/\\d/.test(said) || !link || !figure.querySelector("h4").textContent;
    }).length"""
    assert page.run(bare) == 0
    names = "[...document.querySelectorAll('a[download]')].map((link) => link.download)"
    assert len(set(page.run(names))) == len(page.run(names))


def test_keys_reach_everything_and_walk_over_a_pictures_points(browser, folder):
    browser.open(folder / "report.html", DESK)
    browser.unfold()
    stops = browser.run("document.querySelectorAll('a[href], .picture, .scroll, summary').length")
    reached = []
    for _ in range(stops):
        browser.press("Tab", 9)
        at = "document.activeElement"
        reached.append(browser.run(f"{at}.className || {at}.getAttribute('href') || {at}.tagName"))
    assert reached[:2] == ["skip", "scroll"]
    assert reached[2].startswith("#condition")
    assert reached.count("SUMMARY") == browser.run("document.querySelectorAll('details').length")
    pictures = browser.run("document.querySelectorAll('.picture').length")
    assert sum("picture" in stop for stop in reached) == pictures
    assert reached.count("csv") == pictures
    assert reached.count("scroll") == browser.run("document.querySelectorAll('table').length")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) == "solid"


@pytest.mark.parametrize("kind", ["slowdown-by-size-p99", "fabric-over-time", "queue-leaf"])
def test_arrow_keys_tell_the_points_of_a_picture(browser, folder, kind):
    browser.open(folder / "report.html", DESK)
    browser.unfold()
    place = (
        f"document.querySelector('a[download*=\"{kind}\"]').closest('figure')"
        ".querySelector('.picture')"
    )
    browser.run(f"{place}.focus()")
    told = []
    for key, code in (("ArrowRight", 39), ("ArrowRight", 39), ("ArrowRight", 39)):
        browser.press(key, code)
        browser.run("new Promise((done) => setTimeout(done, 150))")
        told.append(browser.run("document.getElementById('told').textContent"))
    assert all(any(digit.isdigit() for digit in text) for text in told)
    assert len(set(told)) == 3
    assert browser.run(f"{place}.querySelectorAll('.hovertext').length") >= 1
    browser.press("Escape", 27)
    assert browser.run("document.getElementById('told').textContent") == ""
    assert browser.complaints == []


def test_pictures_are_drawn_of_the_numbers_that_tables_and_trials_have(browser, folder, found):
    browser.open(folder / "report.html", DESK)
    browser.read()
    for condition in found.conditions:
        prefix = condition.label.replace(" ", "-") + "-"
        data = columns(browser, f"{prefix}repeats-fct_mean_ns_all.csv")
        for arm in condition.arms:
            rows = [at for at, tuner in enumerate(data["arm"]) if tuner == arm.name]
            for at in rows:
                mean = arm.estimates["fct_mean_ns_all"].mean
                assert float(data["mean"][at]) == pytest.approx(mean)
            cell = with_error(arm.estimates["fct_mean_ns_all"], METRICS["fct_mean_ns_all"].unit)
            assert browser.run(f"document.body.innerHTML.includes({json.dumps(cell)})")
            for at, trial in zip(rows, arm.trials, strict=True):
                flows = pq.read_table(trial.folder / "flows.parquet")
                fct = np.array(flows["fct_ns"], dtype=float)
                assert float(data["fct_mean_ns_all"][at]) == pytest.approx(np.nanmean(fct))


def test_a_timeline_is_its_ports_samples(browser, folder, found):
    browser.open(folder / "report.html", DESK)
    browser.read()
    link = "document.querySelector('a[download*=\"queue-leaf\"]')"
    name = browser.run(f"{link}.download")
    data = columns(browser, name)
    device, port = name.removesuffix(".csv").split("queue-")[1].split("-")
    condition = next(c for c in found.conditions if name.startswith(c.label.replace(" ", "-")))
    drawn = browser.run(
        f"{link}.closest('figure').querySelector('.picture').calcdata.map("
        "(points) => points.map((point) => point.y))"
    )
    for arm in condition.arms:
        (trial,) = [trial for trial in arm.valid if trial.spec.repeat == 1]
        table = pq.read_table(trial.folder / "ports.parquet").to_pylist()
        samples = [
            row["qlen_bytes"]
            for row in table
            if row["device"] == device
            and row["port"] == port
            and row["t_ns"] <= trial.spec.duration_ns
        ]
        rows = [at for at, tuner in enumerate(data["arm"]) if tuner == arm.name]
        assert [int(data["qlen_bytes"][at]) for at in rows] == samples
        assert samples in drawn


def test_a_picture_s_data_is_saved_offline(browser, folder, tmp_path):
    browser.open(folder / "report.html", DESK)
    browser("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    link = "document.querySelector('a[download]')"
    name, address = browser.run(f"[{link}.download, {link}.href]")
    browser.run(f"{link}.click()")
    deadline = time.monotonic() + 60
    while not (tmp_path / name).is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / name).read_text() == unquote(address.partition(",")[2])


def test_all_of_it_is_printed(browser, folder):
    browser.open(folder / "report.html", DESK)
    printed = base64.b64decode(browser("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF-")
    assert printed.count(b"/Type /Page\n") > 5
    assert browser.run("[...document.querySelectorAll('.picture')].every((p) => p.data)")
    assert browser.complaints == []


def test_the_command_prints_a_pdf(folder):
    code = "from orchestration.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "report", str(folder), "--pdf", "--no-html"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = (folder / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert printed.count(b"/Type /Page\n") > 5
