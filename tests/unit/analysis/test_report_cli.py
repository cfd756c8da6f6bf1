import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from orchestration.analysis.report.report_page import build_page
from orchestration.analysis.stamp import stamp
from orchestration.analysis.summary import summarise
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.trial import TunerSpec
from orchestration.render.html import replace_file
from orchestration.results.writer import write_trial

EXTERNAL = re.compile(r"<(script|link|img|iframe)[^>]*(src|href)\s*=|@import|url\(\s*.?http")


@pytest.fixture
def folder(campaign, tmp_path):
    return shutil.copytree(campaign, tmp_path / "first-light")


@pytest.fixture
def run(run_report):
    return run_report


@pytest.fixture(scope="module")
def page(summary):
    return build_page(summary)


def text_before_plotly(page):
    """Return the page without plotly.js, whose source has addresses that it never asks for."""
    return re.sub(r"<script>/\*\*.*?</script>\n</head>", "</head>", page, flags=re.DOTALL)


@pytest.mark.slow
def test_the_answer_comes_first_then_the_tables(run, folder):
    first, whole = run(folder, "--no-html"), run(folder, "--no-html", "--full")
    assert first.exit_code == whole.exit_code == 0, first.output
    kicker, answer, *rest = first.stdout.splitlines()
    assert kicker == "first-light · graphcc on fluid · WebSearch 60% · 5 paired repeats"
    assert answer.startswith("secn1 wins: with secn2, mean slowdown ")
    assert "9 of 10 trials valid" in rest[-1]
    assert max(map(len, rest[:-1])) <= 80
    assert whole.stdout.startswith(first.stdout)
    assert "packets marked" not in first.stdout
    assert "--full" in first.stderr
    for said in ("up to 100KB", "10MB and more", "median", "p99", "packets marked", "flows failed"):
        assert said in whole.stdout


@pytest.mark.slow
def test_only_the_page_is_saved_and_only_if_wanted(run, folder):
    before = {path.name for path in folder.iterdir()}
    run(folder, "--no-html")
    assert {path.name for path in folder.iterdir()} == before
    result = run(folder)
    assert {path.name for path in folder.iterdir()} == {*before, "report.html"}
    assert "report.html" in result.stderr


@pytest.mark.slow
def test_json_is_valid_and_has_every_figure(run, folder):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    data = json.loads(run(folder, "--json", "--no-html").stdout, parse_constant=refuse)
    assert list(data)[:2] == ["answer", "format"]
    assert data["format"] == 2
    assert data["answer"]["sentence"].startswith("secn1 wins: with secn2, mean slowdown ")
    (condition,) = data["conditions"]
    assert condition["arms"][1]["estimates"]["slowdown_p99_all"]["n"] == 4
    assert condition["comparisons"][0]["verdict"]
    assert [trial["stamp"]["valid"] for trial in data["trials"]].count(False) == 1


def test_a_bad_folder_is_the_users_error(run, tmp_path):
    result = run(tmp_path / "nowhere")
    assert isinstance(result.exception, InputError)
    assert not (tmp_path / "nowhere").exists()


def test_the_page_opens_offline_and_is_small_enough_to_mail(page):
    assert len(page.encode()) < 3_000_000
    assert page.count("plotly.js (cartesian - minified) v") == 1
    assert not EXTERNAL.search(text_before_plotly(page))
    assert "default-src 'none'" in page


def test_the_page_starts_with_the_answer_and_shows_the_invalid_trial(page):
    body = page[page.index("<body>") :]
    places = [
        body.index(said)
        for said in (
            '<h1 class="headline">secn1 wins: with secn2, mean slowdown',
            "9 of 10</b> trials valid",
            "What explains it",
            "All metrics, with tests",
            "Flows by size",
            "Queues, buffers and links",
            "Marking and utilisation",
            "Can it be trusted?",
            "1 of 10 trials is invalid",
            "Software and settings",
        )
    ]
    assert places == sorted(places)
    assert "flows failed</span>" in body
    assert body.count("<figure>") == body.count('<div id="picture-') == body.count("<figcaption id")


@pytest.mark.slow
def test_the_same_folder_gives_the_same_page_soon(campaign, page):
    begin_s = time.process_time()  # of this process, however many others there are
    again = build_page(summarise(campaign))
    assert time.process_time() - begin_s < 10
    assert again == page


def test_names_cannot_break_out_of_the_page(summary):
    named = dataclasses.replace(summary, campaign="</title><script>alert(1)</script>")
    assert "<script>alert" not in build_page(named)


def test_a_page_that_cannot_be_written_leaves_the_old_one(summary, tmp_path):
    target = tmp_path / "report.html"
    target.mkdir()
    with pytest.raises(NotReadyError, match="cannot be written"):
        replace_file(target, build_page(summary))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_campaign_without_valid_trials_still_has_a_page(tmp_path, cases):
    case = cases("secn1", 1, 1_000_000)
    case.record.flows.status[0] = 2
    verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
    write_trial(
        tmp_path / "x" / case.trial.id,
        case.trial,
        case.testbed,
        case.schedule,
        case.record,
        verdict,
        {"red": {"law": "2p/(1+p)", "largest_distance": 0.005}},
    )
    page = build_page(summarise(tmp_path / "x"))
    assert "No trial is valid here" in page
    assert "flows failed" in page


@pytest.mark.slow
def test_conditions_tuners_and_a_single_repeat_have_their_place(tmp_path, cases):
    static = TunerSpec("static", {"kmin_bytes": 5_000, "kmax_bytes": 200_000})
    for load in (0.3, 0.6):
        for tuner in (TunerSpec("secn1"), TunerSpec("secn2"), static):
            other = "secn2" if tuner.name == "secn2" else "secn1"
            case = cases(other, 1, 1_000_000, load)
            trial = dataclasses.replace(case.trial, tuner=tuner)
            verdict = stamp(trial, case.testbed, case.schedule, case.record)
            folder = tmp_path / "x" / trial.id
            write_trial(folder, trial, case.testbed, case.schedule, case.record, verdict, {})
    page = build_page(summarise(tmp_path / "x"))
    assert "<h2>load 0.3</h2>" in page
    assert "<h2>load 0.6</h2>" in page
    assert "Not tested in any of 2 conditions; judged by mean slowdown." in page
    assert "Differences of each arm from secn1, paired by seed (1 pair)." in page
    assert "not tested: one pair only" in page
    assert "identical in every pair" in page


def test_the_marking_probability_is_shown_if_the_backend_gives_it(summary):
    facts = {"red": {"law": "2p/(1+p) < asked"}}
    (condition,) = summary.conditions
    arms = tuple(
        dataclasses.replace(
            arm, valid=tuple(dataclasses.replace(trial, facts=facts) for trial in arm.valid)
        )
        for arm in condition.arms
    )
    told = dataclasses.replace(summary, conditions=(dataclasses.replace(condition, arms=arms),))
    assert "Marking probability: law: 2p/(1+p) &lt; asked" in build_page(told)


def test_the_verb_imports_nothing_heavy():
    code = (
        "import sys, orchestration.cli.report;"
        "heavy = {'numpy', 'pyarrow', 'plotly', 'scipy'} & set(sys.modules);"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
