"""The index of runs in a browser: quiet, within the screen, readable, and its links lead on."""

import json
import shutil

import pytest
import typer
from typer.testing import CliRunner

from orchestration.cli.report import report

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """Two runs with their reports, and one of which nothing finished; with their index."""
    home = tmp_path_factory.mktemp("index") / "runs"
    for name in ("page", "page-of-an-experiment-with-a-long-name"):
        shutil.copytree(folder, home / name)
    (home / "dead").mkdir()
    failed = {"event": "trial-failed", "trial": "secn1-r1-0123456789", "message": "no memory"}
    line = json.dumps({"at": "2026-11-24T02:50:00.000+00:00", **failed})
    (home / "dead" / "journal.jsonl").write_text(line + "\n")
    app = typer.Typer()
    app.command()(report)
    assert CliRunner().invoke(app, [str(home)]).exit_code == 0
    return home


@pytest.mark.parametrize("width", [360, 1440])
def test_it_is_quiet_readable_and_within_the_screen(browser, runs, width):
    browser.open(runs / "index.html", width)
    assert browser.complaints == []
    assert browser.requests == [(runs / "index.html").as_uri()]
    assert browser.misplaced == []
    got = browser.contrasts
    assert got["seen"] > 20
    assert got["found"] == []


def test_its_links_lead_to_reports_and_data(browser, runs):
    browser.open(runs / "index.html", 1440)
    links = browser.run("[...document.querySelectorAll('main a')].map((link) => link.href)")
    assert links == [
        (runs / place).as_uri()
        for place in (
            "page/report.html",
            "page-of-an-experiment-with-a-long-name/report.html",
            "index.json",
        )
    ]
    browser.open(runs / "page" / "report.html", 1440)
    assert browser.run("document.querySelector('.kicker').textContent").startswith("page · ")
