"""Queries over run folders: what the tables hold, what is refused, what a damaged file does."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from orchestration.core.errors import InputError
from orchestration.results import tables
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.sql import Runs, sql, table
from orchestration.results.sql.output import first_rows, write_result
from orchestration.results.tables import TABLES, write_table


@pytest.fixture(scope="module")
def two(campaign):
    """Return the query of both tuners' p99 slowdowns."""
    return Runs(campaign)


@pytest.fixture
def copy(campaign, tmp_path):
    """Return one trial's folder, to be damaged."""
    source = finished_trials(campaign)[0]
    return shutil.copytree(source, tmp_path / "first-light" / source.name)


@pytest.mark.slow
def test_every_table_has_the_rows_of_all_trials(campaign, two):
    for name in TABLES:
        expected = sum(
            len(next(iter(read_trial(folder).table(name).values())))
            for folder in finished_trials(campaign)
        )
        assert len(two.table(name).fetchall()) == expected, name


def test_rows_say_whose_they_are(campaign, two):
    folder = finished_trials(campaign)[3]
    found = two.sql(
        f"select * from flows where trial = '{folder.name}' and run = '{campaign}' order by flow_id"
    ).fetchnumpy()
    expected = read_trial(folder).table("flows")
    assert set(found["campaign"]) == {"first-light"}
    assert np.array_equal(found["ideal_ns"], expected["ideal_ns"])
    fct = np.ma.filled(found["fct_ns"], -1)
    assert np.array_equal(fct, expected["fct_ns"])


def test_the_example_of_the_documentation(two):
    rows = two.sql(
        "select class, quantile_cont(fct_ns / ideal_ns, 0.99) as p99 "
        "from flows join schedule using (run, trial, flow_id) where status = 'done' group by class"
    ).fetchall()
    assert [name for name, _ in rows] == ["poisson"]
    assert rows[0][1] > 1


def test_trials_have_the_spec_and_the_verdict(campaign, two):
    rows = two.sql("select trial, tuner, valid, reasons, cell.load, seed from trials").fetchall()
    for trial, tuner, valid, reasons, load, seed in rows:
        result = read_trial(campaign / trial)
        assert (tuner, valid, seed) == (
            result.spec.tuner.name,
            result.stamp.valid,
            result.spec.seed,
        )
        assert reasons == [reason.code for reason in result.stamp.reasons]
        assert load == result.spec.cell["load"]
    assert two.sql("select count(*) from trials where not valid").fetchall() == [(1,)]
    assert ("flows-failed",) in two.sql(
        "select code from reasons where severity = 'invalid'"
    ).fetchall()
    assert two.sql("select distinct facts->>'clock' from trials").fetchall() == [("virtual",)]
    assert two.sql("select count(*) from trials where arm = tuner").fetchall() == [(len(rows),)]


def test_an_arm_is_a_level_of_what_the_campaign_compares(copy):
    (copy.parent / "campaign.yml").write_text("factors: {load: [0.6]}\ncompare: load\n")
    ((arm, load),) = table(copy, "trials").project("arm, cell.load").fetchall()
    assert (arm, load) == ("0.6", 0.6)


def test_a_number_that_there_is_not_is_null(copy):
    ports = read_trial(copy).table("ports")
    codes = {}
    for name in ("device", "port"):
        names, place = np.unique(ports[name].astype(str), return_inverse=True)
        codes[name] = tables.Names(place.astype(np.int32), tuple(names))
    gone = ports["qlen_bytes"].copy()
    gone[::2] = -1
    write_table(copy / "ports.parquet", "ports", {**ports, **codes, "qlen_bytes": gone})
    found = sql(copy, "select count(*), count(qlen_bytes), min(qlen_bytes) >= 0 from ports")
    assert found.fetchall() == [(len(gone), len(gone) - len(gone[::2]), True)]


def test_tables_of_an_older_version_are_read_beside_the_others(campaign, copy, monkeypatch):
    older = dataclasses.replace(TABLES["hosts"], version=2)
    lacking = {"received_packets", "out_of_order_packets"}
    columns = {key: kind for key, kind in older.columns.items() if key not in lacking}
    hosts = read_trial(copy).table("hosts")
    names, place = np.unique(hosts["host"].astype(str), return_inverse=True)
    codes = tables.Names(place.astype(np.int32), tuple(names))
    with monkeypatch.context() as past:
        past.setitem(TABLES, "hosts", dataclasses.replace(older, columns=columns))
        write_table(copy / "hosts.parquet", "hosts", {**hosts, "host": codes})
    counted = "select count(*), count(received_packets), count(retransmits) from hosts"
    rows = len(hosts["t_ns"])
    assert sql(copy, counted).fetchall() == [(rows, 0, rows)]
    one = finished_trials(campaign)[1]
    shutil.copytree(one, copy.parent / one.name)
    both = sql(copy.parent, "select trial, count(*), count(cnps) from hosts group by all")
    assert {row[0] for row in both.fetchall()} == {copy.name, one.name}


def test_a_table_of_a_newer_version_is_refused_by_name(copy, monkeypatch):
    newer = dataclasses.replace(TABLES["events"], version=9)
    with monkeypatch.context() as future:
        future.setitem(TABLES, "events", newer)
        columns = {"t_ns": [5], "kind": ["new"], "detail": [""]}
        write_table(copy / "events.parquet", "events", columns)
    with pytest.raises(InputError, match=r"events\.parquet: has version 9"):
        sql(copy, "select * from events")
    assert len(table(copy, "trials").fetchall()) == 1  # files that no query names are left alone


@pytest.mark.parametrize("name", ["flows", "ports"])
def test_damaged_and_missing_files_are_named(copy, name):
    path = copy / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"{name}\.parquet: cannot be read as Parquet") as damaged:
        table(copy, name)
    assert "restore it from a copy" in str(damaged.value)
    path.unlink()
    with pytest.raises(InputError, match=rf"{name}\.parquet: the file is missing"):
        table(copy, name)


def test_a_damaged_trial_is_named(copy):
    (copy / "trial.json").write_text('{"format": 1')
    with pytest.raises(InputError, match=r"trial\.json: is damaged"):
        Runs(copy)


def test_runs_are_found_below_any_folder_each_once(campaign, copy, tmp_path):
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(copy, tmp_path / ".hidden" / "x")
    runs = Runs(tmp_path, copy, copy.parent, campaign)
    count = runs.sql("select count(*), count(distinct run) from trials").fetchall()
    assert count == [(len(finished_trials(campaign)) + 1, 2)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no finished trial"):
        Runs(tmp_path / "empty")
    with pytest.raises(InputError, match="is not a folder"):
        Runs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("query", "message", "remedy"),
    [
        ("select * from flowz", "flowz does not exist", "there are trials, reasons"),
        ("select nope from flows", '"nope" not found', "describe flows"),
        ("selec 1", 'syntax error at or near "selec"', "docs/sql.md"),
        ("", "has 0 statements", "give one"),
        ("select 1; select 2", "has 2 statements", "give one"),
        ("drop view flows", "run folders are only read", "begin it with select"),
        ("with a as (select 1) insert into trials select * from trials", "INSERT", "begin it"),
        ("set memory_limit = '1GB'", "run folders are only read", "begin it with"),
        ("select * from read_text('/etc/hostname')", "Permission Error", "only the run folders"),
        ("select * from '/etc/hostname'", "does not exist", "there are trials"),
        ("select * from hidden_frame", "does not exist", "there are trials"),
        ("select error('x') from flows", "x", "docs/sql.md"),
    ],
)
def test_what_cannot_be_asked_is_said_once(two, query, message, remedy):
    hidden_frame = {"a": np.arange(3)}
    with pytest.raises(InputError) as refused:
        first_rows(two.sql(query), 10)
    assert message in str(refused.value)
    assert remedy in refused.value.problems[0].remedy
    assert len(hidden_frame["a"]) == 3


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1 as x) to '{file}' (format parquet)",
        "explain analyze copy (select 1 as x) to '{file}' (format parquet)",
        "/* select */ -- select\n copy (from flows limit 0) to '{file}' (format parquet)",
    ],
)
def test_no_query_changes_a_file(copy, query):
    path = copy / "flows.parquet"
    before = hashlib.sha256(path.read_bytes()).digest()
    runs = Runs(copy)
    runs.table("flows").fetchall()
    with pytest.raises(InputError, match="run folders are only read"):
        runs.sql(query.format(file=path))
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_other_ways_to_ask(two):
    names = {row[0] for row in two.sql("show tables").fetchall()}
    assert names == {"trials", "reasons", *TABLES}
    assert two.sql("describe flows").fetchall()[0][:2] == ("run", "VARCHAR")
    assert two.sql("pivot trials on tuner using count(*)").fetchall()
    assert two.sql("explain select * from flows").fetchall()


@pytest.mark.slow
def test_data_frames_in_one_line(campaign, two):
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    rows = len(two.table("flows").fetchall())
    assert isinstance(frame := table(campaign, "flows").pl(), polars.DataFrame)
    assert frame.height == rows
    assert isinstance(frame := table([campaign], "flows").df(), pandas.DataFrame)
    assert len(frame) == rows


def test_json_has_objects_where_the_table_has_json(two, tmp_path):
    path = tmp_path / "x.json"
    query = "select trial, traffic, null as nothing, 'nan'::double as nan from trials limit 2"
    assert write_result(two.sql(query), path, "json") == 2
    first = json.loads(path.read_text())[0]
    assert first["traffic"][0]["workload"] == "WebSearch"
    assert (first["nothing"], first["nan"]) == (None, None)


INTERRUPTED = """
import os, signal, sys, threading, time
from orchestration.results.sql import Runs
from orchestration.results.sql.database import interruptible
runs = Runs(sys.argv[1])
query = "select sum(x * 7 % 5) from range(1000000000) as a(x) where sqrt(x) % 3 < 0.1"
relation = runs.sql(query)
# To the process: the kernel hands it to the main thread, as it does with a terminal's Ctrl-C.
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
begin_s = time.monotonic()
try:
    interruptible(runs, relation.fetchall)
except KeyboardInterrupt:
    print("stopped", time.monotonic() - begin_s < 60)
print(runs.sql("select count(*) from trials").fetchall())
"""


@pytest.mark.slow
def test_ctrl_c_stops_a_long_query(campaign):
    # In a program of its own: where pandas is loaded, DuckDB lets nothing else run meanwhile.
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(campaign)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["stopped True", "[(10,)]"], done.stderr
