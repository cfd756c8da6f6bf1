"""The index over several runs: what each asks, its trials, its headline, its stamp, its report."""

import dataclasses
import json
import math
import os
import re
import shutil

import pytest

from orchestration.analysis.index import History, entry_of, unread_entry
from orchestration.analysis.summary import summarise
from orchestration.core.errors import InputError
from orchestration.run.folder import read_history

AT = "2026-11-24T02:50:00.000+00:00"


@pytest.fixture
def runs(campaign, tmp_path):
    """Two campaigns, one with a factor's name of its own, and one of which nothing finished."""
    home = tmp_path / "runs"
    for name in ("first-light", "second"):
        shutil.copytree(campaign, home / name)
        (home / name / "report.html").unlink(missing_ok=True)
    events = [
        {"event": "run-started", "trials": 4, "finished": 0, "jobs": 1},
        {"event": "trial-started", "trial": "a-r1"},
        {"event": "trial-failed", "trial": "a-r1", "message": "the guest <died>"},
        {"event": "trial-started", "trial": "b-r1"},
        {"event": "trial-failed", "trial": "b-r1", "message": "short of memory"},
        {"event": "run-interrupted", "signal": "SIGINT"},
        {"event": "run-started", "trials": 4, "finished": 0, "jobs": 1},
        {"event": "trial-started", "trial": "b-r1"},
    ]
    (home / "dead").mkdir()
    lines = "".join(json.dumps({"at": AT, **event}) + "\n" for event in events)
    (home / "dead" / "journal.jsonl").write_text(lines + '{"at": "cut off')
    return home


@pytest.fixture
def run(run_report):
    return run_report


@pytest.mark.slow
def test_a_folder_of_runs_gets_a_page_with_links_to_reports(run, runs):
    result = run(runs)
    assert result.exit_code == 0, result.output
    page = (runs / "index.html").read_text()
    links = re.findall(r'<a href="([^"]+report\.html)">', page)
    assert links == ["first-light/report.html", "second/report.html"]
    assert all((runs / link).is_file() for link in links)
    assert "secn2 against secn1, 4 pairs: mean slowdown" in page
    assert "the guest &lt;died&gt;" in page
    assert "plotly" not in page
    assert ": compares " in result.stdout
    assert result.stdout.startswith("runs: 3 runs, 20 trials done, 2 invalid, 1 failed, 3 not run.")


@pytest.mark.slow
def test_the_data_beside_it_has_what_the_page_says(run, runs):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    run(runs)
    text = (runs / "index.json").read_text()
    data = json.loads(text, parse_constant=refuse)
    dead, first, _ = data["runs"]
    assert data["format"] == 1
    assert (dead["planned"], dead["finished"], dead["missing"]) == (4, 0, 3)
    assert dead["failed"] == {"a-r1": "the guest <died>"}
    assert dead["report"] == ""
    assert (first["finished"], first["invalid"], first["missing"]) == (10, 1, 0)
    assert first["arms"] == ["secn1", "secn2"]
    assert first["asks"] == {"load": ["0.6"]}
    assert (first["testbeds"], first["backends"], first["kernels"]) == (
        ["graphcc"],
        ["fluid"],
        ["7.3.0"],
    )
    found = first["headlines"][0]
    assert found["metric"] == "slowdown_mean_all"
    assert (first["compare"], first["judge"]) == ("tuner", ["slowdown_mean_all"])
    assert found["difference"]["low"] < found["difference"]["mean"] < found["difference"]["high"]
    assert first["report"] == "first-light/report.html"
    assert json.loads(run(runs, "--json", "--no-html").stdout) == data


@pytest.mark.slow
def test_several_runs_are_named_and_the_page_goes_where_it_is_told(run, runs, tmp_path):
    both = (runs / "first-light", runs / "second")
    assert run(*both, "--no-html").exit_code == 0
    assert not (runs / "index.html").exists()
    assert not (runs / "second" / "report.html").exists()
    assert run(*both, "-o", tmp_path).exit_code == 0
    page = (tmp_path / "index.html").read_text()
    assert 'href="runs/second/report.html"' in page
    assert "dead" not in page
    assert run(*both).exit_code == 0
    assert (runs / "index.html").exists()
    assert run(runs / "first-light", runs / "first-light", "--no-html").stdout.startswith(
        "first-light · graphcc on fluid"
    )


@pytest.mark.slow
def test_reports_are_made_where_they_are_missing_or_old_only(run, runs):
    kept, old = (runs / name / "report.html" for name in ("first-light", "second"))
    for page in (kept, old):
        page.write_text("by hand")
    os.utime(old, (0, 0))
    run(runs)
    assert kept.read_text() == "by hand"
    assert old.read_text() != "by hand"


@pytest.mark.slow
def test_one_run_and_all_of_them_together_are_reports_as_before(run, runs):
    alone = run(runs / "first-light")
    assert alone.stdout.startswith("first-light · graphcc on fluid")
    assert not (runs / "index.html").exists()
    whole = run(runs, "--together", "--no-html")
    assert whole.stdout.startswith("runs · graphcc on fluid")
    assert "18 of 20 trials valid" in whole.stdout


def test_what_does_not_go_together_is_refused(run, runs):
    for arguments in (
        (runs, "--pdf"),
        (runs, "--csv", runs / "figures"),
        (runs / "first-light", "-o", runs),
        (runs, runs / "second", "--together"),
        (runs / "second", runs / "nowhere"),
    ):
        assert isinstance(run(*arguments).exception, InputError), arguments


@pytest.mark.slow
def test_a_damaged_run_does_not_keep_others_out(run, runs):
    trial = next(path for path in (runs / "second").iterdir() if path.is_dir())
    (trial / "trial.json").write_text("{}")
    result = run(runs)
    assert result.exit_code == 0, result.output
    first, second = json.loads((runs / "index.json").read_text())["runs"][1:]
    assert first["finished"] == 10
    assert "is not the trial.json" in second["problem"]


def test_failed_trials_that_were_run_again_are_no_longer_failed(runs):
    history = read_history(runs / "dead")
    assert history.failed == {"a-r1": "the guest <died>"}
    assert history.planned == 4
    assert history.state == ""
    assert read_history(runs / "nowhere") == History()


def test_an_entry_in_words(summary, tmp_path):
    entry = entry_of(tmp_path, summary, History(planned=12, failed={"x-r1": "died"}))
    assert entry.trials == "10 of 12 done, 1 invalid, 1 failed, 1 not run"
    assert entry.question == "secn1, secn2; by load (0.6); 5 repeats"
    assert not entry.sound
    assert any("invalid in " in said for said in entry.warnings)
    assert dataclasses.replace(entry, planned=10, failed={}, invalid=0).sound
    ranks = [headline.comparison.real for headline in entry.shown]
    assert ranks == sorted(ranks, reverse=True)
    nothing = unread_entry(tmp_path, "holds no finished trial", History())
    assert (nothing.when, nothing.trials) == ("", "0 done")
    assert math.isnan(nothing.wall_s)


def test_a_run_may_compare_another_factor_than_its_tuners(campaign, tmp_path):
    summary = summarise(campaign, compare="load", judge=["fct_p99"])
    entry = entry_of(tmp_path, summary, History())
    assert entry.question == "load: 0.6; by tuner (secn1, secn2); 5 repeats"
    assert [said.partition(": ")[::2][1].partition(" FCT")[0] for said in entry.alone] == [
        "0.6: p99",
        "0.6: p99",
    ]
    assert entry.to_json("")["compare"] == "load"
