"""A run folder that was pushed comes back from the database as it was, or is said not to."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from collectors.sinks.influx import InfluxConnection, Server
from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.cli.main import app
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.core.ports import TrialRun
from orchestration.results.reader import read_trial
from orchestration.results.tables import TABLES
from orchestration.results.writer import write_trial
from orchestration.run.launcher import run_campaign
from orchestration.telemetry.pull import pull, rows_of
from orchestration.telemetry.sender import push
from orchestration.telemetry.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from influx_by_the_book import ByTheBook
from telemetry_store import Store

TOKEN = "t0k3n-of-mine"
CAMPAIGN = """\
campaign: {name}
testbed: graphcc
backend: fluid
tuners: [amt]
traffic:
  - {{kind: poisson, workload: WebSearch, load: 0.3}}
  - {{kind: incast, fan_in: 3, size: 64KB, period: 500us}}
faults:
  - {{share: 0.5, down: 300us, up: 600us, convergence: 100us}}
repeats: 2
duration: 1ms
"""


@pytest.fixture
def book():
    made = ByTheBook(Store(), TOKEN)
    yield made
    made.close()


@pytest.fixture
def server(book):
    """Return InfluxDB 2 itself where CLOSLOOP_INFLUX_URL is set, else one by the documentation."""
    if os.environ.get("CLOSLOOP_INFLUX_URL"):
        from orchestration.telemetry.settings import load_settings

        return load_settings().server
    return Server(book.url, "lab", "runs", TOKEN)


@pytest.fixture
def campaign(tmp_path):
    """Return the folder of a campaign of two trials that was run."""
    name = f"pulled-{os.getpid()}-{tmp_path.name.replace('_', '-')}"
    file = tmp_path / "campaign.yml"
    file.write_text(CAMPAIGN.format(name=name))
    run_campaign(load_campaign(file), FluidBackend(), tmp_path / "runs", 1, Silent())
    return tmp_path / "runs" / name


class Silent:
    def __getattr__(self, name):
        return lambda *words: None


def same(one: Path, other: Path) -> None:
    """Assert that two trial folders hold the same, table by table and file by file."""
    assert sorted(path.name for path in one.iterdir()) == sorted(p.name for p in other.iterdir())
    for name in ("trial.json", "testbed.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    ours, theirs = read_trial(one), read_trial(other)
    for name in TABLES:
        left, right = ours.table(name), theirs.table(name)
        assert list(left) == list(right)
        for column in left:
            assert left[column].dtype == right[column].dtype
            assert np.array_equal(left[column], right[column]), (name, column)


def quiet(text, remedy):
    pass


@pytest.mark.slow
def test_what_was_pushed_is_pulled_as_it_was(campaign, server, tmp_path):
    pushed = push([campaign], Settings(server, 10**8), say=quiet)
    assert (pushed.trials, pushed.failed) == (2, [])
    pulled = pull(campaign.name, tmp_path / "back", server, say=quiet)
    trials = sorted(path.name for path in campaign.iterdir() if (path / "trial.json").exists())
    assert pulled.rebuilt == trials
    for trial in trials:
        same(campaign / trial, pulled.folder / trial)
        assert len(read_trial(campaign / trial).table("events")["t_ns"]) >= 2
    assert (pulled.folder / "campaign.yml").read_bytes() == (campaign / "campaign.yml").read_bytes()
    again = pull(campaign.name, tmp_path / "back", server, say=quiet)
    assert (again.rebuilt, again.present) == ([], trials)
    # It is a run folder like any other: it can be run on, and has nothing left to do.
    summary = run_campaign(
        load_campaign(campaign / "campaign.yml"), FluidBackend(), tmp_path / "back", 1, Silent()
    )
    assert (summary.skipped, summary.finished) == (2, 0)


@pytest.mark.slow
def test_one_trial_of_a_campaign(campaign, server, tmp_path):
    push([campaign], Settings(server, 10**8), say=quiet)
    trial = min(path.name for path in campaign.iterdir() if (path / "trial.json").exists())
    pulled = pull(campaign.name, tmp_path / "back", server, [trial], say=quiet)
    assert pulled.rebuilt == [trial]
    with pytest.raises(InputError, match="no trial 'nobody'"):
        pull(campaign.name, tmp_path / "back", server, ["nobody"], say=quiet)


def test_a_campaign_that_is_not_there(server, tmp_path):
    with pytest.raises(InputError, match="no campaign 'never-run'"):
        pull("never-run", tmp_path, server, say=quiet)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_last_run_of_a_trial_is_taken(campaign, server, tmp_path):
    push([campaign], Settings(server, 10**8), say=quiet)
    testbed = load_testbed("graphcc")
    spec = load_campaign(campaign / "campaign.yml").trials[0]
    old = read_trial(campaign / spec.id)
    from traffic.schedule import make_schedule

    schedule = make_schedule(spec, testbed)
    work = tmp_path / "work"
    work.mkdir()
    record = FluidBackend().run(TrialRun(spec, testbed, schedule, work))
    verdict = stamp(spec, testbed, schedule, record)
    later = {"wall_s": 7.5, "started_ns": int(old.facts["started_ns"]) + 10**9}
    newer = tmp_path / "newer" / campaign.name / spec.id
    newer.parent.mkdir(parents=True)
    write_trial(newer, spec, testbed, schedule, record, verdict, later)
    push([newer.parent], Settings(server, 10**8), say=quiet)
    pulled = pull(campaign.name, tmp_path / "back", server, [spec.id], say=quiet)
    same(newer, pulled.folder / spec.id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measurement", "words"),
    [
        ("closloop_port", "rows of the table ports are there"),
        ("closloop_event", "rows of the table events are there"),
        ("closloop_file", "parts of its files are there"),
    ],
)
def test_a_trial_that_is_not_whole_is_not_rebuilt(campaign, book, tmp_path, measurement, words):
    server, said = Server(book.url, "lab", "runs", TOKEN), []
    push([campaign], Settings(server, 10**8), say=quiet)
    gone = next(key for key in book.store.points if key[0] == measurement)
    del book.store.points[gone]
    pulled = pull(campaign.name, tmp_path / "back", server, say=said.append)
    assert len(pulled.broken) == 1
    assert len(pulled.rebuilt) == 1
    [problem] = said
    assert words in problem.what
    assert "closloop push --again" in problem.remedy
    assert sorted(path.name for path in pulled.folder.iterdir()) == sorted(
        [*pulled.rebuilt, "campaign.yml", "journal.jsonl"]
    )


@pytest.mark.slow
def test_a_changed_file_is_found_by_its_digest(campaign, book, tmp_path):
    server, said = Server(book.url, "lab", "runs", TOKEN), []
    push([campaign], Settings(server, 10**8), say=quiet)
    key = next(
        key for key in book.store.points
        if key[0] == "closloop_file" and ("file", "trial.json") in key[1]
    )  # fmt: skip
    fields = book.store.points[key]
    fields["text"] = fields["text"].replace("fluid", "real")
    pull(campaign.name, tmp_path / "back", server, say=said.append)
    assert "trial.json differs from what was sent" in said[0].what


@pytest.mark.slow
def test_an_error_in_the_midst_of_an_answer_is_no_answer(campaign, book, tmp_path):
    server = Server(book.url, "lab", "runs", TOKEN)
    push([campaign], Settings(server, 10**8), say=quiet)
    told = (
        "#datatype,string,string\r\n#group,true,true\r\n#default,,\r\n,error,reference\r\n"
        ",Failed to read: the disk is gone,897\r\n"
    )
    book.spoil = lambda text: text + told
    with pytest.raises(TrialError, match="the disk is gone"):
        pull(campaign.name, tmp_path / "back", server, say=quiet)


def test_a_wrong_token_is_said(book, tmp_path):
    with pytest.raises(NotReadyError) as caught:
        pull("any", tmp_path, Server(book.url, "lab", "runs", "wrong"), say=quiet)
    assert "does not accept the token (401" in caught.value.message
    assert "wrong" not in str(caught.value)


# As InfluxDB's documentation shows it: two tables, the second without annotations of its own.
RECORDED = (
    "#datatype,string,long,dateTime:RFC3339,long,string\r\n"
    "#group,false,false,false,false,true\r\n"
    "#default,_result,,,,\r\n"
    ",result,table,_time,qlen_bytes,device\r\n"
    ",,0,2026-11-21T18:54:12.4Z,5,leaf1\r\n"
    ",,0,2026-11-21T18:54:12.400000001Z,,leaf1\r\n"
    "\r\n"
    ",result,table,_time,device,qlen_bytes\r\n"
    ',,1,2026-11-21T18:54:13Z,"a ""b"", c",7\r\n'
)


def test_annotated_csv_of_several_tables(book):
    book.answer = lambda flux: RECORDED
    connection = InfluxConnection(Server(book.url, "lab", "runs", TOKEN))
    rows = list(rows_of(connection.query("from ...")))
    connection.close()
    assert [(row["device"], row["qlen_bytes"], row["_time"][17:]) for row in rows] == [
        ("leaf1", "5", "12.4Z"),
        ("leaf1", "", "12.400000001Z"),
        ('a "b", c', "7", "13Z"),
    ]


@pytest.mark.slow
def test_the_verbs(campaign, book, tmp_path, monkeypatch):
    values = {"URL": book.url, "ORG": "lab", "BUCKET": "runs", "TOKEN": TOKEN}
    for name, value in values.items():
        monkeypatch.setenv(f"CLOSLOOP_INFLUX_{name}", value)
    run = CliRunner().invoke
    pushed = run(app, ["push", str(campaign), "--json"])
    assert pushed.exit_code == 0, pushed.output
    sent = json.loads(pushed.stdout)
    assert (sent["trials"], sent["failed"]) == (2, [])
    assert sent["points"] == len(book.store.points)
    pulled = run(app, ["pull", campaign.name, "-o", str(tmp_path / "back"), "--json"])
    assert pulled.exit_code == 0, pulled.output
    back = json.loads(pulled.stdout)
    assert len(back["rebuilt"]) == 2
    told = run(app, ["exporter", back["folder"], "--once"])
    assert told.exit_code == 0
    assert told.stdout.count("closloop_trial_valid{") == 2
    missing = next(key for key in book.store.points if key[0] == "closloop_host")
    del book.store.points[missing]
    broken = run(app, ["pull", campaign.name, "-o", str(tmp_path / "other"), "--json"])
    assert broken.exit_code == 1
    assert "rows of the table hosts are there" in broken.stderr
